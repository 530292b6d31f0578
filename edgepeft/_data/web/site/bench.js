/** Measures in the worker, shows it, and offers the document. */
import { make } from "./answers.js";
import { $, Client, keep, megabytes, tell } from "./client.js";

const LABELS = ["task", "batch", "median", "90 % within", "texts a minute"];
const client = new Client(
  (done, all, name) => {
    $("progress").value = done / all;
    $("took").textContent = `Loading ${name}: ${megabytes(done)} of ${megabytes(all)}`;
  },
  ({ done, all }) => {
    $("progress").value = done / all;
    $("took").textContent = `Round ${done} of ${all}`;
  },
);
/** Whether the page was out of sight. */
let hidden = false;

async function start() {
  await keep(() => {});
  await client.call("open");
  const { tasks, work, rounds } = await client.call("benched");
  const sets = work.map((/** @type {any} */ { batch, length, repeats }) => `${batch === 1 ? "a text" : `${batch} texts`} of ${length} tokens, ${repeats * rounds} times`);
  $("plan").textContent = `Asks ${tasks.join(" and ")}: ${sets.join("; ")}; and a product of matrices between. About a minute; keep the page in sight. Nothing is sent anywhere.`;
  settled("Ready.");
}

/** @param {string} text */
function settled(text) {
  $("progress").hidden = true;
  $("took").textContent = text;
  $("go").disabled = false;
}

async function run() {
  $("go").disabled = true;
  $("error").hidden = $("found").hidden = true;
  $("progress").hidden = false;
  hidden = document.hidden;
  try {
    const result = await client.call("bench", navigator.userAgent);
    $("took").textContent = "Asking the browser for the memory, for a minute at most…";
    const memory = await pageMemory();
    const told = memory === null ? "memory of the page: not known; this browser, or a page without isolation, does not tell" : `memory of the page: ${megabytes(memory)} (measureUserAgentSpecificMemory)`;
    result.profile.notes.push(told);
    if (hidden) for (const row of result.results) row.warnings.push("in the background: the page was hidden for a time, and browsers slow such pages down");
    show(result, memory);
    settled("Measured.");
  } catch (error) {
    tell(error);
    settled("Nothing was measured.");
  }
}

/** Of the page and its workers; null where it is not told. @returns {Promise<number | null>} */
async function pageMemory() {
  const measure = /** @type {any} */ (performance).measureUserAgentSpecificMemory;
  if (!self.crossOriginIsolated || !measure) return null;
  // It may take a browser many seconds: it waits for a collection of garbage.
  const given = measure.call(performance).then((/** @type {any} */ { bytes }) => bytes, () => null);
  return Promise.race([given, new Promise((resolve) => setTimeout(resolve, 60_000, null))]);
}

/** @param {any} result @param {number | null} memory */
function show(result, memory) {
  const { host, results } = result;
  $("threads").textContent = host.cores.usable;
  $("arithmetic").textContent = "WASM SIMD";
  $("rate").textContent = `${host.gemm_gflops.toFixed(1)} GFLOP/s`;
  $("memory").textContent = memory === null ? "not told" : megabytes(memory);
  const time = (/** @type {number | null} */ s) => (s === null ? "–" : `${(1000 * s).toPrecision(3)} ms`);
  $("findings").replaceChildren(
    ...results.map((/** @type {any} */ one) => {
      const row = make("tr");
      const speed = Math.round(one.instances_per_minute).toLocaleString("en");
      [one.task, `${one.batch_size} × ${one.sequence_length}`, time(one.latency_s.p50), time(one.latency_s.p90), speed].forEach((text, i) => {
        const cell = make("td", text);
        cell.dataset.label = LABELS[i];
        row.append(cell);
      });
      return row;
    }),
  );
  URL.revokeObjectURL($("download").href);
  $("download").href = URL.createObjectURL(new Blob([JSON.stringify(result, null, 1)], { type: "application/json" }));
  $("download").download = "browser.bench.json";
  $("download").textContent = "Download browser.bench.json";
  $("found").hidden = false;
}

document.addEventListener("visibilitychange", () => (hidden ||= document.hidden));
$("go").addEventListener("click", run);
start().catch(tell);
