// Journeys on written pages, their actions counted. Each must land on the truth: the tables of the same report's JSON.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, read, readFile, settle } from "./pages.mjs";
import { prepareWritten, readTable } from "./written.mjs";

prepareWritten("two", "many", "nsys", "snapshot", "comparison");

/** Does actions one after the other, at most so many. */
async function act(page, most, ...actions) {
  assert.ok(actions.length <= most, `${actions.length} actions`);
  for (const action of actions) {
    await action();
    await settle(page);
  }
}

test("the straggler of 64 ranks: 0 actions to name it, 1 to see it beside the others", () =>
  open("many.html", async (page) => {
    const [{ late_rank: rank, ranks, each_ns: wait }] = readTable("many.json", "stragglers", "waits");
    assert.equal(ranks, 63);
    assert.ok(wait > 1e6);
    assert.match(await page.textContent("h1"), new RegExp(`Other ranks wait .*\\sms for rank\\s${rank}\\.`));
    assert.equal(await read(page, "explorer.data.head.rows[explorer.state.focus].rank"), rank);
    await act(page, 2, () => page.click("#tab-ranks"));
    assert.match(await page.textContent("#panel-ranks tbody tr"), new RegExp(`^rank\\s${rank}(?!\\d)`));
  }));

for (const name of ["two", "nsys"])
  test(`the longest idle gap of ${name}: 1 action to its host call`, () =>
    open(`${name}.html`, async (page) => {
      const gaps = readTable(`${name}.json`, "idle", "idle_gaps");
      const longest = gaps.reduce((a, b) => (b.dur_ns > a.dur_ns ? b : a));
      await act(page, 1, () => page.keyboard.press("g"));
      assert.equal(await read(page, "explorer.state.mark.t1 - explorer.state.mark.t0"), longest.dur_ns);
      const text = await page.textContent("#detail");
      assert.ok(text.includes(longest.why), `${text}: ${longest.why}`);
      assert.ok(text.includes(`after ${longest.before}, before ${longest.after}`), text);
      if (name === "nsys") assert.match(text, new RegExp(`1\\.\\d+\\sms synchronizing call: .* › ${readFile("wait.txt")};`));
    }));

test("the stack at the memory peak: 2 actions", () =>
  open("snapshot.html", async (page) => {
    const [{ source, peak_bytes: peak }] = readTable("snapshot.json", "memory-peak", "snapshot_peaks");
    const [{ where, size_bytes: size }] = readTable("snapshot.json", "memory-peak", "live_peak");
    const number = await read(page, `explorer.data.head.memories.findIndex(({ file }) => file === ${JSON.stringify(source)})`);
    await act(page, 2, () => page.selectOption("#panel-memory select", String(number)));
    assert.equal(await read(page, `explorer.data.head.memories[${number}].peak`), peak);
    const largest = await page.textContent("#panel-memory tbody tr");
    assert.ok(largest.includes(where), largest);
    assert.ok(largest.replaceAll("\u00a0", " ").includes(`${Math.round(size / 2 ** 20)} MiB`), largest);
  }));

test("why the second side is faster: 0 actions to the stage, 1 to its largest operator", () =>
  open("comparison.html", async (page) => {
    const { origin, changes } = JSON.parse(readFile("comparison.json"));
    const [{ stage }] = origin.stages.toSorted((a, b) => a.difference - b.difference);
    assert.match(await page.textContent("#issues tr.pick"), new RegExp(stage));
    const { ratio } = changes.find(({ name, title }) => name === "stage_time" && title === stage);
    assert.ok((await page.textContent("#issues tr.pick")).includes(`${ratio.toFixed(2)}×`));
    await act(page, 3, () => page.click("#issues tr.pick"));
    assert.match(await page.textContent("#top h2"), new RegExp(`${stage} in step`));
    const top = await page.textContent("#top tbody tr");
    assert.match(top, /−/);
  }));

test("a kernel by name: 2 actions to one of its launches, its count in all", () =>
  open("two.html", async (page) => {
    const { name, count } = readTable("two.json", "kernels", "kernels").find(({ kind }) => kind === "collective");
    const word = name.split("(")[0];
    await act(page, 2, async () => (await page.keyboard.press("/"), await page.keyboard.type(word)), () => page.keyboard.press("Enter"));
    const matches = await page.textContent("#matches");
    assert.ok(matches.replace(/[,\s]/g, "").includes(`${count}×`), `${matches}: ${count}`);
    const landed = await read(page, () => {
      const { mark } = explorer.state;
      for (const { data } of explorer.data.rows[mark.row].cells) for (let k = 0; data && k < data.start.length; k++) if (data.start[k] === mark.t0) return explorer.data.names[data.name[k]];
      return null;
    });
    assert.equal(landed, name);
  }));
