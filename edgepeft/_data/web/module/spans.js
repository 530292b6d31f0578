/**
 * The answer to a question as it stands in a passage: the span of highest start + end in any of the passage's windows,
 * as `edgepeft/tasks/spans.py` finds it (transformers' `run_qa`).  Places count code points.
 *
 * @typedef {{window: number, first: number, last: number, score: number}} Span
 */
import { rounded } from "./numbers.js";
import { cleaned } from "./tokenizer.js";

const LONGEST = 30; // tokens of an answer: run_qa's

/** @type {import("./kinds.js").Kind} */
export const spans = {
  perToken: true,
  passages: true,
  texts(given) {
    const columns = /** @type {any} */ (given);
    const [question, passage] = Array.isArray(given)
      ? given
      : [columns.sentence1 ?? columns.question, columns.sentence2 ?? columns.context];
    if (![question, passage].every((text) => typeof text === "string" && text.trim()))
      throw new Error("this task finds an answer in a passage: give two texts, [question, passage], neither of them empty.");
    return [[question, passage]];
  },
  answer(task, { texts, rows, logits }) {
    const points = Array.from(cleaned(/** @type {string} */ (texts[0][1])));
    const windows = rows[0].map((row, k) => ({
      row,
      starts: logits[0][k].filter((_, i) => i % 2 === 0),
      ends: logits[0][k].filter((_, i) => i % 2 === 1),
      places: row.flatMap((token, place) => (token.part === 1 && token.end > token.start ? [place] : [])),
    }));
    const best = bestSpan(windows);
    const least = windows.map(({ starts, ends }) => starts[0] + ends[0]).reduce((a, b) => Math.min(a, b));
    const none = best === null || least - best.score > (task.chosen.threshold ?? Infinity);
    let [start, end] = [0, 0];
    if (!none) {
      const { row } = windows[best.window];
      [start, end] = [row[best.first].start, row[best.last].end];
      while (start < end && /\s/.test(points[start])) start++;
      while (end > start && /\s/.test(points[end - 1])) end--;
    }
    const answered = start < end;
    const nothing = { window: windows.findIndex(({ starts, ends }) => starts[0] + ends[0] === least), first: 0, last: 0 };
    const { window, first, last } = answered && best ? best : nothing;
    const share = probability(windows, "starts", window, first) * probability(windows, "ends", window, last);
    return { text: points.slice(start, end).join(""), answered, ...(answered ? { start, end } : {}), score: rounded(share) };
  },
};

/**
 * Of equally good ones the shortest, then that of the first window.
 * @param {{starts: Float32Array, ends: Float32Array, places: number[]}[]} windows
 * @returns {Span | null}
 */
function bestSpan(windows) {
  /** @type {Span | null} */
  let best = null;
  const readable = windows.map(({ places }) => new Set(places));
  for (let further = 0; further < LONGEST; further++)
    for (const [window, { starts, ends, places }] of windows.entries())
      for (const first of places) {
        const last = first + further;
        const score = starts[first] + ends[last];
        if (readable[window].has(last) && (best === null || score > best.score)) best = { window, first, last, score };
      }
  return best;
}

/**
 * Among the tokens of all windows that can be an answer, and the first, which stands for none.
 * @param {{starts: Float32Array, ends: Float32Array, places: number[]}[]} windows
 * @param {"starts" | "ends"} which
 * @param {number} window
 * @param {number} place
 */
function probability(windows, which, window, place) {
  const all = windows.flatMap((each) => [0, ...each.places].map((at) => each[which][at]));
  const most = all.reduce((a, b) => Math.max(a, b));
  const sum = all.reduce((total, logit) => total + Math.exp(logit - most), 0);
  return Math.exp(windows[window][which][place] - most) / sum;
}
