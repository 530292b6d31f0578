/**
 * Sessions of a site's graphs.  ONNX Runtime Web shares no weights between them: each holds a copy of those that its
 * graph names.  Layers that tasks share are in graphs of their own, which stay open; of structures, the one that was
 * used least recently makes room.
 */
export class Sessions {
  /**
   * @param {any} ort
   * @param {import("./files.js").Files} files
   * @param {any} site
   * @param {Uint8Array | null} weights let go where no other session will need them
   * @param {number} most structures that stay open
   * @param {string[]} providers
   */
  constructor(ort, files, site, weights, most, providers) {
    this.ort = ort;
    this.files = files;
    this.site = site;
    this.weights = weights;
    this.most = most;
    this.providers = providers;
    /** @type {Map<string, any>} by structure, the one that was used last at the end */
    this.open = new Map();
    /** @type {Map<string, any>} of the layers that tasks share */
    this.shared = new Map();
  }

  /** @param {string} structure */
  async of(structure) {
    let session = this.open.get(structure);
    this.open.delete(structure);
    while (!session && this.open.size >= this.most) {
      const [oldest, least] = /** @type {[string, any]} */ (this.open.entries().next().value);
      this.open.delete(oldest);
      await least.release();
    }
    session ??= await this.created(structure);
    this.open.set(structure, session);
    const whole = (/** @type {any} */ task) => this.open.has(task.structure) && task.lower.every((/** @type {string} */ name) => this.shared.has(name));
    if (Object.values(this.site.tasks).every(whole)) this.weights = null;
    return session;
  }

  /** @param {string} name */
  async lower(name) {
    const session = this.shared.get(name) ?? (await this.created(name));
    this.shared.set(name, session);
    return session;
  }

  /** @param {string} graph */
  async created(graph) {
    this.weights ??= await this.files.read(this.site.weights);
    return this.ort.InferenceSession.create(await this.files.read(graph), {
      externalData: [{ path: this.site.weights, data: this.weights }],
      executionProviders: this.providers,
      logSeverityLevel: 3,
    });
  }

  async close() {
    for (const sessions of [this.open, this.shared]) {
      for (const session of sessions.values()) await session.release();
      sessions.clear();
    }
  }
}

/**
 * What a session reads of what is there.
 * @param {any} session
 * @param {Record<string, any>} known
 */
export function fed(session, known) {
  return Object.fromEntries(session.inputNames.flatMap((/** @type {string} */ name) => (name in known ? [[name, known[name]]] : [])));
}
