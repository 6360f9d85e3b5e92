// Colors and canvas helpers. One color per meaning, the same in every chart.

const KINDS = {
  light: ["#0072b2", "#d55e00", "#009e73"],
  dark: ["#4aa8e0", "#f08a3c", "#2dbd92"],
};
const CAUSES: Record<string, [light: string, dark: string]> = {
  host_sync: ["#b3438c", "#e07bbd"],
  host_op: ["#7b61b8", "#a690e0"],
  host_none: ["#a99bd0", "#6f639c"],
  host_code: ["#5d4a9c", "#8a78d0"],
  host_gc: ["#7a3b5d", "#b56c90"],
  host_loader: ["#8a5a1c", "#c99550"],
  host_start_up: ["#c4bcae", "#5d584e"],
  host_overhead: ["#8d8d86", "#7d7d78"],
  host_silent: ["#4c4c4c", "#b8b8b8"],
  sync: ["#c9a227", "#d8b844"],
  kernel_wait: ["#c9c9c2", "#50565d"],
  other: ["#9c9c95", "#6b7077"],
  unknown: ["#b5b5ae", "#5b6067"],
  after_last: ["#dcdcd6", "#3a4047"],
};
/** Hues of stages, neighbors far apart. */
const HUES = [262, 24, 172, 330, 96, 208, 46, 290, 140, 4, 232, 70];
const SITES = {
  light: ["#4c78a8", "#f2a65a", "#72b7b2", "#c26fb0", "#9bbf5a", "#e07b6a", "#8d7fc7", "#d9b53f", "#5f9e77", "#b98b6a", "#7ea6d9"],
  dark: ["#5b8cc2", "#c98442", "#4f9b96", "#a65a97", "#7d9d45", "#bf6354", "#7467b0", "#b39432", "#4a8562", "#98704f", "#5f86b8"],
};
export const FONT = "system-ui, sans-serif";

type Ink = Record<"page" | "ink" | "quiet" | "line" | "lane" | "old" | "accent" | "pin", string>;
export const ink = {} as Ink;
let dark = false;
let printing = false;
const stages = new Map<string, number>();

/** Paper wants more pixels than a screen. */
export function setPrinting(on: boolean): void {
  printing = on;
}

export const isDark = (): boolean => dark;

/** Chooses light or dark; null follows the system. */
export function setTheme(wanted: string | null): void {
  dark = wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const style = getComputedStyle(document.documentElement);
  for (const key of ["page", "ink", "quiet", "line", "lane", "old", "accent", "pin"] as const) ink[key] = style.getPropertyValue(`--${key}`).trim();
}

/** Gives each stage its color, in order of appearance. */
export function assignStages(names: Iterable<string>): void {
  stages.clear();
  for (const name of names) if (!stages.has(name)) stages.set(name, stages.size);
}

/** Color of a stage: 12 hues; those after the twelfth repeat them in another shade. */
export function getStageColor(name: string, inner = false): string {
  const number = stages.get(name);
  if (number === undefined) return dark ? "#33383e" : "#e9e9e4";
  const hue = HUES[number % HUES.length];
  const turn = Math.floor(number / HUES.length) % 3;
  if (dark) return `hsl(${hue} ${34 - turn * 10}% ${(inner ? 23 : 31) + turn * 5}%)`;
  return `hsl(${hue} ${58 - turn * 14}% ${(inner ? 91 : 82) - turn * 6}%)`;
}

export const isStage = (name: string): boolean => stages.has(name);
export const getKindColor = (kind: number): string => KINDS[dark ? "dark" : "light"][Math.min(2, kind)];
export const getCauseColor = (cause: string): string => CAUSES[cause]?.[dark ? 1 : 0] ?? "#888888";
export const getSiteColor = (site: number): string => SITES[dark ? "dark" : "light"][site % 11];

export function splitColor(color: string): [number, number, number] {
  const v = parseInt(color.slice(1), 16);
  return [v >> 16, (v >> 8) & 255, v & 255];
}

/** A color with an opacity, for boxes behind text. */
export function soften(color: string, opacity: number): string {
  return `rgb(${splitColor(color).join(" ")} / ${opacity})`;
}

/** A shade of a color by number, to tell neighbors apart. */
export function shade(color: string, number: number): string {
  const amount = [0, 0.16, -0.1, 0.26, -0.18][Math.abs(number) % 5];
  const target = amount > 0 ? 255 : 0;
  return `rgb(${splitColor(color)
    .map((c) => Math.round(c + (target - c) * Math.abs(amount)))
    .join(",")})`;
}

/** Black or white, whichever has the higher contrast on a color. */
export function getTextColor(color: string): string {
  const [r, g, b] = splitColor(color);
  return r * 0.299 + g * 0.587 + b * 0.114 > 140 ? "#0d1114" : "#ffffff";
}

const SORTS: [RegExp, number][] = [
  [/^(?:cuda|cu[A-Z]|hip|nccl)/, 285],
  [/c10d|record_param_comms|all_?reduce|all_?gather|reduce_?scatter|broadcast/i, 28],
  [/Backward|autograd/, 155],
  [/\.py[:(]\d+|<module>/, 44],
  [/optim/i, 340],
];

function hashName(name: string): number {
  let hash = 2166136261;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  return hash >>> 8;
}

/** Color of a call: the hue by its sort, the lightness by its name. */
export function getCallColor(name: string): string {
  const hue = SORTS.find(([pattern]) => pattern.test(name))?.[1] ?? 208;
  const hash = hashName(name);
  return dark ? `hsl(${hue} ${20 + (hash % 12)}% ${27 + ((hash >> 5) % 14)}%)` : `hsl(${hue} ${32 + (hash % 16)}% ${77 + ((hash >> 5) % 12)}%)`;
}

export interface Surface {
  g: CanvasRenderingContext2D;
  width: number;
  height: number;
}

/** Prepares a canvas for drawing at the size of its box, cleared, in CSS pixels. */
export function prepareCanvas(canvas: HTMLCanvasElement, height: number): Surface {
  const ratio = printing ? 3 : Math.min(2, devicePixelRatio || 1);
  const width = canvas.clientWidth;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const g = canvas.getContext("2d")!;
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.textBaseline = "middle";
  setFont(g, 11);
  return { g, width, height };
}

export function setFont(g: CanvasRenderingContext2D, size: number, weight = 400): void {
  g.font = `${weight} ${size}px ${FONT}`;
}

/** Writes text that is cut to its room. */
export function writeText(g: CanvasRenderingContext2D, text: string, x: number, y: number, room: number): void {
  if (room < 18 || !text) return;
  let shown = text;
  let fit = text.length;
  while (fit > 0 && shown.length * 9 > room) {
    const width = g.measureText(shown).width;
    if (width <= room) break;
    fit = Math.floor((fit * room) / width) - 1;
    shown = `${text.slice(0, fit)}…`;
  }
  if (fit > 0) g.fillText(shown, x, y);
}

/** Shows the tooltip beside a point of a canvas; hides it without text. */
export function showTip(canvas: HTMLCanvasElement, x = 0, y = 0, text?: string): void {
  const tip = document.getElementById("tip")!;
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = canvas.getBoundingClientRect();
  const right = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(4, Math.min(right, box.left + x + 14))}px`;
  tip.style.top = `${box.top + scrollY + y + 18}px`;
}

let watched: { canvas: HTMLCanvasElement; draw: () => void }[] = [];

/** Draws a canvas again when its width changes, and whenever all are redrawn. */
export function watchSize(canvas: HTMLCanvasElement, draw: () => void): void {
  watched = watched.filter((other) => other.canvas.isConnected);
  watched.push({ canvas, draw });
  let last = canvas.clientWidth;
  new ResizeObserver(() => {
    if (canvas.clientWidth === last || !canvas.clientWidth) return;
    last = canvas.clientWidth;
    draw();
  }).observe(canvas);
}

export function redrawAll(): void {
  for (const { canvas, draw } of watched) if (canvas.clientWidth) draw();
}
