import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { WEB } from "./load.mjs";

/** The sizes reached, in bytes of gzip. They only go down; a feature that needs more replaces one, or says why in its commit. */
const MOST_BYTES = { "page.js": 29_820, "memory.js": 33_100, "log.js": 24_470, "comparison.js": 31_750, "log_comparison.js": 29_540, "page.css": 2_410 };
const FILES = Object.keys(MOST_BYTES);

const built = (folder, file) => readFileSync(path.join(folder, file), "utf8");

test("the committed page is what the pinned build makes", () => {
  const folder = mkdtempSync(path.join(tmpdir(), "explorer-build-"));
  execFileSync(process.execPath, [path.join(WEB, "build.mjs"), folder]);
  for (const file of FILES) assert.equal(built(path.resolve(WEB, ".."), file), built(folder, file), `${file}: run npm run build`);
  rmSync(folder, { recursive: true });
});

test("the page can be inlined: no closing tag, no address, no placeholder", () => {
  const folder = path.resolve(WEB, "..");
  for (const file of FILES) assert.doesNotMatch(built(folder, file), /<\/(?:script|style)|https?:|\{\{\w+\}\}|@import/i);
});

test("the programs and the style are no larger than the size reached", (context) => {
  for (const [file, most] of Object.entries(MOST_BYTES)) {
    const size = gzipSync(built(path.resolve(WEB, ".."), file), { level: 9 }).length;
    context.diagnostic(`${file}: ${size} bytes of gzip`);
    assert.ok(size <= most, `${file}: ${size} bytes of gzip, at most ${most}`);
    assert.ok(size > most * 0.97, `${file}: ${size} bytes of gzip: lower its limit of ${most}`);
  }
});

test("each program leaves out what only other kinds of pages need", () => {
  const needed = {
    "Where the change": ["comparison.js", "log_comparison.js"],
    "align stages": ["comparison.js", "log_comparison.js"],
    "Stages by change": ["log_comparison.js"],
    "Memory in use": ["memory.js"],
    "Stages of the step": ["log.js"],
    "All tables": ["log.js", "comparison.js", "log_comparison.js"],
    "Top issues": ["page.js", "memory.js", "log.js"],
    "Heat map": ["page.js", "memory.js"],
    "Longest idle gaps": ["page.js", "memory.js", "comparison.js"],
  };
  const programs = FILES.filter((file) => file.endsWith(".js"));
  for (const [text, files] of Object.entries(needed)) assert.deepEqual(programs.filter((file) => built(path.resolve(WEB, ".."), file).includes(text)), files, text);
});

test("names reach the page as text only", () => {
  const files = readdirSync(WEB).filter((file) => file.endsWith(".ts"));
  assert.ok(files.includes("page.ts"));
  for (const file of files) assert.doesNotMatch(built(WEB, file), /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function/);
});

test("a file of the page has at most 600 lines", () => {
  for (const file of readdirSync(WEB).filter((name) => name.endsWith(".ts"))) assert.ok(built(WEB, file).split("\n").length <= 600, file);
});

test("packages are pinned exactly, and the lockfile names no host", () => {
  const { dependencies, devDependencies } = JSON.parse(built(WEB, "package.json"));
  assert.equal(dependencies, undefined);
  for (const version of Object.values(devDependencies)) assert.match(version, /^\d+\.\d+\.\d+$/);
  assert.doesNotMatch(built(WEB, "package-lock.json"), /https?:/);
});
