// An icicle of weighted paths: root on top, a click zooms. Used for idle time, device time and memory.
import { formatShare } from "./format";
import { getCallColor, getTextColor, ink, prepareCanvas, showTip, watchSize, writeText } from "./theme";
import { make } from "./tables";

export interface Node {
  name: string;
  value: number;
  /** Sum with signs, where the value is the sum of sizes. */
  change: number;
  depth: number;
  parent: Node | null;
  children: Map<string, Node>;
}

/** Adds up weighted paths, outermost name first. */
export function buildTree(paths: Iterable<[names: string[], value: number, change?: number]>, root: string): Node {
  const top: Node = { name: root, value: 0, change: 0, depth: 0, parent: null, children: new Map() };
  for (const [names, value, change = value] of paths) {
    let node = top;
    node.value += value;
    node.change += change;
    for (const name of names) {
      let child = node.children.get(name);
      if (!child) {
        child = { name, value: 0, change: 0, depth: node.depth + 1, parent: node, children: new Map() };
        node.children.set(name, child);
      }
      child.value += value;
      child.change += change;
      node = child;
    }
  }
  return top;
}

export interface FlameOptions {
  title: string;
  note: string;
  format: (value: number) => string;
  /** Formats a node where its value is not what it says. */
  formatNode?: (node: Node) => string;
  /** Says a node in the line of details and to screen readers, where its value is not what it says. */
  describeNode?: (node: Node) => string;
  color?: (node: Node) => string | undefined;
  /** Color of a mark at the left of a box. */
  chip?: (node: Node) => string | undefined;
  pick?: (node: Node) => void;
}

const ROW = 20;
const MOST_ROWS = 30;

const sortChildren = (node: Node): Node[] => [...node.children.values()].sort((a, b) => b.value - a.value);

/** Builds an icicle with its title, search field and line of details. */
export function makeFlame(root: Node, options: FlameOptions): HTMLElement {
  const box = make("div", "flame-box");
  const bar = make("div", "bar");
  const field = make("input");
  const matches = make("span", "quiet");
  const canvas = make("canvas", "flame");
  const line = make("p", "quiet line", options.note);
  const level = make("ul", "unseen");
  field.type = "search";
  field.placeholder = "Find in this graph";
  field.setAttribute("aria-label", `Find in: ${options.title}`);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", `${options.title}. Arrow keys move, Escape shows all.`);
  line.setAttribute("aria-live", "polite");
  level.setAttribute("aria-label", `${options.title}: this level`);
  bar.append(make("h3", "", options.title), field, matches);
  box.append(bar, canvas, line, level);

  let zoom = root;
  let query = "";
  let boxes: { node: Node; x: number; y: number; width: number }[] = [];

  const listChain = (node: Node): Node[] => (node.parent ? [...listChain(node.parent), node] : [node]);
  const share = (node: Node): string => formatShare(root.value ? node.value / root.value : 0);
  const tell = (node: Node): string => (COMPARISON && options.formatNode?.(node)) || options.format(node.value);
  const describe = (node: Node): string => {
    const names = listChain(node).slice(1);
    return `${names.map(({ name }) => name).join(" › ") || node.name} · ${(COMPARISON && options.describeNode?.(node)) || `${tell(node)} · ${share(node)}`}`;
  };
  const isMatch = (node: Node): boolean => query !== "" && node.name.toLowerCase().includes(query);
  const countRows = (node: Node, rows: number): number => {
    let deepest = rows;
    if (rows < MOST_ROWS) for (const child of node.children.values()) if (child.value > zoom.value * 0.004) deepest = Math.max(deepest, countRows(child, rows + 1));
    return deepest;
  };

  function drawBox(g: CanvasRenderingContext2D, node: Node, x: number, y: number, width: number, above: boolean): void {
    const match = isMatch(node);
    const fill = match ? ink.accent : node.parent ? (options.color?.(node) ?? getCallColor(node.name)) : ink.line;
    g.globalAlpha = query && !match ? 0.3 : above ? 0.6 : 1;
    g.fillStyle = fill;
    g.fillRect(x, y, Math.max(0.5, width - (width > 3 ? 1 : 0)), ROW - 1.5);
    const chip = COMPARISON && width > 20 ? options.chip?.(node) : undefined;
    const left = COMPARISON && chip ? 16 : 5;
    if (COMPARISON && chip) {
      g.fillStyle = chip;
      g.fillRect(x + 3, y + 4, 9, ROW - 9.5);
    }
    g.globalAlpha = above ? 0.75 : 1;
    g.fillStyle = match ? ink.page : fill.startsWith("#") && node.parent ? getTextColor(fill) : ink.ink;
    const value = width > 190 ? `  ${tell(node)}${COMPARISON && options.formatNode ? "" : ` · ${share(node)}`}` : "";
    if (width > 30) writeText(g, node.name + value, x + left, y + ROW / 2, width - left - 5);
    boxes.push({ node, x, y, width });
  }

  function draw(): void {
    const above = listChain(zoom).slice(0, -1);
    const rows = Math.min(MOST_ROWS, countRows(zoom, above.length + 1));
    const { g, width } = prepareCanvas(canvas, rows * ROW + 2);
    boxes = [];
    let found = 0;
    above.forEach((node, i) => drawBox(g, node, 0, i * ROW, width, true));
    const walk = (node: Node, x: number, row: number, room: number, inside: boolean): void => {
      const match = isMatch(node);
      if (match && !inside) found += node.value;
      if (room > 0.6 && row < MOST_ROWS) drawBox(g, node, x, row * ROW, room, false);
      else if (!query) return;
      let at = x;
      for (const child of sortChildren(node)) {
        const wide = (child.value / node.value) * room;
        walk(child, at, row + 1, wide, inside || match);
        at += wide;
      }
    };
    walk(zoom, 0, above.length, width, false);
    g.globalAlpha = 1;
    matches.textContent = query ? `${formatShare(root.value ? found / root.value : 0)} of ${options.format(root.value)}` : "";
    level.replaceChildren(...[zoom, ...sortChildren(zoom).slice(0, 20)].map((node) => make("li", "", describe(node))));
  }

  function choose(node: Node): void {
    zoom = node;
    line.textContent = describe(node);
    draw();
    options.pick?.(node);
  }
  const findBox = (event: MouseEvent): Node | undefined => boxes.find((b) => event.offsetX >= b.x && event.offsetX < b.x + b.width && event.offsetY >= b.y && event.offsetY < b.y + ROW)?.node;
  canvas.onclick = (event) => {
    const node = findBox(event);
    if (node) choose(node);
  };
  canvas.onpointermove = (event) => {
    const node = findBox(event);
    showTip(canvas, event.offsetX, event.offsetY, node && describe(node));
  };
  canvas.onpointerleave = () => showTip(canvas);
  canvas.onkeydown = (event) => {
    const beside = (by: number): Node | undefined => {
      const siblings = zoom.parent ? sortChildren(zoom.parent) : [];
      return siblings[siblings.indexOf(zoom) + by];
    };
    const down = sortChildren(zoom)[0];
    const moves: Record<string, Node | null | undefined> = { ArrowDown: down, Enter: down, ArrowUp: zoom.parent, Escape: root, ArrowRight: beside(1), ArrowLeft: beside(-1) };
    const node = moves[event.key];
    if (!node) return;
    event.preventDefault();
    choose(node);
  };
  field.oninput = () => {
    query = field.value.trim().toLowerCase();
    draw();
  };
  watchSize(canvas, draw);
  // The canvas has a width only once it is in the page.
  queueMicrotask(draw);
  return box;
}
