/** A worker that answers {id, what, given} with {id, result, seconds} or {id, error}; `seconds` are of the call alone. */

/** @param {Record<string, (...given: any[]) => any>} calls */
export function answering(calls) {
  const known = { collect: () => globalThis.gc?.(), ...calls };
  self.onmessage = async ({ data: { id, what, given } }) => {
    const begin = performance.now();
    try {
      const result = await known[what](...given);
      self.postMessage({ id, result, seconds: (performance.now() - begin) / 1000 });
    } catch (error) {
      self.postMessage({ id, error: String(error?.stack ?? error) });
    }
  };
}
