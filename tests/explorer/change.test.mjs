import assert from "node:assert/strict";
import { test } from "node:test";
import { makeRandom } from "./blocks.mjs";
import { load } from "./load.mjs";

const { alignRows, matchSteps, matchAllSteps, listSameStages, countKernels, toStrip, toRow, splitView, groupParts, makeBars, formatChange } = await load("align", "view", "change", "tables");

/** Two rows of steps with three stages each; `lengths[row](step, stage)` in ns. */
function makeData(lengths, steps, numbers = [0, 0]) {
  const names = ["gen", "ref", "actor"];
  const rows = lengths.map((getLength, row) => {
    const found = { steps: [], ranges: [[], []] };
    let at = 10 * row;
    for (let step = 0; step < steps; step++) {
      const start = at;
      names.forEach((_, stage) => {
        const long = getLength(step, stage);
        found.ranges[0].push({ row, name: stage, step, start: at, end: at + long, depth: 0 });
        at += long;
      });
      found.steps.push({ index: step, number: numbers[row] + step, start, end: at });
    }
    return { ...found, end: at };
  });
  return { names, rows, head: { comparison: {} }, ranges: rows.flatMap(({ ranges }) => ranges[0]), getExtent: (row) => [0, rows[row].end] };
}

test("the same stage of the same step begins at the same place, whatever the lengths", () => {
  const random = makeRandom(3);
  for (let turn = 0; turn < 40; turn++) {
    const draw = Array.from({ length: 24 }, () => Math.floor(random() * 50));
    const data = makeData([(step, stage) => draw[step * 3 + stage] + 1, (step, stage) => draw[12 + step * 3 + stage] + 1], 4, [0, turn % 2 ? 100 : 0]);
    const alignment = alignRows(data, 0, 1);
    const places = [0, 1].map((row) => data.rows[row].ranges[0].map(({ start }) => toStrip(alignment, row, start)));
    assert.deepEqual(places[0], places[1]);
    for (const row of [0, 1]) {
      // Order is kept, nothing overlaps, and every instant of a row has a place of its own.
      let last = -1;
      for (let time = 0; time < data.rows[row].end; time++) {
        const at = toStrip(alignment, row, time);
        assert.ok(at > last && at <= alignment.span);
        assert.equal(toRow(alignment, row, at), time);
        last = at;
      }
      const views = splitView({ t: 0, e: alignment.span, alignment }, row, 0, alignment.span);
      const seen = views.reduce((sum, { from, to }) => sum + to - from, 0);
      assert.equal(seen, data.rows[row].end);
      for (const { x0, x1, from, to } of views) assert.ok(Math.abs(x1 - x0 - (to - from)) < 1e-6);
    }
  }
});

/** Two rows whose steps have these numbers; those in `warm` do not count. */
const numberSteps = (lists, warm = []) => ({ head: { comparison: {} }, rows: lists.map((list) => ({ steps: list.map((number, index) => ({ index, number, counted: !warm.includes(number) })), ranges: [[], []] })) });

test("steps belong together by number, and by order where the numbers do not meet", () => {
  const match = (base, opt, warm) => [...matchSteps(numberSteps([base, opt], warm), 0, 1)];
  assert.deepEqual(match([2, 3, 4, 5], [3, 4, 5, 6]), [[1, 0], [2, 1], [3, 2]]);
  assert.deepEqual(match([2, 3, 4, 5], [10, 11, 12, 13]), [[0, 0], [1, 1], [2, 2], [3, 3]]);
  // One number in common is chance: step 5 ends one side and begins the other.
  assert.deepEqual(match([2, 3, 4, 5], [5, 6, 7]), [[0, 0], [1, 1], [2, 2]]);
  // The warm-up steps 9 and 10 have no partner, so the first that counts belongs to the first that counts.
  assert.deepEqual(match([2, 3, 4], [9, 10, 11, 12, 13], [9, 10]), [[0, 2], [1, 3], [2, 4]]);
  assert.deepEqual(match([null, null], [null, null, null]), [[0, 0], [1, 1]]);
  assert.deepEqual([...matchAllSteps(numberSteps([[2, 3], [10, 11], [3]]), 1, [1])].map(([row, steps]) => [row, [...steps]]), [[0, [1]], [1, [1]], [2, []]]);
});

test("a step or a stage of disjoint numbers counts on both sides", async () => {
  const data = makeData([() => 5, () => 3], 4, [2, 10]);
  for (const [id, range] of data.ranges.entries()) range.id = id;
  const same = listSameStages(data, data.rows[0].ranges[0][4]);
  assert.deepEqual(same.map(({ row, step, name }) => [row, step, name]), [[0, 1, 1], [1, 1, 1]]);
  const entries = data.ranges.map(({ row, step, id, start, end }) => [row, step, id, end - start]);
  const [row, step, occurrence, ns] = [0, 1, 2, 3].map((k) => entries.map((entry) => entry[k]));
  data.sums = { row, step, occurrence, ns, path: row.map(() => 0), name: row.map(() => 0), kind: row.map(() => 0), count: row.map(() => 1) };
  const add = async (scope, of) => (await countKernels(data, scope, new Set([of]))).work.reduce((sum, one) => sum + one.ns, 0);
  const scope = { kind: "steps", numbers: new Set([11]), matched: matchAllSteps(data, 1, [1]) };
  assert.deepEqual([await add(scope, 0), await add(scope, 1)], [15, 9]);
});

test("a row that is not aligned keeps its time", () => {
  assert.equal(toStrip(null, 0, 42), 42);
  assert.equal(toRow(null, 0, 42), 42);
  assert.deepEqual(splitView({ t: 1, e: 9, alignment: null }, 0, 50, 100), [{ t: 1, e: 9, left: 50, width: 100, from: 1, to: 9, x0: 50, x1: 100 }]);
});

test("bars lead from before to after; those beyond the most are one bar", () => {
  const part = (name, difference, low = null) => ({ stage: name, path: [name], base: 10, opt: 10 + difference, difference, low, high: low });
  const parts = [part("a", -4, -5), part("b", 1), part("a", -2), part("c", 0), part("d", 3, 2), part("e", -1)];
  const groups = groupParts(parts, ({ stage }) => stage);
  assert.deepEqual(groups.map(({ name, difference, low }) => [name, difference, low]), [["a", -6, null], ["d", 3, 2], ["b", 1, null], ["e", -1, null], ["c", 0, null]]);
  const bars = makeBars(60, groups, null, 1);
  assert.deepEqual(bars.map(({ name, from, to }) => [name, from, to]), [["a", 60, 54], ["3 others", 54, 57]]);
  assert.equal(makeBars(60, groups, null, 9).at(-1).to, 57);
  // The step got shorter by 10, of which the parts explain 3.
  assert.deepEqual(makeBars(60, groups, 50, 1).slice(1).map(({ name, from, to, parts }) => [name, from, to, parts]), [["3 others", 54, 57, 3], ["not attributed", 57, 50, 0]]);
  assert.equal(makeBars(60, groups, 57.2).at(-1).name, "e");
  // One more than the most is not hidden behind "1 others".
  assert.deepEqual(makeBars(60, groups, null, 3).map(({ name }) => name), ["a", "d", "b", "e"]);
});

test("a change has a sign", () => {
  assert.deepEqual([formatChange(-2e6), formatChange(1500), formatChange(0)], ["−2\u00a0ms", "+1.5\u00a0µs", "±0\u00a0ns"]);
});
