// Thin rows: the mean color of each pixel, so many rows are a heat map of row and time. Their order, slowest or by rank.
import { type Boxes, type Data, lowerBound } from "./data";
import { formatCount } from "./format";
import { listSide, nameInHeat, nameWorst } from "./align";
import type { Lanes, Place } from "./lanes";
import { getKindColor, ink, isDark, setFont, splitColor, writeText } from "./theme";
import { splitView, type TimelineState, type View } from "./view";

const MOST_THIN = 96;

export function makeHeat(data: Data, state: TimelineState, lanes: Lanes) {
  const orders = new Map<number | null, { key: string; rows: number[] }>();
  /** The rows that are shown, in order; of one side of a comparison, those with work. */
  function listOrder(side: number | null = null): number[] {
    const key = `${state.order},${state.rows.length},${state.rows[0]},${state.focus}`;
    const order = orders.get(side);
    if (order?.key === key) return order.rows;
    let rows = COMPARISON ? listSide(data, state.rows, side) : state.rows;
    const most = COMPARISON ? MOST_THIN / 2 : MOST_THIN;
    const byLateness = rows.slice().sort((a, b) => data.getLateness(b) - data.getLateness(a));
    if (state.order === "late") rows = byLateness;
    if (rows.length > (most * 4) / 3) {
      const kept = new Set([...((COMPARISON && state.pair) || [state.focus]).filter((row) => rows.includes(row)), ...byLateness.slice(0, most / 2)]);
      const every = (rows.length - most / 2) / (most / 2);
      for (let i = most / 2; i < rows.length && kept.size < most; i += every) kept.add(byLateness[Math.floor(i)]);
      rows = rows.filter((row) => kept.has(row));
    }
    orders.set(side, { key, rows });
    return rows;
  }

  let buffer = new Float32Array(0);
  /** Shares of compute, communication and copies in each pixel of a part of a thin row. */
  function measureShares(row: number, pixels: number, part: View): Float32Array {
    lanes.setView(part);
    const { from, to } = part;
    if (buffer.length < pixels * 3) buffer = new Float32Array(pixels * 3);
    buffer.fill(0, 0, pixels * 3);
    const cells = lanes.chooseCells(row, pixels * 0.3);
    const scale = (to - from) / pixels;
    if (cells) for (const cell of cells) spreadBoxes(cell.data!, pixels, scale, part);
    else
      for (let plane = 0; plane < 3; plane++)
        lanes.averageBins(lanes.addBins(row, plane), pixels, from, scale, (x, share) => {
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
  function spreadBoxes(boxes: Boxes, pixels: number, scale: number, { from, to }: View): void {
    const { start, length, kind, count, busy } = boxes;
    const end = lowerBound(start, to);
    for (let k = lowerBound(start, from - boxes.longest); k < end; k++) {
      const x0 = Math.max(0, (start[k] - from) / scale);
      const x1 = Math.min(pixels, (start[k] + length[k] - from) / scale);
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
  const images = new Map<number | undefined, { key: string; image: HTMLCanvasElement }>();
  function drawThinRows(g: CanvasRenderingContext2D, { left, width }: View, rows: number[], y: number, h: number): void {
    const side = data.head.rows[rows[0]]?.side;
    let thin = images.get(side);
    const pixels = Math.max(1, Math.round(width - left));
    const key = [state.t, state.e, pixels, isDark(), lanes.getLoads(), rows.length, rows[0], state.order, state.rows.length, state.rows[0], state.focus, COMPARISON && [state.pair, state.alignment !== null]].join();
    if (thin?.key !== key) {
      const image = thin?.image ?? document.createElement("canvas");
      [image.width, image.height] = [pixels, rows.length];
      const context = image.getContext("2d")!;
      const picture = context.createImageData(pixels, rows.length);
      const words = new Uint32Array(picture.data.buffer);
      const colors = [0, 1, 2].map((kind) => splitColor(getKindColor(kind)));
      const ground = splitColor(ink.lane);
      const drawPart = (row: number, i: number, part: View): void => {
        const first = COMPARISON ? Math.round(part.x0 - left) : 0;
        const wide = COMPARISON ? Math.min(pixels, Math.round(part.x1 - left)) - first : pixels;
        if (COMPARISON && wide < 1) return;
        const shares = measureShares(row, wide, part);
        for (let x = 0; x < wide; x++) {
          const a = shares[x];
          const b = shares[wide + x];
          const c = shares[2 * wide + x];
          let word = 255;
          for (let k = 2; k >= 0; k--) word = (word << 8) | (ground[k] + (colors[0][k] - ground[k]) * a + (colors[1][k] - ground[k]) * b + (colors[2][k] - ground[k]) * c);
          words[i * pixels + first + x] = word;
        }
      };
      rows.forEach((row, i) => splitView(state, row, left, width).forEach((part) => drawPart(row, i, part)));
      context.putImageData(picture, 0, 0);
      thin = { key, image };
      images.set(side, thin);
    }
    g.imageSmoothingEnabled = false;
    g.drawImage(thin.image, 0, 0, pixels, rows.length, left, y, width - left, h * rows.length);
    if (h < 6) return;
    g.fillStyle = ink.page;
    for (let i = 1; i < rows.length; i++) g.fillRect(left, y + i * h - 0.5, width - left, 1);
  }
  /** Draws thin rows from `y` on, and returns where they are. In a comparison, they are those of one side. */
  function drawHeat(g: CanvasRenderingContext2D, view: View, rows: number[], y: number, h: number): Place[] {
    setFont(g, 11, 600);
    g.fillStyle = ink.ink;
    if (COMPARISON) writeText(g, data.nameSide(rows[0]), 2, y + 6, view.left - 4);
    else writeText(g, data.labelRow(state.focus), 2, 8.5, view.left - 4);
    setFont(g, 10.5);
    g.fillStyle = ink.quiet;
    const all = (COMPARISON ? listSide(data, state.rows, data.head.rows[rows[0]].side) : state.rows).length;
    const slowest = COMPARISON ? MOST_THIN / 4 : MOST_THIN / 2;
    const worst = COMPARISON ? nameWorst(data, rows) : "";
    const which = rows.length < all ? `the ${slowest} slowest of ${formatCount(all)} rows and ${rows.length - slowest} of the others` : `all ${all} rows`;
    const facts = [`${which}, ${state.order === "late" ? "slowest first" : "by rank"}`, `red at the left: own work above the median${worst}`, `click, or ↑ ↓, to bring one up${COMPARISON ? " with its partner" : ""}`];
    while (facts.length > 1 && g.measureText(facts.join(" · ")).width > view.width - view.left) facts.pop();
    writeText(g, facts.join(" · "), view.left, y + 6, view.width - view.left);
    const top = y + 16;
    drawThinRows(g, view, rows, top, h);
    // Both sides of a comparison have one scale.
    const most = (COMPARISON ? state.rows : rows).reduce((top, row) => Math.max(top, data.getBeyond(row)), 1);
    const room = view.left > 70 ? 34 : 8;
    g.fillStyle = ink.pin;
    rows.forEach((row, i) => {
      const share = data.getBeyond(row) / most;
      if (share > 0.02) g.fillRect(view.left - 6 - share * room, top + i * h, share * room, Math.max(1, h - 0.5));
    });
    const name = (row: number): string => (COMPARISON ? nameInHeat(data, row) : data.labelRow(row));
    const shorten = (row: number): string => (view.left > 70 ? name(row) : name(row).replace("rank ", ""));
    const at = rows.findIndex((row) => (COMPARISON ? state.pair?.includes(row) : row === state.focus));
    if (at >= 0) {
      for (const [color, wide] of [
        [ink.page, 3],
        [ink.ink, 1],
      ] as const) {
        g.strokeStyle = color;
        g.lineWidth = wide;
        g.strokeRect(view.left - 1, top + at * h - 1.5, view.width - view.left + 4, h + 3);
      }
      g.lineWidth = 1;
      g.fillStyle = ink.accent;
      setFont(g, 10.5, 600);
      writeText(g, shorten(rows[at]), 2, Math.max(top + 5, top + (at + 0.5) * h), view.left - room - 4);
    }
    setFont(g, 10);
    g.fillStyle = ink.quiet;
    const every = Math.ceil((rows.length > 20 ? 28 : 12) / h);
    rows.forEach((row, i) => {
      if (i % every === 0 && (at < 0 || Math.abs(i - at) * h > 11)) writeText(g, shorten(row), 2, top + (i + 0.5) * h, view.left - room - 4);
    });
    setFont(g, 11);
    return rows.map((row, i) => ({ row, lane: "thin", y: top + i * h, h, part: 0 }));
  }
  return { listOrder, drawHeat };
}
