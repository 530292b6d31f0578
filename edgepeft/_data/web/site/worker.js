/** The model, off the page's thread: answers {id, what, given} with {id, result} or {id, error}. */
import * as ort from "./lib/ort.mjs";
import { Bundle } from "./module/bundle.js";

const MOST_THREADS = 4;

/** @type {import("../module/bundle.js").Bundle} */
let bundle;

/** @type {Record<string, (...given: any[]) => any>} */
const calls = {
  async open() {
    const site = await (await fetch("site.json")).json();
    const Tokenizer = site.libraries["@huggingface/tokenizers"] && (await import("./lib/tokenizers.mjs")).Tokenizer;
    // More than one only with shared memory, which takes the headers that the service worker adds.
    const threads = self.crossOriginIsolated ? Math.min(MOST_THREADS, navigator.hardwareConcurrency) : 1;
    const progress = (/** @type {any[]} */ ...of) => self.postMessage({ progress: of });
    bundle = await Bundle.open(new URL("./", self.location.href), { ort, Tokenizer, wasm: "lib/ort.wasm", threads, progress });
    const { tasks, files, weights, title } = bundle.site;
    return { tasks, title, threads, weights: { name: weights, bytes: files[weights].bytes } };
  },
  predict: (task, rows) => bundle.predict(task, rows),
  verify: (task) => bundle.verify(task),
  async tokens() {
    const { texts, ids, maxLength } = await bundle.files.json("verify.tokens.json");
    const differ = texts.filter((/** @type {any} */ text, /** @type {number} */ i) => {
      const own = bundle.encoder.encode(text, maxLength).row.map((/** @type {any} */ { id }) => id);
      return own.join() !== ids[i].join();
    });
    return { texts: texts.length, differ };
  },
};

self.onmessage = async ({ data: { id, what, given } }) => {
  try {
    self.postMessage({ id, result: await calls[what](...given) });
  } catch (error) {
    self.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
  }
};
