import assert from "node:assert/strict";
import { test } from "node:test";
import { makeRandom } from "./blocks.mjs";
import { load } from "./load.mjs";

const { countWindow, countGaps, countKernels, listWindows, groupWork } = await load("tables");

function drawBoxes(random, number) {
  const start = Array.from({ length: number }, () => Math.floor(random() * 1000)).sort((a, b) => a - b);
  const length = start.map(() => 1 + Math.floor(random() ** 4 * 300));
  const count = start.map(() => (random() < 0.3 ? 5 : 1));
  const name = count.map((n) => (n > 1 && random() < 0.5 ? -1 : Math.floor(random() * 3)));
  const busy = length.map((l, i) => (count[i] > 1 ? Math.floor(l * random()) : 0));
  return { start, length, name, busy, kind: start.map(() => Math.floor(random() * 3)), path: start.map(() => -1), stage: start.map(() => 0), count, longest: Math.max(0, ...length) };
}

test("counting in a window agrees with counting each ns", () => {
  const random = makeRandom(4);
  for (let turn = 0; turn < 200; turn++) {
    const boxes = drawBoxes(random, Math.floor(random() * 40));
    const [t0, t1] = [Math.floor(random() * 1200) - 100, Math.floor(random() * 1200)].sort((a, b) => a - b);
    const sums = new Map();
    const exact = countWindow(boxes, t0, t1, (stage, path, name, kind, count, ns) => {
      const sum = sums.get(`${name},${kind}`) ?? [0, 0];
      sums.set(`${name},${kind}`, [sum[0] + count, sum[1] + ns]);
    });
    const expected = new Map();
    let clipped = false;
    boxes.start.forEach((start, k) => {
      let inside = 0;
      for (let t = start; t < start + boxes.length[k]; t++) if (t >= t0 && t < t1) inside++;
      if (!inside) return;
      clipped ||= boxes.count[k] > 1 && inside < boxes.length[k];
      const key = `${boxes.name[k]},${boxes.kind[k]}`;
      const sum = expected.get(key) ?? [0, 0];
      expected.set(key, [sum[0] + boxes.count[k], sum[1] + (boxes.count[k] > 1 ? (boxes.busy[k] * inside) / boxes.length[k] : inside)]);
    });
    assert.equal(exact, !clipped);
    assert.deepEqual(new Set(sums.keys()), new Set(expected.keys()));
    for (const [key, [count, ns]] of expected) {
      assert.equal(sums.get(key)[0], count);
      assert.ok(Math.abs(sums.get(key)[1] - ns) < 1e-6);
    }
  }
});

/** Two rows with two steps each; step 4 of row 1 begins at 60. */
function makeData() {
  const step = (number, start, end) => ({ number, start, end, compute: 10, comm: 5, copies: 5 });
  const range = (id, row, start, end, name) => ({ id, row, start, end, name });
  return {
    rows: [
      { steps: [step(3, 0, 50), step(4, 50, 100)].map((s, index) => ({ ...s, index })), ranges: [[range(0, 0, 0, 20, 8), range(1, 0, 50, 70, 8)], []], gaps: [0, 1], cells: [] },
      { steps: [step(3, 10, 60), step(4, 60, 110)].map((s, index) => ({ ...s, index })), ranges: [[range(2, 1, 60, 80, 8)], []], gaps: [2], cells: [] },
    ],
    ranges: [range(0, 0, 0, 20, 8), range(1, 0, 50, 70, 8), range(2, 1, 60, 80, 8)],
    sums: { row: [0, 0, 0, 1], step: [0, 1, -1, 1], occurrence: [0, 1, -1, 2], path: [-1, -1, -1, -1], name: [1, 1, 2, 1], kind: [0, 0, 1, 0], count: [3, 4, 1, 5], ns: [30, 40, 7, 50] },
    gaps: { start: [5, 40, 55], length: [10, 30, 10], first: [0, 1, 3, 4], segment: [10, 20, 10, 10], cause: [0, 1, 2, 0] },
    cells: [],
    loadRow: () => Promise.resolve(),
  };
}
const total = ({ work }) => [work.reduce((sum, w) => sum + w.count, 0), work.reduce((sum, w) => sum + w.ns, 0)];
const both = new Set([0, 1]);

test("whole recordings, steps and stages are counted from exact sums", async () => {
  const data = makeData();
  assert.deepEqual(total(await countKernels(data, { kind: "all" }, both)), [13, 127]);
  assert.deepEqual(total(await countKernels(data, { kind: "all" }, new Set([1]))), [5, 50]);
  assert.deepEqual(total(await countKernels(data, { kind: "steps", numbers: new Set([4]) }, both)), [9, 90]);
  assert.deepEqual(total(await countKernels(data, { kind: "stages", ranges: new Set([0, 2]) }, both)), [8, 80]);
  const { work, named } = await countKernels(data, { kind: "all" }, both);
  assert.equal(named, 1);
  assert.deepEqual(work.map((w) => w.stage), [8, -1]);
  assert.equal((await countKernels(data, { kind: "steps", numbers: new Set([4]) }, both)).exact, true);
});

test("a window with a merged box and a step without cells is named in part", async () => {
  const data = makeData();
  const boxes = { start: [0, 20], length: [10, 20], name: [1, -1], busy: [0, 10], kind: [0, 0], path: [-1, -1], stage: [8, 8], count: [1, 4], longest: 20 };
  data.cells = [{ row: 0, step: 0, start: 0, end: 40, data: boxes }];
  data.rows[0].cells = data.cells;
  // Named: 10 ns. Merged: 10. Half of step 4 of row 0, which has no cell: 20 / 2.
  const { named, work, exact } = await countKernels(data, { kind: "window", t0: 0, t1: 75 }, new Set([0]));
  assert.equal(exact, false);
  assert.deepEqual(total({ work }), [5, 20]);
  assert.ok(Math.abs(named - 10 / 30) < 1e-12);
});

test("gaps are counted by segment and clipped to each window of a scope", () => {
  const data = makeData();
  const count = (scope, rows = both) => {
    const parts = [];
    const gaps = countGaps(data, scope, rows, (segment, ns) => parts.push([segment, ns]));
    return [gaps.map(({ gap, ns }) => [gap, ns]), parts];
  };
  assert.deepEqual(count({ kind: "all" }), [[[0, 10], [1, 30], [2, 10]], [[0, 10], [1, 20], [2, 10], [3, 10]]]);
  // Step 3 ends in the middle of gap 1 on row 0, and at 60 on row 1.
  assert.deepEqual(count({ kind: "steps", numbers: new Set([3]) }), [[[0, 10], [1, 10], [2, 5]], [[0, 10], [1, 10], [3, 5]]]);
  // Both steps cover the whole gap, its segment in two pieces.
  assert.deepEqual(count({ kind: "steps", numbers: new Set([3, 4]) }, new Set([0]))[0], [[0, 10], [1, 30]]);
  assert.deepEqual(count({ kind: "window", t0: 12, t1: 45 }, new Set([0])), [[[0, 3], [1, 5]], [[0, 3], [1, 5]]]);
  assert.deepEqual(listWindows(data, { kind: "stages", ranges: new Set([1, 2]) }, 0), [[50, 70]]);
});

test("grouping conserves counts and time", () => {
  const work = [[1, 5], [2, 7], [1, 11]].map(([name, ns]) => ({ name, ns, count: 2 }));
  assert.deepEqual(groupWork(work, (w) => w.name).map(({ name, ns, count }) => [name, ns, count]), [[1, 16, 4], [2, 7, 2]]);
  assert.equal(work[0].ns, 5);
});
