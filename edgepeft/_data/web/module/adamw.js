/**
 * AdamW (Loshchilov & Hutter, 2019, arXiv:1711.05101, algorithm 2), step by step as edgepeft/tuning/step.py:
 *
 * theta <- theta (1 - eta lambda);  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
 * theta <- theta - eta / (1 - b1^t)  m / (sqrt(v) / sqrt(1 - b2^t) + eps)
 *
 * @typedef {Record<string, Float32Array>} Arrays
 */
const [B1, B2, EPS] = [0.9, 0.999, 1e-8];
const TINY = 1e-6; // torch.nn.utils.clip_grad_norm_ adds it to the norm

export class AdamW {
  /** @param {Record<string, number>} rates by tensor @param {number} weightDecay */
  constructor(rates, weightDecay = 0) {
    this.rates = rates;
    this.weightDecay = weightDecay;
    this.steps = 0;
    /** @type {Record<string, {m: Float32Array, v: Float32Array}>} */
    this.moments = {};
  }

  /**
   * One step, in place.
   * @param {Arrays} trained
   * @param {Arrays} gradients
   * @param {number} factor multiplies every rate: the schedule's
   */
  update(trained, gradients, factor) {
    this.steps += 1;
    const [first, second] = [1 - B1 ** this.steps, Math.sqrt(1 - B2 ** this.steps)];
    for (const [name, gradient] of Object.entries(gradients)) {
      const [rate, tensor] = [this.rates[name] * factor, trained[name]];
      const { m, v } = (this.moments[name] ??= { m: new Float32Array(tensor.length), v: new Float32Array(tensor.length) });
      for (let i = 0; i < tensor.length; i++) {
        m[i] += (1 - B1) * (gradient[i] - m[i]);
        v[i] = B2 * v[i] + (1 - B2) * gradient[i] * gradient[i];
        const kept = tensor[i] * (1 - rate * this.weightDecay);
        tensor[i] = kept - ((rate / first) * m[i]) / (Math.sqrt(v[i]) / second + EPS);
      }
    }
  }
}

/**
 * Scales all gradients, in place, so that their common norm is at most `most`; the norm before.
 * @param {Arrays} gradients
 * @param {number} most
 */
export function clip(gradients, most) {
  let squares = 0;
  for (const gradient of Object.values(gradients)) for (const value of gradient) squares += value * value;
  const norm = Math.sqrt(squares);
  if (Number.isFinite(norm) && norm + TINY > most)
    for (const gradient of Object.values(gradients)) gradient.forEach((value, i) => (gradient[i] = value * (most / (norm + TINY))));
  return norm;
}
