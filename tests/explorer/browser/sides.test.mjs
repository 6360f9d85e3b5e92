// Comparison pages that `tracekit compare` wrote, against their JSON: icicle and bars, steps by order, ranks, logs, snapshots.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "../load.mjs";
import { listCut, open, read, readFile, settle, violations } from "./pages.mjs";
import { prepareWritten } from "./written.mjs";

prepareWritten("comparison", "sides", "logs", "snapshots");

const { formatTime } = await load("format");
const { formatChange } = await load("change");
const near = (value, expected, slack = 1) => assert.ok(Math.abs(value - expected) <= slack, `${value} ${expected}`);
const readJson = (name) => JSON.parse(readFile(`${name}.json`));
const sum = (list, get) => list.reduce((total, one) => total + get(one), 0);

test("the icicle is the tree of the JSON: stages add up to the change of the step, widths to all sizes", () =>
  open("comparison.html", async (page) => {
    const { origin } = readJson("comparison");
    const tree = await read(page, () => {
      const list = ({ name, change, value, children }) => ({ name, change, value, children: [...children.values()].map(list) });
      return list(explorer.change.tree);
    });
    near(tree.change, origin.opt - origin.base);
    near(tree.value, sum(origin.leaves, ({ difference }) => Math.abs(difference)));
    for (const { name, change } of tree.children) near(change, sum(origin.leaves.filter(({ stage }) => stage === name), ({ difference }) => difference));
    // A node is its children and the parts that end in it.
    const check = (node, names) => {
      const [stage, ...ops] = names;
      const own = origin.leaves.filter((leaf) => leaf.stage === stage && leaf.what === ops.join(" > "));
      near(node.change, sum(node.children, ({ change }) => change) + sum(own, ({ difference }) => difference));
      near(node.value, sum(node.children, ({ value }) => value) + sum(own, ({ difference }) => Math.abs(difference)));
      node.children.forEach((child) => check(child, [...names, child.name]));
    };
    check(tree, []);
  }));

test("the bars lead from the step before to the step after of the JSON", () =>
  open("comparison.html", async (page) => {
    const { headline, origin } = readJson("comparison");
    const bars = await page.$$eval("#issues tbody tr", (rows) => rows.map((row) => [row.cells[0].textContent, row.cells[2].textContent]));
    const read = (text) => Number(text.replace("−", "-").replace(/[^-+.\d]/g, "")) * { ms: 1e6, µs: 1e3, ns: 1 }[text.slice(-2)];
    near(read(bars[0][1]), headline.base, 5e3);
    near(read(bars.at(-1)[1]), headline.opt, 5e2);
    const change = sum(bars.slice(1, -1), ([, text]) => read(text));
    near(change, headline.opt - headline.base, 1e4);
    const [, gen] = bars.find(([name]) => name === "gen");
    near(read(gen), sum(origin.leaves.filter(({ stage }) => stage === "gen"), ({ difference }) => difference), 5e3);
  }));

test("a box of the icicle zooms on click and by keys, and has its name for screen readers", () =>
  open("comparison.html", async (page) => {
    const names = () => page.$$eval("#panel-change .unseen li", (all) => all.map((item) => item.textContent));
    assert.match((await names())[1], /^gen · 4\.71\sms less after/);
    await page.click("#panel-change canvas", { position: { x: 40, y: 30 } });
    assert.match((await names())[0], /^gen · 4\.71\sms less after, of parts that changed by/);
    assert.match(await page.textContent("#panel-change .line"), /^gen · /);
    await page.focus("#panel-change canvas");
    await page.keyboard.press("ArrowDown");
    assert.match((await names())[0], /^gen › aten::linear · 4\.21\sms less after/);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowRight");
    assert.match((await names())[0], /^gen › aten::linear › aten::matmul · .* more after/);
    await page.keyboard.press("Escape");
    assert.match((await names())[0], /^change of the step · 5\.45\sms less after/);
  }));

test("steps of other numbers are compared by order, and both sides are counted", () =>
  open("sides.html", async (page) => {
    assert.match(await page.textContent("#basis"), /steps are compared by order: step \d of before with step \d+ of after/);
    const [first, second] = await read(page, () => {
      const { state, data } = explorer;
      explorer.timeline.selectSteps([3]);
      return state.pair.map((row) => data.rows[row].steps.map(({ number }) => number));
    });
    assert.deepEqual([first, second], [[1, 2, 3, 4], [9, 10, 11, 12]]);
    await settle(page);
    assert.match(await page.textContent("#top h2"), /step 3 of before, step 11 of after/);
    const [shown, expected] = await read(page, () => {
      const { data, change } = explorer;
      const totals = [0, 0];
      const { sums } = data;
      for (let i = 0; i < sums.row.length; i++) {
        const { side } = data.head.rows[sums.row[i]];
        if (data.rows[sums.row[i]].steps[sums.step[i]]?.number === [3, 11][side]) totals[side] += sums.ns[i] / 4;
      }
      return [change.list().reduce(([a, b], { base, opt }) => [a + base, b + opt], [0, 0]), totals];
    });
    assert.ok(expected[0] > 0 && expected[1] > 0);
    shown.forEach((ns, side) => near(ns, expected[side]));
  }));

test("all ranks of both sides are rows; the slow rank of one side is seen, and a click brings it up with its partner", () =>
  open("sides.html", async (page) => {
    const beyond = await read(page, () => [0, 1].map((side) => explorer.data.rows.map((_, row) => row).filter((row) => explorer.data.head.rows[row].side === side).map((row) => explorer.data.getBeyond(row))));
    assert.deepEqual(beyond.map(({ length }) => length), [4, 4]);
    assert.equal(beyond[1].indexOf(Math.max(...beyond[1])), 2);
    assert.ok(beyond[1][2] > 3 * Math.max(...beyond[0]), String(beyond));
    const getPair = () => read(page, "explorer.state.pair.map((row) => explorer.data.head.rows[row].rank)");
    assert.deepEqual(await getPair(), [0, 0]);
    const box = await page.locator("#timeline").boundingBox();
    await page.mouse.click(box.x + 400, box.y + box.height - 9);
    await settle(page);
    assert.deepEqual(await getPair(), [3, 3]);
    assert.equal(await page.$eval("#pair", ({ selectedOptions: [option] }) => option.textContent), "rank 3");
    await page.focus("#timeline");
    await page.keyboard.press("ArrowUp");
    assert.deepEqual(await getPair(), [2, 2]);
    // Every row of a side begins its stages where the pair does.
    const places = await read(page, () => {
      const { data, state } = explorer;
      const place = (row, time) => {
        const piece = state.alignment.pieces.get(row).filter(({ start }) => start <= time).at(-1);
        return piece.at + time - piece.start;
      };
      return data.rows.map(({ ranges }, row) => ranges[0].filter(({ step }) => step >= 0).map(({ start }) => place(row, start)));
    });
    assert.ok(places[0].length > 8);
    for (const row of places) assert.deepEqual(row, places[0]);
  }));

for (const [name, hasStrip, tabs] of [["logs", true, ["Stages", "All tables"]], ["snapshots", false, ["Change", "All tables"]]])
  test(`a comparison of ${name} has its first table, and no tab without content`, () =>
    open(
      `${name}.html`,
      async (page) => {
        assert.equal(await page.isVisible("#strip"), hasStrip);
        assert.deepEqual(await page.$$eval("[role=tab]", (all) => all.map((tab) => tab.textContent)), tabs);
        for (const tab of await page.$$("[role=tab]")) {
          await tab.click();
          await settle(page);
          assert.ok((await page.textContent("[role=tabpanel]:not([hidden])")).length > 40);
          assert.deepEqual(await violations(page), []);
        }
      },
      { bypassCSP: true },
    ));

for (const name of ["comparison", "sides", "logs", "snapshots"])
  test(`${name}: at a width of 390 px no text is cut on any tab`, () =>
    open(
      `${name}.html`,
      async (page) => {
        for (const tab of await page.$$("[role=tab]")) {
          await tab.click();
          await settle(page);
          for (const summary of await page.$$("[role=tabpanel]:not([hidden]) details:not([open]) summary")) await summary.click();
          assert.deepEqual(await listCut(page), []);
          assert.ok((await read(page, "document.documentElement.scrollWidth")) <= 390);
        }
      },
      { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
    ));

test("two logs have a strip of the stages of both sides, aligned; a selected step and a search count each side", () =>
  open("logs.html", async (page) => {
    const lines = Object.fromEntries(["slow", "fast"].map((name) => [name, readFile(`${name}.jsonl`).trim().split("\n").map((line) => JSON.parse(line).data)]));
    const shown = await read(page, () => {
      const { data, state } = explorer;
      const place = (row, time) => {
        const piece = state.alignment.pieces.get(row).filter(({ start }) => start <= time).at(-1);
        return piece.at + time - piece.start;
      };
      return state.pair.map((row) => ({ counted: data.rows[row].steps.map(({ counted }) => counted), stages: data.rows[row].ranges[0].map(({ name, start, end, step }) => [data.names[name], step, end - start, place(row, start)]) }));
    });
    shown.forEach(({ counted, stages }, side) => {
      const log = lines[["slow", "fast"][side]];
      assert.deepEqual(counted, [false, ...Array(11).fill(true)]);
      assert.deepEqual(stages.map(([name, step, ns]) => [name, step, ns]), log.flatMap((step, i) => ["gen", "update_actor"].map((name) => [name, i, Math.round(step[`timing_s/${name}`] * 1e9)])));
    });
    assert.deepEqual(shown[0].stages.map(([, , , at]) => at), shown[1].stages.map(([, , , at]) => at));
    const readCells = () => page.$$eval("#top tbody tr", (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
    // The means of the report, of steps 2 to 12.
    const { changes } = readJson("logs");
    for (const { stage, base, opt } of changes.filter(({ unit, stage }) => unit === "ns" && stage)) {
      const cells = (await readCells()).find(([name]) => name === stage);
      assert.deepEqual(cells.slice(1), [formatTime(base), formatTime(opt), formatChange(opt - base), "11 → 11"]);
    }
    // 1 action: step 3 of both logs, exactly.
    await read(page, "explorer.timeline.selectSteps([3])");
    await settle(page);
    const [before, after] = ["slow", "fast"].map((name) => lines[name][2]);
    const expected = ["step", "gen", "update_actor"].map((stage) => [before, after].map((step) => Math.round(step[`timing_s/${stage}`] * 1e9)));
    assert.deepEqual(await readCells(), ["step", "gen", "update_actor"].map((stage, i) => [stage, ...expected[i].map((ns) => formatTime(ns)), formatChange(expected[i][1] - expected[i][0]), "1 → 1"]));
    await page.fill("#find", "gen");
    const totals = ["slow", "fast"].map((name) => sum(lines[name], (step) => Math.round(step["timing_s/gen"] * 1e9)));
    assert.equal(await page.textContent("#matches"), `slow.jsonl 12 × · ${formatTime(totals[0])} | fast.jsonl 12 × · ${formatTime(totals[1])} · Enter: next`);
    // A bar of a chart selects its step of that side.
    await page.click("#panel-stages canvas >> nth=1", { position: { x: 70, y: 100 } });
    await settle(page);
    assert.match(await page.textContent("#top h2"), /step 1 · 2 logs/);
  }));

test("numbers of logs and snapshots are those of the JSON", async () => {
  await open("logs.html", async (page) => {
    const { changes } = readJson("logs");
    const text = await page.textContent("#issues");
    for (const { base, opt, stage } of changes.filter(({ unit }) => unit === "ns")) for (const ns of [base, opt]) assert.ok(text.includes((ns / 1e9).toFixed(1)), `${stage} ${ns} ${text}`);
    assert.match(text, /No parts of the change: .*a log has the times of steps and stages only/);
  });
  await open("snapshots.html", async (page) => {
    const { headline } = readJson("snapshots");
    const tree = await read(page, "({ change: explorer.change.tree.change, ends: explorer.data.head.comparison.ends })");
    assert.equal(tree.change, headline.opt - headline.base);
    assert.deepEqual(tree.ends, [headline.base, headline.opt]);
    const rows = await page.$$eval("#issues tbody tr", (all) => all.map((row) => row.cells[2].textContent));
    assert.deepEqual(rows, ["394\u00a0MiB", "−116\u00a0MiB", "278\u00a0MiB"]);
    assert.match(await page.textContent("#top"), /peak reserved/);
  });
});
