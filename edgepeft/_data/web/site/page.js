/** The page: which tasks, one text, their answers.  The model runs in a worker; nothing is sent anywhere. */
import { make, parts } from "./answers.js";
import { $, Client, keep, megabytes, tell } from "./client.js";
import { chosen, named, pick } from "./picker.js";

/** @type {Record<string, any>} */
let tasks = {};
/** @type {Record<string, {account?: any, stale?: string}>} */
let tuned = {};
const client = new Client((done, all, name) => {
  $("progress").value = done / all;
  $("took").textContent = `Loading ${name}: ${megabytes(done)} of ${megabytes(all)}`;
});

const PAIRS = (/** @type {any} */ task) => task.pairs || ["spans", "embedding"].includes(task.kind);
const PICKS = (/** @type {any} */ task) => task.kind === "choice";

async function start() {
  const begin = performance.now();
  const why = await keep(() => ($("updated").hidden = false));
  const opened = await client.call("open");
  tasks = opened.tasks;
  tuned = await client.call("tuned");
  $("tune").hidden = !Object.values(tasks).some(({ tuning }) => tuning);
  const n = Object.keys(tasks).length;
  $("summary").textContent = `${n === 1 ? "1 task" : `${n} tasks`} on one backbone, in this browser`;
  pick(Object.entries(tasks).map(choice), shown);
  $("progress").hidden = true;
  $("took").textContent = "Ready.";
  $("go").disabled = false;
  $("opened").textContent = seconds(performance.now() - begin);
  $("weights").textContent = megabytes(opened.weights.bytes);
  $("threads").textContent = String(opened.threads);
  $("offline").textContent = why || ((await stored(opened.weights.name)) ? "works" : "not kept: no room for the weights");
}

/**
 * Whether the weights are kept; their last bytes may still be on the way.
 * @param {string} name
 */
async function stored(name) {
  for (let tries = 0; tries < 20; tries++) {
    if (await caches.match(name)) return true;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  return false;
}

const seconds = (/** @type {number} */ ms) => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** @param {[string, any]} task @param {number} i */
const choice = ([name, task], i) => ({
  name,
  about: `${task.kind} · ${task.method}${told(task)}${tuned[name]?.account ? " · tuned here" : ""}`,
  checked: i === 0,
});

/** @param {any} task */
function told({ labels, kind, outputs }) {
  if (kind === "embedding") return ` · ${outputs} numbers`;
  return labels ? ` · ${named(labels)}` : "";
}

/** What the chosen tasks read. */
function shown() {
  const wanted = chosen().map((name) => tasks[name]);
  $("pair").hidden = !wanted.some(PAIRS);
  $("picks").hidden = !wanted.some(PICKS);
}

/** @param {any} task */
function rowFor(task) {
  const [text, second] = [$("text").value, $("second").value];
  if (PICKS(task)) {
    const candidates = $("candidates").value.split("\n").filter((/** @type {string} */ line) => line.trim());
    return { sentence1: text, candidates };
  }
  return PAIRS(task) && second ? [text, second] : text;
}

async function ask() {
  const names = chosen();
  if (!names.length) return tell("choose a task");
  $("error").hidden = true;
  $("go").disabled = true;
  $("answers").replaceChildren();
  const begin = performance.now();
  $("took").textContent = names.length === 1 ? `${names[0]}…` : `${names.length} tasks…`;
  const answers = await answered(names);
  $("answers").append(...names.map((name) => card(name, answers[name])));
  $("took").textContent = `${names.length === 1 ? "1 task" : `${names.length} tasks`} in ${seconds(performance.now() - begin)}`;
  $("go").disabled = false;
}

/**
 * Tasks that read the same columns in one call, for what they share; one by one where one of them cannot read these.
 * @param {string[]} names
 */
async function answered(names) {
  /** @type {Map<string, string[]>} */
  const alike = new Map();
  for (const name of names) {
    const row = JSON.stringify(rowFor(tasks[name]));
    alike.set(row, [...(alike.get(row) ?? []), name]);
  }
  /** @type {Record<string, any>} */
  const answers = {};
  for (const [row, group] of alike) {
    const asked = (/** @type {string[]} */ of) => client.call("predict", of, [JSON.parse(row)]);
    const found = await asked(group).catch(() => null);
    for (const name of group)
      answers[name] = found ? found[name][0] : await asked([name]).then((one) => one[name][0], (error) => ({ error: error.message }));
  }
  return answers;
}

/** @param {string} name @param {any} answer */
function card(name, answer) {
  const found = make("article", undefined, "card answer");
  const title = make("h3");
  title.append(make("b", name), make("span", `${tasks[name].method}${tuned[name]?.account ? ", tuned here" : ""}`));
  found.append(title, ...parts(answer, $("text").value, $("second").value));
  if (answer.note) found.append(make("p", answer.note));
  return found;
}

$("ask").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  ask();
});
$("text").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});
start().catch(tell);
