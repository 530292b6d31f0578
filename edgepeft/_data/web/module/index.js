/** The module in Node, and for bundlers: with ONNX Runtime Web and the tokenizer's library as npm installs them. */
import * as ort from "onnxruntime-web";
import { Tokenizer } from "@huggingface/tokenizers";
import { Bundle as AnyBundle } from "./bundle.js";

export { AnyBundle };

export const Bundle = {
  /**
   * @param {string | URL} url
   * @param {Partial<import("./bundle.js").Options>} options
   */
  open: (url, options = {}) => AnyBundle.open(url, { ort, Tokenizer, ...options }),
};
