// Tables, and the numbers in them: kernels and gaps counted over a part of the recording.
import { type Boxes, type Data, lowerBound, type Sheet, type Step } from "./data";
import { formatCount } from "./format";

const FIRST_SHEETS = 3;

/**
 * The part of the recording that is counted. Whole steps and stages are counted by launch, a window by time. `matched` are
 * the steps of each row of a comparison by position: there, the numbers are those of one row only.
 */
export type Scope =
  | { kind: "all" }
  | { kind: "counted" }
  | { kind: "steps"; numbers: Set<number>; matched?: Map<number, Set<number>> }
  | { kind: "stages"; ranges: Set<number> }
  | { kind: "window"; t0: number; t1: number; toRow?: (row: number, time: number) => number };

/** Checks whether a step of a row is one of those that are counted. */
export function hasStep({ numbers, matched }: Extract<Scope, { kind: "steps" }>, row: number, step: Step | undefined): boolean {
  if (!step) return false;
  return COMPARISON && matched ? Boolean(matched.get(row)?.has(step.index)) : numbers.has(step.number ?? -1);
}

/** Device work of one kernel, path and stage. `name` -1: merged short kernels; `stage` -1: outside any stage. */
export interface Work {
  stage: number;
  path: number;
  name: number;
  kind: number;
  count: number;
  ns: number;
}
export interface Counts {
  work: Work[];
  /** Share of the device time whose kernel is known by name. */
  named: number;
  /** False where a merged box was clipped, which assumes that its kernels are spread evenly. */
  exact: boolean;
}

type Add = (stage: number, path: number, name: number, kind: number, count: number, ns: number) => void;

/** Counts boxes inside a window, clipped to it. Of a clipped merged box the busy time counts in part: then the result is false. */
export function countWindow(boxes: Boxes, t0: number, t1: number, add: Add): boolean {
  const { start, length, count, busy } = boxes;
  const end = lowerBound(start, t1);
  let exact = true;
  for (let k = lowerBound(start, t0 - boxes.longest); k < end; k++) {
    const ns = Math.min(start[k] + length[k], t1) - Math.max(start[k], t0);
    if (ns <= 0) continue;
    const merged = count[k] > 1;
    if (merged && ns < length[k]) exact = false;
    add(boxes.stage[k], boxes.path[k], boxes.name[k], boxes.kind[k], count[k], merged ? (busy[k] * ns) / length[k] : ns);
  }
  return exact;
}

class Counter {
  private byKey = new Map<string, Work>();
  total = 0;
  named = 0;
  exact = true;

  add: Add = (stage, path, name, kind, count, ns) => {
    this.total += ns;
    if (name >= 0) this.named += ns;
    const key = `${stage},${path},${name},${kind}`;
    const work = this.byKey.get(key);
    if (work) {
      work.count += count;
      work.ns += ns;
    } else this.byKey.set(key, { stage, path, name, kind, count, ns });
  };

  finish(unnamed: number): Counts {
    const total = this.total + unnamed;
    return { work: [...this.byKey.values()], named: total ? this.named / total : 1, exact: this.exact && !unnamed };
  }
}

/** Scales a number of a row by the row's weight. */
type Scale = (row: number, value: number) => number;

/** Counts the kernels of the chosen rows in a scope; a row counts as often as its weight says, once without. */
export async function countKernels(data: Data, scope: Scope, rows: Set<number>, weigh?: (row: number) => number): Promise<Counts> {
  const weights = COMPARISON && weigh && new Map([...rows].map((row) => [row, weigh(row)]));
  const scale = (row: number, value: number): number => (weights ? weights.get(row)! * value : value);
  return scope.kind === "window" ? countCells(data, scope, rows, scale) : countSums(data, scope, rows, scale);
}

function countSums(data: Data, scope: Exclude<Scope, { kind: "window" }>, rows: Set<number>, scale: Scale): Counts {
  const counter = new Counter();
  const { row, step, occurrence, path, name, kind, count, ns } = data.sums!;
  for (let i = 0; i < row.length; i++) {
    if (!rows.has(row[i])) continue;
    if (scope.kind === "stages" && !scope.ranges.has(occurrence[i])) continue;
    const of = data.rows[row[i]].steps[step[i]];
    if (scope.kind === "steps" && !hasStep(scope, row[i], of)) continue;
    if (scope.kind === "counted" && !of?.counted) continue;
    const stage = data.ranges[occurrence[i]]?.name ?? -1;
    counter.add(stage, path[i], name[i], kind[i], scale(row[i], count[i]), scale(row[i], ns[i]));
  }
  return counter.finish(0);
}

async function countCells(data: Data, scope: Scope, rows: Set<number>, scale: Scale): Promise<Counts> {
  const counter = new Counter();
  const windows = new Map([...rows].map((row) => [row, listWindows(data, scope, row)[0]]));
  const cells = data.cells.filter(({ row, start, end }) => rows.has(row) && start < windows.get(row)![1] && end > windows.get(row)![0]);
  await Promise.all([...new Set(cells.map((cell) => cell.row))].map((row) => data.loadRow(row)));
  for (const { row, data: boxes } of cells) {
    const add: Add = (stage, path, name, kind, count, ns) => counter.add(stage, path, name, kind, scale(row, count), scale(row, ns));
    if (boxes && !countWindow(boxes, ...windows.get(row)!, add)) counter.exact = false;
  }
  // Of steps without a cell, only the busy time is known.
  const kept = new Set(data.cells.map((cell) => `${cell.row},${cell.step}`));
  let unnamed = 0;
  for (const [row, [t0, t1]] of windows)
    for (const step of data.rows[row].steps) {
      const share = (Math.min(t1, step.end) - Math.max(t0, step.start)) / (step.end - step.start);
      if (share > 0 && !kept.has(`${row},${step.index}`)) unnamed += scale(row, (step.compute + step.comm + step.copies) * share);
    }
  return counter.finish(unnamed);
}

/** Adds up work that has the same key. */
export function groupWork(work: Work[], getKey: (work: Work) => string | number): Work[] {
  const groups = new Map<string | number, Work>();
  for (const one of work) {
    const key = getKey(one);
    const sum = groups.get(key);
    if (sum) {
      sum.count += one.count;
      sum.ns += one.ns;
    } else groups.set(key, { ...one });
  }
  return [...groups.values()];
}

/** Windows of a row that a scope covers, in order of time. */
export function listWindows(data: Data, scope: Scope, row: number): [number, number][] {
  if (scope.kind === "all") return [[-Infinity, Infinity]];
  if (scope.kind === "window") return [COMPARISON && scope.toRow ? [scope.toRow(row, scope.t0), scope.toRow(row, scope.t1)] : [scope.t0, scope.t1]];
  const { steps, ranges } = data.rows[row];
  const parts = scope.kind === "stages" ? ranges[0].filter((range) => scope.ranges.has(range.id)) : steps.filter((step) => (scope.kind === "counted" ? step.counted : hasStep(scope, row, step)));
  return parts.map(({ start, end }): [number, number] => [start, end]).sort((a, b) => a[0] - b[0]);
}

export interface Idle {
  gap: number;
  ns: number;
}

/** Visits the parts of gaps in a scope by segment, clipped to it. Returns the gaps with their idle time there. */
export function countGaps(data: Data, scope: Scope, rows: Set<number>, visit: (segment: number, ns: number) => void): Idle[] {
  const gaps = data.gaps;
  const found: Idle[] = [];
  if (!gaps) return found;
  for (const row of rows) {
    const windows = listWindows(data, scope, row);
    let first = 0;
    for (const gap of data.rows[row].gaps) {
      const start = gaps.start[gap];
      const end = start + gaps.length[gap];
      while (first < windows.length && windows[first][1] <= start) first++;
      let ns = 0;
      for (let w = first; w < windows.length && windows[w][0] < end; w++) {
        const [t0, t1] = windows[w];
        let at = start;
        for (let k = gaps.first[gap]; k < gaps.first[gap + 1]; k++) {
          const part = Math.min(at + gaps.segment[k], t1) - Math.max(at, t0);
          at += gaps.segment[k];
          if (part <= 0) continue;
          visit(k, part);
          ns += part;
        }
      }
      if (ns > 0) found.push({ gap, ns });
    }
  }
  return found;
}

/** Makes an element. Text never becomes markup. */
export function make<K extends keyof HTMLElementTagNameMap>(tag: K, className = "", text?: string): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export function makeButton(text: string, act: () => void, className = ""): HTMLButtonElement {
  const button = make("button", className, text);
  button.type = "button";
  button.onclick = act;
  return button;
}

export function makeChip(color: string): HTMLElement {
  const chip = make("i", "chip");
  chip.style.background = color;
  return chip;
}

export interface Column<T> {
  title: string;
  get: (row: T) => number | string;
  /** Formats a number; columns with it are aligned to the right. */
  show?: (value: number, row: T) => string;
  full?: (row: T) => string;
  /** Takes the room that the other columns leave, and is cut first. */
  rest?: boolean;
  chip?: (row: T) => string;
  /** Draws a bar in the color that it returns. */
  bar?: (row: T) => string;
  /** Sorts by size, and draws bars of it, whatever the sign. */
  size?: boolean;
  /** A number that is text already. */
  text?: boolean;
}
export interface TableOptions<T> {
  name: string;
  by: number;
  limit: number;
  note?: string;
  csv?: boolean;
  pick?: (row: T) => void;
}

function quoteCsv(value: number | string): string {
  const text = typeof value === "string" && /^[=+\-@\t]/.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

/** Writes a table that sorts by a click on a title. */
export function makeTable<T>(columns: Column<T>[], rows: T[], options: TableOptions<T>): HTMLElement {
  const box = make("div", "table");
  let { by, limit } = options;
  let down = true;
  const bar = columns.find((column) => column.bar);
  const most = bar ? rows.reduce((top, row) => Math.max(top, Math.abs(Number(bar.get(row)))), 1) : 1;

  const compare = (a: T, b: T): number => {
    const [x, y] = [columns[by].get(a), columns[by].get(b)];
    const order = typeof x === "number" && typeof y === "number" ? (COMPARISON && columns[by].size ? Math.abs(y) - Math.abs(x) : y - x) : String(x).localeCompare(String(y), "en", { numeric: true });
    return down ? order : -order;
  };
  const makeCell = (column: Column<T>, row: T): HTMLTableCellElement => {
    const value = column.get(row);
    const cell = make("td", column.show || column.text ? "n" : "", column.show ? column.show(Number(value), row) : String(value));
    if (column.rest) cell.className = "rest";
    if (column.full) cell.title = column.full(row);
    if (column.chip) cell.prepend(makeChip(column.chip(row)));
    if (column.bar) {
      const meter = make("i", "meter");
      meter.style.width = `${Math.max(1, (Math.abs(Number(value)) / most) * 56)}px`;
      meter.style.background = column.bar(row);
      cell.prepend(meter);
      cell.className = "n wide";
    }
    if (column.chip) cell.classList.add("chipped");
    return cell;
  };
  const makeRow = (row: T): HTMLTableRowElement => {
    const line = make("tr");
    line.append(...columns.map((column) => makeCell(column, row)));
    if (options.pick) {
      const { pick } = options;
      line.tabIndex = 0;
      line.className = "pick";
      line.onclick = () => pick(row);
      line.onkeydown = (event) => {
        if (event.key === "Enter") pick(row);
      };
    }
    return line;
  };
  const draw = (): void => {
    const sorted = by < 0 ? rows : rows.slice().sort(compare);
    const table = make("table");
    table.setAttribute("aria-label", options.name);
    const titles = table.createTHead().insertRow();
    columns.forEach((column, i) => {
      const title = make("th", column.show || column.text ? "n" : "");
      title.scope = "col";
      if (i === by) title.setAttribute("aria-sort", down === (column.show !== undefined) ? "descending" : "ascending");
      title.append(
        makeButton(`${column.title}${i === by ? (down ? " ↓" : " ↑") : ""}`, () => {
          down = i === by ? !down : true;
          by = i;
          draw();
        }),
      );
      titles.append(title);
    });
    table.createTBody().append(...sorted.slice(0, limit).map(makeRow));
    const foot = make("p", "foot quiet");
    if (rows.length > limit)
      foot.append(
        makeButton(`all ${formatCount(rows.length)}`, () => {
          limit = rows.length;
          draw();
        }),
      );
    if (options.csv)
      foot.append(
        makeButton("copy CSV", () => {
          const lines = [columns.map((column) => column.title), ...sorted.map((row) => columns.map((column) => column.get(row)))];
          void navigator.clipboard?.writeText(lines.map((line) => line.map(quoteCsv).join(",")).join("\n"));
        }),
      );
    if (options.note) foot.append(options.note);
    box.replaceChildren(table, ...(foot.hasChildNodes() ? [foot] : []));
  };
  draw();
  return box;
}

/** Shows a table of the report. */
export function makeSheet({ title, columns, rows, note }: Sheet, limit = 100): HTMLElement {
  const list = columns.map(([text, numeric], i): Column<string[]> => ({ title: text, get: (row) => row[i], full: (row) => row[i], ...(numeric ? { text: true } : {}) }));
  return makeTable(list, rows, { name: title, by: -1, limit, note });
}

/** Lists tables of the report, folded; the first ones are open if there is nothing else to read. */
export function listSheets(sheets: Sheet[], open: boolean): HTMLElement[] {
  return sheets.map((sheet, number) => {
    const box = make("details");
    box.append(make("summary", "", sheet.title === sheet.section ? sheet.title : `${sheet.title} · ${sheet.section}`));
    // A table is built when it is opened.
    box.ontoggle = () => box.childElementCount < 2 && box.append(makeSheet(sheet));
    box.open = open && number < FIRST_SHEETS;
    return box;
  });
}
