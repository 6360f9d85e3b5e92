// Opens simulated pages in a browser: Chromium, unless a test names another.
import assert from "node:assert/strict";
import { readFileSync, mkdtempSync, statSync, writeFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before } from "node:test";
import { PACKAGES } from "../load.mjs";
import { simulatePage } from "../simulate.mjs";
import { launchChromium } from "./browsers.mjs";

const AXE = readFileSync(path.join(PACKAGES, "node_modules/axe-core/axe.min.js"), "utf8");
let browser;
let folder;

/** Writes simulated pages, and others by `write`, before the tests of a file, and starts a browser. */
export function prepare(pages, write = () => undefined, launch = launchChromium) {
  before(async () => {
    folder = mkdtempSync(path.join(tmpdir(), "explorer-"));
    for (const [name, options] of Object.entries(pages)) writeFileSync(path.join(folder, name), simulatePage(options));
    write(folder);
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    rmSync(folder, { recursive: true, force: true });
  });
}

/** Opens a page, waits until it is complete, and fails on any request, message or error. */
export async function open(file, check, options = {}, hash = "") {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  const noise = [];
  const address = `file://${path.join(folder, file)}`;
  page.on("console", (message) => noise.push(message.text()));
  page.on("pageerror", (error) => noise.push(error.stack));
  page.on("dialog", (dialog) => noise.push(`dialog: ${dialog.message()}`));
  page.on("request", (request) => request.url().split("#")[0] !== address && noise.push(request.url()));
  await page.goto(address + hash);
  if (options.javaScriptEnabled !== false) await page.waitForFunction(() => window.explorer);
  await check(page);
  assert.deepEqual(noise, []);
  await context.close();
}
/** The text of a file beside the pages. */
export const readFile = (name) => readFileSync(path.join(folder, name), "utf8");
/** Writes a file beside the pages. */
export const writeFile = (name, text) => writeFileSync(path.join(folder, name), text);
/** The size of a page in bytes. */
export const measureFile = (name) => statSync(path.join(folder, name)).size;
export const read = (page, expression) => page.evaluate(expression);
export const settle = (page) => page.waitForTimeout(350);
/** Shown texts that do not fit into their element, and tables that are cut by a box that does not scroll. */
export const listCut = (page) =>
  page.evaluate(() => {
    const isCut = (element) => element.checkVisibility() && !element.closest(".unseen") && getComputedStyle(element).display !== "inline" && element.scrollWidth > element.clientWidth;
    const texts = [...document.querySelectorAll("h1, h2, h3, p, th, td, li, summary, button, select, .badge, .key")].filter(isCut);
    const tables = [...document.querySelectorAll("table")].filter((table) => {
      const box = table.parentElement;
      return table.checkVisibility() && box.clientWidth < table.offsetWidth && !["auto", "scroll"].includes(getComputedStyle(box).overflowX);
    });
    return [...texts, ...tables].map((element) => `${element.tagName} ${element.textContent.slice(0, 60)}: ${element.scrollWidth} of ${element.clientWidth} px`);
  });
export const violations = async (page) => {
  await page.evaluate(AXE);
  const { violations: found } = await page.evaluate(() => axe.run());
  return found.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 90)} ${nodes[0].any[0]?.message ?? ""}`);
};
