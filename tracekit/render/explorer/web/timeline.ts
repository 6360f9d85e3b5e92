// Rows over time. The row in focus has one lane per subject; each other row is a thin heat row. Far out, a pixel is the
// mean of the bins under it; near by, every kernel is drawn.
import type { Data } from "./data";
import { formatTime } from "./format";
import { makeHeat } from "./heat";
import { type Item, makeLanes, type Place } from "./lanes";
import { getKindColor, getStageColor, ink, prepareCanvas, setFont, showTip, watchSize, writeText } from "./theme";
import { matchAllSteps } from "./align";
import { listSameStages, splitView, type TimelineState, toRow, toStrip, type View } from "./view";

const AXIS = 48;
/** Each side of a comparison has a lane of steps, and there are no pins. */
const AXIS_OF_PAIR = 30;
const LEAST_VIEW = 2000;
const PINS = 9;

export interface TimelineEvents {
  selected: () => void;
  focused: () => void;
  /** A row that is not shown comes up, with its partner of the other side. */
  paired: (row: number) => void;
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
  selectStage: (range: number) => void;
  selectWindow: (t0: number, t1: number) => void;
  getSpan: () => number;
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
    pair: null,
    alignment: null,
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
  let gliding = 0;

  const getX = (time: number): number => gutter + ((time - state.t) / (state.e - state.t)) * (width - gutter);
  const getTime = (x: number): number => state.t + ((x - gutter) / (width - gutter)) * (state.e - state.t);
  const getScale = (): number => (state.e - state.t) / Math.max(1, width - gutter);
  const redraw = (): void => {
    frame ||= requestAnimationFrame(draw);
  };
  const lanes = makeLanes(data, state, redraw);
  // Logs have no thin rows.
  const { listOrder, drawHeat } = LOGS ? { listOrder: (side?: number | null) => state.rows.filter((row) => side == null || head.rows[row].side === side), drawHeat: () => [] } : makeHeat(data, state, lanes);
  const getTop = (): number => (COMPARISON ? AXIS_OF_PAIR : AXIS);
  const getSpan = (): number => (COMPARISON && state.alignment?.span) || head.span;
  const isSmall = (): boolean => COMPARISON || LOGS || state.rows.length <= 2;
  const toPlace = (row: number, time: number): number => (COMPARISON ? toStrip(state.alignment, row, time) : time);
  const place = (row: number, time: number): number => getX(toPlace(row, time));
  const say = (text: string): void => {
    detail.textContent = detail.title = text || getHint();
  };
  const getHint = (): string =>
    matchMedia("(pointer: coarse)").matches
      ? "Drag to pan, pinch to zoom, tap for details."
      : `w s zoom · a d pan · shift-drag or drag on the axis to select · click on a step to count it${!LOGS ? ` · n next ${COMPARISON ? "part of the change" : "issue"} · g longest gap` : ""} · / find · ? all keys`;

  // View
  function setView(t: number, e: number): void {
    const all = getSpan();
    const span = Math.min(all * 1.02, Math.max(LEAST_VIEW, e - t));
    const middle = (t + e) / 2;
    const start = e - t < span ? middle - span / 2 : t;
    state.t = Math.max(-all * 0.01, Math.min(start, all * 1.01 - span));
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
    const [from, to] = [t0, t1].map((time) => toPlace(row, time));
    const pad = ((to - from) / share - (to - from)) / 2;
    glide(from - pad, to + pad);
  }
  /** Brings a row up; in a comparison, with the row of the other side that has the same rank. */
  function setFocus(row: number): void {
    if (COMPARISON && !state.pair?.includes(row)) events.paired(row);
    state.focus = row;
    redraw();
    events.focused();
  }
  function stepFocus(by: number): void {
    const rows = listOrder(COMPARISON ? head.rows[state.focus].side : null);
    const row = rows[rows.indexOf(state.focus) + by];
    if (row !== undefined) setFocus(row);
  }

  // Drawing
  /** Room for the names at the left; beside thin rows, also for the bars of their own work. */
  function measureGutter(g: CanvasRenderingContext2D, thin: boolean): number {
    if (COMPARISON || !thin) return 96;
    setFont(g, 10.5, 600);
    const longest = state.rows.reduce((most, row) => Math.max(most, g.measureText(data.labelRow(row)).width), 0);
    setFont(g, 11);
    return Math.min(210, Math.max(96, Math.ceil(longest) + 42));
  }
  function drawAxis(g: CanvasRenderingContext2D): void {
    const least = (state.e - state.t) / Math.max(3, (width - gutter) / 110);
    const unit = 10 ** Math.floor(Math.log10(least));
    const tick = [1, 2, 5, 10].map((m) => m * unit).find((m) => m >= least)!;
    for (let i = Math.ceil(Math.max(0, state.t) / tick); i * tick < state.e; i++) {
      const x = Math.round(getX(i * tick)) + 0.5;
      if (x < gutter) continue;
      g.fillStyle = ink.line;
      g.fillRect(x, getTop() - 14, 1, height);
      g.fillStyle = ink.quiet;
      if (!COMPARISON || !state.alignment) writeText(g, i ? formatTime(i * tick, 6) : "0", x + 4, getTop() - 9, 90);
    }
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
    if (COMPARISON) return;
    pins = [];
    head.findings.slice(0, PINS).forEach(({ pins: [pin], number }, finding) => {
      if (!pin || !state.rows.includes(pin.row)) return;
      const target = place(pin.row, (pin.t0 + pin.t1) / 2);
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
        g.lineTo(target, getTop() - 3);
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
    const [x, end] = [Math.max(gutter, place(state.mark.row, state.mark.t0)), Math.min(width, place(state.mark.row, state.mark.t1))];
    if (end < x - 2) return;
    g.strokeStyle = ink.pin;
    g.lineWidth = 2;
    g.strokeRect(x - 1, band.y - 1, Math.max(3, end - x + 2), band.h + 1);
    g.lineWidth = 1;
  }
  function drawSelection(g: CanvasRenderingContext2D): void {
    if (!state.selection) return;
    const { t0, t1 } = state.selection;
    const top = getTop() - 20;
    const [x, end] = [Math.max(gutter, Math.min(width, getX(t0))), Math.min(width, Math.max(gutter, getX(t1)))];
    g.fillStyle = ink.page;
    g.globalAlpha = 0.6;
    g.fillRect(gutter, top + 4, x - gutter, height);
    g.fillRect(end, top + 4, width - end, height);
    g.globalAlpha = 1;
    g.fillStyle = ink.accent;
    g.fillRect(x, top + 5, end - x, 3);
    g.fillRect(x - 0.5, top + 5, 1, height);
    g.fillRect(end - 0.5, top + 5, 1, height);
    if (end <= x) return;
    const text = formatTime(t1 - t0, 4);
    const wide = g.measureText(text).width + 10;
    g.fillRect((x + end - wide) / 2, top, wide, 15);
    g.fillStyle = ink.page;
    g.textAlign = "center";
    g.fillText(text, (x + end) / 2, top + 8);
    g.textAlign = "left";
  }
  /** A line from the launch on the host to the start of the kernel under the pointer. */
  function drawLaunch(g: CanvasRenderingContext2D): void {
    if (hover?.launch === undefined || hover.t0 === undefined || hover.row === undefined || hover.y === undefined) return;
    const band = getBand(hover.row);
    if (!band) return;
    const [x, y, end] = [Math.max(gutter, place(hover.row, hover.launch)), band.y + 8, place(hover.row, hover.t0)];
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

  /** Thin rows below the lanes; in a comparison those of each side, if one has several. */
  function listHeats(rows: number[]): number[][] {
    if (LOGS) return [];
    if (!COMPARISON) return isSmall() ? [] : [rows];
    const sides = [0, 1].map(listOrder);
    return sides.some(({ length }) => length > 1) ? sides.filter(({ length }) => length) : [];
  }
  const getView = (): View => splitView({ ...state, alignment: null }, 0, gutter, width)[0];
  function draw(): void {
    cancelAnimationFrame(frame);
    frame = 0;
    if (!head.rows.length) return;
    const began = performance.now();
    const rows = listOrder();
    const full = (COMPARISON && state.pair) || (isSmall() ? rows : [state.focus]);
    const heats = listHeats(rows);
    const count = heats.flat().length;
    const h = Math.max(2, COMPARISON ? Math.min(9, Math.floor(140 / count)) : Math.min(12, Math.floor(200 / count)));
    places = [];
    let y = getTop();
    const lists = full.map((row) => {
      const list = lanes.layOut(row, y);
      const last = list[list.length - 1];
      y = last.y + last.h + 8;
      places.push(...list);
      return list;
    });
    height = y + count * h + heats.length * 18;
    const surface = prepareCanvas(canvas, height);
    const { g } = surface;
    gutter = canvas.clientWidth < 600 ? 58 : measureGutter(g, count > 0);
    width = surface.width;
    drawAxis(g);
    if (!COMPARISON) lanes.drawSteps(g, { left: gutter, width }, state.focus, 1);
    full.forEach((row, i) => lanes.drawLanes(g, row, lists[i], splitView(state, row, gutter, width)));
    for (const heat of heats) {
      places.push(...drawHeat(g, getView(), heat, y - 2, h));
      y += heat.length * h + 18;
    }
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
    const span = getSpan();
    const scale = span / Math.max(1, w - gutter);
    for (const { t, x0, x1 } of splitView({ ...state, t: 0, e: span }, state.focus, gutter, w)) {
      g.save();
      g.beginPath();
      g.rect(x0, 0, x1 - x0, h);
      g.clip();
      if (LOGS)
        for (const range of data.rows[state.focus].ranges[0]) {
          g.fillStyle = getStageColor(data.names[range.name]);
          g.fillRect(gutter + (range.start - t) / scale, 0, Math.max(0.5, (range.end - range.start) / scale), h);
        }
      const heights = new Float64Array(w);
      for (let plane = 0; plane < 3; plane++) {
        g.fillStyle = getKindColor(plane);
        lanes.averageBins(lanes.addBins(state.focus, plane), w - gutter, t, scale, (x, share) => {
          const part = share * (h - 2);
          heights[x] += part;
          g.fillRect(gutter + x, h - heights[x], 1, part);
        });
      }
      g.restore();
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
  function findItem(x: number, y: number): Item | null {
    if (y < getTop() - 6) {
      const pin = y > 15 && y < 33 ? pins.find((p) => Math.abs(p.x - x) < 9) : undefined;
      if (pin) return { pin: pin.finding, text: head.findings[pin.finding].claim };
      return y < 16 && x > gutter && !COMPARISON ? lanes.findStep(state.focus, getTime(x)) : null;
    }
    const at = places.find((p) => y >= p.y && y < p.y + p.h);
    if (!at) return null;
    if (x < gutter) return { row: at.row };
    const item = lanes.findIn(at, splitView(state, at.row, gutter, width), x, y) ?? { row: at.row };
    if (item.text && state.rows.length > 1 && (COMPARISON || at.lane !== "critical")) item.text = `${data.nameRow(at.row)} · ${item.text}`;
    return item;
  }

  // Selecting
  function selectWindow(t0: number, t1: number): void {
    const { alignment } = state;
    state.selection = { t0, t1, scope: { kind: "window", t0, t1, ...(COMPARISON && alignment && { toRow: (row: number, time: number) => toRow(alignment, row, time) }) } };
  }
  function selectSteps(numbers: number[]): void {
    const steps = data.rows[state.focus].steps.filter((step) => numbers.includes(step.number ?? -1));
    if (!steps.length) return;
    const [t0, t1] = [steps[0].start, steps[steps.length - 1].end].map((time) => toPlace(state.focus, time));
    const matched = COMPARISON && matchAllSteps(data, state.focus, steps.map(({ index }) => index));
    state.selection = { t0, t1, scope: { kind: "steps", numbers: new Set(numbers), ...(matched && { matched }) } };
    redraw();
    events.selected();
  }
  /** Selects a stage in its step, on all rows. */
  function selectStage(id: number): void {
    const range = data.ranges[id];
    const [t0, t1] = [range.start, range.end].map((time) => toPlace(range.row, time));
    state.selection = { t0, t1, scope: { kind: "stages", ranges: new Set(listSameStages(data, range).map((same) => same.id)) } };
    redraw();
    events.selected();
  }
  /** Ends a selection by brush: at the edges of steps or of a stage, it counts these whole. */
  function finishBrush(): void {
    const selection = state.selection;
    if (!selection) return;
    const slack = 6 * getScale();
    const isNear = (time: number, edge: number): boolean => Math.abs(toPlace(state.focus, time) - edge) < slack;
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
    const onAxis = event.offsetY < getTop() - 6 && findItem(event.offsetX, event.offsetY)?.pin === undefined;
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
    showTip(canvas);
    if (!drag.brush) {
      const by = (drag.x - x) * getScale();
      return setView(drag.t + by, drag.e + by);
    }
    const [a, b] = [getTime(Math.max(gutter, drag.x)), getTime(Math.max(gutter, Math.min(width, x)))];
    selectWindow(Math.max(0, Math.round(Math.min(a, b))), Math.min(getSpan(), Math.round(Math.max(a, b))));
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
    showTip(canvas);
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
    if (y < getTop() - 6) return clear();
    if (item?.row !== undefined && item.row !== state.focus && state.rows.includes(item.row) && !(COMPARISON && state.pair?.includes(item.row))) {
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
    const middle = ((event.offsetX - gutter) / (width - gutter)) * getSpan();
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
      Home: () => glide(0, getSpan()),
      f: () => {
        const { mark } = state;
        const part = state.selection ?? (mark && { t0: toPlace(mark.row, mark.t0), t1: toPlace(mark.row, mark.t1) });
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
  return { state, redraw, draw, setView, glide, jump, say, describeGap: lanes.describeGap, selectSteps, selectStage, selectWindow, getSpan, clear };
}
