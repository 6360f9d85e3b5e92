// Where a time is on the strip. Rows of a comparison may be aligned: the same stage of the same step begins at the same x.
import { listMatchedStages } from "./align";
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

/** Time on the strip of a time of a row. */
export function toStrip(alignment: Alignment | null, row: number, time: number): number {
  if (!COMPARISON) return time;
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
  const whole = [{ t, e, left, width, from: t, to: e, x0: left, x1: width }];
  if (!COMPARISON) return whole;
  const pieces = state.alignment?.pieces.get(row);
  if (!pieces) return whole;
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
  if (COMPARISON) return listMatchedStages(data, range);
  const getNumber = ({ row, step }: Range): number | null => data.rows[row].steps[step]?.number ?? null;
  const number = getNumber(range);
  return data.ranges.filter((other) => other.depth === 0 && other.name === range.name && (other.id === range.id || (number !== null && getNumber(other) === number)));
}
