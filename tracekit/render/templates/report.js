"use strict";
// Sorting and filtering of tables, and the mark in the contents. Without this script the page reads the same,
// in the report's order.

// The exact number of a cell, not the rounded one it shows; null where there is none.
function numberOf(cell) {
  const text = cell.dataset.v;
  if (text === undefined) return null;
  return /^-?\d{16,}$/.test(text) ? BigInt(text) : Number(text);
}

// The text of a cell; null where it says that it is unknown.
function textOf(cell) {
  const text = cell.textContent.trim();
  return text === "\u2014" ? null : text;
}

const alphabet = new Intl.Collator("en", { numeric: true });

// The rows in the order of a column; those without a value come last either way.
function ordered(rows, column, numeric, direction) {
  const keyed = rows.map((row) => ({ row, key: (numeric ? numberOf : textOf)(row.cells[column]) }));
  const known = keyed.filter((item) => item.key !== null);
  const compare = numeric
    ? (a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0)
    : (a, b) => alphabet.compare(a.key, b.key);
  known.sort((a, b) => direction * compare(a, b));
  return known.concat(keyed.filter((item) => item.key === null)).map((item) => item.row);
}

// A click on a heading sorts, largest first for numbers; the second one turns the order, the third undoes it.
function makeSortable(table) {
  const original = Array.from(table.tBodies[0].rows);
  const headings = Array.from(table.tHead.rows[0].cells);
  if (original.length < 2) return;
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
      table.tBodies[0].append(
        ...(direction === 0 ? original : ordered(original, column, numeric, direction)));
    });
  });
}

// A field that keeps the rows in which every typed word occurs.
function makeFilterable(table) {
  const rows = Array.from(table.tBodies[0].rows);
  if (rows.length <= 15) return;
  const texts = rows.map((row) =>
    Array.from(row.cells, (cell) => cell.textContent + " " + cell.title).join("\n").toLowerCase());
  const label = document.createElement("label");
  label.textContent = "Filter rows";
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
    const wanted = input.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
    let found = 0;
    rows.forEach((row, at) => {
      row.hidden = !wanted.every((word) => texts[at].includes(word));
      if (!row.hidden) found += 1;
    });
    count.textContent = wanted.length === 0 ? "" : `${found} of ${rows.length} rows`;
  });
}

// A link into what is folded away unfolds it.
function unfoldTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (target === null) return;
  for (let at = target.parentElement; at !== null; at = at.parentElement) {
    if (at.tagName === "DETAILS") at.open = true;
  }
  target.scrollIntoView();
}

// The contents mark the part that is being read.
function markContents() {
  const links = new Map(
    Array.from(document.querySelectorAll("nav a"), (link) => [link.hash.slice(1), link]));
  const parts = Array.from(links.keys(), (id) => document.getElementById(id));
  const update = () => {
    let current = parts[0];
    for (const part of parts) {
      if (part.getBoundingClientRect().top <= innerHeight / 3) current = part;
    }
    links.forEach((link, id) => {
      if (id === current.id) link.setAttribute("aria-current", "location");
      else link.removeAttribute("aria-current");
    });
  };
  addEventListener("scroll", update, { passive: true });
  update();
}

for (const table of document.querySelectorAll("table")) {
  makeSortable(table);
  makeFilterable(table);
}
addEventListener("hashchange", unfoldTarget);
if (location.hash !== "") unfoldTarget();
markContents();
