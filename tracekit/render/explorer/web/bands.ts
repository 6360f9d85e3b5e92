// Memory over time by allocation site or holder. Each allocation and free is an event; a pixel shows its moment of most bytes.
import { addUp, Data, lowerBound, readColumns, type Snapshot } from "./data";
import { formatBytes, formatMoment } from "./format";
import { make } from "./tables";
import { getSiteColor, ink, prepareCanvas, showTip, watchSize, writeText } from "./theme";

const MOST_SITES = 11;
export const BEFORE = "allocated before the history began";
const OTHERS = "all others";

export interface Pieces {
  start: Float64Array;
  life: Float64Array;
  size: Float64Array;
  path: Int32Array;
  site: string[];
  holder: string[];
  /** Further allocations that are merged into a piece. */
  more?: Float64Array;
}

/** Bytes in use by site after each event. Site `names.length - 1` collects all others. */
export interface Staircase {
  times: Float64Array;
  /** One row of `names.length` numbers per time. */
  state: Float64Array;
  total: Float64Array;
  names: string[];
  peak: number;
  peakTime: number;
}

/** Replays allocations and frees. A piece that outlives `span` is never freed. At one moment, frees are first. */
export function buildStaircase(pieces: Pieces, span: number): Staircase {
  const { start, life, size, site } = pieces;
  const events: [time: number, size: number, piece: number][] = [];
  for (let i = 0; i < start.length; i++) {
    events.push([start[i], size[i], i]);
    if (start[i] + life[i] <= span) events.push([start[i] + life[i], -size[i], i]);
  }
  events.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const now = new Map<string, number>();
  const most = new Map<string, number>();
  for (const [, bytes, i] of events) {
    const held = (now.get(site[i]) ?? 0) + bytes;
    now.set(site[i], held);
    most.set(site[i], Math.max(most.get(site[i]) ?? 0, held));
  }
  const names = [...most].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  names.length = Math.min(names.length, MOST_SITES);
  const number = new Map(names.map((name, k) => [name, k]));
  names.push(OTHERS);
  const bands = names.length;
  const times: number[] = [];
  const total: number[] = [];
  const state = new Float64Array(events.length * bands);
  const current = new Float64Array(bands);
  let held = 0;
  let peak = 0;
  let peakTime = 0;
  for (const [time, bytes, i] of events) {
    current[number.get(site[i]) ?? bands - 1] += bytes;
    held += bytes;
    if (times[times.length - 1] !== time) times.push(time);
    const k = times.length - 1;
    total[k] = held;
    state.set(current, k * bands);
    if (held > peak) [peak, peakTime] = [held, time];
  }
  return { times: Float64Array.from(times), state, total: Float64Array.from(total), names, peak, peakTime };
}

/** Pieces in use at a moment. */
export function listLive(pieces: Pieces, time: number): number[] {
  const live: number[] = [];
  for (let i = 0; i < pieces.start.length; i++) if (pieces.start[i] <= time && pieces.start[i] + pieces.life[i] > time) live.push(i);
  return live;
}

const LIBRARY = /torch\/|site-packages|optim\/|nn\/modules|<frozen/;

/** The innermost Python frame outside libraries; otherwise the innermost frame. */
export function chooseSite(frames: string[]): string {
  const own = frames.filter((frame) => /\.py[:(]\d+/.test(frame) && !LIBRARY.test(frame));
  return own[own.length - 1] ?? frames[frames.length - 1] ?? "no stack recorded";
}

export async function loadPieces(data: Data, snapshot: number): Promise<Pieces | null> {
  const bytes = await Data.block(`mem${snapshot}`);
  if (!bytes) return null;
  const [start, life, size, path, before, holders, more] = readColumns(bytes, 7).columns;
  const sites = new Map<number, string>();
  const site = Array.from(path, (stored, i) => {
    if (before[i] && !stored) return BEFORE;
    let name = sites.get(stored);
    if (name === undefined) {
      name = chooseSite(data.listPath(stored - 1).map((frame) => data.names[frame]));
      sites.set(stored, name);
    }
    return name;
  });
  return { start: addUp(start), life, size, path: Int32Array.from(path, (p) => p - 1), site, holder: Array.from(holders, (k) => data.head.holders?.[k] ?? ""), more };
}

const LEFT = 66;
const HEIGHT = 240;
const FLOOR = HEIGHT - 18;

export function getBandColor(stairs: Staircase, band: number): string {
  if (band === stairs.names.length - 1) return ink.line;
  return stairs.names[band] === BEFORE ? ink.old : getSiteColor(band);
}

/** Draws the staircase; `pick` is called with the moment that is chosen. */
export function makeBands(stairs: Staircase, snapshot: Snapshot, pick: (time: number) => void): { canvas: HTMLCanvasElement; choose: (time: number) => void } {
  const { span } = snapshot;
  const canvas = make("canvas", "bands");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "Memory over time. Left and right step through events, w and s zoom, Home shows all.");
  const { times, state, total, names } = stairs;
  const bands = names.length;
  const top = stairs.peak * 1.05 || 1;
  const scale = (FLOOR - 12) / top;
  let [from, to] = [0, span];
  let chosen = stairs.peakTime;
  let width = 0;
  let drag: { x: number; from: number; to: number; moved: boolean } | null = null;

  const getX = (time: number): number => LEFT + ((time - from) / (to - from)) * (width - LEFT);
  const getTime = (x: number): number => from + ((x - LEFT) / (width - LEFT)) * (to - from);
  const findState = (time: number): number => lowerBound(times, time + 0.5) - 1;

  function drawScale(g: CanvasRenderingContext2D): void {
    let unit = 2 ** 20;
    while (top / unit > 6) unit *= 2;
    g.strokeStyle = ink.line;
    g.fillStyle = ink.quiet;
    for (let v = 0; v < top; v += unit) {
      const y = Math.round(FLOOR - v * scale) + 0.5;
      g.strokeRect(LEFT, y, width - LEFT, 0);
      writeText(g, formatBytes(v), 2, y, LEFT);
    }
  }
  function drawState(g: CanvasRenderingContext2D, x: number, wide: number, k: number): void {
    let y = FLOOR;
    for (let j = 0; j < bands; j++) {
      const band = (bands - 1 + j) % bands;
      const h = state[k * bands + band] * scale;
      if (h <= 0) continue;
      g.fillStyle = getBandColor(stairs, band);
      g.fillRect(x, y - h, wide, h + 0.3);
      y -= h;
    }
  }
  function drawStates(g: CanvasRenderingContext2D): void {
    const first = Math.max(0, findState(from));
    const last = Math.min(times.length, lowerBound(times, to) + 1);
    if (last - first > (width - LEFT) * 1.5) {
      let k = first;
      for (let x = LEFT; x < width; x++) {
        const end = getTime(x + 1);
        let best = Math.max(0, k - 1);
        for (; k < times.length && times[k] < end; k++) if (total[k] >= total[best]) best = k;
        if (times[best] < end) drawState(g, x, 1, best);
      }
      return;
    }
    for (let k = first; k < last; k++) {
      const x = Math.max(LEFT, getX(times[k]));
      const end = Math.min(width, k + 1 < times.length ? getX(times[k + 1]) : getX(span));
      if (end > x) drawState(g, x, end - x + 0.2, k);
    }
  }
  function drawMark(g: CanvasRenderingContext2D, time: number, color: string, text: string, y = 7): void {
    const x = getX(time);
    if (x < LEFT || x > width + 1) return;
    g.fillStyle = color;
    g.fillRect(x - 0.75, 12, 1.5, FLOOR - 12);
    const left = x > width - 130;
    g.textAlign = left ? "right" : "left";
    g.fillText(text, x + (left ? -5 : 5), y);
    g.textAlign = "left";
  }
  function draw(): void {
    const surface = prepareCanvas(canvas, HEIGHT);
    const { g } = surface;
    width = surface.width;
    drawScale(g);
    drawStates(g);
    g.fillStyle = ink.quiet;
    writeText(g, formatMoment(snapshot, from, 5), LEFT, HEIGHT - 7, 90);
    g.textAlign = "right";
    g.fillText(formatMoment(snapshot, to, 5), width, HEIGHT - 7);
    g.textAlign = "left";
    for (const [time, state] of snapshot.marks ?? []) drawMark(g, time, ink.quiet, `engine ${state}`, 19);
    drawMark(g, stairs.peakTime, ink.pin, `peak ${formatBytes(stairs.peak)}`);
    if (chosen !== stairs.peakTime) drawMark(g, chosen, ink.accent, "");
  }

  function describe(x: number, y: number): string | undefined {
    const time = getTime(x);
    const k = findState(time);
    if (x < LEFT || k < 0) return undefined;
    let bytes = (FLOOR - y) / scale;
    const sum = `${formatBytes(total[k])} in use at ${formatMoment(snapshot, time, 6)}`;
    for (let j = 0; j < bands; j++) {
      const band = (bands - 1 + j) % bands;
      const held = state[k * bands + band];
      if (held > 0 && bytes >= 0 && bytes < held) return `${names[band]} · ${formatBytes(held)} · ${sum}`;
      bytes -= held;
    }
    return sum;
  }
  function show(start: number, length: number): void {
    const size = Math.min(span, Math.max(span * 1e-6, length));
    from = Math.max(0, Math.min(start, span - size));
    to = from + size;
    draw();
  }
  const zoom = (factor: number, x: number): void => {
    const center = getTime(x);
    show(center - (center - from) * factor, (to - from) * factor);
  };
  const choose = (time: number): void => {
    chosen = Math.max(0, Math.min(span, time));
    draw();
    pick(chosen);
  };

  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!(event.ctrlKey || document.activeElement === canvas)) return;
      event.preventDefault();
      zoom(Math.exp(event.deltaY * 0.0022), event.offsetX);
    },
    { passive: false },
  );
  canvas.onpointerdown = (event) => {
    drag = { x: event.offsetX, from, to, moved: false };
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
  };
  canvas.onpointermove = (event) => {
    if (!drag) return showTip(canvas, event.offsetX, event.offsetY, describe(event.offsetX, event.offsetY));
    const by = event.offsetX - drag.x;
    drag.moved ||= Math.abs(by) > 3;
    if (drag.moved) show(drag.from - (by / (width - LEFT)) * (drag.to - drag.from), drag.to - drag.from);
  };
  canvas.onpointerleave = () => showTip(canvas);
  canvas.onpointercancel = () => {
    drag = null;
  };
  canvas.onpointerup = (event) => {
    if (drag && !drag.moved) choose(getTime(event.offsetX));
    drag = null;
  };
  canvas.onkeydown = (event) => {
    const k = findState(chosen);
    const moves: Record<string, () => void> = {
      w: () => zoom(0.75, getX(chosen)),
      s: () => zoom(1 / 0.75, getX(chosen)),
      ArrowRight: () => choose(times[Math.min(times.length - 1, k + 1)]),
      ArrowLeft: () => choose(times[Math.max(0, k - 1)]),
      Home: () => show(0, span),
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    move();
  };
  watchSize(canvas, draw);
  queueMicrotask(draw);
  return { canvas, choose };
}
