/**
 * Steps of a task's training graph: loss and gradients by ONNX Runtime Web, AdamW here.  What lies below the lowest
 * trained tensor is computed once for each row, as edgepeft/tuning/activation_cache.py does.  The head's dropout is left out.
 *
 * @typedef {import("./bundle.js").Bundle} Bundle
 * @typedef {import("./tokenizer.js").Row} Row
 * @typedef {import("./safetensors.js").Floats} Floats
 * @typedef {{name: string, byRow: boolean, width: number}} State a value that the training graph goes on from
 * @typedef {{graph: string, below: string | null, states: State[], values: string, tensors: string,
 *   rates: [number, number], chosen: Record<string, any>, task: string, backbone: string}} Tuning `task` and `backbone`
 *   are hashes: of the delta that the tensors are of, and of the weights
 */
import { AdamW, clip } from "./adamw.js";
import { rateFactor } from "./loop.js";
import { passes } from "./passes.js";
import { readSafetensors } from "./safetensors.js";
import { fed } from "./sessions.js";

const CLIP_NORM = 1;

export class Tuner {
  /**
   * From the task's exported tensors.
   * @param {Bundle} bundle
   * @param {string} task
   */
  static async open(bundle, task) {
    const { tuning } = bundle.entry(task);
    if (!tuning) throw new Error(`task ${task} cannot be tuned in this site; it was made without \`edgepeft web --tunable\`, or its kind is not tuned in a page.`);
    return new Tuner(bundle, task, tuning, /** @type {Map<string, Floats>} */ (readSafetensors(await bundle.files.read(tuning.tensors))));
  }

  /**
   * @param {Bundle} bundle
   * @param {string} task
   * @param {Tuning} tuning
   * @param {Map<string, Floats>} start
   */
  constructor(bundle, task, tuning, start) {
    this.bundle = bundle;
    this.entry = bundle.entry(task);
    this.tuning = tuning;
    this.shapes = Object.fromEntries(Array.from(start, ([name, { shape }]) => [name, shape]));
    /** @type {import("./adamw.js").Arrays} */
    this.trained = Object.fromEntries(Array.from(start, ([name, { data }]) => [name, data.slice()]));
    const [rate, headRate] = tuning.rates;
    this.optimizer = new AdamW(Object.fromEntries(Object.keys(this.trained).map((name) => [name, name.startsWith("head/") ? headRate : rate])));
    /** @type {Map<Row, Record<string, Float32Array>>} */
    this.states = new Map();
  }

  /** A copy of the trained tensors. @returns {Record<string, Floats>} */
  get tensors() {
    return Object.fromEntries(Object.entries(this.trained).map(([name, data]) => [name, { shape: this.shapes[name], data: data.slice() }]));
  }

  /** @param {Record<string, Floats>} tensors */
  set tensors(tensors) {
    for (const [name, { data }] of Object.entries(tensors)) this.trained[name] = data.slice();
  }

  /**
   * One update; the loss before it, and the gradients' norm.
   * @param {Row[]} rows
   * @param {number[]} labels
   * @param {number} step
   * @param {{warmup: number, total: number}} loop
   */
  async step(rows, labels, step, loop) {
    const { loss, gradients } = await this.gradients(rows, labels);
    const norm = clip(gradients, CLIP_NORM);
    if (Number.isFinite(loss) && Number.isFinite(norm)) this.optimizer.update(this.trained, gradients, rateFactor(step, loop));
    return { loss, norm };
  }

  /**
   * Mean loss and its gradients, summed over parts of a thousand tokens.
   * @param {Row[]} rows
   * @param {number[]} labels
   */
  async gradients(rows, labels) {
    const outputs = ["loss", ...Object.keys(this.trained).map((name) => `gradient:${name}`)];
    /** @type {import("./adamw.js").Arrays} */
    const gradients = {};
    let loss = 0;
    for await (const { found } of this.parts(rows, labels, outputs)) {
      loss += found.loss.data[0];
      for (const name of Object.keys(this.trained)) {
        const { data } = found[`gradient:${name}`];
        if (gradients[name]) data.forEach((/** @type {number} */ value, /** @type {number} */ i) => (gradients[name][i] += value));
        else gradients[name] = data.slice();
      }
    }
    return { loss, gradients };
  }

  /**
   * The logits of each row, by the tensors as they are.
   * @param {Row[]} rows
   * @returns {Promise<Float32Array[]>}
   */
  async logits(rows) {
    /** @type {Float32Array[]} */
    const logits = new Array(rows.length);
    const { outputs } = this.entry;
    for await (const { part, found } of this.parts(rows, rows.map(() => 0), ["logits"]))
      part.forEach((row, i) => (logits[row] = found.logits.data.slice(i * outputs, (i + 1) * outputs)));
    return logits;
  }

  /**
   * @param {Row[]} rows
   * @param {number[]} labels
   * @param {string[]} outputs
   * @returns {AsyncGenerator<{part: number[], found: Record<string, any>}>}
   */
  async *parts(rows, labels, outputs) {
    const { Tensor } = this.bundle.ort;
    await this.prepare(rows);
    for (const part of passes(rows, this.entry.promptLength)) {
      const own = part.map((i) => rows[i]);
      const found = await this.bundle.queued(async () => {
        const session = await this.bundle.sessions.of(this.tuning.graph);
        /** @type {Record<string, any>} */
        const given = fed(session, this.bundle.inputs(own));
        for (const { name, width } of this.tuning.states) {
          const data = joined(own.map((row) => this.states.get(row)?.[name] ?? new Float32Array()));
          given[name] = new Tensor("float32", data, [data.length / width, width]);
        }
        for (const [name, data] of Object.entries(this.trained)) given[name] = new Tensor("float32", data, this.shapes[name]);
        given.labels = new Tensor("int64", BigInt64Array.from(part, (i) => BigInt(labels[i])), [part.length]);
        given.shares = new Tensor("float32", new Float32Array(part.length).fill(1 / rows.length), [part.length]);
        for (const [i, name] of session.inputNames.entries())
          if (name.startsWith("dropout:")) {
            const width = session.inputMetadata[i].shape[1];
            given[name] = new Tensor("float32", new Float32Array(part.length * width).fill(1), [part.length, width]);
          }
        return session.run(given, outputs);
      });
      yield { part, found };
    }
  }

  /**
   * Compute the states of rows that have none yet.
   * @param {Row[]} rows
   */
  async prepare(rows) {
    const { below, states } = this.tuning;
    const lacking = below === null ? [] : rows.filter((row) => !this.states.has(row));
    for (const part of passes(lacking, this.entry.promptLength)) {
      const own = part.map((i) => lacking[i]);
      const found = await this.bundle.queued(async () => {
        const session = await this.bundle.sessions.of(/** @type {string} */ (below));
        return session.run(fed(session, this.bundle.inputs(own)), states.map(({ name }) => name));
      });
      let tokens = 0;
      own.forEach((row, i) => {
        const of = (/** @type {State} */ { name, byRow, width }) =>
          found[name].data.slice((byRow ? i : tokens) * width, (byRow ? i + 1 : tokens + row.length) * width);
        this.states.set(row, Object.fromEntries(states.map((state) => [state.name, of(state)])));
        tokens += row.length;
      });
    }
  }
}

/** @param {Float32Array[]} parts */
function joined(parts) {
  const all = new Float32Array(parts.reduce((n, { length }) => n + length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}
