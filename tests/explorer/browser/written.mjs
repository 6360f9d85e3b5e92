// Writes pages with `tracekit analyze` and `compare`: of the examples, a simulated run, and a hand-made Nsight export.
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { prepare, readFile } from "./pages.mjs";

const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
/** The interpreter that has tracekit's dependencies: TRACEKIT_PYTHON, or the one that `make demo` sets up. */
const PYTHON = process.env.TRACEKIT_PYTHON ?? [`${ROOT}.venv/bin/python`].find(existsSync) ?? "python3";

/** Writes these pages, each as NAME.html with its NAME.json, before the tests of a file. */
export const prepareWritten = (...names) => prepareWrittenIn(undefined, ...names);
/** The same for a browser that `launch` starts. */
export const prepareWrittenIn = (launch, ...names) => prepare({}, (folder) => execFileSync(PYTHON, [`${ROOT}tests/explorer/write_pages.py`, folder, ...names], { stdio: ["ignore", "ignore", "inherit"] }), launch);

/** The rows of a table of a report, as objects by column. */
export function readTable(file, question, table) {
  const { sections } = JSON.parse(readFile(file));
  const { headings, rows } = sections.find(({ id }) => id === question).sheets.find(({ name }) => name === table);
  return rows.map((row) => Object.fromEntries(headings.map(({ name }, k) => [name, row[k]])));
}
