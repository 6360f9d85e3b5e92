// The data of the page: blocks of varints, decoded when they are first needed. Times are ns from the page's t0, exact.
import { shortenName } from "./format";

export interface Row {
  kind: "device" | "thread" | "log";
  rank: number | null;
  device: number | null;
  thread: string | number | null;
  host: string | null;
  role: string | null;
  run: string | null;
  process: number;
  lanes: [kind: number, stream: number | string][];
  /** Side of a comparison. */
  side?: number;
  late: number | null;
  beyond: number | null;
}
export interface Pin {
  row: number;
  t0: number;
  t1: number;
  name: string;
}
export interface Saving {
  alone: number;
  before: number;
  step: number;
  behind: number | null;
}
export interface Finding {
  rule: string;
  severity: string;
  number: number;
  claim: string;
  advice: string;
  caveats: string[];
  saving: Saving | null;
  cost: number | null;
  pins: Pin[];
}
export interface Snapshot {
  file: string;
  rank: number | null;
  span: number;
  t0: number | null;
  peak: number;
  peak_t: number;
  pieces: number;
  /** False: the history has no times; moments are positions of changes. */
  timed?: boolean;
  /** Allocations of at most `floor` bytes are merged by stack; null: none are. */
  floor?: number | null;
  merged?: number;
  hidden?: number;
  /** States of the serving engine, by the log. */
  marks?: [time: number, state: string][];
}
/** A part of the change; the differences of all parts add up to it. Times are ns per step, memory is in bytes. */
export interface Part {
  stage: string;
  path: string[];
  base: number | null;
  opt: number | null;
  difference: number;
  low: number | null;
  high: number | null;
}
export interface StageChange {
  /** Role and stage. */
  title: string;
  stage: string;
  base: number | null;
  opt: number | null;
  difference: number | null;
  ratio: number | null;
  low: number | null;
  high: number | null;
  word: string;
}
export interface Sheet {
  section: string;
  title: string;
  columns: [title: string, numeric: number][];
  rows: string[][];
  note: string;
}
export interface Comparison {
  sides: string[];
  /** Unit of the parts: times of a step, or memory. */
  unit: "ns" | "bytes";
  /** The amounts before and after between which the parts lead; null where there are no parts. */
  ends: [base: number, opt: number] | null;
  /** First table of the report, and why it has no parts. */
  overview: Sheet | null;
  missing: string[];
  parts: Part[];
  stages: StageChange[];
  sheets: Sheet[];
}
export interface Head {
  title: string;
  span: number;
  bins: number;
  width: number;
  rows: Row[];
  kinds: string[];
  causes: [key: string, title: string, note: string][];
  findings: Finding[];
  plan: { recorded: number; steps: number[] } | null;
  floor: number;
  dropped_gaps: [count: number, ns: number];
  memories: Snapshot[];
  holders?: string[];
  counted: number[] | null;
  host_floor?: number;
  comparison?: Comparison;
  threads?: string[][];
  /** All tables of the report of a log. */
  sheets?: Sheet[];
  /** Table of the stages of a log alone. */
  overview?: { rows: [stage: string, ns: number, share: number, hours: number | null, how: string][]; caption: string } | null;
}
export interface Step {
  index: number;
  number: number | null;
  start: number;
  end: number;
  counted: boolean;
  compute: number;
  comm: number;
  copies: number;
  idle: number;
}
export interface Range {
  id: number;
  row: number;
  start: number;
  end: number;
  name: number;
  depth: number;
  step: number;
}
/**
 * Kernels of one row and step. A box with `count` > 1 stands for merged kernels that were busy for `busy` ns; its name and
 * path are known where all its kernels share them.
 */
export interface Boxes {
  start: Float64Array;
  length: Float64Array;
  lane: Float64Array;
  kind: Uint8Array;
  name: Int32Array;
  path: Int32Array;
  stage: Int32Array;
  delay: Float64Array;
  count: Float64Array;
  busy: Float64Array;
  longest: number;
}
export interface Cell {
  row: number;
  step: number;
  start: number;
  end: number;
  tau: number;
  boxes: number;
  kernels: number;
  data: Boxes | null;
}
export interface Gaps {
  row: Float64Array;
  start: Float64Array;
  length: Float64Array;
  before: Int32Array;
  after: Int32Array;
  /** First segment of each gap; one entry more than gaps. */
  first: Int32Array;
  cause: Int32Array;
  path: Int32Array;
  segment: Float64Array;
  /** The longest segment of each gap names it. */
  main: Int32Array;
}
export interface Sums {
  row: Float64Array;
  step: Int32Array;
  occurrence: Int32Array;
  path: Int32Array;
  name: Float64Array;
  kind: Float64Array;
  count: Float64Array;
  ns: Float64Array;
}
export interface Segment {
  start: number;
  end: number;
  path: number;
  depth: number;
}
export interface Critical {
  /** -1: the process is not on the page. */
  row: Int32Array;
  start: Float64Array;
  length: Float64Array;
  kind: Float64Array;
  name: Int32Array;
  longest: number;
}
export interface RowData {
  steps: Step[];
  ranges: Range[][];
  cells: Cell[];
  gaps: number[];
  /** Start of each gap of `gaps`. */
  starts: number[];
}

export const PLANES = 5;

/** Decodes one block of columns at `at`: the number of rows, then `count` columns of LEB128 numbers. */
export function readColumns(bytes: Uint8Array, count: number, at = 0): { columns: Float64Array[]; end: number } {
  let place = at;
  const next = (): number => {
    let value = 0;
    let unit = 1;
    for (;;) {
      const byte = bytes[place++];
      if (byte === undefined) throw new RangeError("a block of the page is cut short");
      value += (byte & 127) * unit;
      if (byte < 128) return value;
      unit *= 128;
    }
  };
  const rows = next();
  const columns: Float64Array[] = [];
  for (let c = 0; c < count; c++) {
    const column = new Float64Array(rows);
    for (let i = 0; i < rows; i++) column[i] = next();
    columns.push(column);
  }
  return { columns, end: place };
}

/** Turns zigzag numbers into signed ones, in place. */
export function undoZigzag(column: Float64Array): Float64Array {
  for (let i = 0; i < column.length; i++) {
    const v = column[i];
    column[i] = v % 2 ? -(v + 1) / 2 : v / 2;
  }
  return column;
}

/** Turns differences into running totals, in place. */
export function addUp(column: Float64Array): Float64Array {
  for (let i = 1; i < column.length; i++) column[i] += column[i - 1];
  return column;
}

/** Shifts numbers stored + 1 back; -1 is missing. */
const less1 = (column: Float64Array): Int32Array => Int32Array.from(column, (v) => v - 1);

const getLongest = (lengths: Float64Array): number => lengths.reduce((a, b) => Math.max(a, b), 0);

/** First place in ascending values that is not below `x`. */
export function lowerBound(values: ArrayLike<number>, x: number): number {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Median of numbers; 0 of none. */
export function median(values: number[]): number {
  const sorted = values.slice().sort((a, b) => a - b);
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : 0;
}

/** Decodes the kernels of all cells of a row, one chunk after the other. */
export function readCells(bytes: Uint8Array, cells: number, lanes: Row["lanes"]): Boxes[] {
  const all: Boxes[] = [];
  let at = 0;
  for (let i = 0; i < cells; i++) {
    const { columns, end } = readColumns(bytes, 9, at);
    at = end;
    const [start, length, lane, name, path, stage, delay, count, busy] = columns;
    addUp(start);
    for (let k = 0; k < count.length; k++) count[k]++;
    all.push({
      start,
      length,
      lane,
      kind: Uint8Array.from(lane, (l) => Math.min(2, lanes[l]?.[0] ?? 0)),
      name: less1(name),
      path: less1(path),
      stage: less1(stage),
      delay: delay.map((d) => d - 1),
      count,
      busy,
      longest: getLongest(length),
    });
  }
  return all;
}

/** Decodes gaps and their segments. */
export function readGaps(gaps: Uint8Array, segments: Uint8Array): Gaps {
  const [row, start, length, before, after, parts] = readColumns(gaps, 6).columns;
  const [segment, cause, path] = readColumns(segments, 3).columns;
  const first = new Int32Array(row.length + 1);
  const main = new Int32Array(row.length);
  for (let i = 0; i < row.length; i++) {
    first[i + 1] = first[i] + parts[i];
    main[i] = first[i];
    for (let k = first[i]; k < first[i + 1]; k++) if (segment[k] > segment[main[i]]) main[i] = k;
  }
  return {
    row,
    start: addUp(undoZigzag(start)),
    length,
    before: less1(before),
    after: less1(after),
    first,
    cause: Int32Array.from(cause),
    path: less1(path),
    segment,
    main,
  };
}

/** Everything that was decoded so far. */
export class Data {
  names: string[] = [];
  short: string[] = [];
  paths: [parent: number, name: number][] = [];
  bins: Uint8Array = new Uint8Array(0);
  steps: Step[] = [];
  rows: RowData[];
  ranges: Range[] = [];
  cells: Cell[] = [];
  gaps: Gaps | null = null;
  sums: Sums | null = null;
  critical: Critical | null = null;
  private described = new Map<number, string[]>();
  private pending = new Map<number, Promise<void>>();
  private beyondMedian: Float64Array | null = null;

  constructor(readonly head: Head) {
    this.rows = head.rows.map(() => ({ steps: [], ranges: [[], []], cells: [], gaps: [], starts: [] }));
  }

  private static blocks = new Map<string, string>();

  /** Takes the blocks out of the document: 1,000 ranks have 1,000 of them. */
  static takeBlocks(): void {
    for (const element of document.querySelectorAll('script[type="application/octet-stream"]')) {
      Data.blocks.set(element.id.slice(2), element.textContent!);
      element.remove();
    }
  }

  static has(name: string): boolean {
    return Data.blocks.has(name);
  }

  /** Inflates a block; null if the page has none of that name. */
  static async block(name: string): Promise<Uint8Array | null> {
    const text = Data.blocks.get(name);
    if (text === undefined) return null;
    const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  private static async columns(name: string, count: number): Promise<Float64Array[]> {
    const bytes = await Data.block(name);
    return bytes ? readColumns(bytes, count).columns : Array.from({ length: count }, () => new Float64Array(0));
  }

  /** Decodes the blocks of the first picture. */
  async loadFirst(): Promise<void> {
    const [names, bins, ranges, steps, cells] = await Promise.all([
      Data.block("names"),
      Data.block("bins"),
      Data.columns("ranges", 6),
      Data.columns("steps", 10),
      Data.columns("cells", 7),
    ]);
    if (names) {
      const tables = JSON.parse(new TextDecoder().decode(names)) as { names: string[]; paths: [number, number][] };
      this.names = tables.names;
      this.paths = tables.paths;
      this.short = this.names.map(shortenName);
    }
    if (bins) this.bins = bins;
    this.addSteps(steps);
    this.addRanges(ranges);
    const [row, step, start, end, tau, boxes, kernels] = cells;
    for (let i = 0; i < row.length; i++) {
      const cell = { row: row[i], step: step[i] - 1, start: start[i], end: end[i], tau: tau[i], boxes: boxes[i], kernels: kernels[i], data: null };
      this.cells.push(cell);
      this.rows[row[i]].cells.push(cell);
    }
  }

  private addSteps([row, number, start, length, counted, compute, comm, memcpy, memset, idle]: Float64Array[]): void {
    addUp(undoZigzag(start));
    for (let i = 0; i < row.length; i++) {
      const list = this.rows[row[i]].steps;
      const step = {
        index: list.length,
        number: number[i] ? number[i] - 1 : null,
        start: start[i],
        end: start[i] + length[i],
        counted: counted[i] > 0,
        compute: compute[i],
        comm: comm[i],
        copies: memcpy[i] + memset[i],
        idle: idle[i],
      };
      list.push(step);
      this.steps.push(step);
    }
  }

  private addRanges([row, start, length, name, depth, step]: Float64Array[]): void {
    addUp(undoZigzag(start));
    for (let i = 0; i < row.length; i++) {
      const range = { id: i, row: row[i], start: start[i], end: start[i] + length[i], name: name[i], depth: depth[i], step: step[i] - 1 };
      this.ranges.push(range);
      this.rows[row[i]].ranges[Math.min(1, depth[i])].push(range);
    }
    for (const { ranges } of this.rows) for (const list of ranges) list.sort((a, b) => a.start - b.start);
  }

  /** Decodes gaps and sums, for the tables. */
  async loadTables(): Promise<void> {
    const [gaps, segments, sums] = await Promise.all([Data.block("gaps"), Data.block("segments"), Data.columns("sums", 8)]);
    if (gaps && segments) {
      this.gaps = readGaps(gaps, segments);
      this.gaps.row.forEach((row, i) => this.rows[row].gaps.push(i));
      const { start } = this.gaps;
      for (const row of this.rows) row.starts = row.gaps.sort((a, b) => start[a] - start[b]).map((gap) => start[gap]);
    }
    const [row, step, occurrence, path, name, kind, count, ns] = sums;
    this.sums = { row, step: less1(step), occurrence: less1(occurrence), path: less1(path), name, kind, count, ns };
  }

  /** Decodes the kernels of a row, once. */
  loadRow(row: number): Promise<void> {
    let promise = this.pending.get(row);
    if (!promise) {
      promise = Data.block(`k${row}`).then((bytes) => {
        const { cells } = this.rows[row];
        if (!bytes) return;
        readCells(bytes, cells.length, this.head.rows[row].lanes).forEach((boxes, i) => {
          cells[i].data = boxes;
        });
      });
      this.pending.set(row, promise);
    }
    return promise;
  }

  async loadCritical(): Promise<Critical> {
    if (!this.critical) {
      const columns = await Data.columns("critical", 5);
      addUp(undoZigzag(columns[1]));
      const order = Array.from(columns[1].keys()).sort((a, b) => columns[1][a] - columns[1][b]);
      const [row, start, length, kind, name] = columns.map((column) => Float64Array.from(order, (i) => column[i]));
      this.critical = { row: less1(row), start, length, kind, name: less1(name), longest: getLongest(length) };
    }
    return this.critical;
  }

  /** Host rows of a process, by thread. */
  async loadHost(process: number): Promise<Segment[][]> {
    const [thread, start, length, path] = await Data.columns(`h${process}`, 4);
    addUp(undoZigzag(start));
    const threads: Segment[][] = [];
    for (let i = 0; i < thread.length; i++) {
      const p = path[i] - 1;
      (threads[thread[i]] ??= []).push({ start: start[i], end: start[i] + length[i], path: p, depth: Math.max(0, this.listPath(p).length - 1) });
    }
    return threads;
  }

  async loadCurve(row: number): Promise<{ time: Float64Array; allocated: Float64Array; reserved: Float64Array }> {
    const [time, allocated, reserved] = await Data.columns(`curve${row}`, 3);
    return { time: addUp(time), allocated, reserved };
  }

  /** Names of a path, outermost first. */
  listPath(path: number): number[] {
    const names: number[] = [];
    for (let p = path; p >= 0; p = this.paths[p][0]) names.push(this.paths[p][1]);
    return names.reverse();
  }

  /** Short names of a path without the marks of steps. */
  describePath(path: number): readonly string[] {
    let names = this.described.get(path);
    if (!names) {
      names = this.listPath(path)
        .map((name) => this.short[name])
        .filter((name) => !name.startsWith("ProfilerStep#"));
      this.described.set(path, names);
    }
    return names;
  }

  /** Recorded part of a row. */
  getExtent(row: number): [start: number, end: number] {
    const { steps, cells, ranges } = this.rows[row];
    const parts = [...steps, ...cells, ...ranges[0]];
    if (!parts.length) return [0, this.head.span];
    return [parts.reduce((least, { start }) => Math.min(least, start), Infinity), parts.reduce((most, { end }) => Math.max(most, end), 0)];
  }

  nameRow(row: number): string {
    if (!COMPARISON) return this.nameInSide(row);
    const it = this.head.rows[row];
    const twins = this.head.rows.filter(({ side }) => side === it.side);
    const facts = [this.nameSide(row), ...(new Set(twins.map(({ run }) => run)).size > 1 ? [it.run] : [])];
    return (twins.length > 1 ? [...facts, this.nameInSide(row)] : facts).join(" · ");
  }
  /** Name of a row where room is short: of a thread, its rank and role, and its number unless it alone runs ops. */
  labelRow(row: number): string {
    const { rows } = this.head;
    const it = rows[row];
    if (COMPARISON || it.kind !== "thread") return this.nameRow(row);
    const twins = rows.map((_, i) => i).filter((i) => rows[i].rank === it.rank && rows[i].run === it.run && rows[i].role === it.role && (it.rank !== null || rows[i].process === it.process));
    const isOnly = this.hasCompute(row) && twins.filter((i) => this.hasCompute(i)).length === 1;
    const name = it.rank === null ? `process ${it.process}` : `rank ${it.rank}`;
    const role = it.role && rows.some((other) => other.rank === it.rank && other.run === it.run && other.role !== it.role) ? ` ${it.role}` : "";
    return `${name}${role}${isOnly ? "" : ` · ${/^thread (\d+)/.exec(String(it.thread))?.[1] ?? it.thread}`}`;
  }
  /** Name of the side of a comparison that a row is of. */
  nameSide(row: number): string {
    return this.head.comparison?.sides[this.head.rows[row].side ?? 0] ?? "";
  }
  /** Name of a row among those of its side. */
  nameInSide(row: number): string {
    const it = this.head.rows[row];
    if (LOGS) return it.run !== null && this.head.rows.filter(({ run, side }) => run === it.run && side === it.side).length === 1 ? it.run : [it.thread, it.run].filter(Boolean).join(" · ");
    const name = it.rank === null ? `process ${it.process}` : `rank ${it.rank}`;
    const twins = this.head.rows.filter((other) => other.rank === it.rank && other.run === it.run && other.side === it.side && (it.rank !== null || other.process === it.process));
    const role = it.role && twins.some((other) => other.role !== it.role) ? ` ${it.role}` : "";
    if (it.kind === "thread") return `${name}${role}${twins.length > 1 ? ` · ${it.thread}` : ""}`;
    return `${name}${role}${twins.length > 1 && it.device !== null ? ` · GPU ${it.device}` : ""}`;
  }

  /** Names a stage; launches outside any stage have none. */
  nameStage(stage: number): string {
    return stage < 0 ? "outside any stage" : this.names[stage];
  }

  /** Some threads of a host run collectives only. */
  hasCompute(row: number): boolean {
    return this.head.rows[row].lanes.some(([kind]) => kind === 0);
  }

  /** Own work of a row beyond the median of its steps, in ns per step. */
  getBeyond(row: number): number {
    return !this.hasCompute(row) ? 0 : this.head.rows[row].beyond ?? (this.beyondMedian ??= this.measureBeyond())[row];
  }

  /** Worst step of each row beyond the median row of its role, by compute. */
  private measureBeyond(): Float64Array {
    const byNumber = new Map<string, number[]>();
    const getKey = (row: number, number: number): string => `${number},${this.head.rows[row].role}`;
    this.rows.forEach(({ steps }, row) => {
      if (!this.hasCompute(row)) return;
      for (const { number, compute } of steps) if (number !== null) byNumber.set(getKey(row, number), [...(byNumber.get(getKey(row, number)) ?? []), compute]);
    });
    const middle = new Map([...byNumber].map(([key, values]) => [key, median(values)]));
    return Float64Array.from(this.rows, ({ steps }, row) => steps.reduce((most, s) => Math.max(most, s.counted ? s.compute - (middle.get(getKey(row, s.number ?? -1)) ?? s.compute) : 0), 0));
  }

  getLateness(row: number): number {
    return this.hasCompute(row) ? (this.head.rows[row].late ?? 0) * 1e6 + this.getBeyond(row) : -Infinity;
  }
}
