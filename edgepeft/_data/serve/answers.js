/** What the service's page and a site's show of an answer. */

export const SHOWN = 6; // labels of a task

/**
 * An element with a text in it, never markup: names and labels come from a bundle.
 * @template {keyof HTMLElementTagNameMap} N
 * @param {N} name
 * @param {string} [text]
 * @param {string} [className]
 */
export function make(name, text, className) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

/**
 * @param {any} answer what `edgepeft run --json` prints, or an `error`
 * @param {string} text
 * @param {string} second
 * @returns {HTMLElement[]}
 */
export function parts(answer, text, second) {
  const value = (/** @type {string} */ told) => make("p", told, "value");
  if (answer.error) {
    const problem = make("p", answer.error);
    problem.setAttribute("role", "alert");
    return [problem];
  }
  if (answer.scores) {
    const several = answer.labels && value(answer.labels.join(", ") || "none of the labels");
    return [several, answer.unsure && value("unsure"), scoreList(answer.scores)].filter(Boolean);
  }
  if (answer.vector) {
    const { vector, cosine } = answer;
    const first = vector.slice(0, SHOWN).map((/** @type {number} */ each) => each.toFixed(3));
    const near = cosine === undefined ? [] : [make("p", `cosine of the two texts: ${cosine.toFixed(3)}`)];
    return [value(`${first.join(", ")}${vector.length > SHOWN ? `, … (${vector.length} numbers)` : ""}`), ...near];
  }
  if (answer.spans) return [marked(text, answer.spans, answer.unread)];
  if (answer.answered === false) return [value("no answer in the second text")];
  if (answer.answered) return [value(answer.text), marked(second, [{ ...answer, label: "answer" }])];
  return [value(answer.value === undefined ? answer.text : answer.value.toFixed(3))];
}

/**
 * A text with spans in it; places count characters as Python does, JavaScript's strings count halves of some.  What was
 * not read is struck.
 * @param {string} text
 * @param {{start: number, end: number, label: string, score: number}[]} spans
 * @param {number} [unread]
 */
export function marked(text, spans, unread) {
  const points = Array.from(text);
  const found = make("p", undefined, "marked");
  found.dir = "auto";
  let done = 0;
  const add = (/** @type {number} */ end) => {
    if (end > done) found.append(points.slice(done, end).join(""));
    done = end;
  };
  for (const { start, end, label, score } of spans) {
    add(start);
    const mark = make("mark", points.slice(start, end).join(""));
    mark.title = `${label} ${(100 * score).toFixed(1)} %`;
    mark.append(make("b", label));
    found.append(mark);
    done = end;
  }
  add(unread ?? points.length);
  if (unread !== undefined) found.append(make("s", points.slice(unread).join("")));
  return found;
}

/** @param {Record<string, number>} scores */
function scoreList(scores) {
  const list = make("ol");
  const sorted = Object.entries(scores).sort((a, b) => b[1] - a[1]);
  for (const [label, score] of sorted.slice(0, SHOWN)) {
    const [line, bar] = [make("li"), make("i")];
    bar.style.width = `${100 * score}%`;
    line.append(bar, make("span", label), make("span", `${(100 * score).toFixed(1)} %`));
    list.append(line);
  }
  if (sorted.length > SHOWN) list.append(make("li", `and ${sorted.length - SHOWN} more`));
  return list;
}
