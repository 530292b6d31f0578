/**
 * How many of a check file's rows are decided otherwise than PyTorch decided them: with 8-bit weights this counts, and
 * no logit is held to a tolerance (`agreement` of `edgepeft/tasks/`).  What PyTorch itself holds closer is no decision.
 *
 * @typedef {import("./kinds.js").Task} Task
 */
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
