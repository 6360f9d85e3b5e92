import assert from "node:assert/strict";
import { test } from "node:test";
import { encodeRows, makeRandom, takeDifferences } from "./blocks.mjs";
import { load } from "./load.mjs";

const { readColumns, undoZigzag, addUp, lowerBound, readCells, readGaps, shortenName, formatTime, formatBytes, formatShare } = await load("data", "format");

test("a block written by hand decodes to its columns", () => {
  // Two rows: (1, 300) and (127, 128). 300 is 0b10_0101100, 128 is 0b1_0000000.
  const { columns, end } = readColumns(Uint8Array.of(2, 1, 127, 0xac, 0x02, 0x80, 0x01), 2);
  assert.deepEqual(columns.map((column) => [...column]), [[1, 127], [300, 128]]);
  assert.equal(end, 7);
});

test("numbers up to 2^53 survive", () => {
  const random = makeRandom(1);
  const rows = Array.from({ length: 2000 }, () => [0, 1, 2].map(() => Math.floor(random() * 2 ** Math.floor(random() * 53))));
  rows.push([0, Number.MAX_SAFE_INTEGER, 2 ** 32]);
  const { columns } = readColumns(encodeRows(rows), 3);
  assert.deepEqual(rows, rows.map((_, i) => columns.map((column) => column[i])));
});

test("a block that is cut short is an error", () => {
  const bytes = encodeRows([[1, 2], [3, 400]]);
  for (let n = 0; n < bytes.length; n++) assert.throws(() => readColumns(bytes.slice(0, n), 2), RangeError);
});

test("signed differences add up again", () => {
  const random = makeRandom(2);
  const values = Array.from({ length: 500 }, () => [Math.floor(random() * 2 ** 45)]);
  const [column] = readColumns(encodeRows(takeDifferences(values, 0)), 1).columns;
  assert.deepEqual([...addUp(undoZigzag(column))], values.flat());
  assert.deepEqual([...undoZigzag(Float64Array.of(0, 1, 2, 3, 2 ** 46 + 1))], [0, -1, 1, -2, -(2 ** 45) - 1]);
});

test("the lower bound is the first place that is not below", () => {
  const random = makeRandom(3);
  for (let turn = 0; turn < 300; turn++) {
    const values = Array.from({ length: Math.floor(random() * 20) }, () => Math.floor(random() * 10)).sort((a, b) => a - b);
    const x = Math.floor(random() * 12) - 1;
    const place = values.findIndex((value) => value >= x);
    assert.equal(lowerBound(values, x), place < 0 ? values.length : place);
  }
});

test("cells of a row decode one after the other", () => {
  const first = [[100, 10, 1, 5, 0, 2, 31, 0, 0], [150, 30, 0, 0, 4, 0, 0, 6, 21]];
  const second = [[900, 7, 0, 1, 1, 1, 1, 0, 0]];
  const bytes = Buffer.concat([first, second].map((cell) => encodeRows(takeDifferences(cell, 0, false))));
  const [a, b] = readCells(bytes, 2, [[2, 7], [1, 20]]);
  assert.deepEqual([...a.start], [100, 150]);
  assert.deepEqual([...a.kind], [1, 2]);
  assert.deepEqual([...a.name], [4, -1]);
  assert.deepEqual([...a.path], [-1, 3]);
  assert.deepEqual([...a.stage], [1, -1]);
  assert.deepEqual([...a.delay], [30, -1]);
  assert.deepEqual([...a.count], [1, 7]);
  assert.deepEqual([...a.busy], [0, 21]);
  assert.equal(a.longest, 30);
  assert.deepEqual([[...b.start], [...b.delay]], [[900], [0]]);
});

test("gaps find their segments, the longest first in a tie", () => {
  const gaps = takeDifferences([[0, 500, 30, 0, 2, 2], [1, 100, 8, 3, 0, 1]], 1);
  const decoded = readGaps(encodeRows(gaps), encodeRows([[10, 4, 0], [20, 2, 6], [8, 1, 1]]));
  assert.deepEqual([...decoded.start], [500, 100]);
  assert.deepEqual([...decoded.first], [0, 2, 3]);
  assert.deepEqual([...decoded.main], [1, 2]);
  assert.deepEqual([...decoded.path], [-1, 5, 0]);
  assert.deepEqual([[...decoded.before], [...decoded.after]], [[-1, 2], [1, -1]]);
});

test("names and numbers read well", () => {
  assert.equal(shortenName("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)"), "vectorized_elementwise_kernel · AddFunctor");
  assert.equal(shortenName("Memcpy HtoD (Pinned -> Device)"), "Memcpy HtoD (Pinned -> Device)");
  assert.equal(formatTime(63_662_748), "63.7\u00a0ms");
  assert.equal(formatTime(999), "999\u00a0ns");
  assert.equal(formatTime(1_234_000_000_000), "1,234\u00a0s");
  assert.equal(formatTime(-4_864_412), "−4.86\u00a0ms");
  assert.equal(formatBytes(1536), "1.5\u00a0KiB");
  assert.deepEqual([formatShare(0.0312), formatShare(0.5)], ["3.1\u00a0%", "50\u00a0%"]);
});
