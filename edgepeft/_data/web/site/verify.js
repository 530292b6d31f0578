/** Replays every task's check file, and compares the tokens of texts with those that Python has. */
import { make } from "./answers.js";
import { $, Client, keep, tell } from "./client.js";

const LABELS = ["checked", "rows", "largest difference", "decisions changed", "result"];

async function verify() {
  const client = new Client((done, all) => ($("progress").value = done / all));
  await keep(() => {});
  const names = Object.keys((await client.call("open")).tasks);
  let failed = 0;
  const add = (/** @type {string[]} */ cells, /** @type {boolean} */ passed) => {
    const row = make("tr");
    [...cells, passed ? "passed" : "failed"].forEach((text, i) => {
      const cell = make("td", text, passed || i < LABELS.length - 1 ? "" : "failed");
      cell.dataset.label = LABELS[i];
      row.append(cell);
    });
    $("findings").append(row);
    failed += Number(!passed);
  };
  const { texts, differ } = await client.call("tokens");
  add(["tokens", String(texts), "", String(differ.length)], !differ.length);
  for (const [i, name] of names.entries()) {
    $("verdict").textContent = `${name}, ${i + 1} of ${names.length}…`;
    const { rows, difference, changed, tolerance, passed } = await client.call("verify", name);
    const bound = tolerance.difference === null ? "" : ` of ${tolerance.difference.toExponential(0)}`;
    add([name, String(rows), difference.toExponential(1) + bound, String(changed)], passed);
    $("progress").value = (i + 1) / names.length;
  }
  $("progress").hidden = true;
  $("verdict").textContent = failed ? `${failed} checks failed.` : "All checks passed.";
  $("verdict").className = failed ? "failed" : "";
}

verify().catch((error) => {
  tell(error);
  $("verdict").textContent = "The check was not finished.";
});
