/** Which tasks are asked, on the service's page and on a site's: a box for each, with what it answers. */
import { SHOWN, make } from "./answers.js";

/** @returns {HTMLInputElement[]} */
const boxes = () => Array.from(document.querySelectorAll("#tasks input"));

export const chosen = () => boxes().flatMap((box) => (box.checked ? [box.value] : []));

/**
 * @param {{name: string, about: string, checked: boolean, problem?: string}[]} tasks
 * @param {() => void} changed
 */
export function pick(tasks, changed) {
  const list = /** @type {HTMLElement} */ (document.getElementById("tasks"));
  list.replaceChildren(...tasks.map((task) => choice(task, changed)));
  for (const [button, to] of /** @type {const} */ ([["all", true], ["none", false]])) {
    /** @type {HTMLElement} */ (document.getElementById(button)).onclick = () => {
      for (const box of boxes()) box.checked = to && !box.disabled;
      changed();
    };
  }
  changed();
}

/** @param {{name: string, about: string, checked: boolean, problem?: string}} task @param {() => void} changed */
function choice({ name, about, checked, problem }, changed) {
  const [item, label, box, text] = [make("li"), make("label"), make("input"), make("span")];
  [box.type, box.value, box.checked, box.disabled] = ["checkbox", name, checked && !problem, !!problem];
  box.addEventListener("change", changed);
  text.append(make("b", name), make("small", about));
  if (problem) text.append(make("small", problem, "problem"));
  label.append(box, text);
  item.append(label);
  return item;
}

/** @param {string[]} labels */
export const named = (labels) => labels.slice(0, SHOWN).join(", ") + (labels.length > SHOWN ? ` and ${labels.length - SHOWN} more` : "");
