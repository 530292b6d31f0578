/** The model, off the page's thread: answers {id, what, given} with {id, result} or {id, error}. */
import * as ort from "./lib/ort.mjs";
import { ROUNDS, WORK, measure, measuredTasks } from "./module/bench.js";
import { Bundle } from "./module/bundle.js";
import { Cancelled, packed, putBack, putInForce, tune, unpacked } from "./module/tuning.js";
import { load, remove, save } from "./store.js";

const MOST_THREADS = 4;
const STALE = "what was tuned here is of another version of the task or of the model, and is not in force; the examples are still there.";

/** @type {import("../module/bundle.js").Bundle} */
let bundle;
let cancelled = false;
let threads = 1;

/** @type {Record<string, (...given: any[]) => any>} */
const calls = {
  async open() {
    const site = await (await fetch("site.json")).json();
    const Tokenizer = site.libraries["@huggingface/tokenizers"] && (await import("./lib/tokenizers.mjs")).Tokenizer;
    // More than one only with shared memory, which takes the headers that the service worker adds.
    threads = self.crossOriginIsolated ? Math.min(MOST_THREADS, navigator.hardwareConcurrency) : 1;
    const progress = (/** @type {any[]} */ ...of) => self.postMessage({ progress: of });
    bundle = await Bundle.open(new URL("./", self.location.href), { ort, Tokenizer, wasm: "lib/ort.wasm", threads, progress });
    const { tasks, files, weights, title } = bundle.site;
    return { tasks, title, threads, weights: { name: weights, bytes: files[weights].bytes } };
  },
  predict: (tasks, rows) => bundle.predict(tasks, rows),
  verify: (task) => bundle.verify(task),
  benched: () => ({ tasks: measuredTasks(bundle), work: WORK, rounds: ROUNDS }),
  bench(userAgent) {
    const watch = (/** @type {number} */ done, /** @type {number} */ all) => self.postMessage({ told: { done, all } });
    const used = `WASM SIMD, ${threads} of ${navigator.hardwareConcurrency} threads; WebGPU is not used`;
    return measure(bundle, { watch, device: { userAgent, threads, cores: navigator.hardwareConcurrency, notes: [used] } });
  },
  async tokens() {
    const { texts, ids, maxLength } = await bundle.files.json("verify.tokens.json");
    const differ = texts.filter((/** @type {any} */ text, /** @type {number} */ i) => {
      const own = bundle.encoder.encode(text, maxLength).row.map((/** @type {any} */ { id }) => id);
      return own.join() !== ids[i].join();
    });
    return { texts: texts.length, differ };
  },
};

/** @type {typeof calls} */
const tuning = {
  /** What was tuned here comes into force: by task its account, or why it does not. */
  async tuned() {
    /** @type {Record<string, {account?: any, stale?: string}>} */
    const found = {};
    for (const task of Object.keys(bundle.tasks)) {
      const bytes = bundle.tasks[task].tuning && (await load("tuned", task).catch(() => null));
      if (!bytes) continue;
      try {
        const tuned = unpacked(bundle, bytes);
        if (tuned) await putInForce(bundle, tuned);
        found[task] = tuned ? { account: tuned.account } : { stale: STALE };
      } catch (error) {
        found[task] = { stale: `What was tuned here cannot be put in force: ${error instanceof Error ? error.message : error}` };
      }
    }
    return found;
  },
  async tune(task, examples) {
    cancelled = false;
    const watch = (/** @type {any} */ told) => self.postMessage({ told });
    const found = await tune(bundle, task, examples, { watch, stop: () => cancelled }).catch((/** @type {unknown} */ error) => {
      if (error instanceof Cancelled) return null;
      throw error;
    });
    if (!found) return { cancelled: true };
    const { account } = found;
    if (!account.training.best_step) return { account };
    await putInForce(bundle, found);
    const bytes = packed(bundle, found);
    const lost = await save("tuned", task, bytes).then(() => "", (error) => error?.message || "no room");
    return { account, bytes, lost };
  },
  cancel: () => void (cancelled = true),
  exported: (task) => load("tuned", task),
  async back(task) {
    putBack(bundle, task);
    await remove("tuned", task);
  },
};
Object.assign(calls, tuning);

self.onmessage = async ({ data: { id, what, given } }) => {
  try {
    self.postMessage({ id, result: await calls[what](...given) });
  } catch (error) {
    self.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
  }
};
