/**
 * Rows in passes, as `edgepeft/runtime/inputs.py` packs them.
 *
 * @typedef {import("./tokenizer.js").Row} Row
 */
const PASS_TOKENS = 1024; // activations of more do not stay in a core's cache

/**
 * Rows of like length together, about a thousand tokens at a time.
 * @param {Row[]} rows
 * @param {number} prompt
 * @returns {Generator<number[]>}
 */
export function* passes(rows, prompt) {
  const order = rows.map((_, i) => i).sort((a, b) => rows[a].length - rows[b].length);
  /** @type {number[]} */
  let part = [];
  let tokens = 0;
  for (const i of order) {
    const own = rows[i].length + prompt;
    if (part.length && tokens + own > PASS_TOKENS) {
      yield part;
      [part, tokens] = [[], 0];
    }
    part.push(i);
    tokens += own;
  }
  if (part.length) yield part;
}
