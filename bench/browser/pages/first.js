/** The first answer since the navigation: by the client of the site that this lies in, or by a pipeline in a worker. */
const [task, texts] = ["lora0", ["The first answer of a page that was here before."]];

if (location.pathname.startsWith("/bench/")) {
  const worker = new Worker("transformers.js", { type: "module" });
  const call = (what, ...given) =>
    new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => (data.error === undefined ? resolve(data.result) : reject(new Error(data.error)));
      worker.postMessage({ id: 0, what, given });
    });
  await call("open", { threads: Math.min(4, navigator.hardwareConcurrency) }); // as many as a site takes
  await call("scores", task, texts);
} else {
  const { Client, keep } = await import("./client.js");
  const client = new Client(() => {});
  await keep(() => {});
  await client.call("open");
  await client.call("predict", task, texts);
}
globalThis.answered = performance.now();
