"use strict";
// A heading's button sorts its table by that column: numbers by value, text by the alphabet, missing ones last.
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    const column = heading.cellIndex;
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = heading.closest("table").tBodies[0];
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const compare = (one, two) => {
      const [a, b] = [key(one), key(two)];
      if ((a === "-") !== (b === "-")) return a === "-" ? 1 : -1;
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
      return down ? -order : order;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
