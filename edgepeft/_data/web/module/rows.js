/**
 * What a task is given: texts and pairs, and what speaks against them.
 *
 * @typedef {import("./tokenizer.js").Text} Text
 * @typedef {import("./kinds.js").Given} Given
 */

/**
 * A text, or a pair, by its columns too.
 * @param {Given} given
 * @returns {Text[]}
 */
export function pair(given) {
  const columns = typeof given === "object" && given !== null && !Array.isArray(given);
  const [first, second = null] = columns ? [given.sentence1, given.sentence2 || null] : Array.isArray(given) ? given : [given];
  if (typeof first !== "string" || !(second === null || typeof second === "string"))
    throw new Error(`a text, or a pair [first, second], is needed; found ${JSON.stringify(given)?.slice(0, 60)}.`);
  return [[first, second]];
}

/**
 * What speaks against an answer: a text of another kind than those that the task was trained on.
 * @param {{pairs: boolean, trained: boolean}} task
 * @param {Text} text
 */
export function note(task, [first, second]) {
  if (!first.trim() && !second?.trim()) return { note: "the text is empty" };
  if (task.pairs && second === null) return { note: "the task was trained on pairs of texts, and one text was given" };
  if (!task.pairs && task.trained && second !== null) return { note: "the task was trained on single texts, and a pair was given" };
  return {};
}
