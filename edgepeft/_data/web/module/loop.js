/**
 * A training loop as `edgepeft tune` has it (edgepeft/data/training_loop/run.py): which rows train, in which order, and at which rate.
 * Rows are ordered by SHA-256, so that these are the very rows and batches that Python takes.
 *
 * @typedef {{text: string, second: string | null, label: string}} Example
 * @typedef {{train: Example[], eval: Example[], test: Example[]}} Parts
 */
import { sha256 } from "./files.js";

const [BATCH, EPOCHS, LEAST_STEPS, MOST_EVALUATIONS, POOL, WARMUP] = [16, 3, 100, 20, 16, 0.1];

/**
 * How many steps a loop over so many rows has, and when something is due.
 * @param {number} rows
 * @param {number} [steps]
 */
export function plan(rows, steps) {
  const batch = Math.min(BATCH, rows);
  const perEpoch = Math.ceil(rows / batch);
  const total = steps ?? Math.max(perEpoch * EPOCHS, LEAST_STEPS);
  const warmup = Math.trunc(WARMUP * total);
  const interval = Math.max(perEpoch, Math.ceil(total / MOST_EVALUATIONS));
  return { batch, perEpoch, total, warmup, interval };
}

/**
 * Linear warm-up, then linear decay to zero.
 * @param {number} step
 * @param {{warmup: number, total: number}} loop
 */
export const rateFactor = (step, { warmup, total }) =>
  step < warmup ? step / warmup : Math.max(0, (total - step) / Math.max(1, total - warmup));

/**
 * The rows of each step of an epoch: every row once, like lengths together.
 * @param {number[]} lengths
 * @param {number} size
 * @param {number} seed
 * @param {number} epoch
 */
export async function epochBatches(lengths, size, seed, epoch) {
  const order = await shuffled(lengths.length, `${seed}/${epoch}/row`);
  const batches = cut(order, POOL * size).flatMap((pool) => cut(pool.sort((a, b) => lengths[b] - lengths[a]), size));
  return (await shuffled(batches.length, `${seed}/${epoch}/batch`)).map((i) => batches[i]);
}

/**
 * Holds a share of the rows out to report and as many to choose by, of every label in proportion; one of each stays.
 * @param {Example[]} examples
 * @param {number} share
 * @returns {Promise<Parts>}
 */
export async function parted(examples, share) {
  const n = Math.max(1, halfEven(share * examples.length));
  const test = await part(examples, n, "held out: test");
  const chosen = await part(test.left, n, "held out: eval");
  return { train: chosen.left, eval: chosen.taken, test: test.taken };
}

/**
 * `edgepeft/data/parts.py: part`, with one row of each label to spare.
 * @param {Example[]} rows
 * @param {number} n
 * @param {string} salt
 */
async function part(rows, n, salt) {
  const digests = await Promise.all(rows.map(({ text, second, label }) => hash([salt, text, second ?? "", label].join("\0"))));
  /** @type {Map<string, number[]>} */
  const members = new Map(rows.map(({ label }) => [label, []]));
  for (const i of sorted(digests)) members.get(rows[i].label)?.push(i);
  const wanted = quotas(new Map(Array.from(members, ([label, own]) => [label, own.length])), n);
  const taken = new Set(Array.from(members, ([label, own]) => own.slice(0, wanted.get(label))).flat());
  return { taken: rows.filter((_, i) => taken.has(i)), left: rows.filter((_, i) => !taken.has(i)) };
}

/**
 * `n` shared in proportion to the sizes: one by one to whom most is due.
 * @param {Map<string, number>} sizes
 * @param {number} n
 */
function quotas(sizes, n) {
  const total = Array.from(sizes.values()).reduce((a, b) => a + b, 0);
  const given = new Map(Array.from(sizes.keys(), (label) => [label, 0]));
  const has = (/** @type {string} */ label) => /** @type {number} */ (given.get(label));
  for (let k = 0; k < n; k++) {
    const open = Array.from(sizes).filter(([label, size]) => has(label) < size - 1);
    if (!open.length) break;
    const due = (/** @type {[string, number]} */ [label, size]) => has(label) - (size * n) / total;
    const [neediest] = open.reduce((a, b) => (due(b) < due(a) || (due(b) === due(a) && b[0] < a[0]) ? b : a));
    given.set(neediest, has(neediest) + 1);
  }
  return given;
}

/** As Python rounds. @param {number} value */
const halfEven = (value) => (value % 1 === 0.5 && Math.floor(value) % 2 === 0 ? Math.floor(value) : Math.round(value));

/** @param {string} text */
const hash = (text) => sha256(new TextEncoder().encode(text));

/** Places in the order of their keys. @param {string[]} keys */
const sorted = (keys) => keys.map((_, i) => i).sort((a, b) => (keys[a] < keys[b] ? -1 : Number(keys[a] > keys[b])));

/** @param {number} n @param {string} salt */
async function shuffled(n, salt) {
  return sorted(await Promise.all(Array.from({ length: n }, (_, i) => hash(`${salt}/${i}`))));
}

/** @template T @param {T[]} items @param {number} size */
function cut(items, size) {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, i) => items.slice(i * size, (i + 1) * size));
}
