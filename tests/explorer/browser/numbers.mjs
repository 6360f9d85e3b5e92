// What the numbers of a page are compared with: texts of a page by their place, and numbers read back at the precision that is printed.
import assert from "node:assert/strict";

const UNITS = { ns: 1, µs: 1e3, ms: 1e6, s: 1e9, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, "%": 0.01, "×": 1, "GB/s": 1 };
const NUMBER = /([<>]?)([−-]?)(\d[\d,]*(?:\.\d+)?(?:e\d+)?)(?:\s?(ns|µs|ms|s|B|KiB|MiB|GiB|TiB|%|×|GB\/s)(?![\w/]))?/gu;

/** The numbers of a text, as {text, limit, value, half, unit}: `half` is half a unit of the last printed place. */
export function readNumbers(text) {
  return [...text.replaceAll("\u00a0", " ").matchAll(NUMBER)].map(([whole, limit, sign, digits, unit = ""]) => {
    const plain = digits.replaceAll(",", "");
    const [mantissa, exponent = "0"] = plain.split("e");
    const place = 10 ** (Number(exponent) - (mantissa.split(".")[1]?.length ?? 0));
    return { text: whole, limit, unit, value: Number(plain) * (sign ? -1 : 1), half: place / 2 };
  });
}

/** Whether a printed number is `exact`, rounded where it ends. `unit` is that of the column, where the cell has none. */
export function agrees({ limit, value, half, unit }, exact, columnUnit = "") {
  const factor = UNITS[unit || columnUnit] ?? 1;
  const scaled = exact / factor;
  if (limit === "<") return scaled < 0 ? scaled > value : scaled < value;
  if (limit === ">") return scaled > value;
  if (value === 0 && exact !== 0) return false;
  return Math.abs(value - scaled) <= half * (1 + 1e-9) + Math.abs(scaled) * 1e-12;
}

/** Counts comparisons, and fails on the first number that differs or has no source. */
export class Ledger {
  counts = new Map();

  add(place, by = 1) {
    this.counts.set(place, (this.counts.get(place) ?? 0) + by);
  }
  equal(place, shown, expected, why = "") {
    assert.deepEqual(shown, expected, `${place} ${why}`);
    this.add(place);
  }
  /** The numbers of a text, after `names` are taken out of it, are those values in order: [value, unit?]. */
  numbers(place, text, names, values) {
    const found = readNumbers(removeNames(text, names));
    assert.equal(found.length, values.length, `${place}: ${text}`);
    found.forEach((one, i) => assert.ok(agrees(one, values[i]), `${place}: ${one.text} in "${text}" is not ${values[i]}`));
    this.add(place, found.length);
  }
  /** Each number of a text, without `names`, is one of the values. */
  some(place, text, names, values) {
    for (const one of readNumbers(removeNames(text, names))) {
      assert.ok(values.some((value) => agrees(one, value)), `${place}: ${one.text} of "${text}" has no source`);
      this.add(place);
    }
  }
  get total() {
    return [...this.counts.values()].reduce((sum, count) => sum + count, 0);
  }
}

const plain = (text) => text.replaceAll("\u00a0", " ");
/** Takes names out of a text, the longest first: their digits are no numbers of the page. */
export function removeNames(text, names) {
  let rest = plain(text);
  for (const name of [...new Set(names)].filter(Boolean).sort((a, b) => b.length - a.length)) rest = rest.replaceAll(plain(name), "¦");
  return rest;
}

/** All strings, and all numbers, of a JSON value. */
export function listLeaves(value, strings = [], numbers = []) {
  if (typeof value === "string") strings.push(value);
  else if (typeof value === "number") numbers.push(value);
  else if (value && typeof value === "object") for (const one of Object.values(value)) listLeaves(one, strings, numbers);
  return { strings, numbers };
}

/** Tables and texts of what is shown. A text is what an element itself says, with the panel or section it is in. */
export const readShown = (page) =>
  page.evaluate(() => {
    const isShown = (element) => element.offsetParent !== null || element.closest(".unseen") !== null;
    const place = (element) => element.closest("[role=tabpanel], section, details, header")?.id ?? element.id;
    const tables = [...document.querySelectorAll("main table")].filter(isShown).map((table) => ({
      place: place(table),
      label: table.getAttribute("aria-label") ?? "",
      columns: [...table.tHead.rows[0].cells].map((cell) => cell.textContent.replace(/ [↓↑]$/, "")),
      rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent)),
    }));
    const texts = [];
    for (const element of document.querySelectorAll("header *, main *")) {
      if (element.closest("table, noscript, script") || !isShown(element)) continue;
      const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join("");
      if (/\d/.test(text)) texts.push({ place: place(element), tag: element.tagName.toLowerCase(), kind: element.className, id: element.id, text });
    }
    return { tables, texts, notes: document.querySelectorAll("#notes li").length };
  });

/** The tables for readers without scripts, in order: title, headings, rows and notes. */
export const readFolded = (page) =>
  page.evaluate(() => {
    const source = document.querySelector("main > noscript")?.textContent ?? document.querySelector("#tables")?.innerHTML;
    return [...new DOMParser().parseFromString(source, "text/html").querySelectorAll("details")].map((box) => ({
      title: box.querySelector("summary").textContent,
      columns: [...box.querySelectorAll("th")].map((cell) => cell.textContent),
      rows: [...box.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => ({ text: cell.textContent, full: cell.title }))),
      notes: [...box.querySelectorAll(":scope > p")].map((note) => note.textContent),
    }));
  });
