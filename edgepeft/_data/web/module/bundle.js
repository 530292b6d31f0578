/**
 * A site of `edgepeft web` that answers: one tokenizer, one copy of the weights' bytes, a session for each structure.
 *
 * @typedef {import("./kinds.js").Given} Given
 * @typedef {import("./kinds.js").Task} Task
 * @typedef {import("./tokenizer.js").Row} Row
 * @typedef {Task & {method: string, head: string, maxLength: number, promptLength: number, structure: string,
 *   lower: string[], values: string | null, check: string, tolerance: {difference: number | null, changed: number}, bytes: number,
 *   tuning?: import("./tuner.js").Tuning}} Entry
 * @typedef {{task: string, note?: string, [field: string]: any}} Answer what `edgepeft run --json` prints of a row
 * @typedef {{ort: any, Tokenizer?: any, wasm?: string, progress?: import("./files.js").Progress, sessions?: number,
 *   threads?: number, providers?: string[]}} Options
 */
import { replayed } from "./agreement.js";
import { Files } from "./files.js";
import { KINDS } from "./kinds.js";
import { passes } from "./passes.js";
import { note } from "./rows.js";
import { readSafetensors } from "./safetensors.js";
import { fed, Sessions } from "./sessions.js";
import { Encoder } from "./tokenizer.js";

const HELD_PASSES = 8; // whose lower layers' results are kept while several tasks read them

export class Bundle {
  /**
   * Open a site: the manifest, the tokenizer and the weights' bytes.
   * @param {string | URL} url the site's folder; in Node a file: URL too
   * @param {Options} options `ort` is onnxruntime-web, or what has its interface; `Tokenizer` is @huggingface/tokenizers'
   *   class, `wasm` the site's file that ONNX Runtime is started from, `sessions` how many structures stay open,
   *   `providers` ONNX Runtime's execution providers
   */
  static async open(url, { ort, Tokenizer, wasm, progress, sessions = 2, threads = 1, providers }) {
    const base = String(url).endsWith("/") ? String(url) : `${url}/`;
    const files = new Files(base, progress);
    const site = await files.manifest();
    if (wasm) {
      ort.env.wasm.wasmBinary = await files.read(wasm);
      ort.env.wasm.numThreads = threads;
    }
    const encoder = new Encoder(await files.json("tokenizer.json"), await files.json("tokenizer_config.json"), Tokenizer);
    return new Bundle(ort, files, site, encoder, await files.read(site.weights), sessions, providers);
  }

  /**
   * @param {any} ort
   * @param {Files} files
   * @param {any} site
   * @param {Encoder} encoder
   * @param {Uint8Array | null} weights let go where no other session will need them
   * @param {number} most
   * @param {string[]} [providers]
   */
  constructor(ort, files, site, encoder, weights, most, providers = ["wasm"]) {
    this.ort = ort;
    this.files = files;
    this.site = site;
    this.encoder = encoder;
    this.sessions = new Sessions(ort, files, site, weights, most, providers);
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
   * One answer for each row: a text, a pair, or an object of columns; of several tasks, these by task.  Layers that tasks
   * share are run once for the rows that they read alike.
   * @template {string | string[]} T
   * @param {T} tasks
   * @param {Given | Given[]} rows
   * @returns {Promise<T extends string ? Answer[] : Record<string, Answer[]>>}
   */
  async predict(tasks, rows) {
    const given = Array.isArray(rows) ? rows : [rows];
    const names = /** @type {string[]} */ ([tasks].flat());
    const read = new Map(names.map((task) => [task, this.read(this.entry(task), given)]));
    /** @type {Map<string, string[]>} */
    const alike = new Map();
    for (const [task, each] of read) {
      const key = JSON.stringify(each.map(({ rows }) => rows.flat().map((row) => row.map(({ id, type }) => [id, type]))));
      alike.set(key, [...(alike.get(key) ?? []), task]);
    }
    /** @type {Map<string, Answer[]>} */
    const answers = new Map();
    for (const group of alike.values()) {
      const rows = /** @type {any[]} */ (read.get(group[0])).flatMap((each) => each.rows.flat());
      const logits = await this.queued(() => this.run(group, rows));
      for (const task of group) answers.set(task, this.answers(task, read.get(task) ?? [], logits.get(task) ?? []));
    }
    const each = (/** @type {string} */ task) => [task, answers.get(task)];
    return /** @type {any} */ (Array.isArray(tasks) ? Object.fromEntries(tasks.map(each)) : answers.get(tasks));
  }

  /**
   * @param {Entry} entry
   * @param {Given[]} rows
   */
  read(entry, rows) {
    return rows.map((given) => {
      const texts = KINDS[entry.kind].texts(given);
      return { given, texts, ...this.tokenized(entry, texts) };
    });
  }

  /**
   * @param {string} task
   * @param {ReturnType<Bundle["read"]>} read
   * @param {Float32Array[]} logits
   * @returns {Answer[]}
   */
  answers(task, read, logits) {
    const entry = this.entry(task);
    let at = 0;
    return read.map((each) => {
      const own = each.rows.map((windows) => windows.map(() => logits[at++]));
      return { task, ...KINDS[entry.kind].answer(entry, { ...each, logits: own }), ...note(entry, each.texts[0]) };
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
      return { rows: found.map(({ rows }) => rows), cut: texts.map(() => false), whole: found.map(({ whole }) => whole) };
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
  async logits(task, rows) {
    return /** @type {Float32Array[]} */ ((await this.queued(() => this.run([task], rows))).get(task));
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
   * The logits of the same rows by each task.
   * @param {string[]} tasks
   * @param {Row[]} rows
   */
  async run(tasks, rows) {
    const found = new Map(tasks.map((task) => [task, /** @type {Float32Array[]} */ (new Array(rows.length))]));
    const parts = [...passes(rows, Math.max(...tasks.map((task) => this.entry(task).promptLength)))];
    const most = tasks.length > 1 ? HELD_PASSES : 1;
    while (parts.length) {
      const held = parts.splice(0, most).map((part) => ({ part, known: this.inputs(part.map((i) => rows[i])) }));
      for (const task of this.ordered(tasks))
        for (const { part, known } of held) this.put(/** @type {any} */ (found.get(task)), task, rows, part, await this.computed(task, known));
    }
    return found;
  }

  /**
   * Tasks of one structure together, and those first whose session is open.
   * @param {string[]} tasks
   */
  ordered(tasks) {
    const rank = (/** @type {string} */ task) => [this.sessions.open.has(this.entry(task).structure) ? 0 : 1, this.entry(task).structure].join(" ");
    return [...tasks].sort((a, b) => (rank(a) < rank(b) ? -1 : 1));
  }

  /**
   * A task's logits of a pass; what the graphs below give is added to `known`, for the next task.
   * @param {string} task
   * @param {Record<string, any>} known
   * @returns {Promise<Float32Array>}
   */
  async computed(task, known) {
    const entry = this.entry(task);
    for (const name of entry.lower) {
      const session = await this.sessions.lower(name);
      const [value] = session.outputNames;
      known[value] ??= (await session.run(fed(session, known)))[value];
    }
    const session = await this.sessions.of(entry.structure);
    return (await session.run({ ...(await this.valuesOf(task, entry)), ...fed(session, known) }, ["logits"])).logits.data;
  }

  /**
   * @param {Float32Array[]} found
   * @param {string} task
   * @param {Row[]} rows
   * @param {number[]} part
   * @param {Float32Array} logits
   */
  put(found, task, rows, part, logits) {
    const { kind, outputs, promptLength } = this.entry(task);
    const { perToken } = KINDS[kind];
    let at = 0;
    for (const i of part) {
      at += perToken ? promptLength * outputs : 0;
      const size = perToken ? rows[i].length * outputs : outputs;
      found[i] = logits.slice(at, at + size);
      at += size;
    }
  }

  /**
   * What a graph may read of token rows.
   * @param {Row[]} rows
   * @returns {Record<string, any>}
   */
  inputs(rows) {
    const longest = Math.max(...rows.map((row) => row.length));
    const tensor = (/** @type {number} */ fill, /** @type {(token: Row[number]) => number} */ value) => {
      const data = new BigInt64Array(rows.length * longest).fill(BigInt(fill));
      rows.forEach((row, i) => row.forEach((token, j) => (data[i * longest + j] = BigInt(value(token)))));
      return new this.ort.Tensor("int64", data, [rows.length, longest]);
    };
    return {
      input_ids: tensor(this.site.padTokenId, ({ id }) => id),
      attention_mask: tensor(0, () => 1),
      token_type_ids: tensor(0, ({ type }) => type),
    };
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
  verify(task) {
    return replayed(this, task);
  }

  /** Close all sessions. */
  async close() {
    await this.last;
    await this.sessions.close();
  }
}
