// Names that try to break out of the page, in every kind of input: they make no element, run nothing, and count as any other name.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "../load.mjs";
import { open, read, settle } from "./pages.mjs";
import { prepareWritten, readTable } from "./written.mjs";

const { formatTime } = await load("format");
/** What a name would have to make to do harm, or to look like a part of the page. */
const FORBIDDEN = "img, svg, iframe, object, embed, base, link, main script, [onerror], [onload], main b, main style";
/** Objects have these of themselves: a table by name must not find them there. */
const INHERITED = ["__proto__", "constructor", "hasOwnProperty"];
const KINDS = ["hostile_gpu", "hostile_cpu", "hostile_nsys", "hostile_snapshot", "hostile_log", "hostile_comparison"];
prepareWritten(...KINDS);

const isClean = async (page, when) => {
  const found = await page.$$eval(FORBIDDEN, (all) => all.map((element) => element.outerHTML.slice(0, 80)));
  assert.deepEqual(found, [], when);
  assert.deepEqual(await read(page, () => [document.scripts.length, Object.keys(Object.prototype)]), [2, []], when);
};
const count = (text) => Number(text.replaceAll(",", ""));

/** Lengths and counts of the names that objects inherit, in the tables of each kind. */
const CHECKS = {
  async hostile_gpu(page) {
    const kernels = readTable("hostile_gpu.json", "kernels", "kernels");
    await page.click("#top .foot button:has-text('all ')");
    const rows = await page.$$eval("#top tbody tr", (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
    assert.equal(rows.length, kernels.length);
    for (const name of INHERITED) {
      const row = rows.find(([text]) => text === name);
      const { count: launches, total_ns: ns } = kernels.find((one) => one.name === name);
      assert.equal(launches, 6);
      // Launches of a name have one length, so those in the counted steps take their share of all.
      const steps = new Set(await read(page, "explorer.data.head.counted")).size;
      assert.deepEqual([row[1], count(row[3])], [formatTime((ns / launches) * steps * 2), steps * 2], name);
    }
  },
  async hostile_comparison(page) {
    await page.click("#tab-kernels");
    await settle(page);
    const rows = await page.$$eval("#panel-kernels tbody tr", (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
    for (const name of INHERITED) {
      const [, before, after, change, calls] = rows.find(([text]) => text === name);
      assert.deepEqual([Math.round((parseFloat(before) - parseFloat(after)) * 1e3) / 1e3, change, calls], [3, "−3\u00a0µs", "1 → 1"], name);
    }
  },
  async hostile_log(page) {
    const stages = readTable("hostile_log.json", "run-log", "logged_stages");
    const rows = await page.$$eval("#panel-time tbody tr", (all) => all.map((row) => row.cells[0].textContent));
    for (const name of INHERITED) assert.ok(stages.some(({ stage }) => stage.includes(name)) && rows.some((text) => text.includes(name)), name);
  },
  async hostile_snapshot(page) {
    const level = await page.$$eval("#panel-memory tbody tr", (all) => all.map((row) => row.cells[0].textContent));
    assert.ok(level.length && level.every((text) => text !== "undefined" && !text.includes("[object")), String(level));
  },
};
/** Operators of a host, or kernels of an export, by name in the table of all. */
const checkAll = (noun) => async (page) => {
  await page.click("#tab-kernels");
  await settle(page);
  for (const button of await page.locator("#panel-kernels .foot button:has-text('all ')").all()) await button.click();
  const rows = await page.$$eval("#panel-kernels tbody tr", (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
  for (const name of INHERITED) assert.ok(rows.some(([text, , , , , launches]) => text === name && count(launches) >= 2), `${noun} ${name}`);
};
CHECKS.hostile_cpu = checkAll("op");
CHECKS.hostile_nsys = checkAll("kernel");

for (const kind of KINDS) {
  test(`${kind}: no element, no script, no message on any tab, in search, tooltips and links`, () =>
    open(`${kind}.html`, async (page) => {
      await settle(page);
      await isClean(page, "first screen");
      for (const tab of await page.$$eval("[role=tab]", (all) => all.map(({ id }) => id))) {
        await page.click(`#${tab}`);
        await settle(page);
        for (const box of await page.locator("[role=tabpanel]:visible summary").all()) await box.click();
        for (const line of (await page.locator("[role=tabpanel]:visible tr.pick").all()).slice(0, 4)) await line.click();
        await isClean(page, tab);
      }
      for (const summary of await page.locator("main > details > summary").all()) await summary.click();
      for (const issue of await page.locator(".issues .go").all()) await issue.click();
      for (const canvas of await page.locator("canvas:visible").all()) {
        const box = await canvas.boundingBox();
        for (const share of [0.2, 0.5, 0.8]) await page.mouse.move(box.x + 100 + (box.width - 100) * share, box.y + box.height * share);
      }
      if (await page.locator("#find:visible").count()) {
        for (const name of ["__proto__", "<script>", "constructor", "x".repeat(200)]) {
          await page.fill("#find", name);
          await page.press("#find", "Enter");
        }
        await page.focus("#timeline");
        for (const key of ["g", "n", "w", "f", "Escape"]) await page.keyboard.press(key);
      }
      await isClean(page, "all that answers to a click");
      const body = await page.textContent("main");
      assert.doesNotMatch(body, /\[object Object\]|function Object\(|\bundefined\b|NaN/);
    }));

  test(`${kind}: names that objects inherit are counted as any other name`, () =>
    open(`${kind}.html`, async (page) => {
      await settle(page);
      await CHECKS[kind](page);
    }));

  test(`${kind}: without scripts, names are text`, () =>
    open(
      `${kind}.html`,
      async (page) => {
        await hasNoElement(page);
        const text = await page.textContent("main");
        if (kind !== "hostile_snapshot") for (const name of INHERITED) assert.ok(text.includes(name), name);
        assert.doesNotMatch(text, /[\u2028\u2029\u202e\u2066]/);
      },
      { javaScriptEnabled: false },
    ));
}
/** Without scripts, nothing of the page can be evaluated: its elements are asked for one by one. */
async function hasNoElement(page) {
  for (const selector of FORBIDDEN.split(", ")) assert.equal(await page.locator(selector).count(), 0, selector);
}
