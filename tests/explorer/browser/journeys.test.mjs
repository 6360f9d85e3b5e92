// Journeys on written pages, their actions counted. Each must land on the truth: the tables of the same report's JSON.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, read, readFile, settle } from "./pages.mjs";
import { prepareWritten, readTable } from "./written.mjs";

prepareWritten("two", "many", "verl", "nsys", "snapshot", "log", "validation", "comparison", "logs", "snapshots", "runs", "requests", "hang");

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

/** Stages in the table of the Time tab: name, and its share as text. */
const listShares = (page) => page.$$eval("#panel-time table[aria-label='Time by stage'] tbody tr", (rows) => rows.map(({ cells }) => [cells[0].textContent, cells[cells.length - 1].textContent.replaceAll("\u00a0", " ")]));
const formatShare = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
/** Drags on the time axis, between two shares of the width of the timeline. */
async function brush(page, from, to) {
  const box = await page.locator("#timeline").boundingBox();
  const y = box.y + 40;
  await page.mouse.move(box.x + 96 + from * (box.width - 97), y);
  await page.mouse.down();
  await page.mouse.move(box.x + 96 + to * (box.width - 97), y, { steps: 6 });
  await page.mouse.up();
}

test("the share of a stage in a brushed window: 1 action, equal to a brute force over all kernels", () =>
  open("two.html", async (page) => {
    await act(page, 2, () => brush(page, 0.4, 0.47));
    const sums = await read(page, async () => {
      const { data, state } = explorer;
      const { kind, t0, t1 } = state.selection.scope;
      if (kind !== "window") throw new Error(kind);
      const sums = {};
      for (const row of data.rows.keys()) {
        await data.loadRow(row);
        for (const { data: boxes } of data.rows[row].cells)
          boxes.start.forEach((start, k) => {
            const inside = Math.min(start + boxes.length[k], t1) - Math.max(start, t0);
            const stage = boxes.stage[k] < 0 ? "outside any stage" : data.names[boxes.stage[k]];
            if (inside > 0) sums[stage] = (sums[stage] ?? 0) + inside;
          });
      }
      return sums;
    });
    const all = Object.values(sums).reduce((sum, ns) => sum + ns, 0);
    assert.ok(Object.keys(sums).length >= 2 && all > 0, JSON.stringify(sums));
    assert.deepEqual(
      await listShares(page),
      Object.entries(sums).sort((a, b) => b[1] - a[1]).map(([stage, ns]) => [stage, formatShare(ns / all)]),
    );
  }));

test("the share of a stage over all brushed steps: 1 action, equal to the JSON", () =>
  open("two.html", async (page) => {
    await act(page, 2, () => brush(page, 0, 1));
    assert.equal(await read(page, "explorer.state.selection.scope.kind"), "steps");
    const stages = readTable("two.json", "attribution", "launched_by_stage").filter(({ stage }) => !stage.startsWith("("));
    assert.ok(stages.length >= 4);
    const counted = await read(page, () => {
      const sums = {};
      for (const { stage, ns } of explorer.getCounts().work) sums[explorer.data.nameStage(stage)] = (sums[explorer.data.nameStage(stage)] ?? 0) + ns;
      return sums;
    });
    for (const { stage, dur_ns: ns } of stages) assert.equal(counted[stage], ns, stage);
    const all = Object.values(counted).reduce((sum, ns) => sum + ns, 0);
    const shares = new Map(await listShares(page));
    for (const { stage, dur_ns: ns } of stages) assert.equal(shares.get(stage), formatShare(ns / all));
  }));

test("who is late, of two ranks: 0 actions; of two roles: each rank has the waits of its own role, 1 action", async () => {
  const sum = (rows) => rows.reduce((total, { each_ns: ns }) => total + ns, 0);
  await open("two.html", async (page) => {
    const waits = readTable("two.json", "stragglers", "waits");
    const [first, last] = [0, 1].map((rank) => sum(waits.filter(({ late_rank: late }) => late === rank)));
    assert.ok(last > 10 * first);
    assert.ok((await page.textContent("h1")).replaceAll("\u00a0", " ").endsWith(`Rank 0 waits ${(last / 1e6).toFixed(2)} ms for rank 1.`));
  });
  await open("verl.html", async (page) => {
    await act(page, 1, () => page.click("#tab-ranks"));
    const waits = readTable("verl.json", "stragglers", "waits");
    const rows = await page.$$eval("#panel-ranks tbody tr", (all) => all.map(({ cells }) => [cells[0].textContent, cells[2].textContent.replaceAll("\u00a0", " ")]));
    assert.equal(rows.length, 4);
    for (const [name, wait] of rows) {
      const [, rank, role] = /^rank (\d) (.*)$/.exec(name);
      const ns = sum(waits.filter((one) => one.role === role && one.late_rank === Number(rank)));
      assert.equal(wait, `${Number((ns / 1e6).toPrecision(3))} ms`, name);
    }
    const names = await read(page, "explorer.data.rows.map((_, row) => explorer.data.labelRow(row))");
    assert.equal(new Set(names).size, names.length);
  });
});

for (const scheme of [{ viewport: { width: 1280, height: 900 } }, { viewport: { width: 390, height: 844 } }])
  test(`which rank blocks a job, ${scheme.viewport.width} px: 0 actions to the claim, and the ranks of its group are in sight`, () =>
    open(
      "hang.html",
      async (page) => {
        const { sections } = JSON.parse(readFile("hang.json"));
        const [{ claim }] = sections.flatMap(({ findings }) => findings);
        const ranks = readTable("hang.json", "hang", sections.find(({ id }) => id === "hang").sheets[0].name);
        assert.equal(ranks.length, 3);
        assert.equal(await page.textContent("h1"), claim);
        const rows = await page.$$eval("#first tbody tr", (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
        assert.deepEqual(rows.map((cells) => cells.slice(1, 3)), ranks.map(({ rank, state }) => [String(rank), state]));
        assert.ok(await page.isVisible("#first"));
        const bottom = await page.$eval("h1", (element) => element.getBoundingClientRect().bottom);
        assert.ok(bottom < 300, String(bottom));
      },
      // The page has no program: nothing to wait for.
      { ...scheme, javaScriptEnabled: false },
    ));

test("which part of their time makes requests slow: 2 actions to the share of tools", () =>
  open("requests.html", async (page) => {
    const parts = readTable("requests.json", "requests", "request_parts");
    const text = () => page.textContent("#issues");
    assert.match(await text(), /the slowest 5 % of .* agent runs/);
    await act(page, 2, () => page.click("#tab-tables"), () => page.click("#panel-tables summary:has-text('Time of requests by part')"));
    const rows = await page.$$eval("#panel-tables details[open] tbody tr", (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
    assert.deepEqual(rows.map(([part]) => part), parts.map(({ part }) => part));
    // Below 1 %, a share has more digits.
    rows.forEach(([, share], i) => parts[i].share_ratio < 0.01 || assert.equal(share.replaceAll("\u00a0", " "), `${(parts[i].share_ratio * 100).toFixed(1)} %`));
    assert.ok(rows.some(([part]) => part === "tools"));
  }));

test("several logs: the answer has the step of each; each has its row with its name and its chart, the whole run at first", () =>
  open("runs.html", async (page) => {
    const { headings, rows } = JSON.parse(readFile("runs.json")).overview;
    const names = headings.slice(1).map(({ title }) => title);
    assert.equal(names.length, 3);
    const answer = (await page.textContent("h1")).replaceAll("\u00a0", " ");
    names.forEach((name, i) => assert.ok(answer.includes(`${Math.round(rows[0][i + 1] / 1e9)} s in ${name}`), answer));
    assert.deepEqual(await read(page, "explorer.data.rows.map((_, row) => explorer.data.labelRow(row))"), names);
    assert.deepEqual(await page.$$eval("#panel-time h3", (all) => all.map((title) => title.textContent)), names.map((name) => `Stages by step, ${name}`));
    const [view, span] = await read(page, "[explorer.state.e - explorer.state.t, explorer.data.head.span]");
    assert.ok(view >= span);
    // Logs have no ranks to order by.
    assert.equal(await page.locator("#order").count(), 0);
  }));

for (const name of ["logs", "snapshots"])
  test(`did my change help, ${name}: the first table is whole at 1280 px, and no note repeats the basis`, () =>
    open(`${name}.html`, async (page) => {
      const [wide, room] = await page.$$eval("table", (all) => {
        const box = all.find((table) => /size|change/.test(table.tHead.textContent)).parentElement;
        return [Math.max(...[...document.querySelectorAll("main .two .table")].map((one) => one.scrollWidth - one.clientWidth)), box.clientWidth];
      });
      assert.ok(room > 300);
      assert.equal(wide, 0);
      assert.ok(!(await page.textContent(".two")).includes("█"));
      const lines = await page.$$eval("#basis p", (all) => all.map((line) => line.textContent.replace(/^Note: /, "").toLowerCase()));
      for (const line of lines) assert.equal(lines.filter((other) => other.includes(line)).length, 1, line);
    }));

for (const name of ["log", "validation"])
  test(`the longest stage of ${name}: the answer and the Time tab say the same, 0 actions`, () =>
    open(`${name}.html`, async (page) => {
      const { rows } = JSON.parse(readFile(`${name}.json`)).overview;
      const [[, step], [stage, ns, share]] = rows;
      assert.ok(Math.abs(ns / step - share) < 1e-9);
      const percent = `${Math.round(share * 100)} %`;
      assert.ok((await page.textContent("h1")).replaceAll("\u00a0", " ").includes(`${percent} ${stage}`));
      assert.ok((await page.textContent("#panel-time .answer")).replaceAll("\u00a0", " ").startsWith(`${stage} takes ${percent} of a step on average`));
      const shares = await page.$$eval("#panel-time tbody tr", (all) => all.map(({ cells }) => [cells[0].textContent, cells[2].textContent.replaceAll("\u00a0", " ")]));
      const known = new Map(rows.map(([name, , share]) => [name, formatShare(share)]));
      assert.ok(shares.length >= 4);
      for (const [name, shown] of shares) assert.equal(shown, known.get(name), name);
    }));
