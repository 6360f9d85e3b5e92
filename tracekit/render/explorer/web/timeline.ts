// Rows over time. The row in focus has one lane per subject; each other row is a thin heat row. Far out, a pixel is the
// mean of the bins under it; near by, every kernel is drawn.
import { type Boxes, type Cell, type Critical, Data, PLANES, type Segment, formatBytes, formatCount, formatTime, lowerBound } from "./data";
import { getCallColor, getCauseColor, getKindColor, getStageColor, getTextColor, ink, isDark, prepareCanvas, setFont, shade, showTip, soften, splitColor, watchSize, writeText } from "./theme";
import type { Scope } from "./tables";

const AXIS = 48;
const LEAST_VIEW = 2000;
const MOST_THIN = 96;
const MOST_THREADS = 4;
const MOST_DEPTH = 6;
const HOST_ROW = 11;
const PINS = 9;

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
type Lane = "stage" | "part" | "idle" | "critical" | "host" | "curve" | "thin" | "kind";
interface Place {
  row: number;
  lane: Lane;
  y: number;
  h: number;
  /** The kind of a lane of kernels, the thread of a lane of the host. */
  part: number;
}
interface Item extends Partial<Mark> {
  pin?: number;
  step?: number;
  text?: string;
  /** Time of the launch of a kernel. */
  launch?: number;
  y?: number;
  range?: number;
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
  draws: number;
  spent: number;
}
export interface TimelineEvents {
  selected: () => void;
  focused: () => void;
  moved: () => void;
  pinned: (finding: number) => void;
  nextPin: (by: number) => void;
  longestGap: () => void;
}
export interface Timeline {
  state: TimelineState;
  redraw: () => void;
  draw: () => void;
  setView: (t: number, e: number) => void;
  glide: (t: number, e: number) => void;
  jump: (row: number, t0: number, t1: number, share?: number) => void;
  say: (text: string) => void;
  describeGap: (gap: number) => string;
  selectSteps: (numbers: number[]) => void;
  clear: () => void;
}

export function makeTimeline(data: Data, canvas: HTMLCanvasElement, overview: HTMLCanvasElement, detail: HTMLElement, events: TimelineEvents): Timeline {
  const { head } = data;
  const state: TimelineState = {
    t: 0,
    e: head.span,
    focus: 0,
    rows: head.rows.map((_, i) => i),
    order: "rank",
    selection: null,
    mark: null,
    hits: null,
    critical: false,
    host: false,
    draws: 0,
    spent: 0,
  };
  let frame = 0;
  let width = 0;
  let height = 0;
  let gutter = 96;
  let places: Place[] = [];
  let pins: { finding: number; x: number }[] = [];
  let hover: Item | null = null;
  let loading = 0;
  let gliding = 0;
  const threads = new Map<number, Segment[][]>();
  const curves = new Map<number, Awaited<ReturnType<Data["loadCurve"]>>>();
  const requested = new Set<string>();

  const getX = (time: number): number => gutter + ((time - state.t) / (state.e - state.t)) * (width - gutter);
  const getTime = (x: number): number => state.t + ((x - gutter) / (width - gutter)) * (state.e - state.t);
  const getScale = (): number => (state.e - state.t) / Math.max(1, width - gutter);
  const redraw = (): void => {
    frame ||= requestAnimationFrame(draw);
  };
  const isSmall = (): boolean => state.rows.length <= 2;
  const say = (text: string): void => {
    detail.textContent = detail.title = text || getHint();
  };
  const getHint = (): string =>
    matchMedia("(pointer: coarse)").matches
      ? "Drag to pan, pinch to zoom, tap for details."
      : "w s zoom · a d pan · shift-drag or drag on the axis to select · click on a step to count it · n next issue · g longest gap · / find · ? all keys";

  /** Loads something once, then draws again. */
  function request(key: string, load: () => Promise<unknown>): void {
    if (requested.has(key)) return;
    requested.add(key);
    void load().then(redraw);
  }

  // View
  function setView(t: number, e: number): void {
    const span = Math.min(head.span * 1.02, Math.max(LEAST_VIEW, e - t));
    const middle = (t + e) / 2;
    const start = e - t < span ? middle - span / 2 : t;
    state.t = Math.max(-head.span * 0.01, Math.min(start, head.span * 1.01 - span));
    state.e = state.t + span;
    redraw();
    events.moved();
  }
  function glide(t: number, e: number): void {
    cancelAnimationFrame(gliding);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return setView(t, e);
    const [a, b] = [state.t, state.e];
    const began = performance.now();
    const move = (now: number): void => {
      const part = Math.max(0, Math.min(1, (now - began) / 220));
      const eased = 1 - (1 - part) ** 3;
      const length = Math.exp(Math.log(b - a) * (1 - eased) + Math.log(Math.max(LEAST_VIEW, e - t)) * eased);
      const middle = ((a + b) / 2) * (1 - eased) + ((t + e) / 2) * eased;
      if (part < 1) {
        setView(middle - length / 2, middle + length / 2);
        gliding = requestAnimationFrame(move);
      } else setView(t, e);
    };
    gliding = requestAnimationFrame(move);
  }
  const zoom = (factor: number, x = (width + gutter) / 2): void => {
    const center = getTime(x);
    setView(center - (center - state.t) * factor, center + (state.e - center) * factor);
  };
  function jump(row: number, t0: number, t1: number, share = 0.3): void {
    state.mark = { row, t0, t1 };
    setFocus(row);
    const pad = ((t1 - t0) / share - (t1 - t0)) / 2;
    glide(t0 - pad, t1 + pad);
  }
  function setFocus(row: number): void {
    state.focus = row;
    redraw();
    events.focused();
  }

  // Rows
  let order: { key: string; rows: number[] } = { key: "", rows: [] };
  function listOrder(): number[] {
    const key = `${state.order},${state.rows.length},${state.rows[0]},${state.focus}`;
    if (order.key === key) return order.rows;
    let rows = state.rows;
    const byLateness = rows.slice().sort((a, b) => data.getLateness(b) - data.getLateness(a));
    if (state.order === "late") rows = byLateness;
    if (rows.length > MOST_THIN + 32) {
      const kept = new Set([state.focus, ...byLateness.slice(0, MOST_THIN / 2)]);
      const every = (rows.length - MOST_THIN / 2) / (MOST_THIN / 2);
      for (let i = MOST_THIN / 2; i < rows.length && kept.size < MOST_THIN; i += every) kept.add(byLateness[Math.floor(i)]);
      rows = rows.filter((row) => kept.has(row));
    }
    order = { key, rows };
    return rows;
  }
  function stepFocus(by: number): void {
    const rows = listOrder();
    const row = rows[rows.indexOf(state.focus) + by];
    if (row !== undefined) setFocus(row);
  }

  /** The cells in view, if all are decoded and show more than bins do; otherwise null. Cells that are missing are loaded. */
  function chooseCells(row: number, most: number): Cell[] | null {
    const scale = getScale();
    const cells = data.rows[row].cells.filter((cell) => cell.start < state.e && cell.end > state.t);
    let boxes = 0;
    for (const cell of cells) boxes += (cell.boxes * (Math.min(cell.end, state.e) - Math.max(cell.start, state.t))) / Math.max(1, cell.end - cell.start);
    const finer = scale * 2 < head.width;
    if (!cells.length || (boxes > most && !finer)) return null;
    if (cells.some((cell) => cell.tau > scale * 4 && cell.tau > head.width)) return null;
    if (cells.every((cell) => cell.data)) return cells;
    if (loading < 24 && !requested.has(`k${row}`)) {
      loading++;
      request(`k${row}`, () => data.loadRow(row).finally(() => loading--));
    }
    return null;
  }

  const getPlane = (row: number, plane: number): number => (row * PLANES + plane) * head.bins;
  const totals = new Map<number, Uint32Array>();
  /** Running totals of a plane of bins. */
  function addBins(row: number, plane: number): Uint32Array {
    const base = getPlane(row, plane);
    let total = totals.get(base);
    if (!total) {
      total = new Uint32Array(head.bins + 1);
      for (let k = 0; k < head.bins; k++) total[k + 1] = total[k] + data.bins[base + k];
      totals.set(base, total);
    }
    return total;
  }
  /** Calls back with the mean of a plane of bins in each pixel that has time of the recording. */
  function averageBins(total: Uint32Array, pixels: number, start: number, scale: number, visit: (x: number, share: number) => void): void {
    for (let x = Math.max(0, Math.ceil(-start / scale - 1)); x < pixels; x++) {
      const first = Math.max(0, Math.floor((start + x * scale) / head.width));
      if (first >= head.bins) break;
      const end = Math.min(head.bins, Math.max(first + 1, Math.floor((start + (x + 1) * scale) / head.width)));
      visit(x, (total[end] - total[first]) / (255 * (end - first)));
    }
  }

  let buffer = new Float32Array(0);
  /** Shares of compute, communication and copies in each pixel of a thin row. */
  function measureShares(row: number, pixels: number): Float32Array {
    if (buffer.length < pixels * 3) buffer = new Float32Array(pixels * 3);
    buffer.fill(0, 0, pixels * 3);
    const cells = chooseCells(row, pixels * 0.3);
    const scale = (state.e - state.t) / pixels;
    if (cells) for (const cell of cells) spreadBoxes(cell.data!, pixels, scale);
    else
      for (let plane = 0; plane < 3; plane++)
        averageBins(addBins(row, plane), pixels, state.t, scale, (x, share) => {
          buffer[plane * pixels + x] = share;
        });
    for (let x = 0; x < pixels; x++) {
      const compute = Math.min(1, buffer[x]);
      const comm = Math.min(1 - compute, buffer[pixels + x]);
      buffer[x] = compute;
      buffer[pixels + x] = comm;
      buffer[2 * pixels + x] = Math.min(1 - compute - comm, buffer[2 * pixels + x]);
    }
    return buffer;
  }
  function spreadBoxes(boxes: Boxes, pixels: number, scale: number): void {
    const { start, length, kind, count, busy } = boxes;
    const end = lowerBound(start, state.e);
    for (let k = lowerBound(start, state.t - boxes.longest); k < end; k++) {
      const x0 = Math.max(0, (start[k] - state.t) / scale);
      const x1 = Math.min(pixels, (start[k] + length[k] - state.t) / scale);
      if (x1 <= x0) continue;
      const density = count[k] > 1 ? busy[k] / length[k] : 1;
      const base = kind[k] * pixels;
      const [first, last] = [Math.floor(x0), Math.floor(x1)];
      if (first === last) {
        buffer[base + first] += (x1 - x0) * density;
        continue;
      }
      buffer[base + first] += (first + 1 - x0) * density;
      for (let x = first + 1; x < last; x++) buffer[base + x] += density;
      if (last < pixels) buffer[base + last] += (x1 - last) * density;
    }
  }

  // Drawing
  let thin: { key: string; image: HTMLCanvasElement } | null = null;
  function drawThinRows(g: CanvasRenderingContext2D, rows: number[], y: number, h: number): void {
    const pixels = Math.max(1, Math.round(width - gutter));
    const key = [state.t, state.e, pixels, isDark(), loading, requested.size, rows.length, rows[0], order.key].join();
    if (thin?.key !== key) {
      const image = thin?.image ?? document.createElement("canvas");
      [image.width, image.height] = [pixels, rows.length];
      const context = image.getContext("2d")!;
      const picture = context.createImageData(pixels, rows.length);
      const words = new Uint32Array(picture.data.buffer);
      const colors = [0, 1, 2].map((kind) => splitColor(getKindColor(kind)));
      const ground = splitColor(ink.lane);
      rows.forEach((row, i) => {
        const shares = measureShares(row, pixels);
        for (let x = 0; x < pixels; x++) {
          const a = shares[x];
          const b = shares[pixels + x];
          const c = shares[2 * pixels + x];
          let word = 255;
          for (let k = 2; k >= 0; k--) word = (word << 8) | (ground[k] + (colors[0][k] - ground[k]) * a + (colors[1][k] - ground[k]) * b + (colors[2][k] - ground[k]) * c);
          words[i * pixels + x] = word;
        }
      });
      context.putImageData(picture, 0, 0);
      thin = { key, image };
    }
    g.imageSmoothingEnabled = false;
    g.drawImage(thin.image, 0, 0, pixels, rows.length, gutter, y, width - gutter, h * rows.length);
    if (h < 6) return;
    g.fillStyle = ink.page;
    for (let i = 1; i < rows.length; i++) g.fillRect(gutter, y + i * h - 0.5, width - gutter, 1);
  }

  const dim = (g: CanvasRenderingContext2D, match: boolean | undefined): void => {
    g.globalAlpha = state.hits && !match ? 0.22 : 1;
  };
  function drawBox(g: CanvasRenderingContext2D, x: number, y: number, end: number, h: number, fill: string, text?: string, color?: string): void {
    const wide = Math.max(0.7, end - x - (end - x > 4 ? 0.8 : 0));
    g.fillStyle = fill;
    g.fillRect(x, y, wide, h);
    const left = Math.max(x, gutter);
    if (!text || Math.min(end, width) - left < 30) return;
    g.fillStyle = color ?? ink.ink;
    writeText(g, text, left + 4, y + h / 2 + 0.5, Math.min(end, width) - left - 8);
  }

  function drawRanges(g: CanvasRenderingContext2D, { row, lane, y, h }: Place): void {
    const inner = lane === "part";
    const outer = data.rows[row].ranges[0];
    let parent = 0;
    if (inner) setFont(g, 9.5);
    for (const range of data.rows[row].ranges[inner ? 1 : 0]) {
      if (range.end < state.t || range.start > state.e) continue;
      while (inner && parent < outer.length - 1 && outer[parent].end <= range.start) parent++;
      const name = data.names[range.name];
      const color = getStageColor(inner && outer[parent] ? data.names[outer[parent].name] : name, inner);
      dim(g, state.hits?.names.has(range.name));
      drawBox(g, Math.max(gutter - 2, getX(range.start)), y, Math.min(width + 2, getX(range.end)), h, color, name, inner ? ink.quiet : ink.ink);
    }
    setFont(g, 11);
  }

  function drawKernels(g: CanvasRenderingContext2D, { y, h, part }: Place, cells: Cell[]): void {
    const color = getKindColor(part);
    const textColor = getTextColor(color);
    for (const cell of cells) {
      const { start, length, kind, name, path, count, busy, longest } = cell.data!;
      const end = lowerBound(start, state.e);
      let drawn = -1;
      for (let k = lowerBound(start, state.t - longest); k < end; k++) {
        if (kind[k] !== part || start[k] + length[k] < state.t) continue;
        const [x, x1] = [getX(start[k]), getX(start[k] + length[k])];
        if (x1 < drawn + 0.3 && !state.hits) continue;
        drawn = Math.max(drawn, x1);
        dim(g, state.hits?.names.has(name[k]) || state.hits?.paths.has(path[k]));
        const merged = count[k] > 1;
        if (merged) g.globalAlpha *= 0.25 + 0.75 * Math.min(1, busy[k] / length[k]);
        drawBox(g, x, y, x1, h, shade(color, name[k]), x1 - x > 46 ? (name[k] < 0 ? `${formatCount(count[k])} kernels` : data.short[name[k]]) : undefined, textColor);
      }
    }
  }
  function drawBins(g: CanvasRenderingContext2D, { row, y, h, part }: Place): void {
    g.fillStyle = getKindColor(part);
    dim(g, false);
    averageBins(addBins(row, part === 1 ? 3 : part), width - gutter, state.t, getScale(), (x, share) => {
      if (share > 0.004) g.fillRect(gutter + x, y + h * (1 - share), 1, h * share);
    });
  }

  /** Idle time by bin: for the gaps that are not in the page, and until the others are decoded. */
  function drawIdleBins(g: CanvasRenderingContext2D, { row, y, h }: Place): void {
    const scale = getScale();
    const cause = getPlane(row, 4);
    dim(g, false);
    for (let x = 0; x < width - gutter; x++) {
      const t = state.t + x * scale;
      if (t < 0 || t >= head.span) continue;
      const first = Math.floor(t / head.width);
      const end = Math.min(head.bins, Math.max(first + 1, Math.floor((t + scale) / head.width)));
      let sum = 0;
      let most = 0;
      let main = 0;
      for (let k = first; k < end; k++) {
        const idle = 255 - data.bins[getPlane(row, 0) + k] - data.bins[getPlane(row, 1) + k] - data.bins[getPlane(row, 2) + k];
        sum += idle;
        if (idle > most && data.bins[cause + k]) [most, main] = [idle, data.bins[cause + k]];
      }
      const share = sum / (255 * Math.max(1, end - first));
      if (!main || share < 0.01) continue;
      g.fillStyle = getCauseColor(head.causes[main - 1][0]);
      g.fillRect(gutter + x, y + h * (1 - share), 1, h * share);
    }
  }
  function drawIdle(g: CanvasRenderingContext2D, place: Place, exact: boolean): void {
    const { row, y, h } = place;
    const list = data.rows[row].gaps;
    const gaps = data.gaps;
    const near = exact || list.length < 4000;
    if (!gaps || !near || head.floor) drawIdleBins(g, place);
    if (!gaps || !near) return;
    for (let i = Math.max(0, findGap(row, state.t)); i < list.length && gaps.start[list[i]] < state.e; i++) {
      const gap = list[i];
      let at = gaps.start[gap];
      if (gaps.length[gap] < getScale() * 0.15) continue;
      for (let k = gaps.first[gap]; k < gaps.first[gap + 1]; k++) {
        const x = getX(at);
        at += gaps.segment[k];
        const color = getCauseColor(head.causes[gaps.cause[k]][0]);
        dim(g, state.hits?.paths.has(gaps.path[k]));
        const end = getX(at);
        drawBox(g, x, y, end, h, color, end - x > 60 ? data.describePath(gaps.path[k]).at(-1) || head.causes[gaps.cause[k]][1] : undefined, getTextColor(color));
      }
    }
  }
  /** Position, in the list of a row, of the last gap that starts before a time. */
  function findGap(row: number, time: number): number {
    const list = data.rows[row].gaps;
    let [low, high] = [0, list.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (data.gaps!.start[list[middle]] <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  function drawCritical(g: CanvasRenderingContext2D, { y, h }: Place): void {
    const path = data.critical;
    if (!path) return request("critical", () => data.loadCritical());
    let drawn = -1;
    for (let i = 0; i < path.start.length && path.start[i] < state.e; i++) {
      const [x, end] = [getX(path.start[i]), getX(path.start[i] + path.length[i])];
      if (end < gutter || end < drawn + 0.3) continue;
      drawn = end;
      g.globalAlpha = path.row[i] === state.focus ? 1 : 0.45;
      const color = getCriticalColor(path, i);
      drawBox(g, Math.max(gutter - 2, x), y, end, h, color, end - x > 46 ? describeCritical(path, i) : undefined, getTextColor(color));
    }
    g.globalAlpha = 1;
  }
  /** Work has the color of its kind, the host that of its idle cause; waits are gray. */
  function getCriticalColor(path: Critical, i: number): string {
    const kind = data.names[path.kind[i]];
    const work = [["kernel", "compute"], ["transfer", "arrival", "own length", "communication"], ["copy", "copies"]].findIndex((names) => names.includes(kind));
    return work >= 0 ? getKindColor(work) : getCauseColor(/^(?:host|call)/.test(kind) ? "host_op" : "kernel_wait");
  }
  function describeCritical(path: Critical, i: number): string {
    const name = path.name[i] < 0 ? data.names[path.kind[i]] : data.short[path.name[i]];
    return path.row[i] < 0 || path.row[i] === state.focus ? name : `${data.nameRow(path.row[i])}: ${name}`;
  }

  function listThreads(row: number): [thread: number, segments: Segment[]][] {
    const process = head.rows[row].process;
    const host = threads.get(process);
    if (!host) {
      request(`h${process}`, () => data.loadHost(process).then((all) => threads.set(process, all)));
      return [];
    }
    return [...host.entries()]
      .filter(([, segments]) => segments?.length)
      .sort((a, b) => b[1].length - a[1].length)
      .slice(0, MOST_THREADS);
  }
  function drawHost(g: CanvasRenderingContext2D, { row, y, part }: Place): void {
    const segments = listThreads(row).find(([thread]) => thread === part)?.[1] ?? [];
    const drawn = new Float64Array(MOST_DEPTH).fill(-1);
    setFont(g, 9.5);
    for (const { start, end, path, depth } of segments) {
      if (start > state.e) break;
      if (end < state.t || depth >= MOST_DEPTH) continue;
      const [x, x1] = [Math.max(gutter - 2, getX(start)), Math.min(width + 2, getX(end))];
      if (x1 < drawn[depth] + 0.4) continue;
      drawn[depth] = x1;
      const name = path < 0 ? "" : data.short[data.paths[path][1]];
      dim(g, state.hits?.paths.has(path));
      drawBox(g, x, y + depth * HOST_ROW, x1, HOST_ROW - 1, getCallColor(name), name);
    }
    setFont(g, 11);
  }
  const countDepth = (segments: Segment[]): number => Math.min(MOST_DEPTH, segments.reduce((most, { depth }) => Math.max(most, depth + 1), 1));

  function drawCurve(g: CanvasRenderingContext2D, { row, y, h }: Place): void {
    const curve = curves.get(row);
    if (!curve) return request(`curve${row}`, () => data.loadCurve(row).then((loaded) => curves.set(row, loaded)));
    const { time, allocated, reserved } = curve;
    const top = reserved.reduce((most, v, i) => Math.max(most, v, allocated[i]), 1);
    const first = Math.max(0, lowerBound(time, state.t) - 1);
    const getY = (bytes: number): number => y + h * (1 - bytes / top);
    // A pixel shows its largest value, so no peak is lost.
    const fillSteps = (values: Float64Array, color: string): void => {
      let x = Math.max(gutter, getX(time[first] ?? head.span));
      let [peak, last] = [values[first] ?? 0, values[first] ?? 0];
      g.beginPath();
      g.moveTo(x, y + h);
      const go = (next: number): void => {
        g.lineTo(x, getY(peak));
        g.lineTo(x, getY(last));
        g.lineTo(next, getY(last));
        x = next;
      };
      for (let k = first + 1; k < time.length && time[k] < state.e; k++) {
        const next = getX(time[k]);
        if (next - x > 0.5) {
          go(next);
          peak = 0;
        }
        last = values[k];
        peak = Math.max(peak, last);
      }
      go(Math.min(width, getX(head.span)));
      g.lineTo(x, y + h);
      g.fillStyle = color;
      g.fill();
    };
    fillSteps(reserved, ink.line);
    fillSteps(allocated, soften(ink.accent, 0.6));
    g.fillStyle = ink.ink;
    writeText(g, formatBytes(top), gutter + 3, y + 6, 90);
  }

  /** Lanes of a row in full, from `y`. */
  function layOut(row: number, y: number): Place[] {
    const list: Place[] = [];
    const add = (lane: Lane, h: number, part = 0): void => {
      list.push({ row, lane, y, h, part });
      y += h + 2;
    };
    if (data.rows[row].ranges[0].length) add("stage", 17);
    if (data.rows[row].ranges[1].length) add("part", 13);
    add("kind", 26, 0);
    add("kind", 14, 1);
    if (head.rows[row].kind === "device") add("kind", 12, 2);
    if (addBins(row, 4)[head.bins]) add("idle", 16);
    if (state.critical && (row === state.focus || !isSmall())) add("critical", 14);
    if (Data.has(`curve${row}`)) add("curve", 36);
    if (state.host && row === state.focus) for (const [thread, segments] of listThreads(row)) add("host", countDepth(segments) * HOST_ROW, thread);
    return list;
  }
  function nameLane({ lane, part, row }: Place): string {
    if (lane === "kind") return ["compute", "comm", "copies"][part];
    if (lane === "host") return head.threads?.[head.rows[row].process]?.[part]?.replace(/^thread /, "") ?? `thread ${part + 1}`;
    return { stage: "stages", part: "", idle: "idle, why", critical: "critical path", curve: "memory", thin: "" }[lane];
  }
  function drawLanes(g: CanvasRenderingContext2D, row: number, list: Place[]): void {
    const cells = chooseCells(row, (width - gutter) * 0.6);
    g.save();
    g.beginPath();
    g.rect(gutter, 0, width - gutter, height);
    g.clip();
    for (const place of list) {
      g.globalAlpha = 1;
      if (!["stage", "part", "host"].includes(place.lane)) {
        g.fillStyle = ink.lane;
        g.fillRect(gutter, place.y, width - gutter, place.h);
      }
      if (place.lane === "kind") {
        if (cells) drawKernels(g, place, cells);
        else drawBins(g, place);
      } else if (place.lane === "idle") drawIdle(g, place, cells !== null);
      else if (place.lane === "critical") drawCritical(g, place);
      else if (place.lane === "host") drawHost(g, place);
      else if (place.lane === "curve") drawCurve(g, place);
      else drawRanges(g, place);
    }
    g.restore();
    g.globalAlpha = 1;
    setFont(g, 10.5);
    g.fillStyle = ink.quiet;
    const named = isSmall() && state.rows.length > 1 ? list[0] : null;
    for (const place of list) {
      const middle = place.y + Math.min(place.h, 30) / 2;
      const left = place.lane === "kind" && gutter > 70 ? 14 : 2;
      if (place !== named) writeText(g, nameLane(place), left, middle + 0.5, gutter - left - 2);
    }
    for (const { lane, part, y, h } of list)
      if (lane === "kind" && gutter > 70) {
        g.fillStyle = getKindColor(part);
        g.fillRect(2, y + h / 2 - 4, 8, 8);
      }
    setFont(g, 11, 600);
    g.fillStyle = ink.ink;
    if (named) writeText(g, data.nameRow(row), 2, named.y + named.h / 2, gutter - 4);
    setFont(g, 11);
  }

  function drawAxis(g: CanvasRenderingContext2D): void {
    const least = (state.e - state.t) / Math.max(3, (width - gutter) / 110);
    const unit = 10 ** Math.floor(Math.log10(least));
    const tick = [1, 2, 5, 10].map((m) => m * unit).find((m) => m >= least)!;
    for (let i = Math.ceil(Math.max(0, state.t) / tick); i * tick < state.e; i++) {
      const x = Math.round(getX(i * tick)) + 0.5;
      if (x < gutter) continue;
      g.fillStyle = ink.line;
      g.fillRect(x, AXIS - 14, 1, height);
      g.fillStyle = ink.quiet;
      writeText(g, formatTime(i * tick, 6), x + 4, AXIS - 9, 90);
    }
  }
  function drawSteps(g: CanvasRenderingContext2D): void {
    setFont(g, 11, 600);
    for (const step of data.rows[state.focus].steps) {
      const [x, end] = [Math.max(gutter, getX(step.start)), Math.min(width, getX(step.end))];
      if (end < gutter || x > width) continue;
      g.fillStyle = ink.ink;
      g.globalAlpha = step.counted ? 0.12 : 0.05;
      g.fillRect(x, 1, Math.max(1, end - x - 1), 14);
      g.globalAlpha = step.counted ? 1 : 0.75;
      if (x === getX(step.start)) g.fillRect(x, 1, 1, 14);
      const name = step.number === null ? "step" : `step ${step.number}`;
      writeText(g, `${name} · ${formatTime(step.end - step.start)}${step.counted ? "" : " · not counted"}`, x + 5, 8.5, end - x - 8);
      g.globalAlpha = 1;
    }
    setFont(g, 11);
  }

  function drawHeat(g: CanvasRenderingContext2D, rows: number[], y: number, h: number): void {
    setFont(g, 11, 600);
    g.fillStyle = ink.ink;
    writeText(g, data.nameRow(state.focus), 2, 8.5, gutter - 4);
    setFont(g, 10.5);
    g.fillStyle = ink.quiet;
    const all = state.rows.length;
    const which = rows.length < all ? `the ${MOST_THIN / 2} slowest of ${formatCount(all)} rows and ${rows.length - MOST_THIN / 2} of the others` : `all ${all} rows`;
    writeText(g, `${which}, ${state.order === "late" ? "slowest first" : "by rank"} · red at the left: own work above the median · click, or ↑ ↓, to bring one up`, gutter, y + 6, width - gutter);
    const top = y + 16;
    drawThinRows(g, rows, top, h);
    rows.forEach((row, i) => places.push({ row, lane: "thin", y: top + i * h, h, part: 0 }));
    const most = rows.reduce((worst, row) => Math.max(worst, data.getBeyond(row)), 1);
    const room = gutter > 70 ? 34 : 8;
    g.fillStyle = ink.pin;
    rows.forEach((row, i) => {
      const share = data.getBeyond(row) / most;
      if (share > 0.02) g.fillRect(gutter - 6 - share * room, top + i * h, share * room, Math.max(1, h - 0.5));
    });
    const shorten = (row: number): string => (gutter > 70 ? data.nameRow(row) : data.nameRow(row).replace("rank ", ""));
    const at = rows.indexOf(state.focus);
    if (at >= 0) {
      for (const [color, wide] of [
        [ink.page, 3],
        [ink.ink, 1],
      ] as const) {
        g.strokeStyle = color;
        g.lineWidth = wide;
        g.strokeRect(gutter - 1, top + at * h - 1.5, width - gutter + 4, h + 3);
      }
      g.lineWidth = 1;
      g.fillStyle = ink.accent;
      setFont(g, 10.5, 600);
      writeText(g, shorten(state.focus), 2, Math.max(top + 5, top + (at + 0.5) * h), gutter - 38);
    }
    setFont(g, 10);
    g.fillStyle = ink.quiet;
    const every = Math.ceil(14 / h) * (rows.length > 20 ? 2 : 1);
    rows.forEach((row, i) => {
      if (i % every === 0 && (at < 0 || Math.abs(i - at) * h > 11)) writeText(g, shorten(row), 2, top + (i + 0.5) * h, gutter - 38);
    });
    setFont(g, 11);
  }

  const findPlace = (row: number): Place | undefined => places.find((place) => place.row === row);
  function getBand(row: number): { y: number; h: number } | null {
    const list = places.filter((place) => place.row === row && place.lane !== "thin");
    const place = list[0] ?? findPlace(row);
    if (!place) return null;
    const last = list[list.length - 1] ?? place;
    return { y: place.y, h: last.y + last.h - place.y };
  }
  function drawPins(g: CanvasRenderingContext2D): void {
    pins = [];
    head.findings.slice(0, PINS).forEach(({ pins: [pin], number }, finding) => {
      if (!pin || !state.rows.includes(pin.row)) return;
      const target = getX((pin.t0 + pin.t1) / 2);
      if (target < gutter || target > width) return;
      let x = Math.min(target, width - 9);
      for (let tries = 0; tries < PINS && pins.some((other) => Math.abs(other.x - x) < 16); tries++) x += 16;
      if (x > width - 8 || (finding > 2 && x - target > 17)) return;
      pins.push({ finding, x });
      const strong = finding < 3;
      const band = getBand(pin.row);
      g.fillStyle = g.strokeStyle = ink.pin;
      g.globalAlpha = strong ? 0.65 : 0.3;
      if (band) {
        g.beginPath();
        g.moveTo(x, 30);
        g.lineTo(target, AXIS - 3);
        g.lineTo(target, band.y);
        g.stroke();
      }
      g.globalAlpha = strong ? 1 : 0.75;
      g.beginPath();
      g.arc(x, 24, 7.5, 0, 7);
      g.fill();
      g.fillStyle = ink.page;
      setFont(g, 10, 700);
      g.textAlign = "center";
      g.fillText(String(number), x, 24.5);
      g.textAlign = "left";
      g.globalAlpha = 1;
    });
    setFont(g, 11);
  }
  function drawMark(g: CanvasRenderingContext2D): void {
    const band = state.mark && getBand(state.mark.row);
    if (!state.mark || !band) return;
    const [x, end] = [Math.max(gutter, getX(state.mark.t0)), Math.min(width, getX(state.mark.t1))];
    if (end < x - 2) return;
    g.strokeStyle = ink.pin;
    g.lineWidth = 2;
    g.strokeRect(x - 1, band.y - 1, Math.max(3, end - x + 2), band.h + 1);
    g.lineWidth = 1;
  }
  function drawSelection(g: CanvasRenderingContext2D): void {
    if (!state.selection) return;
    const { t0, t1 } = state.selection;
    const [x, end] = [Math.max(gutter, Math.min(width, getX(t0))), Math.min(width, Math.max(gutter, getX(t1)))];
    g.fillStyle = ink.page;
    g.globalAlpha = 0.6;
    g.fillRect(gutter, 32, x - gutter, height);
    g.fillRect(end, 32, width - end, height);
    g.globalAlpha = 1;
    g.fillStyle = ink.accent;
    g.fillRect(x, 33, end - x, 3);
    g.fillRect(x - 0.5, 33, 1, height);
    g.fillRect(end - 0.5, 33, 1, height);
    if (end <= x) return;
    const text = formatTime(t1 - t0, 4);
    const wide = g.measureText(text).width + 10;
    g.fillRect((x + end - wide) / 2, 28, wide, 15);
    g.fillStyle = ink.page;
    g.textAlign = "center";
    g.fillText(text, (x + end) / 2, 36);
    g.textAlign = "left";
  }
  /** A line from the launch on the host to the start of the kernel under the pointer. */
  function drawLaunch(g: CanvasRenderingContext2D): void {
    if (hover?.launch === undefined || hover.t0 === undefined || hover.row === undefined || hover.y === undefined) return;
    const band = getBand(hover.row);
    if (!band) return;
    const [x, y, end] = [Math.max(gutter, getX(hover.launch)), band.y + 8, getX(hover.t0)];
    g.strokeStyle = g.fillStyle = ink.ink;
    g.lineWidth = 1.2;
    g.beginPath();
    g.moveTo(x, y);
    g.bezierCurveTo((x + end) / 2, y, (x + end) / 2, hover.y, end, hover.y);
    g.stroke();
    g.lineWidth = 1;
    g.beginPath();
    g.arc(x, y, 2.5, 0, 7);
    g.fill();
  }

  function draw(): void {
    cancelAnimationFrame(frame);
    frame = 0;
    if (!head.rows.length) return;
    const began = performance.now();
    const rows = listOrder();
    const full = isSmall() ? rows : [state.focus];
    const heat = isSmall() ? [] : rows;
    const h = Math.max(2, Math.min(12, Math.floor(200 / Math.max(1, heat.length))));
    places = [];
    let y = AXIS;
    const lanes = full.map((row) => {
      const list = layOut(row, y);
      const last = list[list.length - 1];
      y = last.y + last.h + 8;
      places.push(...list);
      return list;
    });
    height = y + (heat.length ? heat.length * h + 18 : 0);
    gutter = canvas.clientWidth < 600 ? 58 : 96;
    const surface = prepareCanvas(canvas, height);
    const { g } = surface;
    width = surface.width;
    drawAxis(g);
    drawSteps(g);
    full.forEach((row, i) => drawLanes(g, row, lanes[i]));
    if (heat.length) drawHeat(g, heat, y - 2, h);
    drawSelection(g);
    drawPins(g);
    drawMark(g);
    drawLaunch(g);
    drawOverview();
    state.draws++;
    state.spent += performance.now() - began;
  }

  function drawOverview(): void {
    const { g, width: w, height: h } = prepareCanvas(overview, 28);
    const scale = head.span / Math.max(1, w - gutter);
    const heights = new Float64Array(w);
    for (let plane = 0; plane < 3; plane++) {
      g.fillStyle = getKindColor(plane);
      averageBins(addBins(state.focus, plane), w - gutter, 0, scale, (x, share) => {
        const part = share * (h - 2);
        heights[x] += part;
        g.fillRect(gutter + x, h - heights[x], 1, part);
      });
    }
    g.fillStyle = ink.quiet;
    writeText(g, "whole run", 2, h / 2, gutter);
    const x = Math.max(gutter, gutter + state.t / scale);
    const end = Math.min(w, gutter + state.e / scale);
    g.fillStyle = ink.page;
    g.globalAlpha = 0.66;
    g.fillRect(gutter, 0, x - gutter, h);
    g.fillRect(end, 0, w - end, h);
    g.globalAlpha = 1;
    g.strokeStyle = ink.accent;
    g.lineWidth = 1.5;
    g.strokeRect(x + 0.5, 0.75, Math.max(3, end - x - 1), h - 1.5);
  }

  // What is under the pointer
  function describeGap(gap: number): string {
    const gaps = data.gaps!;
    const segments = Array.from({ length: gaps.first[gap + 1] - gaps.first[gap] }, (_, i) => gaps.first[gap] + i);
    const parts = segments
      .sort((a, b) => gaps.segment[b] - gaps.segment[a])
      .slice(0, 3)
      .map((k) => {
        const path = data.describePath(gaps.path[k]).slice(-4).join(" › ");
        return `${segments.length > 1 ? `${formatTime(gaps.segment[k])} ` : ""}${head.causes[gaps.cause[k]][1]}${path && `: ${path}`}`;
      });
    if (segments.length > 3) parts.push(`${segments.length - 3} shorter parts`);
    const name = (i: number): string => (i < 0 ? "–" : data.short[i]);
    return `idle ${formatTime(gaps.length[gap], 4)} · ${parts.join("; ")} · after ${name(gaps.before[gap])}, before ${name(gaps.after[gap])}`;
  }
  function describeKernel(cell: Cell, k: number, row: number): string {
    const boxes = cell.data!;
    const path = data.describePath(boxes.path[k]).join(" › ");
    const stream = head.rows[row].lanes[boxes.lane[k]]?.[1];
    const where = head.rows[row].kind === "device" ? ` · stream ${stream}` : "";
    const name = data.names[boxes.name[k]] ?? "kernels";
    if (boxes.count[k] > 1) return `${formatCount(boxes.count[k])} × ${name} shorter than ${formatTime(cell.tau)}, busy ${formatTime(boxes.busy[k])} of ${formatTime(boxes.length[k])}${where}`;
    const delay = boxes.delay[k] >= 0 ? ` · launched ${formatTime(boxes.delay[k])} earlier` : "";
    return `${name} · ${formatTime(boxes.length[k], 5)}${where}${delay}${path ? ` · ${path}` : ""} · ${boxes.stage[k] < 0 ? "outside any stage" : `in ${data.names[boxes.stage[k]]}`}`;
  }
  function describeBins(row: number, time: number): string {
    const bin = Math.floor(time / head.width);
    const [compute, comm, copies] = [0, 1, 2].map((plane) => Math.round((data.bins[getPlane(row, plane) + bin] ?? 0) / 2.55));
    const stage = data.rows[row].ranges[0].find((range) => range.start <= time && range.end > time);
    return `${stage ? `${data.names[stage.name]} · ` : ""}within ${formatTime(head.width)}: ${compute} % compute, ${comm} % exposed communication, ${copies} % exposed copies, ${Math.max(0, 100 - compute - comm - copies)} % idle`;
  }
  function findKernel(place: Place, time: number): Item | null {
    const { row } = place;
    const cells = chooseCells(row, (width - gutter) * (place.lane === "thin" ? 0.3 : 0.6));
    if (!cells) return { row, text: describeBins(row, time) };
    const slack = 1.5 * getScale();
    let best: Item | null = null;
    let nearest = Infinity;
    for (const cell of cells) {
      const { start, length, kind, longest, delay } = cell.data!;
      const end = lowerBound(start, time + slack);
      for (let k = lowerBound(start, time - longest - slack); k < end; k++) {
        if (start[k] + length[k] + slack < time || (place.lane === "kind" && kind[k] !== place.part)) continue;
        const away = Math.abs(start[k] + length[k] / 2 - time) - length[k] / 2;
        if (away >= nearest) continue;
        nearest = away;
        best = { row, t0: start[k], t1: start[k] + length[k], text: describeKernel(cell, k, row), y: place.y + place.h / 2 };
        if (delay[k] >= 0) best.launch = start[k] - delay[k];
      }
    }
    return best;
  }
  function findRange({ row, lane }: Place, time: number): Item | null {
    const range = data.rows[row].ranges[lane === "part" ? 1 : 0].find(({ start, end }) => start <= time && end > time);
    return range ? { row, t0: range.start, t1: range.end, range: range.id, text: `${data.names[range.name]} · ${formatTime(range.end - range.start, 4)} on the host · double click to count this stage` } : null;
  }
  function findCritical(time: number): Item | null {
    const path = data.critical;
    if (!path) return null;
    const slack = getScale();
    const i = lowerBound(path.start, time + slack) - 1;
    if (i < 0 || path.start[i] + path.length[i] + slack < time) return null;
    return { row: Math.max(0, path.row[i]), t0: path.start[i], t1: path.start[i] + path.length[i], text: `critical path · ${data.names[path.kind[i]]} · ${describeCritical(path, i)} · ${formatTime(path.length[i], 4)}` };
  }
  function findCall({ row, part, y: top }: Place, time: number, y: number): Item | null {
    const depth = Math.floor((y - top) / HOST_ROW);
    const slack = getScale() / 2;
    const segments = listThreads(row).find(([thread]) => thread === part)?.[1] ?? [];
    const call = segments.find((s) => s.depth === depth && s.start - slack <= time && s.end + slack >= time);
    return call ? { row, t0: call.start, t1: call.end, text: `${data.describePath(call.path).join(" › ")} · ${formatTime(call.end - call.start, 4)}` } : null;
  }
  function findMemory({ row }: Place, time: number): Item | null {
    const curve = curves.get(row);
    const k = curve ? lowerBound(curve.time, time) - 1 : -1;
    return curve && k >= 0 ? { row, text: `${formatBytes(curve.allocated[k])} allocated, ${formatBytes(curve.reserved[k])} reserved` } : null;
  }
  function findIn(place: Place, time: number, y: number): Item | null {
    switch (place.lane) {
      case "stage":
      case "part":
        return findRange(place, time);
      case "idle": {
        const i = data.gaps ? findGap(place.row, time) : -1;
        const gap = data.rows[place.row].gaps[i];
        if (gap === undefined || data.gaps!.start[gap] + data.gaps!.length[gap] < time) return null;
        return { row: place.row, t0: data.gaps!.start[gap], t1: data.gaps!.start[gap] + data.gaps!.length[gap], text: describeGap(gap) };
      }
      case "critical":
        return findCritical(time);
      case "host":
        return findCall(place, time, y);
      case "curve":
        return findMemory(place, time);
      default:
        return findKernel(place, time);
    }
  }
  function findItem(x: number, y: number): Item | null {
    if (y < AXIS - 6) {
      const pin = y > 15 && y < 33 ? pins.find((p) => Math.abs(p.x - x) < 9) : undefined;
      if (pin) return { pin: pin.finding, text: head.findings[pin.finding].claim };
      const step = y < 16 && x > gutter ? data.rows[state.focus].steps.find(({ start, end }) => start <= getTime(x) && end > getTime(x)) : undefined;
      if (step && step.number !== null) return { step: step.number, text: `step ${step.number} · ${formatTime(step.end - step.start, 5)}: ${formatTime(step.compute)} compute, ${formatTime(step.comm)} exposed communication, ${formatTime(step.copies)} exposed copies, ${formatTime(step.idle)} idle · click to count this step` };
      return null;
    }
    const place = places.find((p) => y >= p.y && y < p.y + p.h);
    if (!place) return null;
    if (x < gutter) return { row: place.row };
    const item = findIn(place, getTime(x), y) ?? { row: place.row };
    if (item.text && state.rows.length > 1 && place.lane !== "critical") item.text = `${data.nameRow(place.row)} · ${item.text}`;
    return item;
  }

  // Selecting
  function selectSteps(numbers: number[]): void {
    const steps = data.rows[state.focus].steps.filter((step) => numbers.includes(step.number ?? -1));
    if (!steps.length) return;
    state.selection = { t0: steps[0].start, t1: steps[steps.length - 1].end, scope: { kind: "steps", numbers: new Set(numbers) } };
    redraw();
    events.selected();
  }
  /** Selects a stage in its step, on all rows. */
  function selectStage(id: number): void {
    const { start, end, step, row, name } = data.ranges[id];
    const number = data.rows[row].steps[step]?.number ?? null;
    const same = data.ranges.filter((range) => range.depth === 0 && range.name === name && (range.id === id || (number !== null && data.rows[range.row].steps[range.step]?.number === number)));
    state.selection = { t0: start, t1: end, scope: { kind: "stages", ranges: new Set(same.map((range) => range.id)) } };
    redraw();
    events.selected();
  }
  /** Ends a selection by brush: at the edges of steps or of a stage, it counts these whole. */
  function finishBrush(): void {
    const selection = state.selection;
    if (!selection) return;
    const slack = 6 * getScale();
    const isNear = (a: number, b: number): boolean => Math.abs(a - b) < slack;
    const { steps, ranges } = data.rows[state.focus];
    const first = steps.findIndex((step) => isNear(step.start, selection.t0));
    const last = steps.findIndex((step) => isNear(step.end, selection.t1));
    const whole = first >= 0 && last >= first ? steps.slice(first, last + 1) : [];
    if (whole.length && whole.every((step) => step.number !== null)) return selectSteps(whole.map((step) => step.number!));
    const stage = ranges[0].find((range) => isNear(range.start, selection.t0) && isNear(range.end, selection.t1));
    if (stage) return selectStage(stage.id);
    events.selected();
  }
  function clear(): void {
    state.selection = null;
    state.mark = null;
    redraw();
    events.selected();
  }

  // Pointer
  let drag: { x: number; y: number; t: number; e: number; brush: boolean; moved: boolean } | null = null;
  const fingers = new Map<number, number>();
  canvas.addEventListener(
    "wheel",
    (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      // The page scrolls until the timeline is clicked.
      if (!sideways && !event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      const by = (event.deltaMode ? 30 : 1) * (sideways ? event.deltaX || event.deltaY : event.deltaY);
      if (sideways) setView(state.t + by * getScale(), state.e + by * getScale());
      else zoom(Math.exp(by * 0.0022), event.offsetX);
    },
    { passive: false },
  );
  canvas.onpointerdown = (event) => {
    if (event.button) return;
    fingers.set(event.pointerId, event.offsetX);
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    const onAxis = event.offsetY < AXIS - 6 && findItem(event.offsetX, event.offsetY)?.pin === undefined;
    drag = fingers.size > 1 ? null : { x: event.offsetX, y: event.offsetY, t: state.t, e: state.e, brush: event.shiftKey || onAxis, moved: false };
  };
  function pinch(event: PointerEvent): void {
    const other = [...fingers].find(([id]) => id !== event.pointerId)![1];
    const before = Math.abs(fingers.get(event.pointerId)! - other);
    const after = Math.abs(event.offsetX - other);
    fingers.set(event.pointerId, event.offsetX);
    if (before > 8 && after > 8) zoom(before / after, (event.offsetX + other) / 2);
  }
  function moveDrag(x: number): void {
    if (!drag) return;
    drag.moved ||= Math.abs(x - drag.x) > 3;
    if (!drag.moved) return;
    showTip(canvas, 0, 0, undefined);
    if (!drag.brush) {
      const by = (drag.x - x) * getScale();
      return setView(drag.t + by, drag.e + by);
    }
    const [a, b] = [getTime(Math.max(gutter, drag.x)), getTime(Math.max(gutter, Math.min(width, x)))];
    const [t0, t1] = [Math.max(0, Math.round(Math.min(a, b))), Math.min(head.span, Math.round(Math.max(a, b)))];
    state.selection = { t0, t1, scope: { kind: "window", t0, t1 } };
    redraw();
  }
  canvas.onpointermove = (event) => {
    if (fingers.size === 2 && fingers.has(event.pointerId)) return pinch(event);
    if (drag) return moveDrag(event.offsetX);
    const item = findItem(event.offsetX, event.offsetY);
    showTip(canvas, event.offsetX, event.offsetY, item?.text);
    if (item?.launch !== hover?.launch || item?.t0 !== hover?.t0) redraw();
    hover = item;
  };
  canvas.onpointerleave = () => {
    hover = null;
    showTip(canvas, 0, 0, undefined);
    redraw();
  };
  canvas.onpointercancel = (event) => {
    fingers.delete(event.pointerId);
    drag = null;
  };
  canvas.onpointerup = (event) => {
    fingers.delete(event.pointerId);
    const was = drag;
    drag = null;
    if (!was) return;
    if (was.moved) {
      if (was.brush) finishBrush();
      return;
    }
    click(was.x, was.y);
  };
  function click(x: number, y: number): void {
    const item = findItem(x, y);
    say(item?.text ?? "");
    if (item?.pin !== undefined) return events.pinned(item.pin);
    if (item?.step !== undefined) return selectSteps([item.step]);
    if (y < AXIS - 6) return clear();
    if (item?.row !== undefined && item.row !== state.focus && state.rows.includes(item.row)) {
      state.mark = null;
      setFocus(item.row);
    } else if (item?.t0 !== undefined) state.mark = { row: item.row!, t0: item.t0, t1: item.t1! };
    redraw();
  }
  canvas.ondblclick = (event) => {
    const item = findItem(event.offsetX, event.offsetY);
    if (item?.range !== undefined && data.ranges[item.range].depth === 0) selectStage(item.range);
    if (state.mark) jump(state.mark.row, state.mark.t0, state.mark.t1);
  };
  const moveOverview = (event: PointerEvent): void => {
    const middle = ((event.offsetX - gutter) / (width - gutter)) * head.span;
    const half = (state.e - state.t) / 2;
    setView(middle - half, middle + half);
  };
  overview.onpointerdown = (event) => {
    overview.setPointerCapture(event.pointerId);
    moveOverview(event);
  };
  overview.onpointermove = (event) => {
    if (overview.hasPointerCapture(event.pointerId)) moveOverview(event);
  };
  canvas.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const pan = (share: number) => (): void => setView(state.t + (state.e - state.t) * share, state.e + (state.e - state.t) * share);
    const moves: Record<string, () => void> = {
      w: () => zoom(0.75),
      s: () => zoom(1 / 0.75),
      a: pan(-0.12),
      d: pan(0.12),
      ArrowLeft: pan(-0.12),
      ArrowRight: pan(0.12),
      ArrowUp: () => stepFocus(-1),
      ArrowDown: () => stepFocus(1),
      Home: () => glide(0, head.span),
      f: () => {
        const part = state.selection ?? state.mark;
        if (part) glide(part.t0 - (part.t1 - part.t0) * 0.1, part.t1 + (part.t1 - part.t0) * 0.1);
      },
      n: () => events.nextPin(1),
      p: () => events.nextPin(-1),
      g: events.longestGap,
      Escape: clear,
    };
    const move = moves[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!move) return;
    event.preventDefault();
    move();
  };
  watchSize(canvas, draw);
  say("");
  return { state, redraw, draw, setView, glide, jump, say, describeGap, selectSteps, clear };
}
