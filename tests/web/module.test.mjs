// What the module does with files, sessions and names; ONNX Runtime is one that counts. Run: node --test tests/web
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { pathToFileURL } from "node:url";
import { changed } from "../../edgepeft/_data/web/module/agreement.js";
import { Bundle } from "../../edgepeft/_data/web/module/bundle.js";
import { Files } from "../../edgepeft/_data/web/module/files.js";
import { readSafetensors } from "../../edgepeft/_data/web/module/safetensors.js";
import { entities, wordsOf } from "../../edgepeft/_data/web/module/words.js";

const TOKENIZER = {
  model: { type: "WordPiece", vocab: { "[UNK]": 0, a: 1, b: 2 }, unk_token: "[UNK]", continuing_subword_prefix: "##" },
  normalizer: { type: "BertNormalizer", clean_text: true, lowercase: true },
  pre_tokenizer: { type: "BertPreTokenizer" },
  post_processor: null,
  added_tokens: [],
};
const TASK = {
  kind: "classification", labels: ["no", "yes"], chosen: {}, step: null, pairs: false, trained: false, outputs: 2,
  maxLength: 8, promptLength: 0, lower: [], values: null, tolerance: { difference: 1e-4, changed: 0 },
};

let folder;
beforeEach(async () => (folder = await mkdtemp(join(tmpdir(), "site-"))));
afterEach(() => rm(folder, { recursive: true }));
const url = () => `${pathToFileURL(folder)}/`;

async function write(files, more) {
  const listed = {};
  for (const [name, content] of Object.entries(files)) {
    await writeFile(join(folder, name), content);
    listed[name] = { sha256: createHash("sha256").update(content).digest("hex"), bytes: content.length };
  }
  await writeFile(join(folder, "site.json"), JSON.stringify({ format: "edgepeft.site/1", files: listed, ...more }));
}

async function site() {
  const graphs = { "one.onnx": "1", "two.onnx": "2", "three.onnx": "3" };
  const tasks = Object.fromEntries(Object.keys(graphs).map((structure) => [structure.slice(0, -5), { ...TASK, structure }]));
  const files = { ...graphs, "tokenizer.json": JSON.stringify(TOKENIZER), "tokenizer_config.json": "{}", "model.safetensors": "w" };
  await write(files, { tasks, weights: "model.safetensors", padTokenId: 0 });
}

function counting() {
  const log = [];
  class Tensor {
    constructor(type, data, dims) {
      Object.assign(this, { type, data, dims });
    }
  }
  const create = async (bytes, { externalData }) => {
    const name = new TextDecoder().decode(bytes);
    log.push(`open ${name} ${externalData[0].path} ${new TextDecoder().decode(externalData[0].data)}`);
    return {
      inputNames: ["input_ids", "attention_mask"],
      run: async ({ input_ids }) => ({ logits: { data: Float32Array.from({ length: 2 * input_ids.dims[0] }, (_, i) => i % 2) } }),
      release: async () => log.push(`close ${name}`),
    };
  };
  return { log, ort: { Tensor, InferenceSession: { create } } };
}

test("a file that was altered, cut or made longer is not read", async () => {
  await write({ "a.bin": "as it was" });
  const files = new Files(url());
  await files.manifest();
  assert.equal(new TextDecoder().decode(await files.read("a.bin")), "as it was");
  for (const content of ["as it wes", "as it wa", "as it was!", ""]) {
    await writeFile(join(folder, "a.bin"), content);
    await assert.rejects(files.read("a.bin"), /a\.bin is not the file that the site was made with/);
  }
  await assert.rejects(files.read("../a.bin"), /lists no file/);
});

test("a manifest of another format is refused", async () => {
  await writeFile(join(folder, "site.json"), JSON.stringify({ format: "edgepeft.site/9" }));
  await assert.rejects(new Files(url()).manifest(), /its format is edgepeft\.site\/9/);
});

test("sessions are opened once, and the one that was used least recently makes room", async () => {
  await site();
  const { log, ort } = counting();
  const bundle = await Bundle.open(url(), { ort, sessions: 2 });
  for (const task of ["one", "two", "one", "three", "one", "two"]) await bundle.predict(task, "a b");
  assert.deepEqual(log.map((line) => line.replace(" model.safetensors w", "")), ["open 1", "open 2", "close 2", "open 3", "close 3", "open 2"]);
});

test("the weights' bytes are let go when every task has its session, and read again for another", async () => {
  await site();
  const { log, ort } = counting();
  const bundle = await Bundle.open(url(), { ort, sessions: 3 });
  for (const [task, kept] of [["one", true], ["two", true], ["three", false], ["one", false]]) {
    await bundle.predict(task, "a");
    assert.equal(bundle.sessions.weights !== null, kept, task);
  }
  await (await bundle.sessions.open.get("one.onnx")).release();
  bundle.sessions.open.delete("one.onnx");
  await bundle.predict("one", "a");
  assert.deepEqual(log.filter((line) => line.startsWith("open")), ["1", "2", "3", "1"].map((name) => `open ${name} model.safetensors w`));
});

test("layers that tasks share run once for rows that they read alike", async () => {
  const lower = { one: ["low.onnx"], two: ["low.onnx", "mid.onnx"], three: ["low.onnx", "mid.onnx"] };
  const tasks = Object.fromEntries(Object.entries(lower).map(([name, lower]) => [name, { ...TASK, structure: `${name}.onnx`, lower }]));
  tasks.three.maxLength = 3; // a long text is cut for it
  const graphs = Object.fromEntries(["one", "two", "three", "low", "mid"].map((name) => [`${name}.onnx`, name]));
  const files = { ...graphs, "tokenizer.json": JSON.stringify(TOKENIZER), "tokenizer_config.json": "{}", "model.safetensors": "w" };
  await write(files, { tasks, weights: "model.safetensors", padTokenId: 0 });
  const reads = { low: ["input_ids"], mid: ["low"], one: ["low"], two: ["mid", "attention_mask"], three: ["mid"] };
  const log = [];
  const create = async (bytes) => {
    const name = new TextDecoder().decode(bytes);
    const run = async (given) => {
      assert.deepEqual(Object.keys(given).sort(), [...reads[name]].sort());
      log.push(name);
      const [input] = Object.values(given);
      return { [name]: input, logits: { data: new Float32Array(2 * input.dims[0]) } };
    };
    return { inputNames: reads[name], outputNames: [name], run, release: async () => log.push(`close ${name}`) };
  };
  const bundle = await Bundle.open(url(), { ort: { Tensor: counting().ort.Tensor, InferenceSession: { create } }, sessions: 1 });
  const answers = await bundle.predict(["two", "one", "three"], ["a", "b a"]);
  assert.deepEqual(Object.entries(answers).map(([name, [{ task }]]) => [name, task]), ["two", "one", "three"].map((name) => [name, name]));
  const count = (/** @type {string} */ name) => log.filter((each) => each === name).length;
  assert.deepEqual(["low", "mid", "one", "two", "three"].map(count), [1, 1, 1, 1, 1]);
  assert.deepEqual(log.filter((each) => each.startsWith("close")).length, 2, "one structure stays open; what is shared does too");
  log.length = 0;
  await bundle.predict(["one", "two", "three"], "a b a b");
  assert.deepEqual(["low", "mid"].map(count), [2, 2], "a row that is cut is another one");
});

test("requests at the same time wait for each other", async () => {
  await site();
  const { log, ort } = counting();
  const bundle = await Bundle.open(url(), { ort, sessions: 1 });
  const answers = await Promise.all(["one", "two", "one"].map((task) => bundle.predict(task, ["a", "b"])));
  assert.deepEqual(answers.map((each) => each.map(({ label }) => label)), Array(3).fill(["yes", "yes"]));
  assert.equal(log.filter((line) => line.startsWith("open")).length, 3);
});

test("a task that is not there is named with those that are", async () => {
  await site();
  const bundle = await Bundle.open(url(), { ort: counting().ort });
  for (const name of ["mood", "toString", "__proto__"])
    await assert.rejects(bundle.predict(name, "a"), new RegExp(`"${name}". Known: one, two, three`));
  for (const none of [{ words: 1 }, null])
    await assert.rejects(bundle.predict("one", [none]), /a text, or a pair \[first, second\], is needed/);
  assert.deepEqual(await bundle.predict("one", []), []);
});

test("safetensors are read from anywhere in a buffer", () => {
  const header = new TextEncoder().encode('{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{}}');
  const bytes = new Uint8Array(3 + 8 + header.length + 8).subarray(3);
  new DataView(bytes.buffer, 3).setBigUint64(0, BigInt(header.length), true);
  bytes.set(header, 8);
  bytes.set(new Uint8Array(Float32Array.of(1.5, -2).buffer), 8 + header.length);
  assert.deepEqual(Array.from(readSafetensors(bytes).get("x").data), [1.5, -2]);
  bytes.set(new TextEncoder().encode("BF1"), 8 + header.indexOf(70)); // "F32"
  assert.throws(() => readSafetensors(bytes), /the tensor x is BF1; F32 and I64 are known/);
});

test("words and entities are conlleval's", () => {
  assert.deepEqual(wordsOf("I'm 👍🏽 e\u0301!"), [[0, 1], [1, 2], [2, 3], [4, 5], [5, 6], [7, 9], [9, 10]]);
  assert.deepEqual(entities(["B-A", "I-A", "I-B", "O", "I-B", "B-B"]), [["A", 0, 1], ["B", 2, 2], ["B", 4, 4], ["B", 5, 5]]);
  assert.deepEqual(entities(["B-A", "L-A", "U-A", "X", "X"]), [["A", 0, 1], ["A", 2, 2], ["X", 3, 4]]);
});

test("decisions that are PyTorch's own rounding do not count as changed", () => {
  const rows = (...of) => of.map((row) => Float32Array.from(row));
  const task = { ...TASK, chosen: {} };
  assert.equal(changed(task, rows([0, 1], [0.5, 0.50001], [1, 0]), rows([1, 0], [1, 0], [1, 0])), 1);
  assert.equal(changed({ ...task, kind: "labels", chosen: { thresholds: [0.5, 0.9] } }, rows([1, 1]), rows([1, 2])), 0);
  assert.equal(changed({ ...task, kind: "labels", chosen: { thresholds: [0.5, 0.9] } }, rows([1, 1]), rows([1, 3])), 1);
  assert.equal(changed({ ...task, kind: "regression", outputs: 1 }, rows([0], [2], [4]), rows([0.3], [2.5], [4])), 1);
});
