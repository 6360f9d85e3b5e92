// Rows of both sides of a comparison that belong together, and their alignment: the same stage of the same step begins at the same x.
import { type Data, median, type Range } from "./data";
import { formatTime } from "./format";
import { describeNumbers } from "./scope";
import type { Alignment, Piece } from "./view";

/** Steps of two rows belong together by number where most of the shorter row's numbers are also on the other one. */
export function isMatchedByNumber(data: Data, row: number, other: number): boolean {
  const [own, others] = [row, other].map((at) => data.rows[at].steps.map(({ number }) => number).filter((number) => number !== null));
  const shared = own.filter((number) => others.includes(number)).length;
  return shared > 0 && shared * 2 >= Math.min(own.length, others.length);
}

/** The steps of another row that belong to those of a row, by position: by number, or by order where numbers do not meet. */
export function matchSteps(data: Data, row: number, other: number): Map<number, number> {
  const [own, others] = [data.rows[row].steps, data.rows[other].steps];
  const matched = new Map<number, number>();
  if (isMatchedByNumber(data, row, other)) {
    const byNumber = new Map(others.filter(({ number }) => number !== null).map(({ number, index }) => [number, index]));
    for (const { number, index } of own) if (byNumber.has(number)) matched.set(index, byNumber.get(number)!);
    return matched;
  }
  // Warm-up steps belong to warm-up steps.
  for (const counted of [true, false]) {
    const [mine, theirs] = [own, others].map((list) => list.filter((step) => Boolean(step.counted) === counted));
    mine.slice(0, theirs.length).forEach((step, i) => matched.set(step.index, theirs[i].index));
  }
  return matched;
}

/** Starts of steps and outer stages of a row by step, stage and how often it came before in the step. */
function listAnchors(data: Data, row: number, nameStep: (step: number) => string): Map<string, number> {
  const { steps, ranges } = data.rows[row];
  const anchors = new Map<string, number>();
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
  const matched = matchSteps(data, opt, base);
  const before = listAnchors(data, base, String);
  const after = listAnchors(data, opt, (step) => String(step < 0 ? step : (matched.get(step) ?? `${step} alone`)));
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

/** Adds a row to an alignment: its stages begin where those of a row do that is aligned. What has no room there is cut. */
export function addToAlignment(data: Data, alignment: Alignment, row: number, like: number): void {
  const matched = matchSteps(data, row, like);
  const own = listAnchors(data, row, (step) => String(step < 0 ? step : (matched.get(step) ?? `${step} alone`)));
  const keys = new Map([...listAnchors(data, like, String)].filter(([key]) => own.has(key)).map(([key, start]) => [start, key]));
  const all = alignment.pieces.get(like)!;
  const found: { start: number; at: number }[] = [{ start: 0, at: 0 }];
  for (const { start, at } of all) {
    const begin = own.get(keys.get(start) ?? "");
    if (begin !== undefined && begin >= found[found.length - 1].start) found.push({ start: begin, at });
  }
  const last = Math.max(data.getExtent(row)[1], found[found.length - 1].start);
  alignment.pieces.set(row, found.map(({ start, at }, i) => ({ start, at, end: found[i + 1]?.start ?? last, room: found[i + 1] ? found[i + 1].at - at : Infinity })));
}

/** The same outer stage, in the steps that belong to its own, of all rows of a comparison. */
export function listMatchedStages(data: Data, range: Range): Range[] {
  if (range.step < 0) return [range];
  return data.rows.flatMap(({ ranges }, row) => {
    const step = row === range.row ? range.step : matchSteps(data, range.row, row).get(range.step);
    return ranges[0].filter((other) => other.step === step && other.name === range.name);
  });
}

/** Steps of all rows of a comparison that belong to steps of one, by position. */
export function matchAllSteps(data: Data, row: number, steps: number[]): Map<number, Set<number>> {
  const matchRow = (other: number): number[] => {
    if (other === row) return steps;
    const matched = matchSteps(data, row, other);
    return steps.map((step) => matched.get(step)).filter((step) => step !== undefined);
  };
  return new Map(data.rows.map((_, other) => [other, new Set(matchRow(other))]));
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

/** Steps that stages are of, by row and position. */
export function listStagesSteps(data: Data, ids: Set<number>): Map<number, Set<number>> {
  const steps = new Map<number, Set<number>>();
  for (const { row, step } of [...ids].map((id) => data.ranges[id])) if (step >= 0) steps.set(row, (steps.get(row) ?? new Set()).add(step));
  return steps;
}

/** Numbers of steps; where the rows of a pair differ in them, of both sides. */
export function describeSteps(data: Data, pair: [number, number], matched: Map<number, Set<number>>): string {
  const texts = pair.map((row) => {
    const numbers = [...(matched.get(row) ?? [])].map((step) => data.rows[row].steps[step].number ?? step + 1);
    return numbers.length ? describeNumbers(new Set(numbers)) : "no step";
  });
  return texts[0] === texts[1] ? texts[0] : pair.map((row, side) => `${texts[side]} of ${data.nameSide(row)}`).join(", ");
}

/** Rows of a side with work. */
export const listSide = (data: Data, rows: number[], side: number | null | undefined): number[] => rows.filter((row) => data.head.rows[row].side === side && data.hasCompute(row));

/** Says which row has the most work of its own above the median of its side. */
export function nameWorst(data: Data, rows: number[]): string {
  const [slow] = rows.slice().sort((a, b) => data.getBeyond(b) - data.getBeyond(a));
  return data.getBeyond(slow) > 0 ? `, most by ${nameInHeat(data, slow)}: ${formatTime(data.getBeyond(slow))}` : "";
}

/** Worst step of each row beyond the median row of its side, by compute. */
export function measureBeyond(data: Data): Float64Array {
  const getKey = (row: number, number: number | null): string => `${data.head.rows[row].side},${number}`;
  const byKey = new Map<string, number[]>();
  data.rows.forEach(({ steps }, row) => {
    if (data.hasCompute(row)) for (const { number, compute } of steps) byKey.set(getKey(row, number), [...(byKey.get(getKey(row, number)) ?? []), compute]);
  });
  const middle = new Map([...byKey].map(([key, values]) => [key, median(values)]));
  return Float64Array.from(data.rows, ({ steps }, row) => steps.reduce((most, { counted, number, compute }) => Math.max(most, counted && number !== null ? compute - (middle.get(getKey(row, number)) ?? compute) : 0), 0));
}

/** Name of a row among those of its side: its run where only runs differ, otherwise also its rank. */
export function nameInHeat(data: Data, row: number): string {
  const { side, run } = data.head.rows[row];
  const twins = data.head.rows.filter((other, i) => other.side === side && (LOGS || data.hasCompute(i)));
  const runs = new Set(twins.map((other) => other.run));
  if (runs.size < 2) return data.nameInSide(row);
  return runs.size === twins.length ? (run ?? "") : `${run} · ${data.nameInSide(row)}`;
}
