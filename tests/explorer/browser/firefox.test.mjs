// Opens written pages in Firefox: TRACEKIT_FIREFOX, or `firefox-esr` or `firefox` on the PATH. Without one, its tests are skipped.
import assert from "node:assert/strict";
import { test } from "node:test";
import { findFirefox, launchFirefox } from "./browsers.mjs";
import { open, read, readFile, settle, writeFile } from "./pages.mjs";
import { prepareWrittenIn, readTable } from "./written.mjs";

const skip = findFirefox() ? false : "no Firefox: set TRACEKIT_FIREFOX, or install firefox-esr";
const WITH_TIMELINE = ["two", "many", "verl", "nsys", "log", "comparison"];
if (!skip) prepareWrittenIn(launchFirefox, ...WITH_TIMELINE, "snapshot");

/** The number of colors on a canvas. An empty one has one. */
const countColors = (page, selector) =>
  page.$eval(selector, (canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
  });
const readView = (page) => read(page, "[explorer.state.t, explorer.state.e]");

for (const name of WITH_TIMELINE)
  test(`Firefox draws the timeline of ${name}, and every tab opens`, { skip }, () =>
    open(`${name}.html`, async (page) => {
      await settle(page);
      assert.match(await read(page, "navigator.userAgent"), /Firefox\//);
      assert.ok((await countColors(page, "#timeline")) >= 4);
      assert.ok((await page.textContent("h1")).length > 20);
      for (const tab of await page.$$eval("[role=tab]", (all) => all.filter((tab) => tab.offsetParent).map(({ id }) => id))) {
        await page.click(`#${tab}`);
        await settle(page);
        assert.equal(await page.getAttribute(`#${tab}`, "aria-selected"), "true");
        assert.ok((await page.textContent(`#${tab.replace("tab", "panel")}`)).length > 20, tab);
      }
      assert.equal(await read(page, "performance.getEntriesByType('resource').length"), 0);
    }));

for (const name of ["two", "many"])
  test(`Firefox: a click on the first pin of ${name} moves the view to its interval, and the fragment keeps it`, { skip }, () =>
    open(`${name}.html`, async (page) => {
      await page.keyboard.press("Home");
      await page.waitForTimeout(900);
      const before = await readView(page);
      const link = await read(page, "location.hash");
      const { claim, pins: [pin] } = await read(page, "explorer.data.head.findings[0]");
      const box = await page.locator("#timeline").boundingBox();
      const gutter = 96;
      const x = gutter + (((pin.t0 + pin.t1) / 2 - before[0]) / (before[1] - before[0])) * (box.width - gutter);
      await page.mouse.move(box.x + x, box.y + 24);
      await settle(page);
      assert.ok((await page.textContent("#tip")).includes(claim));
      await page.mouse.click(box.x + x, box.y + 24);
      await page.waitForTimeout(900);
      const [start, end] = await readView(page);
      assert.notDeepEqual([start, end], before);
      assert.ok(start < pin.t0 && end > pin.t1 && (end - start) * 0.2 < pin.t1 - pin.t0);
      assert.deepEqual(await read(page, "explorer.state.mark"), { row: pin.row, t0: pin.t0, t1: pin.t1 });
      const hash = await read(page, "location.hash");
      assert.notEqual(hash, link);
      assert.ok(hash.startsWith(`#v=${Math.round(start)}-${Math.round(end)}&`), hash);
      await open(`${name}.html`, async (other) => assert.deepEqual(await readView(other), [Math.round(start), Math.round(end)]), {}, hash);
    }));

test("Firefox: g names the host call of the longest gap, / finds a kernel, a drag counts a window", { skip }, () =>
  open("two.html", async (page) => {
    const gaps = readTable("two.json", "idle", "idle_gaps");
    const longest = gaps.reduce((a, b) => (b.dur_ns > a.dur_ns ? b : a));
    await page.keyboard.press("g");
    await settle(page);
    assert.equal(await read(page, "explorer.state.mark.t1 - explorer.state.mark.t0"), longest.dur_ns);
    assert.ok((await page.textContent("#detail")).includes(longest.why));
    const { name, count } = readTable("two.json", "kernels", "kernels").find(({ kind }) => kind === "collective");
    await page.keyboard.press("/");
    await page.keyboard.type(name.split("(")[0]);
    await page.keyboard.press("Enter");
    await settle(page);
    assert.ok((await page.textContent("#matches")).replace(/[,\s]/g, "").includes(`${count}×`));
    await page.keyboard.press("Escape");
    const box = await page.locator("#timeline").boundingBox();
    await page.mouse.move(box.x + 400, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + 600, box.y + 40, { steps: 5 });
    await page.mouse.up();
    await settle(page);
    assert.match(await page.textContent("#top h2"), /selected · 2 GPUs · exact/);
  }));

test("Firefox shows the memory of a snapshot at its peak", { skip }, () =>
  open("snapshot.html", async (page) => {
    await page.waitForSelector("canvas.bands");
    await settle(page);
    assert.ok((await countColors(page, "canvas.bands")) >= 4);
    const [{ source, peak_bytes: peak }] = readTable("snapshot.json", "memory-peak", "snapshot_peaks");
    assert.equal(await read(page, `explorer.data.head.memories.find(({ file }) => file === ${JSON.stringify(source)}).peak`), peak);
    assert.match(await page.textContent("#panel-memory .answer"), /MiB/);
  }));

for (const [kind, change] of [
  ["a request", (html) => html.replace("<main", "<img src='http://127.0.0.1:60999/x.png'><main").replace(/<meta http-equiv="Content-Security-Policy"[^>]*>/, "")],
  ["a blocked request", (html) => html.replace("<main", "<img src='http://127.0.0.1:60999/x.png'><main")],
  ["a script that is not allowed", (html) => html.replace("<main", "<script>window.added = 1</script><main")],
])
  test(`Firefox: the check notices ${kind}`, { skip }, async () => {
    writeFile("changed.html", change(readFile("log.html")));
    await assert.rejects(open("changed.html", settle), assert.AssertionError);
  });
