/** The page's side of the worker that runs the model, and of the service worker that keeps the site. */

export class Client {
  /**
   * @param {(done: number, all: number, name: string) => void} progress
   * @param {(told: any) => void} [told] gets what a long call says meanwhile
   */
  constructor(progress, told = () => {}) {
    /** @type {Map<number, {resolve: (result: any) => void, reject: (error: Error) => void}>} */
    this.waiting = new Map();
    this.n = 0;
    this.worker = new Worker("worker.js", { type: "module" });
    this.worker.onmessage = ({ data }) => {
      if (data.progress) return progress(.../** @type {[number, number, string]} */ (data.progress));
      if (data.told) return told(data.told);
      const { resolve, reject } = /** @type {any} */ (this.waiting.get(data.id));
      this.waiting.delete(data.id);
      data.error === undefined ? resolve(data.result) : reject(new Error(data.error));
    };
    this.worker.onerror = () => this.fail("the page's worker could not be started: a script is missing or altered. Reload the page.");
  }

  /** @param {string} message */
  fail(message) {
    for (const { reject } of this.waiting.values()) reject(new Error(message));
    this.waiting.clear();
  }

  /**
   * @param {string} what
   * @param {...any} given
   * @returns {Promise<any>}
   */
  call(what, ...given) {
    return new Promise((resolve, reject) => {
      this.waiting.set(++this.n, { resolve, reject });
      this.worker.postMessage({ id: this.n, what, given });
    });
  }
}

/**
 * Starts what keeps the site for later; why that is not possible, where it is not.
 * @param {() => void} updated called when another version of the site was stored meanwhile
 * @returns {Promise<string>}
 */
export async function keep(updated) {
  if (!("serviceWorker" in navigator)) return "not possible in this browser, or not without https";
  const registered = navigator.serviceWorker.register("sw.js", { updateViaCache: "none" });
  if (navigator.serviceWorker.controller) {
    navigator.serviceWorker.addEventListener("controllerchange", updated);
    registered.catch(() => {}); // not awaited: it comes after an update that another tab began and that may take long
    return "";
  }
  try {
    const registration = await registered;
    const first = registration.active ? null : (registration.installing ?? registration.waiting);
    await Promise.race([
      navigator.serviceWorker.ready,
      new Promise((_, reject) =>
        first?.addEventListener("statechange", () => first.state === "redundant" && reject(new Error("no room, or a file is not the manifest's"))),
      ),
    ]);
    if (!navigator.serviceWorker.controller)
      await new Promise((resolve) => {
        navigator.serviceWorker.addEventListener("controllerchange", resolve, { once: true });
        setTimeout(resolve, 2000); // after a hard reload there is none, and none comes
      });
    return "";
  } catch (error) {
    return `not kept: ${/** @type {Error} */ (error).message}`;
  }
}

/** @param {string} id @returns {any} */
export const $ = (id) => document.getElementById(id);

/** @param {unknown} error */
export function tell(error) {
  $("error").textContent = error instanceof Error ? error.message : String(error);
  $("error").hidden = false;
  $("progress").hidden = true;
}

/** @param {number} bytes */
export const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
