/**
 * A task tuned on examples that a person typed, by the loop of `edgepeft tune`: the checkpoint that scores best on rows
 * held out to choose is kept, and other rows that were held out are reported.  Nothing is changed until `putInForce`.
 *
 * @typedef {import("./bundle.js").Bundle} Bundle
 * @typedef {import("./bundle.js").Entry} Entry
 * @typedef {import("./loop.js").Example} Example
 * @typedef {import("./safetensors.js").Floats} Floats
 * @typedef {{step: number, total: number, loss: number | null, score: number, best: number}} Progress `score` and
 *   `best` are accuracies on the rows that choose
 * @typedef {{share?: number, steps?: number, patience?: number | null, seed?: number, stop?: () => boolean,
 *   watch?: (progress: Progress) => void}} Settings
 * @typedef {{task: string, tensors: Record<string, Floats>, account: Record<string, any>}} Tuned
 */
import { epochBatches, parted, plan } from "./loop.js";
import { argmax } from "./numbers.js";
import { metadataOf, readSafetensors, writeSafetensors } from "./safetensors.js";
import { Tuner } from "./tuner.js";

export const FORMAT = "edgepeft.tuned/1";
const SHARE = 0.2; // held out for each of two purposes: of twenty rows four
const PATIENCE = 6;

/** Of a run that `stop` ended. */
export class Cancelled extends Error {}

/**
 * See that a task can be tuned on these examples.
 * @param {Entry} entry
 * @param {Example[]} examples
 */
export function check(entry, examples) {
  const labels = entry.labels ?? [];
  const seen = new Map();
  for (const [i, { text, second, label }] of examples.entries()) {
    const where = `example ${i + 1}`;
    if (!text.trim() || (entry.pairs && !second?.trim())) throw new Error(`${where} is empty; type its text, or remove it.`);
    if (!labels.includes(label)) throw new Error(`${where} has the label ${JSON.stringify(label)}; the task knows ${labels.join(", ")}.`);
    const key = JSON.stringify([text, second]);
    const before = seen.get(key);
    if (before) throw new Error(`${where} has the text of example ${before.n}, ${before.label === label ? "and its label too" : `which is ${before.label} there and ${label} here`}; remove one of the two.`);
    seen.set(key, { n: i + 1, label });
  }
  const used = new Set(examples.map(({ label }) => label));
  if (used.size < 2) throw new Error(`examples of two labels at least are needed; ${used.size ? `all here are ${[...used][0]}` : "there are none"}.`);
}

/**
 * Tunes a task from its exported tensors.
 * @param {Bundle} bundle
 * @param {string} task
 * @param {Example[]} examples
 * @param {Settings} settings `share` of the rows is held out to choose, and as many to report; `patience` is after how
 *   many evaluations without a better one the run ends, null never
 * @returns {Promise<Tuned & {losses: number[]}>}
 */
export async function tune(bundle, task, examples, { share = SHARE, steps, patience = PATIENCE, seed = 0, stop = () => false, watch = () => {} } = {}) {
  const entry = bundle.entry(task);
  const tuner = await Tuner.open(bundle, task);
  check(entry, examples);
  const parts = await parted(examples, share);
  if (!parts.eval.length || !parts.test.length)
    throw new Error(`of ${examples.length} examples none can be held out, for one of each label stays to learn from; type more, several of each label.`);
  const read = (/** @type {Example[]} */ rows) => ({
    rows: rows.map(({ text, second }) => bundle.encoder.encode([text, entry.pairs ? second : null], entry.maxLength).row),
    labels: rows.map(({ label }) => /** @type {string[]} */ (entry.labels).indexOf(label)),
  });
  const [train, chosen, test] = [read(parts.train), read(parts.eval), read(parts.test)];
  const loop = plan(train.rows.length, steps);
  const lengths = train.rows.map((row) => row.length);
  const start = tuner.tensors;
  let best = { step: 0, ...(await score(tuner, chosen)), tensors: start };
  let [step, last, since] = [0, best.score, 0];
  /** @type {number[]} */
  const losses = [];
  const report = () => watch({ step, total: loop.total, loss: losses.at(-1) ?? null, score: last, best: best.score });
  report();
  const over = () => step === loop.total || (patience !== null && since >= patience);
  for (let epoch = 0; !over(); epoch++)
    for (const batch of await epochBatches(lengths, loop.batch, seed, epoch)) {
      if (over()) break;
      await new Promise((resolve) => setTimeout(resolve)); // a message that cancels is read here
      if (stop()) throw new Cancelled(`cancelled after step ${step} of ${loop.total}; the task is as it was.`);
      const { loss, norm } = await tuner.step(batch.map((i) => train.rows[i]), batch.map((i) => train.labels[i]), step, loop);
      if (!Number.isFinite(loss) || !Number.isFinite(norm)) throw new Error(`the loss is no finite number in step ${step + 1}; the task is as it was.`);
      losses.push(loss);
      step += 1;
      if (step % loop.interval === 0 || step === loop.total) {
        const now = await score(tuner, chosen);
        last = now.score;
        since += 1;
        if (now.score > best.score || (now.score === best.score && now.loss < best.loss)) {
          best = { step, ...now, tensors: tuner.tensors };
          since = 0;
        }
      }
      report();
    }
  tuner.tensors = start;
  const before = await score(tuner, test);
  tuner.tensors = best.tensors;
  const after = await score(tuner, test);
  const [learning_rate, head_learning_rate] = tuner.tuning.rates;
  const counts = { n_train: train.rows.length, n_eval: chosen.rows.length, n_test: test.rows.length };
  const metrics = { metric: "accuracy", eval: best.score, test: after.score, before: before.score, ...counts };
  const training = { steps: step, best_step: best.step, learning_rate, head_learning_rate, batch_size: loop.batch, seed };
  return { task, tensors: best.tensors, account: { metrics, training }, losses };
}

/**
 * The share of rows that are right, and the mean cross entropy.
 * @param {Tuner} tuner
 * @param {{rows: import("./tokenizer.js").Row[], labels: number[]}} part
 */
async function score(tuner, { rows, labels }) {
  const logits = await tuner.logits(rows);
  const each = logits.map((row, i) => {
    const most = Math.max(...row);
    return most + Math.log(row.reduce((sum, value) => sum + Math.exp(value - most), 0)) - row[labels[i]];
  });
  const right = logits.filter((row, i) => argmax(row) === labels[i]).length;
  return { score: right / rows.length, loss: each.reduce((a, b) => a + b, 0) / rows.length };
}

/**
 * The file that `edgepeft add` takes: the trained tensors, and what they belong to.
 * @param {Bundle} bundle
 * @param {Tuned} tuned
 */
export function packed(bundle, { task, tensors, account }) {
  const { task: task_sha256, backbone: backbone_sha256 } = tuningOf(bundle, task);
  const engine = `onnxruntime-web ${bundle.site.libraries["onnxruntime-web"]}, edgepeft ${bundle.site.edgepeft}`;
  const told = JSON.stringify({ ...account, training: { ...account.training, engine } });
  return writeSafetensors(tensors, { format: FORMAT, task, task_sha256, backbone_sha256, account: told });
}

/**
 * Reads such a file.
 * @param {Bundle} bundle
 * @param {Uint8Array} bytes
 * @returns {Tuned | null} null where it is of another backbone, or of another version of the task
 */
export function unpacked(bundle, bytes) {
  const { format, task, task_sha256, backbone_sha256, account } = metadataOf(bytes);
  const tuning = Object.hasOwn(bundle.tasks, task) ? bundle.tasks[task].tuning : undefined;
  if (format !== FORMAT || tuning?.task !== task_sha256 || tuning?.backbone !== backbone_sha256) return null;
  return { task, tensors: Object.fromEntries(/** @type {Map<string, Floats>} */ (readSafetensors(bytes))), account: JSON.parse(account) };
}

/**
 * Answers by these tensors from here on; temperature and promise were of the exported ones, and go.
 * @param {Bundle} bundle
 * @param {Tuned} tuned
 */
export async function putInForce(bundle, { task, tensors }) {
  const { Tensor } = bundle.ort;
  const tuning = tuningOf(bundle, task);
  const given = Object.fromEntries(Object.entries(tensors).map(([name, { shape, data }]) => [name, new Tensor("float32", data, shape)]));
  const bytes = await bundle.files.read(tuning.values);
  const found = await bundle.queued(async () => {
    const session = await bundle.ort.InferenceSession.create(bytes, { executionProviders: ["wasm"], logSeverityLevel: 3 });
    const values = await session.run(given);
    await session.release();
    return values;
  });
  bundle.values.set(task, found);
  exported.set(bundle.entry(task), exported.get(bundle.entry(task)) ?? bundle.entry(task).chosen);
  bundle.entry(task).chosen = tuning.chosen;
}

/**
 * Back to what was exported.
 * @param {Bundle} bundle
 * @param {string} task
 */
export function putBack(bundle, task) {
  const entry = bundle.entry(task);
  bundle.values.delete(task);
  entry.chosen = exported.get(entry) ?? entry.chosen;
}

/** @type {WeakMap<Entry, Record<string, any>>} what was chosen for tasks that are tuned now */
const exported = new WeakMap();

/** @param {Bundle} bundle @param {string} task */
const tuningOf = (bundle, task) => /** @type {import("./tuner.js").Tuning} */ (bundle.entry(task).tuning);
