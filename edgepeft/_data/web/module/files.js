/**
 * The files of a site, each compared with the hash that the manifest gives.
 *
 * @typedef {{sha256: string, bytes: number}} Hashed
 * @typedef {(done: number, all: number, name: string) => void} Progress
 */
export class Files {
  /**
   * @param {string | URL} base the site's address, which ends in a slash; in Node a file: URL too
   * @param {Progress} progress
   */
  constructor(base, progress = () => {}) {
    this.base = new URL(base);
    this.progress = progress;
    /** @type {Record<string, Hashed>} */
    this.known = {};
  }

  /**
   * The manifest; what it lists can be read from here on.
   * @returns {Promise<any>}
   */
  async manifest() {
    const site = JSON.parse(new TextDecoder().decode(await this.fetched("site.json", 0)));
    if (site.format !== "edgepeft.site/1") throw new Error(`${this.base} is no site that this version knows: its format is ${site.format}.`);
    this.known = site.files;
    return site;
  }

  /**
   * @param {string} name
   * @returns {Promise<Uint8Array>}
   */
  async read(name) {
    const about = this.known[name];
    if (!about) throw new Error(`the site's manifest lists no file ${name}.`);
    let bytes = await this.fetched(name, about.bytes);
    if ((await sha256(bytes)) === about.sha256) return bytes;
    if (await forgotten(new URL(name, this.base))) {
      bytes = await this.fetched(name, about.bytes); // what was kept was damaged: once more, from the server
      if ((await sha256(bytes)) === about.sha256) return bytes;
    }
    throw new Error(`${name} is not the file that the site was made with: it is truncated or altered, or the site was updated meanwhile. Reload the page.`);
  }

  /** @param {string} name */
  async json(name) {
    return JSON.parse(new TextDecoder().decode(await this.read(name)));
  }

  /**
   * @param {string} name
   * @param {number} size
   */
  async fetched(name, size) {
    const url = new URL(name, this.base);
    if (url.protocol === "file:") return new Uint8Array(await (await import("node:fs/promises")).readFile(url));
    const response = await fetch(url);
    if (!response.ok || !response.body) throw new Error(`${name} cannot be read: the server says ${response.status} ${response.statusText}.`);
    if (!size) return new Uint8Array(await response.arrayBuffer());
    const bytes = new Uint8Array(size);
    let done = 0;
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      if (done + part.value.length > size) return new Uint8Array(0); // longer than it should be: no hash is right
      bytes.set(part.value, done);
      done += part.value.length;
      this.progress(done, size, name);
    }
    return bytes.subarray(0, done);
  }
}

/**
 * Takes what a service worker keeps of this address away; whether it kept anything.
 * @param {URL} url
 */
async function forgotten(url) {
  if (!("caches" in globalThis)) return false;
  const gone = (await caches.keys()).map(async (name) => (await caches.open(name)).delete(url));
  return (await Promise.all(gone)).some(Boolean);
}

/** @param {Uint8Array} bytes */
export async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) throw new Error("this page checks hashes, which browsers allow on https: and on localhost only; open it there.");
  const digest = await crypto.subtle.digest("SHA-256", /** @type {Uint8Array<ArrayBuffer>} */ (bytes));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
