/** Our side: a bundle of a site, with the site's own ONNX Runtime. */
import { answering } from "./answering.js";

let bundle;
answering({
  async open({ site, threads, sessions }) {
    const url = new URL(`/${site}/`, self.location.href);
    const [{ Bundle }, ort] = await Promise.all([import(`${url}module/bundle.js`), import(`${url}lib/ort.mjs`)]);
    bundle = await Bundle.open(url, { ort, wasm: "lib/ort.wasm", threads, sessions });
  },
  scores: async (task, texts) => (await bundle.predict(task, texts)).map(({ scores }) => scores),
});
