// Where a time is on the strip. Rows of a comparison may be aligned: the same stage of the same step begins at the same x.
import type { Data, Range } from "./data";
import type { Scope } from "./tables";

export interface Mark {
  row: number;
  t0: number;
  t1: number;
}
export interface Selection {
  t0: number;
  t1: number;
  scope: Scope;
}
export interface Hits {
  names: Set<number>;
  paths: Set<number>;
}
export interface TimelineState {
  t: number;
  e: number;
  focus: number;
  rows: number[];
  order: "rank" | "late";
  selection: Selection | null;
  mark: Mark | null;
  hits: Hits | null;
  critical: boolean;
  host: boolean;
  /** The two rows of a comparison that are shown; null otherwise. */
  pair: [base: number, opt: number] | null;
  /** Where the pair is aligned at stage starts; null shows plain time. */
  alignment: Alignment | null;
  draws: number;
  spent: number;
}
/** Times `t` to `e` of a row are at `left` to `width`; only what is between `from` and `to` is seen, at `x0` to `x1`. */
export interface View {
  t: number;
  e: number;
  left: number;
  width: number;
  from: number;
  to: number;
  x0: number;
  x1: number;
}

/** A part of a row from `start` to `end`; on the strip it begins at `at`, and the next one after `room`. */
export interface Piece {
  start: number;
  end: number;
  at: number;
  room: number;
}
export interface Alignment {
  pieces: Map<number, Piece[]>;
  span: number;
}

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

/** Time on the strip of a time of a row. */
export function toStrip(alignment: Alignment | null, row: number, time: number): number {
  const pieces = alignment?.pieces.get(row);
  if (!pieces) return time;
  let piece = pieces[0];
  for (const next of pieces) if (next.start <= time) piece = next;
  return piece.at + time - piece.start;
}

/** Time of a row at a time on the strip; in the empty rest of a part, the start of the next one. */
export function toRow(alignment: Alignment | null, row: number, time: number): number {
  const pieces = alignment?.pieces.get(row);
  if (!pieces) return time;
  let i = 0;
  while (i + 1 < pieces.length && pieces[i + 1].at <= time) i++;
  return Math.min(pieces[i].start + time - pieces[i].at, pieces[i].end);
}

/** Splits what is seen of a row into parts with a clock of their own; rows that are not aligned have one. */
export function splitView(state: TimelineState, row: number, left: number, width: number): View[] {
  const { t, e } = state;
  const pieces = state.alignment?.pieces.get(row);
  if (!pieces) return [{ t, e, left, width, from: t, to: e, x0: left, x1: width }];
  const views: View[] = [];
  const getX = (time: number): number => left + ((time - t) / (e - t)) * (width - left);
  for (const { start, end, at, room } of pieces) {
    const length = Math.min(end - start, room);
    if (at > e || at + length < t || !length) continue;
    const shift = start - at;
    const [from, to] = [Math.max(t, at) + shift, Math.min(e, at + length) + shift];
    views.push({ t: t + shift, e: e + shift, left, width, from, to, x0: Math.max(left, getX(at)), x1: Math.min(width, getX(at + length)) });
  }
  return views;
}

/** The same outer stage, in the same step, of other rows. */
export function listSameStages(data: Data, range: Range): Range[] {
  if (data.head.comparison) return listMatchedStages(data, range);
  const getNumber = ({ row, step }: Range): number | null => data.rows[row].steps[step]?.number ?? null;
  const number = getNumber(range);
  return data.ranges.filter((other) => other.depth === 0 && other.name === range.name && (other.id === range.id || (number !== null && getNumber(other) === number)));
}

/** The same outer stage, in the steps that belong to its own, of all rows of a comparison. */
function listMatchedStages(data: Data, range: Range): Range[] {
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
