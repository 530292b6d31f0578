// Texts through a model that `edgepeft merge` wrote: node classify.mjs FOLDER TEXT...
// Prints one JSON line for each text. In a browser, onnxruntime-web has the same interface.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import ort from "onnxruntime-node";

const [folder, ...texts] = process.argv.slice(2);
if (!folder || texts.length === 0) {
  console.error("usage: node classify.mjs FOLDER TEXT...");
  process.exit(2);
}
const read = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));
const [config, settings] = [read("config.json"), read("tokenizer_config.json")];
const tokenizer = new Tokenizer(read("tokenizer.json"), settings);
const session = await ort.InferenceSession.create(join(folder, "model.onnx"));

const softmax = (logits) => {
  const powers = logits.map((logit) => Math.exp(logit - Math.max(...logits)));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
};

for (const text of texts) {
  const encoded = tokenizer.encode(text);
  let ids = encoded.ids.filter((_, i) => encoded.attention_mask[i]); // some tokenizers pad
  const longest = settings.model_max_length;
  if (ids.length > longest) ids = [...ids.slice(0, longest - 1), ids.at(-1)]; // the closing token stays
  const tensor = (value) => new ort.Tensor("int64", BigInt64Array.from(ids, (id) => BigInt(value(id))), [1, ids.length]);
  const values = { input_ids: (id) => id, attention_mask: () => 1, token_type_ids: () => 0 };
  const feeds = Object.fromEntries(session.inputNames.map((name) => [name, tensor(values[name])]));
  const logits = Array.from((await session.run(feeds)).logits.data);
  if (config.problem_type === "regression") {
    console.log(JSON.stringify({ text, value: logits[0] }));
  } else {
    const scores = softmax(logits);
    const best = scores.indexOf(Math.max(...scores));
    console.log(JSON.stringify({ text, label: config.id2label[best], score: scores[best] }));
  }
}
