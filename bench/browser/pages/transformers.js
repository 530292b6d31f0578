/** Their side: a pipeline for each task, of a whole model each, float32 as ours, on WebAssembly as ours. */
import { env, pipeline } from "/lib/@huggingface/transformers/dist/transformers.min.js";
import { answering } from "./answering.js";

const pipelines = new Map();
answering({
  open({ threads }) {
    env.allowLocalModels = false;
    env.remoteHost = `${self.location.origin}/`;
    env.remotePathTemplate = "models/{model}/";
    const { wasm } = env.backends.onnx;
    wasm.numThreads = threads;
    // The build that it chooses for this browser, from here instead of its content network.
    for (const [name, url] of Object.entries(wasm.wasmPaths))
      wasm.wasmPaths[name] = url.replace(/^.*\//, `${self.location.origin}/lib/onnxruntime-web/dist/`);
    return Object.values(wasm.wasmPaths);
  },
  async scores(task, texts) {
    if (!pipelines.has(task)) pipelines.set(task, await pipeline("text-classification", task, { device: "wasm", dtype: "fp32" }));
    const found = await pipelines.get(task)(texts, { top_k: null });
    return found.map((each) => Object.fromEntries(each.map(({ label, score }) => [label, score])));
  },
});
