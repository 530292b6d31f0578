/**
 * From logits to answers, for every kind of task that gives logits: what `edgepeft run --json` prints of each.
 *
 * @typedef {import("./tokenizer.js").Text} Text
 * @typedef {import("./tokenizer.js").Row} Row
 * @typedef {string | [string, string | null] | Record<string, any>} Given a text, a pair, or a row's columns
 * @typedef {{kind: string, labels: string[] | null, step: number | null, chosen: Record<string, any>, outputs: number,
 *   pairs: boolean, trained: boolean}} Task
 * @typedef {{given: Given, texts: Text[], rows: Row[][], cut: boolean[], logits: Float32Array[][],
 *   whole?: Row[]}} Read
 *   a row as it was given, its texts, the token rows of each text, and the logits of each of those; `whole` are texts
 *   that are read in windows
 * @typedef {{texts: (given: Given) => Text[], answer: (task: Task, read: Read) => Record<string, any>,
 *   perToken?: boolean, passages?: boolean}} Kind
 */
import { argmax, rounded, softmax } from "./numbers.js";
import { pair } from "./rows.js";
import { spans } from "./spans.js";
import { tokens } from "./words.js";

/** @type {Record<string, Kind>} */
export const KINDS = {
  classification: {
    texts: pair,
    answer(task, { logits }) {
      const raw = pooled(task, logits[0]);
      const labels = /** @type {string[]} */ (task.labels);
      const shares = softmax(raw, task.chosen.temperature);
      const best = argmax(raw);
      const mean = task.step === null ? {} : { expected: shares.reduce((sum, p, i) => sum + p * Number(labels[i]), 0) };
      return { label: labels[best], score: rounded(shares[best]), scores: named(labels, shares), ...mean, ...unsure(task, shares) };
    },
  },
  regression: {
    texts: pair,
    answer: (task, { logits }) => ({ value: pooled(task, logits[0])[0] }),
  },
  labels: {
    texts: pair,
    answer(task, { logits }) {
      const labels = /** @type {string[]} */ (task.labels);
      const shares = Array.from(pooled(task, logits[0]), (logit) => 1 / (1 + Math.exp(-Math.max(-30, Math.min(30, logit)))));
      const above = task.chosen.thresholds ?? labels.map(() => 0.5);
      return { labels: labels.filter((_, i) => shares[i] > above[i]), scores: named(labels, shares) };
    },
  },
  choice: {
    texts(given) {
      const { sentence1, sentence2, candidates } = /** @type {any} */ (given);
      if (typeof sentence1 !== "string" || !Array.isArray(candidates) || candidates.length < 2)
        throw new Error("this task picks one of a row's candidates: give {sentence1: TEXT, candidates: [TEXT, TEXT, ...]}.");
      return candidates.map((candidate) => [sentence1, sentence2 ? `${sentence2} ${candidate}` : candidate]);
    },
    answer(task, { given, logits }) {
      const { candidates } = /** @type {any} */ (given);
      const raw = logits.map((windows) => pooled(task, windows)[0]);
      const shares = softmax(raw, task.chosen.temperature);
      const index = argmax(raw);
      return { label: candidates[index], index, score: rounded(shares[index]), scores: named(candidates, shares), ...unsure(task, shares) };
    },
  },
  embedding: {
    texts(given) {
      const [first, second] = pair(given)[0];
      return second === null ? [[first, null]] : [[first, null], [second, null]];
    },
    answer(task, { logits }) {
      const vectors = logits.map((windows) => direction(windows));
      const near = vectors.length < 2 ? {} : { cosine: rounded(cosine(vectors[0], vectors[1])) };
      return { vector: Array.from(vectors[0]), ...near };
    },
  },
  tokens,
  spans,
};

/**
 * One answer's logits of those of a text's windows.
 * @param {Task} task
 * @param {Float32Array[]} windows
 */
function pooled(task, windows) {
  const columns = Array.from(windows[0], (_, i) => windows.map((window) => window[i]));
  const mean = (/** @type {number[]} */ each) => each.reduce((a, b) => a + b) / each.length;
  return columns.map((each) => (task.chosen.pool === "max" ? Math.max(...each) : mean(each)));
}

/** @param {Float32Array[]} windows */
function direction(windows) {
  if (windows.length === 1) return windows[0];
  const sums = windows[0].map((_, i) => windows.reduce((sum, window) => sum + window[i], 0) / windows.length);
  const length = Math.max(1e-12, Math.hypot(...sums));
  return sums.map((value) => value / length);
}

/** @param {ArrayLike<number>} a @param {ArrayLike<number>} b */
function cosine(a, b) {
  let [dot, one, other] = [0, 0, 0];
  for (let i = 0; i < a.length; i++) [dot, one, other] = [dot + a[i] * b[i], one + a[i] ** 2, other + b[i] ** 2];
  return dot / Math.max(1e-12, Math.sqrt(one * other));
}

/** @param {string[]} names @param {number[]} shares */
const named = (names, shares) => Object.fromEntries(names.map((name, i) => [name, rounded(shares[i])]));

/** @param {Task} task @param {number[]} shares */
function unsure({ chosen }, shares) {
  if (chosen.threshold === undefined) return {};
  const above = shares.filter((share) => share >= chosen.threshold).length;
  return { unsure: "coverage" in chosen ? above !== 1 : Math.max(...shares) <= chosen.threshold };
}
