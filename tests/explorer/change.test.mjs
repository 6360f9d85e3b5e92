import assert from "node:assert/strict";
import { test } from "node:test";
import { makeRandom } from "./blocks.mjs";
import { load } from "./load.mjs";

const { alignRows, toStrip, toRow, splitView, groupParts, makeBars, formatChange } = await load("align", "view", "change");

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
  return { names, rows, getExtent: (row) => [0, rows[row].end] };
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
  const bars = makeBars(60, groups, 1);
  assert.deepEqual(bars.map(({ name, from, to }) => [name, from, to]), [["a", 60, 54], ["3 others", 54, 57]]);
  assert.equal(makeBars(60, groups, 9).at(-1).to, 57);
  // One more than the most is not hidden behind "1 others".
  assert.deepEqual(makeBars(60, groups, 3).map(({ name }) => name), ["a", "d", "b", "e"]);
});

test("a change has a sign", () => {
  assert.deepEqual([formatChange(-2e6), formatChange(1500), formatChange(0)], ["−2\u00a0ms", "+1.5\u00a0µs", "±0\u00a0ns"]);
});
