/** Examples that a person types, and a task tuned on them in the worker.  Both stay in this browser until they are removed. */
import { make } from "./answers.js";
import { $, Client, keep, megabytes, tell } from "./client.js";
import { load, save } from "./store.js";

/**
 * @typedef {{text: string, second: string | null, label: string}} Example
 * @typedef {{metrics: Record<string, any>, training: Record<string, any>}} Account
 */

/** @type {Record<string, any>} */
let tasks = {};
/** @type {Record<string, {account?: Account, stale?: string, bytes?: Uint8Array<ArrayBuffer>, lost?: string}>} what is in force */
let tuned = {};
/** @type {Example[]} */
let examples = [];
const client = new Client(
  (done, all, name) => {
    $("progress").value = done / all;
    $("took").textContent = `Loading ${name}: ${megabytes(done)} of ${megabytes(all)}`;
  },
  ({ step, total, loss, score }) => {
    $("progress").value = step / total;
    $("took").textContent = `Step ${step} of ${total}${loss === null ? "" : `, loss ${loss.toFixed(3)}`}; ${percent(score)} of the rows that choose are right`;
  },
);

const percent = (/** @type {number} */ share) => `${(100 * share).toFixed(0)} %`;
const task = () => $("task").value;

async function start() {
  await keep(() => {});
  tasks = (await client.call("open")).tasks;
  tuned = await client.call("tuned");
  const offered = Object.keys(tasks).filter((name) => tasks[name].tuning);
  $("task").replaceChildren(...offered.map((name) => make("option", name)));
  const wanted = new URLSearchParams(location.search).get("task");
  if (wanted && offered.includes(wanted)) $("task").value = wanted;
  const others = Object.keys(tasks).filter((name) => !tasks[name].tuning);
  $("untunable").hidden = !others.length;
  $("untunable").textContent = `Not tuned in a page: ${others.map((name) => `${name} (${tasks[name].untunable})`).join("; ")}.`;
  await chosen();
  settled("Ready.");
}

/** Another task: its labels, its examples, and what was tuned of it. */
async function chosen() {
  $("label").replaceChildren(...tasks[task()].labels.map((/** @type {string} */ label) => make("option", label)));
  $("pair").hidden = !tasks[task()].pairs;
  examples = (await load("examples", task()).catch(() => null)) ?? [];
  show();
  const { account, stale, bytes, lost } = tuned[task()] ?? {};
  $("result").hidden = !account;
  $("error").hidden = true;
  if (stale) tell(stale);
  if (account) told(account, bytes ?? (await client.call("exported", task())), lost ?? "");
}

/** @param {string} text */
function settled(text) {
  $("progress").hidden = true;
  $("took").textContent = text;
  busy(false);
}

/** What runs is what is shown: nothing of it can be changed meanwhile. @param {boolean} running */
function busy(running) {
  $("go").disabled = running;
  $("cancel").hidden = !running;
  for (const part of document.querySelectorAll("#task, #put, #paste, #back, #examples button")) /** @type {HTMLButtonElement} */ (part).disabled = running;
}

/** @param {string} [message] what is wrong with an example */
function mistake(message = "") {
  $("mistake").textContent = message;
  $("mistake").hidden = !message;
}

/**
 * @param {Example[]} more
 * @returns {Promise<boolean>} whether they were added
 */
async function add(more) {
  const known = tasks[task()].labels;
  for (const [i, { text, second, label }] of more.entries()) {
    const same = [...examples, ...more.slice(0, i)].find((one) => one.text === text && one.second === second);
    const shown = text.length > 40 ? `${text.slice(0, 40)}…` : text;
    if (!text || (tasks[task()].pairs && !second)) return mistake("The example is empty; type its text."), false;
    if (!known.includes(label)) return mistake(`“${shown}” has the label “${label}”; the task knows ${known.join(", ")}.`), false;
    if (same) return mistake(`“${shown}” is there already, ${same.label === label ? "with that label" : `as ${same.label}; remove that one if ${label} is right`}.`), false;
  }
  mistake();
  examples.push(...more);
  await store();
  return true;
}

async function store() {
  show();
  await save("examples", task(), examples).catch((error) => mistake(`The examples are not kept when this page is closed: ${error?.message || "there is no room"}.`));
}

function show() {
  const counts = tasks[task()].labels.map((/** @type {string} */ label) => `${examples.filter((one) => one.label === label).length} ${label}`);
  $("count").textContent = examples.length ? `${examples.length}: ${counts.join(", ")}.` : "None yet. Twenty are a good start, about as many of each label.";
  $("examples").replaceChildren(...examples.map(line));
}

/** @param {Example} example @param {number} i */
function line({ text, second, label }, i) {
  const item = make("li");
  const button = make("button", "Remove", "quiet");
  button.type = "button";
  button.setAttribute("aria-label", `Remove example ${i + 1}: ${text.slice(0, 60)}`);
  button.addEventListener("click", () => {
    examples.splice(i, 1);
    store();
    const rest = document.querySelectorAll("#examples button");
    /** @type {HTMLElement} */ (rest[Math.min(i, rest.length - 1)] ?? $("text")).focus();
  });
  const words = make("span", second === null ? text : `${text} — ${second}`);
  words.dir = "auto";
  item.append(make("b", label), words, button);
  return item;
}

async function run() {
  $("error").hidden = true;
  busy(true);
  $("progress").hidden = false;
  $("progress").value = 0;
  $("took").textContent = "Preparing…";
  const begin = performance.now();
  try {
    const { account, bytes, lost, cancelled } = await client.call("tune", task(), examples);
    if (cancelled) return settled("Cancelled; nothing was changed.");
    if (bytes) tuned[task()] = { account, bytes, lost };
    told(account, bytes, lost);
    settled(`${account.training.steps} steps in ${((performance.now() - begin) / 1000).toFixed(1)} s`);
    $("result").scrollIntoView({ block: "nearest" });
  } catch (error) {
    tell(error);
    settled("Nothing was changed.");
  }
}

async function back() {
  await client.call("back", task());
  delete tuned[task()];
  $("result").hidden = true;
  settled("The exported task answers again.");
}

/**
 * @param {Account} account
 * @param {Uint8Array<ArrayBuffer> | undefined} bytes the file; none where no step was better
 * @param {string} lost why it is not kept
 */
function told({ metrics, training }, bytes, lost) {
  $("result").hidden = false;
  $("before").textContent = percent(metrics.before);
  $("after").textContent = percent(metrics.test);
  $("best").textContent = `${training.best_step} of ${training.steps}`;
  $("learnt").textContent = `${metrics.n_train} examples`;
  $("held").textContent =
    `${metrics.n_eval} other examples chose the step, and “right” is counted on ${metrics.n_test} that did neither: so few that it is a hint, no measurement.`;
  const before = tuned[task()]?.account;
  const stays = before ? "the exported task; what was tuned before stays in force." : "the task as it is, which stays.";
  $("verdict").textContent = bytes ? "In force on this device: the page answers by it." : `No step was better than ${stays}`;
  if (lost) tell(`It is in force until this page is closed, and could not be kept: ${lost}. Download it.`);
  $("kept").hidden = !before;
  if (!bytes) return;
  URL.revokeObjectURL($("download").href);
  $("download").href = URL.createObjectURL(new Blob([bytes]));
  $("download").download = `${task()}.tuned.safetensors`;
  $("download").textContent = `Download ${$("download").download} (${megabytes(bytes.length)})`;
}

$("task").addEventListener("change", () => chosen().catch(tell));
$("go").addEventListener("click", run);
$("cancel").addEventListener("click", () => client.call("cancel"));
$("back").addEventListener("click", () => back().catch(tell));
$("add").addEventListener("submit", async (/** @type {Event} */ event) => {
  event.preventDefault();
  if ($("put").disabled) return; // Enter in the text asks too
  const second = tasks[task()].pairs ? $("second").value.trim() : null;
  if (!(await add([{ text: $("text").value.trim(), second, label: $("label").value }]))) return;
  $("text").value = $("second").value = "";
  $("text").focus();
});
$("paste").addEventListener("click", async () => {
  const rows = $("many").value.split("\n").filter((/** @type {string} */ row) => row.trim());
  const more = rows.map((/** @type {string} */ row) => {
    const [, label, rest] = row.match(/^([^\t,]*)[\t,](.*)$/) ?? ["", row, ""];
    const [text, second = ""] = tasks[task()].pairs ? rest.split("\t") : [rest];
    return { text: text.trim(), second: tasks[task()].pairs ? second.trim() : null, label: label.trim() };
  });
  if (await add(more)) $("many").value = "";
});
$("text").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("add").requestSubmit();
});
start().catch(tell);
