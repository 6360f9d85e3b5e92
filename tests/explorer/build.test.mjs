import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { WEB } from "./load.mjs";

const built = (folder, file) => readFileSync(path.join(folder, file), "utf8");

test("the committed page is what the pinned build makes", () => {
  const folder = mkdtempSync(path.join(tmpdir(), "explorer-build-"));
  execFileSync(process.execPath, [path.join(WEB, "build.mjs"), folder]);
  for (const file of ["page.js", "comparison.js", "page.css"]) assert.equal(built(path.resolve(WEB, ".."), file), built(folder, file), `${file}: run npm run build`);
  rmSync(folder, { recursive: true });
});

test("the page can be inlined: no closing tag, no address, no placeholder", () => {
  const folder = path.resolve(WEB, "..");
  for (const file of ["page.js", "comparison.js", "page.css"]) assert.doesNotMatch(built(folder, file), /<\/(?:script|style)|https?:|\{\{\w+\}\}|@import/i);
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
