/** Arithmetic that several kinds of task share. */

/** @param {ArrayLike<number>} logits @param {number} [temperature] */
export function softmax(logits, temperature = 1) {
  const most = Math.max(...Array.from(logits));
  const powers = Array.from(logits, (logit) => Math.exp((logit - most) / temperature));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

/** @param {ArrayLike<number>} values */
export function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

export const rounded = (/** @type {number} */ value) => Math.round(value * 1e6) / 1e6;
