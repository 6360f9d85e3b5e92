import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { countStages } = await load("stages");

/** A log of two steps, 0–10 and 10–30: gen in both, saving in the second. */
function makeLog() {
  const step = (index, number, start, end) => ({ index, number, start, end, counted: number > 1 });
  const range = (id, start, end, name, of) => ({ id, row: 0, start, end, name, depth: 0, step: of });
  return { rows: [{ steps: [step(0, 1, 0, 10), step(1, 2, 10, 30)], ranges: [[range(0, 0, 6, 3, 0), range(1, 10, 18, 3, 1), range(2, 18, 30, 4, 1)], []] }] };
}
const rows = new Set([0]);
const list = ({ lines, steps, ns }) => [lines.map(({ name, ns: time, steps: of, most, longest }) => [name, time, of, most, longest]), steps, ns];

test("whole steps count their stages as the log has them", () => {
  const gen = [3, 14, 2, 8, 2];
  assert.deepEqual(list(countStages(makeLog(), { kind: "steps", numbers: new Set([1, 2]) }, rows)), [[gen, [4, 12, 1, 12, 2]], 2, 30]);
  assert.deepEqual(list(countStages(makeLog(), { kind: "all" }, rows))[0], [gen, [4, 12, 1, 12, 2]]);
  assert.deepEqual(list(countStages(makeLog(), { kind: "steps", numbers: new Set([1]) }, rows)), [[[3, 6, 1, 6, 1]], 1, 10]);
  assert.deepEqual(list(countStages(makeLog(), { kind: "counted" }, rows)), [[[4, 12, 1, 12, 2], [3, 8, 1, 8, 2]], 1, 20]);
});

test("a window clips stages and steps; a stage counts alone", () => {
  assert.deepEqual(list(countStages(makeLog(), { kind: "window", t0: 4, t1: 20 }, rows)), [[[3, 10, 2, 8, 2], [4, 2, 1, 2, 2]], 2, 16]);
  assert.deepEqual(list(countStages(makeLog(), { kind: "stages", ranges: new Set([2]) }, rows))[0], [[4, 12, 1, 12, 2]]);
});
