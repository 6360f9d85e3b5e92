// Rows of both sides of a comparison that belong together, and their alignment: the same stage of the same step begins at the same x.
import type { Data } from "./data";
import type { Alignment, Piece } from "./view";

/** Starts of steps and outer stages of a row by step, stage and how often it came before in the step. */
function listAnchors(data: Data, row: number, byNumber: boolean): Map<string, number> {
  const { steps, ranges } = data.rows[row];
  const anchors = new Map<string, number>();
  const nameStep = (step: number): string => String((byNumber ? steps[step]?.number : undefined) ?? step);
  for (const step of steps) anchors.set(nameStep(step.index), step.start);
  for (const range of ranges[0]) {
    const key = `${nameStep(range.step)},${data.names[range.name]},`;
    let turn = 0;
    while (anchors.has(key + turn)) turn++;
    anchors.set(key + turn, range.start);
  }
  return anchors;
}

/** Aligns two rows where both have the same stage of the same step; parts between have the room of the longer one. */
export function alignRows(data: Data, base: number, opt: number): Alignment {
  const numbers = new Set(data.rows[base].steps.map(({ number }) => number));
  const byNumber = data.rows[opt].steps.some(({ number }) => number !== null && numbers.has(number));
  const [before, after] = [listAnchors(data, base, byNumber), listAnchors(data, opt, byNumber)];
  const pieces: [Piece[], Piece[]] = [[], []];
  const ends = [base, opt].map((row) => data.getExtent(row)[1]);
  let last = [0, 0];
  let at = 0;
  const add = (starts: number[]): void => {
    const room = Math.max(starts[0] - last[0], starts[1] - last[1]);
    pieces.forEach((list, side) => list.push({ start: last[side], end: starts[side], at, room }));
    at += room;
    last = starts;
  };
  const shared = [...before].filter(([key]) => after.has(key)).map(([key, start]) => [start, after.get(key)!]);
  for (const starts of shared.sort((a, b) => a[0] - b[0])) if (starts[1] >= last[1] && (starts[0] > last[0] || starts[1] > last[1])) add(starts);
  add(ends.map((end, side) => Math.max(end, last[side])));
  return { pieces: new Map([[base, pieces[0]], [opt, pieces[1]]]), span: at };
}

/** Rows of both sides that belong together: of the same rank, role and place; otherwise of the same position. */
export function pairRow(data: Data, row: number): [base: number, opt: number] {
  const { rows } = data.head;
  const { side, rank, role, kind } = rows[row];
  const isAlike = (i: number): boolean => rows[i].rank === rank && rows[i].role === role && rows[i].kind === kind && data.hasCompute(i) === data.hasCompute(row);
  const all = rows.map((_, i) => i);
  const [own, other] = [0, 1].map((same) => all.filter((i) => (rows[i].side === side) === !same && isAlike(i)));
  const found = other[Math.min(own.indexOf(row), other.length - 1)] ?? all.find((i) => rows[i].side !== side) ?? row;
  return side === 1 ? [found, row] : [row, found];
}
