/**
 * Tags of words, as `edgepeft/data/words.py` and `edgepeft/tasks/_tags.py` have them: where words stand, which token is
 * the first of each, and the entities that tags tell.  Places count code points.
 *
 * @typedef {import("./tokenizer.js").Row} Row
 */
import { argmax, rounded, softmax } from "./numbers.js";
import { pair } from "./rows.js";
import { cleaned } from "./tokenizer.js";

const IDEOGRAPHS = "\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{2a6df}\\u{2a700}-\\u{2ceaf}\\u{2f800}-\\u{2fa1f}";
const JOINED = "[\\p{M}\\u200c\\u200d]";
const UNSEEN = "\\u200b\\u200e\\u200f\\u202a-\\u202e\\u2060-\\u206f\\ufeff";
const LETTER = `(?![${IDEOGRAPHS}])[\\p{L}\\p{N}]`;
const WORD = new RegExp(
  `${LETTER}(?:${LETTER}|${JOINED})*|[^\\s\\x1c-\\x1f\\x85\\p{M}\\u200c\\u200d${UNSEEN}]${JOINED}*|\\p{M}+`,
  "gu",
);

/** @type {import("./kinds.js").Kind} */
export const tokens = {
  perToken: true,
  texts: pair,
  answer(task, { texts, rows, cut, logits, whole }) {
    const text = cleaned(texts[0][0]);
    const points = Array.from(text);
    const words = wordsOf(text);
    const places = placesOf(words, whole ? whole[0] : rows[0][0]);
    const seen = whole ? mostContext(whole[0], rows[0], task.chosen.stride) : null;
    const labels = /** @type {string[]} */ (task.labels);
    const tags = places.map((place) => {
      if (place < 0) return { tag: "O", share: 1 / labels.length };
      const { window, at } = seen?.get(place) ?? { window: 0, at: place };
      const own = logits[0][window].subarray(at * labels.length, (at + 1) * labels.length);
      const best = argmax(own);
      return { tag: labels[best], share: softmax(own)[best] };
    });
    const found = entities(tags.map(({ tag }) => tag)).map(([label, first, last]) => {
      const [start, end] = [words[first][0], words[last][1]];
      const shares = tags.slice(first, last + 1).map(({ share }) => share);
      return { start, end, label, text: points.slice(start, end).join(""), score: rounded(shares.reduce((a, b) => a + b) / shares.length) };
    });
    const after = places.reduce((last, place, i) => (place < 0 ? last : i), 0) + 1;
    return { spans: found, ...(cut[0] && after < words.length ? { unread: words[after][0] } : {}) };
  },
};

/**
 * Where each word begins and ends.
 * @param {string} text
 * @returns {[number, number][]}
 */
export function wordsOf(text) {
  /** @type {[number, number][]} */
  const found = [];
  let [unit, point] = [0, 0];
  for (const { 0: word, index } of text.matchAll(WORD)) {
    point += Array.from(text.slice(unit, index)).length;
    const end = point + Array.from(word).length;
    found.push([point, end]);
    [unit, point] = [index + word.length, end];
  }
  return found;
}

/**
 * The place of each word's first token, -1 where it has none; a token that begins in one word is no other's.
 * @param {[number, number][]} words
 * @param {Row} row
 */
export function placesOf(words, row) {
  const own = row.flatMap(({ part, start, end }, place) => (part === 0 && end > start ? [{ start, end, place }] : []));
  let i = 0;
  return words.map(([start, end]) => {
    while (i < own.length && own[i].end <= start) i++;
    return i < own.length && own[i].start < end ? own[i++].place : -1;
  });
}

/**
 * By the place of each token of a text: the window in which it has most context, and its place there, as `most_context`
 * of `edgepeft/data/row_grouping.py` has it (Devlin et al., 2019).
 * @param {Row} whole
 * @param {Row[]} windows
 * @param {number} overlap
 */
export function mostContext(whole, windows, overlap) {
  const placesOfText = (/** @type {Row} */ row) => row.flatMap(({ part }, place) => (part === null ? [] : [place]));
  const text = placesOfText(whole);
  const step = placesOfText(windows[0]).length - overlap;
  /** @type {Map<number, {window: number, at: number, context: number}>} */
  const found = new Map();
  windows.forEach((row, window) => {
    const own = placesOfText(row);
    own.forEach((at, i) => {
      const context = Math.min(i, own.length - 1 - i) + 0.01 * own.length;
      const token = text[window * step + i];
      if (context > (found.get(token)?.context ?? -1)) found.set(token, { window, at, context });
    });
  });
  return found;
}

/**
 * What seqeval's `get_entities` finds (Nakayama, 2018): type, first and last word.
 * @param {string[]} tags
 * @returns {[string, number, number][]}
 */
export function entities(tags) {
  /** @type {[string, number, number][]} */
  const found = [];
  let [start, last, kind] = [0, "O", ""];
  [...tags.map(parts), ["O", ""]].forEach(([letter, type], i) => {
    if (last !== "O" && ("ES".includes(last) || "BSO".includes(letter) || type !== kind)) found.push([kind, start, i - 1]);
    if (letter !== "O" && ("BS".includes(letter) || "ESO".includes(last) || type !== kind)) start = i;
    [last, kind] = [letter, type];
  });
  return found;
}

/**
 * A tag's letter, as BIOES has it, and type; one without a letter in front is the type itself.
 * @param {string} tag
 */
function parts(tag) {
  if (tag === "O") return ["O", ""];
  const alike = (/** @type {string} */ letter) => ({ L: "E", U: "S" })[letter] ?? letter;
  if (/^[BIESLU](-|$)/.test(tag)) return [alike(tag[0]), tag.slice(2) || "_"];
  return ["I", tag];
}
