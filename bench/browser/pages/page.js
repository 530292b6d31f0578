/** Workers by the side that they are, and rounds in which they take turns. */

const workers = {};
const waiting = new Map();
let n = 0;

function call(side, what, ...given) {
  workers[side] ??= started(side);
  return new Promise((resolve, reject) => {
    waiting.set(++n, { resolve, reject });
    workers[side].postMessage({ id: n, what, given });
  });
}

function started(side) {
  const worker = new Worker(`${side}.js`, { type: "module" });
  worker.onmessage = ({ data }) => {
    const { resolve, reject } = waiting.get(data.id);
    waiting.delete(data.id);
    data.error === undefined ? resolve(data) : reject(new Error(`${side}: ${data.error}`));
  };
  worker.onerror = ({ message }) => waiting.forEach(({ reject }) => reject(new Error(`${side}: ${message ?? "its worker did not start"}`)));
  return worker;
}

const steps = {
  call,
  /**
   * Seconds of each side: a request is [task, texts], and round i takes the i-th of them on every side, the first side
   * another one each time.
   */
  async race({ sides, requests, rounds, warmup }) {
    const seconds = Object.fromEntries(sides.map((side) => [side, []]));
    for (let round = -warmup; round < rounds; round++) {
      const request = requests[(round + warmup) % requests.length];
      const order = round % 2 ? sides : [...sides].reverse();
      for (const side of order) {
        const took = (await call(side, "scores", ...request)).seconds;
        if (round >= 0) seconds[side].push(took);
      }
    }
    return seconds;
  },
};
globalThis.bench = (name, given) => steps[name](...given);
