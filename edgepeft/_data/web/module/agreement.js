/**
 * How many of a check file's rows are decided otherwise than PyTorch decided them: with 8-bit weights this counts, and
 * no logit is held to a tolerance (`agreement` of `edgepeft/tasks/`).  What PyTorch itself holds closer is no decision.
 *
 * @typedef {import("./kinds.js").Task} Task
 */
import { readSafetensors } from "./safetensors.js";

const CLOSE = 2e-4; // twice what a logit may be off by

/**
 * @param {Task} task
 * @param {Float32Array[]} reference
 * @param {Float32Array[]} given
 */
export function changed(task, reference, given) {
  const other = task.kind === "regression" ? moved(reference) : (OTHERS[task.kind] ?? best(task.outputs));
  return reference.filter((row, i) => other(row, given[i], task)).length;
}

/** @type {Record<string, (a: Float32Array, b: Float32Array, task: Task) => boolean>} */
const OTHERS = {
  labels: (a, b, { chosen }) =>
    a.some((logit, i) => {
      const cut = Math.log(chosen.thresholds?.[i] ?? 0.5) - Math.log1p(-(chosen.thresholds?.[i] ?? 0.5));
      return Math.abs(logit - cut) > CLOSE && logit > cut !== b[i] > cut;
    }),
  embedding: (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0) < 0.95, // both are of length 1
  choice: () => false, // a row of the file is one candidate of unknown company
};

/**
 * A value has moved that is off by more than a quarter of the standard deviation of PyTorch's.
 * @param {Float32Array[]} reference
 */
function moved(reference) {
  const mean = reference.reduce((sum, [value]) => sum + value, 0) / reference.length;
  const deviation = Math.sqrt(reference.reduce((sum, [value]) => sum + (value - mean) ** 2, 0) / reference.length);
  return (/** @type {Float32Array} */ a, /** @type {Float32Array} */ b) => Math.abs(a[0] - b[0]) > Math.max(deviation / 4, CLOSE);
}

/**
 * Whether most of a row's tokens have another best label; a row that is one answer is one token.
 * @param {number} outputs
 */
function best(outputs) {
  return (/** @type {Float32Array} */ a, /** @type {Float32Array} */ b) => {
    let [same, other] = [0, 0];
    for (let at = 0; at < a.length; at += outputs) {
      const own = Array.from(a.subarray(at, at + outputs));
      const [first, second] = [...own].sort((x, y) => y - x);
      if (first - second <= CLOSE) continue;
      const winner = own.indexOf(first);
      b.subarray(at, at + outputs).some((value) => value > b[at + winner]) ? other++ : same++;
    }
    return other > same;
  };
}

/**
 * A task's check file, run again: token rows, and the logits that PyTorch gave for them.
 * @param {import("./bundle.js").Bundle} bundle
 * @param {string} task
 */
export async function replayed(bundle, task) {
  const entry = bundle.entry(task);
  const tensors = readSafetensors(await bundle.files.read(entry.check));
  const column = (/** @type {string} */ name) => tensors.get(name)?.data;
  const [n, length] = /** @type {{shape: number[]}} */ (tensors.get("input_ids")).shape;
  const logits = /** @type {Float32Array} */ (column("logits"));
  const rows = Array.from({ length: n }, (_, i) => {
    const at = Array.from({ length }, (_, j) => i * length + j).filter((j) => column("attention_mask")?.[j]);
    return at.map((j) => ({ id: Number(column("input_ids")?.[j]), type: Number(column("token_type_ids")?.[j] ?? 0), part: 0, start: 0, end: 0 }));
  });
  const given = await bundle.logits(task, rows);
  const width = logits.length / n;
  const reference = given.map((own, i) => logits.subarray(i * width, i * width + own.length));
  let difference = 0;
  given.forEach((own, i) =>
    // Not the largest alone: a NaN must fail.
    own.forEach((value, j) => (difference = Math.max(difference, Number.isFinite(value) ? Math.abs(value - reference[i][j]) : Infinity))),
  );
  const others = changed(entry, reference, given);
  const { tolerance } = entry;
  const passed = difference <= (tolerance.difference ?? Number.MAX_VALUE) && others / n <= tolerance.changed;
  return { task, rows: n, difference, changed: others, tolerance, passed };
}
