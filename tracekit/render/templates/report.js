
"use strict";
// Sorting and filtering of tables. Without this script the page reads the same, in the report's order.

// The number a cell shows: "1,021.4", "−3.2 %", "<0.1"; unknown sorts last either way.
function shownNumber(text) {
  const bare = text.replace(/[,\s%]/g, "").replace("\u2212", "-");
  const near = bare.match(/^[<>](.*)$/);
  const value = Number(near ? near[1] : bare);
  if (bare === "" || Number.isNaN(value)) return null;
  return near ? value / 2 : value;
}

function sortRows(table, column, numeric, direction, original) {
  const body = table.tBodies[0];
  if (direction === 0) {
    body.append(...original);
    return;
  }
  const order = new Intl.Collator("en", { numeric: true });
  const keyed = original.map((row) => {
    const text = row.cells[column].textContent.trim();
    return { row, key: numeric ? shownNumber(text) : text };
  });
  const unknown = (item) => item.key === null || item.key === "\u2014";
  const known = keyed.filter((item) => !unknown(item));
  known.sort((a, b) => direction * (numeric ? a.key - b.key : order.compare(a.key, b.key)));
  body.append(...known.concat(keyed.filter(unknown)).map((item) => item.row));
}

function makeSortable(table) {
  const original = Array.from(table.tBodies[0].rows);
  const headings = Array.from(table.tHead.rows[0].cells);
  headings.forEach((heading, column) => {
    const numeric = heading.classList.contains("n");
    const first = numeric ? -1 : 1;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    let direction = 0;
    button.addEventListener("click", () => {
      const sorted = heading.hasAttribute("aria-sort");
      direction = !sorted ? first : direction === first ? -first : 0;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      if (direction !== 0) {
        heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      }
      sortRows(table, column, numeric, direction, original);
    });
  });
}

function makeFilterable(table) {
  const rows = Array.from(table.tBodies[0].rows);
  if (rows.length <= 15) return;
  const texts = rows.map((row) =>
    Array.from(row.cells, (cell) => cell.textContent + " " + cell.title).join("\n").toLowerCase());
  const label = document.createElement("label");
  label.textContent = "Filter";
  const input = document.createElement("input");
  input.type = "search";
  label.append(input);
  const count = document.createElement("span");
  count.setAttribute("role", "status");
  const box = document.createElement("div");
  box.className = "filter";
  box.append(label, count);
  table.parentElement.before(box);
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    let found = 0;
    rows.forEach((row, at) => {
      row.hidden = !texts[at].includes(wanted);
      if (!row.hidden) found += 1;
    });
    count.textContent = wanted === "" ? "" : `${found} of ${rows.length} rows`;
  });
}

for (const table of document.querySelectorAll("table")) {
  makeSortable(table);
  makeFilterable(table);
}
