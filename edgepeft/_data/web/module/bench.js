/**
 * How fast this device answers, as a document of schema edgepeft.bench/1: the scenarios `offline` (8 rows of 128 tokens) and
 * `single-stream` (1 of 16) of `edgepeft bench`, full rows, in rounds with a matrix product between, raw samples and all.
 *
 * @typedef {import("./bundle.js").Bundle} Bundle
 * @typedef {{scenario: string, batch: number, length: number, repeats: number}} Work
 * @typedef {{task: string, work: Work, rows: import("./tokenizer.js").Row[], samples: number[], warmup: number[]}} Series
 * @typedef {{userAgent: string, threads: number, cores: number | null, notes: string[]}} Device
 */

/** @type {Work[]} */
export const WORK = [
  { scenario: "offline", batch: 8, length: 128, repeats: 1 },
  { scenario: "single-stream", batch: 1, length: 16, repeats: 10 },
];
export const [ROUNDS, WARMUP, MOST_TASKS] = [10, 2, 2];
const GEMM = [1024, 768, 3072]; // as edgepeft/bench/workloads/probes.py
const SENTENCE = "The quick brown fox jumps over the lazy dog, and nobody who sees it is surprised.";

/**
 * The first tasks of different structures: as many as stay open at once.
 * @param {Bundle} bundle
 */
export function measuredTasks(bundle) {
  /** @type {Map<string, string>} */
  const first = new Map();
  for (const [name, { structure }] of Object.entries(bundle.tasks)) if (!first.has(structure)) first.set(structure, name);
  return Array.from(first.values()).slice(0, MOST_TASKS);
}

/**
 * Measure and put it down.
 * @param {Bundle} bundle
 * @param {{rounds?: number, watch?: (done: number, all: number) => void, device: Device}} how
 */
export async function measure(bundle, { rounds = ROUNDS, watch = () => {}, device }) {
  /** @type {Series[]} */
  const series = measuredTasks(bundle).flatMap((task) =>
    WORK.map((work) => ({ task, work, rows: rowsOf(bundle, task, work), samples: [], warmup: [] })),
  );
  const product = await productOf(bundle);
  /** @type {number[]} */
  const rates = [];
  for (let round = -WARMUP; round < rounds; round++) {
    for (let k = 0; k < series.length; k++) {
      const one = series[(k + round + WARMUP) % series.length]; // no one is always the first of a round
      for (let i = 0; i < (round < 0 ? 1 : one.work.repeats); i++) {
        const seconds = await timed(() => bundle.logits(one.task, one.rows));
        (round < 0 ? one.warmup : one.samples).push(seconds);
      }
      await new Promise((resolve) => setTimeout(resolve));
    }
    const rate = (2 * GEMM[0] * GEMM[1] * GEMM[2]) / (await timed(product.run)) / 1e9;
    if (round >= 0) rates.push(rate);
    watch(round + WARMUP + 1, rounds + WARMUP);
  }
  await product.release();
  return written(bundle, series, rates, device);
}

/** @param {() => Promise<any>} work */
async function timed(work) {
  const begin = performance.now();
  await work();
  return Math.max(performance.now() - begin, 1e-3) / 1000; // a browser's clock may be coarse, and no time is zero
}

/**
 * Full rows: what stands in them changes nothing.
 * @param {Bundle} bundle
 * @param {string} task
 * @param {Work} work
 */
function rowsOf(bundle, task, { batch, length }) {
  const own = Math.min(length, bundle.entry(task).maxLength);
  const { row } = bundle.encoder.encode([SENTENCE, null], own);
  return Array.from({ length: batch }, () => Array.from({ length: own }, (_, j) => row[j % row.length]));
}

/** @param {Bundle} bundle */
async function productOf({ ort, files }) {
  const [m, k, n] = GEMM;
  const session = await ort.InferenceSession.create(await files.read("gemm.onnx"), { executionProviders: ["wasm"] });
  const filled = (/** @type {number} */ size) => Float32Array.from({ length: size }, (_, i) => ((i * 7919) % 1009) / 500 - 1);
  const given = { a: new ort.Tensor("float32", filled(m * k), [m, k]), b: new ort.Tensor("float32", filled(k * n), [k, n]) };
  return { run: () => session.run(given), release: () => session.release() };
}

/**
 * @param {Bundle} bundle
 * @param {Series[]} series
 * @param {number[]} rates
 * @param {Device} device
 */
function written({ site }, series, rates, device) {
  const { threads } = device;
  return {
    schema: "edgepeft.bench/1",
    mode: "measured",
    host: {
      cpu: "not told by the browser",
      machine: "wasm",
      isa: ["wasm simd", ...(threads > 1 ? ["wasm threads"] : [])],
      cores: { usable: threads, logical: device.cores },
      system: device.userAgent,
      versions: { edgepeft: site.edgepeft, "onnxruntime-web": site.libraries["onnxruntime-web"] },
      gemm_gflops: median(rates),
      gemm_samples_gflops: { infer: rates },
    },
    profile: { name: "browser", title: "a page in a browser, on the device itself", notes: device.notes },
    model: { ...site.model, tasks: Object.fromEntries(series.map(({ task }) => [task, { method: site.tasks[task].method }])) },
    measured_at: new Date().toISOString().replace(/\.\d+Z$/, "+00:00"),
    schedule: { rounds: rates.length, warmup_batches: [WARMUP] },
    results: series.map(({ task, work, rows, samples, warmup }) => ({
      scenario: work.scenario,
      workload: "infer",
      engine: "onnxruntime",
      method: site.tasks[task].method,
      task,
      prompt_length: site.tasks[task].promptLength || null,
      batch_size: rows.length,
      sequence_length: rows[0].length,
      lengths: { source: "full", described: `every row ${rows[0].length} tokens, no padding`, mean: rows[0].length, max: rows[0].length },
      threads,
      samples_s: samples,
      warmup_s: warmup,
      sample_batches: samples.map(() => 0),
      instances_per_minute: (60 * rows.length * samples.length) / samples.reduce((a, b) => a + b, 0),
      statistics: { n: samples.length, median_s: median(samples) },
      latency_s: { p50: percentile(samples, 50), p90: percentile(samples, 90), p99: percentile(samples, 99) },
      warnings: [],
    })),
  };
}

/** @param {number[]} samples */
export function median(samples) {
  const sorted = [...samples].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

/**
 * By nearest rank; null where no sample can lie above it.
 * @param {number[]} samples
 * @param {number} p
 */
export function percentile(samples, p) {
  if (samples.length * (100 - p) < 100) return null;
  return [...samples].sort((a, b) => a - b)[Math.max(1, Math.ceil((samples.length * p) / 100)) - 1];
}
