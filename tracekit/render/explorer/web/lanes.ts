// The lanes of a row: stages, kernels by kind, idle time by cause, critical path, memory, host threads. Far out, a pixel is
// the mean of the bins under it; near by, every kernel is drawn.
import { type Cell, type Critical, Data, PLANES, type Segment, lowerBound } from "./data";
import { formatBytes, formatCount, formatTime } from "./format";
import { getCallColor, getCauseColor, getKindColor, getStageColor, getTextColor, ink, setFont, shade, soften, writeText } from "./theme";
import { type Mark, type TimelineState, toStrip, type View } from "./view";

const MOST_THREADS = 4;
const MOST_DEPTH = 6;
const HOST_ROW = 11;

type Lane = "step" | "stage" | "part" | "idle" | "critical" | "host" | "curve" | "thin" | "kind";
export interface Place {
  row: number;
  lane: Lane;
  y: number;
  h: number;
  /** The kind of a lane of kernels, the thread of a lane of the host. */
  part: number;
}
export interface Item extends Partial<Mark> {
  pin?: number;
  step?: number;
  text?: string;
  /** Time of the launch of a kernel. */
  launch?: number;
  y?: number;
  range?: number;
}
export type Lanes = ReturnType<typeof makeLanes>;

export function makeLanes(data: Data, state: TimelineState, redraw: () => void) {
  const { head } = data;
  let view: View = { t: 0, e: 1, left: 0, width: 1, from: 0, to: 1, x0: 0, x1: 1 };
  let loading = 0;
  const requested = new Set<string>();
  const totals = new Map<number, Uint32Array>();
  const threads = new Map<number, Segment[][]>();
  const curves = new Map<number, Awaited<ReturnType<Data["loadCurve"]>>>();

  const setView = (wanted: View): void => {
    view = wanted;
  };
  const getX = (time: number): number => view.left + ((time - view.t) / (view.e - view.t)) * (view.width - view.left);
  const getTime = (x: number): number => view.t + ((x - view.left) / (view.width - view.left)) * (view.e - view.t);
  const getScale = (): number => (view.e - view.t) / Math.max(1, view.width - view.left);

  /** Loads something once, then draws again. */
  function request(key: string, load: () => Promise<unknown>): void {
    if (requested.has(key)) return;
    requested.add(key);
    void load().then(redraw);
  }
  /** The cells in view, if all are decoded and show more than bins do; otherwise null. Cells that are missing are loaded. */
  function chooseCells(row: number, most: number): Cell[] | null {
    const scale = getScale();
    const cells = data.rows[row].cells.filter((cell) => cell.start < view.to && cell.end > view.from);
    let boxes = 0;
    for (const cell of cells) boxes += (cell.boxes * (Math.min(cell.end, view.to) - Math.max(cell.start, view.from))) / Math.max(1, cell.end - cell.start);
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
  const dim = (g: CanvasRenderingContext2D, match: boolean | undefined): void => {
    g.globalAlpha = state.hits && !match ? 0.22 : 1;
  };
  function drawBox(g: CanvasRenderingContext2D, x: number, y: number, end: number, h: number, fill: string, text?: string, color?: string): void {
    const wide = Math.max(0.7, end - x - (end - x > 4 ? 0.8 : 0));
    g.fillStyle = fill;
    g.fillRect(x, y, wide, h);
    const left = Math.max(x, view.x0);
    if (!text || Math.min(end, view.x1) - left < 30) return;
    g.fillStyle = color ?? ink.ink;
    writeText(g, text, left + 4, y + h / 2 + 0.5, Math.min(end, view.x1) - left - 8);
  }
  function drawRanges(g: CanvasRenderingContext2D, { row, lane, y, h }: Place): void {
    const inner = lane === "part";
    const outer = data.rows[row].ranges[0];
    let parent = 0;
    if (inner) setFont(g, 9.5);
    for (const range of data.rows[row].ranges[inner ? 1 : 0]) {
      if (range.end < view.from || range.start > view.to) continue;
      while (inner && parent < outer.length - 1 && outer[parent].end <= range.start) parent++;
      const name = data.names[range.name];
      const color = getStageColor(inner && outer[parent] ? data.names[outer[parent].name] : name, inner);
      dim(g, state.hits?.names.has(range.name));
      drawBox(g, Math.max(view.left - 2, getX(range.start)), y, Math.min(view.width + 2, getX(range.end)), h, color, name, inner ? ink.quiet : ink.ink);
    }
    setFont(g, 11);
  }
  function drawKernels(g: CanvasRenderingContext2D, { y, h, part }: Place, cells: Cell[]): void {
    const color = getKindColor(part);
    const textColor = getTextColor(color);
    for (const cell of cells) {
      const { start, length, kind, name, path, count, busy, longest } = cell.data!;
      const end = lowerBound(start, view.to);
      let drawn = -1;
      for (let k = lowerBound(start, view.from - longest); k < end; k++) {
        if (kind[k] !== part || start[k] + length[k] < view.from) continue;
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
    averageBins(addBins(row, part === 1 ? 3 : part), view.width - view.left, view.t, getScale(), (x, share) => {
      if (share > 0.004) g.fillRect(view.left + x, y + h * (1 - share), 1, h * share);
    });
  }
  /** Idle time by bin: for the gaps that are not in the page, and until the others are decoded. */
  function drawIdleBins(g: CanvasRenderingContext2D, { row, y, h }: Place): void {
    const scale = getScale();
    const cause = getPlane(row, 4);
    dim(g, false);
    for (let x = 0; x < view.width - view.left; x++) {
      const t = view.t + x * scale;
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
      g.fillRect(view.left + x, y + h * (1 - share), 1, h * share);
    }
  }
  function drawIdle(g: CanvasRenderingContext2D, place: Place, exact: boolean): void {
    const { row, y, h } = place;
    const list = data.rows[row].gaps;
    const gaps = data.gaps;
    const near = exact || list.length < 4000;
    if (!gaps || !near || head.floor) drawIdleBins(g, place);
    if (!gaps || !near) return;
    for (let i = Math.max(0, findGap(row, view.from)); i < list.length && gaps.start[list[i]] < view.to; i++) {
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
  /** Position, in the list of a row, of the last gap that starts at a time or before. */
  const findGap = (row: number, time: number): number => lowerBound(data.rows[row].starts, Math.floor(time) + 1) - 1;
  /** Whether a piece of the critical path is of the run of a row: times of other runs are not comparable. */
  function isOfRun({ row }: Critical, i: number, lane: number): boolean {
    const [piece, own] = [head.rows[row[i]], head.rows[lane]];
    return !piece || (piece.run === own.run && (!COMPARISON || piece.side === own.side));
  }
  function drawCritical(g: CanvasRenderingContext2D, { row, y, h }: Place): void {
    const path = data.critical;
    if (!path) return request("critical", () => data.loadCritical());
    const { start, length, longest } = path;
    let drawn = -1;
    for (let i = lowerBound(start, view.from - longest); start[i] < view.to; i++) {
      const [x, end] = [getX(start[i]), getX(start[i] + length[i])];
      if (end < view.x0 || end < drawn + 0.3 || !isOfRun(path, i, row)) continue;
      drawn = end;
      g.globalAlpha = path.row[i] === row ? 1 : 0.45;
      const color = getCriticalColor(path, i);
      drawBox(g, Math.max(view.left - 2, x), y, end, h, color, end - x > 46 ? describeCritical(path, i, row) : undefined, getTextColor(color));
    }
    g.globalAlpha = 1;
  }
  /** Work has the color of its kind, the host that of its idle cause; waits are gray. */
  function getCriticalColor(path: Critical, i: number): string {
    const kind = data.names[path.kind[i]];
    const work = ["kernel", "collective", "copy", "arrival"].indexOf(kind);
    const cause = { host: "host_op", "runtime call": "host_op", "no host activity": "host_silent" }[kind] ?? "kernel_wait";
    return work >= 0 ? getKindColor(work % 2 ? 1 : work) : getCauseColor(cause);
  }
  function describeCritical(path: Critical, i: number, lane: number): string {
    const name = path.name[i] < 0 ? data.names[path.kind[i]] : data.short[path.name[i]];
    return path.row[i] < 0 || path.row[i] === lane ? name : `${data.nameInSide(path.row[i])}: ${name}`;
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
      if (start > view.to) break;
      if (end < view.from || depth >= MOST_DEPTH) continue;
      const [x, x1] = [Math.max(view.left - 2, getX(start)), Math.min(view.width + 2, getX(end))];
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
    const first = Math.max(0, lowerBound(time, view.from) - 1);
    const getY = (bytes: number): number => y + h * (1 - bytes / top);
    // A pixel shows its largest value, so no peak is lost.
    const fillSteps = (values: Float64Array, color: string): void => {
      let x = Math.max(view.left, getX(time[first] ?? head.span));
      let [peak, last] = [values[first] ?? 0, values[first] ?? 0];
      g.beginPath();
      g.moveTo(x, y + h);
      const go = (next: number): void => {
        g.lineTo(x, getY(peak));
        g.lineTo(x, getY(last));
        g.lineTo(next, getY(last));
        x = next;
      };
      for (let k = first + 1; k < time.length && time[k] < view.to; k++) {
        const next = getX(time[k]);
        if (next - x > 0.5) {
          go(next);
          peak = 0;
        }
        last = values[k];
        peak = Math.max(peak, last);
      }
      go(Math.min(view.width, getX(head.span)));
      g.lineTo(x, y + h);
      g.fillStyle = color;
      g.fill();
    };
    fillSteps(reserved, ink.line);
    fillSteps(allocated, soften(ink.accent, 0.6));
    g.fillStyle = ink.ink;
    writeText(g, formatBytes(top), view.left + 3, y + 6, 90);
  }
  /** Lanes of a row in full, from `y`. */
  function layOut(row: number, y: number): Place[] {
    const list: Place[] = [];
    const add = (lane: Lane, h: number, part = 0): void => {
      list.push({ row, lane, y, h, part });
      y += h + 2;
    };
    if (COMPARISON) add("step", 15);
    if (LOGS || data.rows[row].ranges[0].length) add("stage", 17);
    if (LOGS) return list;
    if (data.rows[row].ranges[1].length) add("part", 13);
    add("kind", 26, 0);
    add("kind", 14, 1);
    if (head.rows[row].kind === "device") add("kind", 12, 2);
    if (addBins(row, 4)[head.bins]) add("idle", 16);
    if (state.critical && (COMPARISON || row === state.focus || state.rows.length <= 2)) add("critical", 14);
    if (Data.has(`curve${row}`)) add("curve", 36);
    if (state.host && (COMPARISON || row === state.focus)) for (const [thread, segments] of listThreads(row)) add("host", countDepth(segments) * HOST_ROW, thread);
    return list;
  }
  function nameLane({ lane, part, row }: Place): string {
    if (lane === "kind") return ["compute", "comm", "copies"][part];
    if (lane === "host") return head.threads?.[head.rows[row].process]?.[part]?.replace(/^thread /, "") ?? `thread ${part + 1}`;
    return { step: "", stage: "stages", part: "", idle: "idle, why", critical: "critical path", curve: "memory", thin: "" }[lane];
  }
  /** Draws the steps of a row, over the whole width. */
  function drawSteps(g: CanvasRenderingContext2D, { left, width }: Pick<View, "left" | "width">, row: number, y: number): void {
    const place = (time: number): number => left + (((COMPARISON ? toStrip(state.alignment, row, time) : time) - state.t) / (state.e - state.t)) * (width - left);
    setFont(g, 11, 600);
    for (const step of data.rows[row].steps) {
      const [x, end] = [Math.max(left, place(step.start)), Math.min(width, place(step.end - 1))];
      if (end < left || x > width) continue;
      g.fillStyle = ink.ink;
      g.globalAlpha = step.counted ? 0.12 : 0.05;
      g.fillRect(x, y, Math.max(1, end - x - 1), 14);
      g.globalAlpha = step.counted ? 1 : 0.75;
      if (x > left) g.fillRect(x, y, 1, 14);
      const name = step.number === null ? "step" : `step ${step.number}`;
      // In a narrow step, its number alone says which one it is.
      const text = end - x > 56 || step.number === null ? `${name} · ${formatTime(step.end - step.start)}${step.counted ? "" : " · not counted"}` : String(step.number);
      if (end - x > 56 || g.measureText(text).width < end - x - 6) writeText(g, text, x + 4, y + 7.5, end - x - 5);
      g.globalAlpha = 1;
    }
    setFont(g, 11);
  }
  function drawLane(g: CanvasRenderingContext2D, place: Place, cells: Cell[] | null): void {
    g.globalAlpha = 1;
    if (!["step", "stage", "part", "host"].includes(place.lane)) {
      g.fillStyle = ink.lane;
      g.fillRect(view.x0, place.y, view.x1 - view.x0, place.h);
    }
    switch (place.lane) {
      case "step":
        return;
      case "kind":
        return cells ? drawKernels(g, place, cells) : drawBins(g, place);
      case "idle":
        return drawIdle(g, place, cells !== null);
      case "critical":
        return drawCritical(g, place);
      case "host":
        return drawHost(g, place);
      case "curve":
        return drawCurve(g, place);
      default:
        return drawRanges(g, place);
    }
  }
  /** Draws the lanes of a row, each part of the row with its own clock. */
  function drawLanes(g: CanvasRenderingContext2D, row: number, list: Place[], views: View[]): void {
    for (view of views) {
      const cells = chooseCells(row, (view.x1 - view.x0) * 0.6);
      g.save();
      g.beginPath();
      g.rect(view.x0, list[0].y - 1, view.x1 - view.x0, 9999);
      g.clip();
      for (const place of list) drawLane(g, place, cells);
      g.restore();
    }
    g.globalAlpha = 1;
    setFont(g, 10.5);
    g.fillStyle = ink.quiet;
    const named = COMPARISON || state.rows.length === 2 || (LOGS && state.rows.length > 1) ? list[0] : null;
    for (const place of list) {
      const middle = place.y + Math.min(place.h, 30) / 2;
      const left = place.lane === "kind" && view.left > 70 ? 14 : 2;
      if (place !== named) writeText(g, nameLane(place), left, middle + 0.5, view.left - left - 2);
    }
    for (const { lane, part, y, h } of list)
      if (lane === "kind" && view.left > 70 && !(named?.y === y)) {
        g.fillStyle = getKindColor(part);
        g.fillRect(2, y + h / 2 - 4, 8, 8);
      }
    if (COMPARISON && named) drawSteps(g, view, row, named.y);
    setFont(g, 11, 600);
    g.fillStyle = ink.ink;
    if (named) writeText(g, COMPARISON ? data.nameSide(row) : data.labelRow(row), 2, named.y + named.h / 2, view.left - 4);
    setFont(g, 11);
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
    const cells = chooseCells(row, (view.x1 - view.x0) * (place.lane === "thin" ? 0.3 : 0.6));
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
    return range ? { row, t0: range.start, t1: range.end, range: range.id, text: `${data.names[range.name]} · ${formatTime(range.end - range.start, 4)}${LOGS ? "" : " on the host"} · double click to count this stage` } : null;
  }
  function findCritical({ row }: Place, time: number): Item | null {
    const path = data.critical;
    if (!path) return null;
    const slack = getScale();
    const { start, length } = path;
    let i = lowerBound(start, time + slack) - 1;
    while (i >= 0 && !isOfRun(path, i, row)) i--;
    const [t0, t1] = [start[i], start[i] + length[i]];
    if (i < 0 || t1 + slack < time) return null;
    return { row: path.row[i] < 0 ? row : path.row[i], t0, t1, text: `critical path · ${data.names[path.kind[i]]} · ${describeCritical(path, i, row)} · ${formatTime(length[i], 4)}` };
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
  function findStep(row: number, time: number): Item | null {
    const step = data.rows[row].steps.find(({ start, end }) => start <= time && end > time);
    if (!step || step.number === null) return null;
    const parts = LOGS ? "" : `: ${formatTime(step.compute)} compute, ${formatTime(step.comm)} exposed communication, ${formatTime(step.copies)} exposed copies, ${formatTime(step.idle)} idle`;
    return { step: step.number, text: `step ${step.number} · ${formatTime(step.end - step.start, 5)}${parts} · click to count this step` };
  }
  /** What is at a point of a row; null in the empty rest of a part. */
  function findIn(place: Place, views: View[], x: number, y: number): Item | null {
    const seen = views.find(({ x0, x1 }) => x >= x0 && x <= x1);
    if (!seen) return null;
    view = seen;
    const time = getTime(x);
    switch (place.lane) {
      case "step":
        return findStep(place.row, time);
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
        return findCritical(place, time);
      case "host":
        return findCall(place, time, y);
      case "curve":
        return findMemory(place, time);
      default:
        return findKernel(place, time);
    }
  }
  /** Changes whenever more can be drawn. */
  const getLoads = (): string => `${loading},${requested.size}`;
  return { getLoads, layOut, drawLanes, drawSteps, findIn, findStep, describeGap, addBins, averageBins, chooseCells, setView };
}
