// The service's own page: its tasks on one text, and what the service is doing. Asks nobody but the service.
import { make, parts } from "./answers.js";
import { chosen, named, pick } from "./picker.js";

const $ = (id) => document.getElementById(id);
const POINTS = 120; // seconds of the curve
const rates = [];
let tasks = [];
let batch = 64; // rows of a request; a service with a lower limit says so

async function call(path, body) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  $("token-form").hidden = answer.status !== 401;
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error.message), { code: found.error.code });
  return found;
}

async function loadTasks() {
  const [before, picked] = [new Set(tasks.map((task) => task.name)), new Set(chosen())];
  tasks = (await call("v1/tasks")).tasks;
  $("summary").textContent = counted(tasks);
  const choice = (task) => ({
    name: task.name,
    about: `${task.method} · ${told(task)}`,
    checked: picked.has(task.name) || !before.has(task.name),
    problem: task.available ? undefined : "cannot be opened; the service's log says why",
  });
  pick(tasks.map(choice), shown);
}

const counted = (some) => (some.length === 1 ? "1 task" : `${some.length} tasks`);
const asked = () => tasks.filter((task) => chosen().includes(task.name));

// What the chosen tasks read.
function shown() {
  $("pair").hidden = !asked().some((task) => task.pairs);
  $("picks").hidden = !asked().some((task) => task.candidates);
}

// What a task can be asked.
function told(task) {
  const vector = task.dims ? `a vector of ${task.dims}` : "a number";
  const other = task.candidates ? "one of their candidates" : task.writes ? "a text" : vector;
  return `${task.pairs && !task.candidates ? "pairs of texts" : "texts"}: ${task.labels ? named(task.labels) : other}`;
}

export function answerCard(task, { error, prediction }, text, second) {
  const card = make("article", undefined, "card answer");
  const title = make("h3");
  title.append(make("b", task.name), make("span", task.method));
  card.append(title);
  card.append(...parts(error ? { error: error.message } : prediction, text, second));
  if (prediction?.note) card.append(make("p", prediction.note));
  return card;
}

async function ask(wanted, text, second, candidates) {
  const rows = wanted.map((task) => {
    const row = { text, task: task.name };
    if (task.pairs && second) row.second = second;
    if (task.candidates) row.candidates = candidates;
    return row;
  });
  const answers = [];
  while (answers.length < rows.length) {
    try {
      answers.push(...(await call("v1/predict", { rows: rows.slice(answers.length, answers.length + batch) })).answers);
    } catch (error) {
      if (error.code !== "too_many_rows" || batch === 1) throw error;
      batch = Math.ceil(batch / 2);
    }
  }
  return answers;
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("go").disabled = true;
  $("error").hidden = true;
  try {
    await loadTasks();
    const wanted = asked();
    if (!wanted.length) throw new Error("choose a task");
    const begin = performance.now();
    const text = $("text").value;
    const candidates = $("candidates").value.split("\n").filter((line) => line.trim());
    const second = $("second").value;
    const answers = await ask(wanted, text, second, candidates);
    $("took").textContent = `${counted(wanted)} in ${(performance.now() - begin).toFixed(1)} ms`;
    $("answers").replaceChildren(...wanted.map((task, i) => answerCard(task, answers[i], text, second)));
  } catch (error) {
    $("error").textContent = error.message;
    $("error").hidden = false;
  } finally {
    $("go").disabled = false;
  }
});

$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});

$("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  $("token").value = "";
  await loadTasks().catch(() => {});
});

const ms = (value) => (value === null ? "–" : `${value.toFixed(value < 10 ? 1 : 0)} ms`);

function draw(now, before) {
  // From one second to the next, so that the curve moves at once.
  const rate = before ? (now.rows - before.rows) / Math.max(now.uptime_s - before.uptime_s, 0.1) : 0;
  rates.push(Math.max(0, rate));
  if (rates.length > POINTS) rates.shift();
  const top = Math.max(1, ...rates);
  const first = POINTS - rates.length;
  $("curve").setAttribute("points", rates.map((r, i) => `${((first + i) * 600) / (POINTS - 1)},${78 - (76 * r) / top}`).join(" "));
  $("top").textContent = top.toFixed(top < 10 ? 1 : 0);
}

let before = null;
async function poll() {
  try {
    const now = await call("v1/status");
    $("rate").textContent = `${now.rows_per_s.toFixed(1)} rows/s`;
    $("p50").textContent = ms(now.latency_p50_ms);
    $("p90").textContent = ms(now.latency_p90_ms);
    $("memory").textContent = `${(now.memory_bytes / 2 ** 20).toFixed(0)} MiB`;
    $("queued").textContent = `${now.queued_rows} rows`;
    $("rows").textContent = `${now.rows} rows`;
    if (before && now.uptime_s < before.uptime_s) before = null; // the service was restarted
    draw(now, before);
    before = now;
  } catch (error) {
    $("rate").textContent = error.code === "unauthorized" ? "–" : "no answer";
  }
  setTimeout(poll, 1000);
}

loadTasks().catch((error) => {
  $("error").textContent = error.message;
  $("error").hidden = error.code === "unauthorized";
});
poll();
