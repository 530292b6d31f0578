/**
 * A site of `edgepeft web` that answers: one tokenizer, one copy of the weights' bytes, a session for each structure.
 *
 * @typedef {import("./kinds.js").Given} Given
 * @typedef {import("./kinds.js").Task} Task
 * @typedef {import("./tokenizer.js").Row} Row
 * @typedef {Task & {method: string, head: string, maxLength: number, promptLength: number, structure: string,
 *   values: string | null, check: string, tolerance: {difference: number | null, changed: number}, bytes: number,
 *   tuning?: import("./tuner.js").Tuning}} Entry
 * @typedef {{ort: any, Tokenizer?: any, wasm?: string, progress?: import("./files.js").Progress, sessions?: number,
 *   threads?: number}} Options
 */
import { changed } from "./agreement.js";
import { Files } from "./files.js";
import { KINDS } from "./kinds.js";
import { note } from "./rows.js";
import { readSafetensors } from "./safetensors.js";
import { Encoder } from "./tokenizer.js";

const PASS_TOKENS = 1024; // activations of more do not stay in a core's cache: edgepeft/runtime/passes.py

export class Bundle {
  /**
   * Open a site: the manifest, the tokenizer and the weights' bytes.
   * @param {string | URL} url the site's folder; in Node a file: URL too
   * @param {Options} options `ort` is onnxruntime-web, or what has its interface; `Tokenizer` is @huggingface/tokenizers'
   *   class, `wasm` the site's file that ONNX Runtime is started from, `sessions` how many stay open
   */
  static async open(url, { ort, Tokenizer, wasm, progress, sessions = 2, threads = 1 }) {
    const base = String(url).endsWith("/") ? String(url) : `${url}/`;
    const files = new Files(base, progress);
    const site = await files.manifest();
    if (wasm) {
      ort.env.wasm.wasmBinary = await files.read(wasm);
      ort.env.wasm.numThreads = threads;
    }
    const encoder = new Encoder(await files.json("tokenizer.json"), await files.json("tokenizer_config.json"), Tokenizer);
    return new Bundle(ort, files, site, encoder, await files.read(site.weights), sessions);
  }

  /**
   * @param {any} ort
   * @param {Files} files
   * @param {any} site
   * @param {Encoder} encoder
   * @param {Uint8Array | null} weights let go where no other session will need them
   * @param {number} most
   */
  constructor(ort, files, site, encoder, weights, most) {
    this.ort = ort;
    this.files = files;
    this.site = site;
    this.encoder = encoder;
    this.weights = weights;
    this.most = most;
    /** @type {Map<string, any>} by structure, the one that was used last at the end */
    this.sessions = new Map();
    /** @type {Map<string, Record<string, any>>} by task */
    this.values = new Map();
    /** @type {Promise<any>} */
    this.last = Promise.resolve();
  }

  /** @returns {Record<string, Entry>} */
  get tasks() {
    return this.site.tasks;
  }

  /** @param {string} task */
  entry(task) {
    const found = Object.hasOwn(this.tasks, task) ? this.tasks[task] : undefined;
    if (!found) throw new Error(`no task of this site is called ${JSON.stringify(task)}. Known: ${Object.keys(this.tasks).join(", ")}.`);
    return found;
  }

  /**
   * One answer for each row: a text, a pair, or an object of columns.
   * @param {string} task
   * @param {Given | Given[]} rows
   * @returns {Promise<Record<string, any>[]>}
   */
  async predict(task, rows) {
    const entry = this.entry(task);
    const kind = KINDS[entry.kind];
    const read = (Array.isArray(rows) ? rows : [rows]).map((given) => ({ given, texts: kind.texts(given) }));
    const tokenized = read.map(({ given, texts }) => ({ given, texts, ...this.tokenized(entry, texts) }));
    const logits = await this.logits(task, tokenized.flatMap(({ rows }) => rows.flat()));
    return tokenized.map((each) => {
      const own = each.rows.map((windows) => windows.map(() => /** @type {Float32Array} */ (logits.shift())));
      return { task, ...kind.answer(entry, { ...each, logits: own }), ...note(entry, each.texts[0]) };
    });
  }

  /**
   * @param {Entry} entry
   * @param {import("./tokenizer.js").Text[]} texts
   */
  tokenized(entry, texts) {
    const kind = KINDS[entry.kind];
    if (kind.passages || "stride" in entry.chosen) {
      const overlap = entry.chosen.stride ?? Math.floor(entry.maxLength / 3);
      const found = texts.map((text) => this.encoder.windows(text, entry.maxLength, overlap, Boolean(kind.passages)));
      return { rows: found.map(({ rows }) => rows), cut: texts.map(() => false) };
    }
    const found = texts.map((text) => this.encoder.encode(text, entry.maxLength));
    return { rows: found.map(({ row }) => [row]), cut: found.map(({ cut }) => cut) };
  }

  /**
   * The logits of each token row: of its tokens one after the other, where the task answers for each.
   * @param {string} task
   * @param {Row[]} rows
   * @returns {Promise<Float32Array[]>}
   */
  logits(task, rows) {
    return this.queued(() => this.run(task, rows));
  }

  /**
   * One run at a time: ONNX Runtime Web has one, and a session may be closed for another.
   * @template T
   * @param {() => Promise<T>} work
   * @returns {Promise<T>}
   */
  queued(work) {
    const run = this.last.then(work);
    this.last = run.catch(() => {});
    return run;
  }

  /**
   * @param {string} task
   * @param {Row[]} rows
   */
  async run(task, rows) {
    const entry = this.entry(task);
    const session = await this.session(entry.structure);
    const values = await this.valuesOf(task, entry);
    /** @type {Float32Array[]} */
    const found = new Array(rows.length);
    for (const part of passes(rows, entry.promptLength)) {
      const inputs = this.inputs(part.map((i) => rows[i]), session.inputNames);
      const { data } = (await session.run({ ...values, ...inputs }, ["logits"])).logits;
      let at = 0;
      for (const i of part) {
        const tokens = KINDS[entry.kind].perToken;
        at += tokens ? entry.promptLength * entry.outputs : 0;
        const size = tokens ? rows[i].length * entry.outputs : entry.outputs;
        found[i] = data.slice(at, at + size);
        at += size;
      }
    }
    return found;
  }

  /**
   * @param {Row[]} rows
   * @param {string[]} names
   */
  inputs(rows, names) {
    const longest = Math.max(...rows.map((row) => row.length));
    const tensor = (/** @type {number} */ fill, /** @type {(token: Row[number]) => number} */ value) => {
      const data = new BigInt64Array(rows.length * longest).fill(BigInt(fill));
      rows.forEach((row, i) => row.forEach((token, j) => (data[i * longest + j] = BigInt(value(token)))));
      return new this.ort.Tensor("int64", data, [rows.length, longest]);
    };
    /** @type {Record<string, () => any>} */
    const known = {
      input_ids: () => tensor(this.site.padTokenId, ({ id }) => id),
      attention_mask: () => tensor(0, () => 1),
      token_type_ids: () => tensor(0, ({ type }) => type),
    };
    return Object.fromEntries(names.filter((name) => name in known).map((name) => [name, known[name]()]));
  }

  /** @param {string} structure */
  async session(structure) {
    let session = this.sessions.get(structure);
    this.sessions.delete(structure);
    while (!session && this.sessions.size >= this.most) {
      const [oldest, least] = /** @type {[string, any]} */ (this.sessions.entries().next().value);
      this.sessions.delete(oldest);
      await least.release(); // each holds a copy of the weights: ONNX Runtime Web shares none
    }
    session ??= await this.opened(structure);
    this.sessions.set(structure, session);
    if (Object.values(this.tasks).every((task) => this.sessions.has(task.structure))) this.weights = null;
    return session;
  }

  /** @param {string} structure */
  async opened(structure) {
    this.weights ??= await this.files.read(this.site.weights);
    return this.ort.InferenceSession.create(await this.files.read(structure), {
      externalData: [{ path: this.site.weights, data: this.weights }],
      executionProviders: ["wasm"],
      logSeverityLevel: 3,
    });
  }

  /**
   * What a task feeds to the session that it shares.
   * @param {string} task
   * @param {Entry} entry
   */
  async valuesOf(task, entry) {
    const there = this.values.get(task);
    if (there) return there;
    const tensors = entry.values ? readSafetensors(await this.files.read(entry.values)) : new Map();
    const found = Object.fromEntries(
      Array.from(tensors, ([name, { data, shape }]) => [name, new this.ort.Tensor("float32", data, shape)]),
    );
    this.values.set(task, found);
    return found;
  }

  /**
   * Replays a task's check file: token rows, and the logits that PyTorch gave for them.
   * @param {string} task
   */
  async verify(task) {
    const entry = this.entry(task);
    const tensors = readSafetensors(await this.files.read(entry.check));
    const column = (/** @type {string} */ name) => tensors.get(name)?.data;
    const [n, length] = /** @type {{shape: number[]}} */ (tensors.get("input_ids")).shape;
    const logits = /** @type {Float32Array} */ (column("logits"));
    const rows = Array.from({ length: n }, (_, i) => {
      const at = Array.from({ length }, (_, j) => i * length + j).filter((j) => column("attention_mask")?.[j]);
      return at.map((j) => ({ id: Number(column("input_ids")?.[j]), type: Number(column("token_type_ids")?.[j] ?? 0), part: 0, start: 0, end: 0 }));
    });
    const given = await this.logits(task, rows);
    const width = logits.length / n;
    const reference = given.map((own, i) => logits.subarray(i * width, i * width + own.length));
    let difference = 0;
    given.forEach((own, i) =>
      // Not the largest alone: a NaN must fail.
      own.forEach((value, j) => (difference = Math.max(difference, Number.isFinite(value) ? Math.abs(value - reference[i][j]) : Infinity))),
    );
    const others = changed(entry, reference, given);
    const { tolerance } = entry;
    const passed = difference <= (tolerance.difference ?? Number.MAX_VALUE) && others / n <= tolerance.changed;
    return { task, rows: n, difference, changed: others, tolerance, passed };
  }

  /** Close all sessions. */
  async close() {
    await this.last;
    for (const session of this.sessions.values()) await session.release();
    this.sessions.clear();
  }
}

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
