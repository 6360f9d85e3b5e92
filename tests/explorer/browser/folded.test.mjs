// The tables for readers without scripts: every section and sheet of the JSON, every cell at the precision that is printed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { agrees, Ledger, readFolded, readNumbers } from "./numbers.mjs";
import { open, readFile } from "./pages.mjs";
import { prepareWritten } from "./written.mjs";

/** Least numbers that are compared: fewer would mean that tables are left out. */
const LEAST = { one: 3_400, two: 4_400, many: 10_000, nsys: 780, verl: 1_900, snapshot: 1_250, log: 340 };
const UNIT = / (ns|µs|ms|s|B|KiB|MiB|GiB|TiB|GB\/s)$/;
prepareWritten(...Object.keys(LEAST));

/** Sheets in the order of the page; the values by process and step are in the JSON alone. */
const listSheets = (report) => [...(report.overview ? [report.overview] : []), ...report.sections.flatMap(({ sheets }) => sheets)];
const listMetrics = (report) => [["Numbers of the first screen", report.headline], ...report.sections.map(({ id, title, metrics }) => [`Numbers: ${title || id}`, metrics])].filter(([, metrics]) => metrics.length);

function checkMetrics(ledger, table, metrics) {
  assert.equal(table.rows.length, metrics.length, table.title);
  metrics.forEach((metric, i) => {
    const [label, value, range] = table.rows[i].map(({ text }) => text);
    assert.equal(label, metric.label || metric.name);
    if (metric.value === null) assert.equal(value, "—");
    else ledger.numbers(table.title, value, [], [metric.value]);
    const bounds = readNumbers(range.replace(metric.bounds, "").replaceAll("–", " "));
    const unit = bounds.at(-1)?.unit || readNumbers(value)[0]?.unit;
    if (metric.low === null) assert.equal(bounds.length, 0, range);
    else [metric.low, metric.high].forEach((exact, k) => assert.ok(agrees(bounds[k], exact, unit), `${table.title}: ${range} is not ${metric.low} to ${metric.high}`));
    ledger.add(table.title, bounds.length);
  });
}

function checkCell(ledger, title, { text, full }, exact, unit) {
  if (exact === null) return assert.equal(text, "—", title);
  if (typeof exact === "boolean") return assert.equal(text, exact ? "yes" : "no", title);
  if (typeof exact === "string") {
    if (text === exact || full === exact) return ledger.add(title, readNumbers(text).length);
    return assert.ok(exact === "" && text === "—", `${title}: ${text} for ${exact}`);
  }
  const [number, ...more] = readNumbers(text);
  assert.ok(number && !more.length && agrees(number, exact, unit), `${title}: ${text} ${unit} is not ${exact}`);
  ledger.add(title);
}
/** A row that stands for similar ranks: each number is one of its ranks', the lowest and highest are those of all. */
function checkMerged(ledger, table, sheet, units) {
  const names = sheet.headings.map(({ name }) => name);
  const { value, member } = sheet.ranked;
  const at = names.indexOf(value);
  const columns = [...names.slice(0, at + 1), "lowest", "highest", ...names.slice(at + 1)];
  assert.equal(table.columns.length, columns.length, table.title);
  for (const row of table.rows) {
    const text = row[names.indexOf(member) + (names.indexOf(member) > at ? 2 : 0)].text;
    const ranks = new Set(readNumbers(text).length ? listRanks(text) : []);
    const of = sheet.rows.filter((one) => text.includes("…") || ranks.has(one[names.indexOf(member)]));
    assert.ok(of.length, `${table.title}: no rank of ${text}`);
    columns.forEach((name, i) => {
      if (name === member) return;
      const exact = of.map((one) => one[names.indexOf(["lowest", "highest"].includes(name) ? value : name)]).filter((one) => typeof one === "number");
      if (row[i].text === "—" || !exact.length) return;
      const [number] = readNumbers(row[i].text);
      if (!number) return;
      assert.ok(exact.some((one) => agrees(number, one, units[i])), `${table.title}, ${text}: ${name} ${row[i].text} has no source`);
      ledger.add(table.title);
    });
  }
}
const listRanks = (text) => text.replace(/\(.*\)/, "").split(",").flatMap((part) => {
  const [first, last = first] = part.split("–").map((number) => Number(number.trim()));
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
});

for (const name of Object.keys(LEAST))
  test(`${name}: every section and sheet of the JSON is in the folded tables, every number equal`, (context) =>
    open(`${name}.html`, async (page) => {
      const report = JSON.parse(readFile(`${name}.json`));
      const folded = await readFolded(page);
      const ledger = new Ledger();
      const metrics = listMetrics(report);
      metrics.forEach(([title, of], i) => {
        assert.equal(folded[i].title, title);
        checkMetrics(ledger, folded[i], of);
      });
      const sheets = listSheets(report);
      assert.equal(folded.length, metrics.length + sheets.length);
      sheets.forEach((sheet, i) => {
        const table = folded[metrics.length + i];
        assert.equal(table.title, sheet.title);
        const units = table.columns.map((column) => UNIT.exec(column)?.[1] ?? "");
        const isMerged = table.columns.length !== sheet.headings.length;
        if (isMerged) checkMerged(ledger, table, sheet, units);
        else table.rows.forEach((row, k) => row.forEach((cell, c) => checkCell(ledger, `${table.title}, ${table.columns[c]}`, cell, sheet.rows[k][c], units[c])));
        // Rows that are left out are counted; those of a sheet with rows are never all left out.
        const [, shown = null, all = null] = /([\d,]+) of ([\d,]+) rows shown/.exec(table.notes.join(" ")) ?? [];
        const count = (text) => Number(text.replaceAll(",", ""));
        if (!isMerged) assert.deepEqual(shown === null ? [table.rows.length, table.rows.length] : [count(shown), count(all)], [table.rows.length, sheet.rows.length], table.title);
        assert.ok(table.rows.length || !sheet.rows.length, table.title);
        ledger.add("rows left out", shown === null ? 0 : 2);
        const omitted = /([\d,]+) further rows/.exec(table.notes.join(" "))?.[1] ?? "0";
        assert.equal(count(omitted), sheet.omitted, table.title);
        if (sheet.caption) assert.ok(table.notes.includes(sheet.caption), `${table.title}: ${table.notes}`);
      });
      context.diagnostic(`${ledger.total} numbers of ${folded.length} tables`);
      assert.ok(ledger.total >= LEAST[name], `${ledger.total} numbers`);
    }));
