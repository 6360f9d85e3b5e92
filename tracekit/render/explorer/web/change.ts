// A comparison: parts of the change as a waterfall and an icicle, kernels of both sides, and the tables of the report.
import type { Part, StageChange } from "./data";
import { formatBytes, formatCount, formatTime, shortenName } from "./format";
import { buildTree, makeFlame, type Node } from "./flame";
import type { Page } from "./scope";
import { isMatchedByNumber, matchSteps } from "./align";
import { capitalize, find, type Parts, type Tab } from "./shell";
import { type Column, countKernels, groupWork, hasStep, listSheets, make, makeButton, makeChip, makeSheet, makeTable, type Work } from "./tables";
import { getKindColor, getStageColor, isStage, soften } from "./theme";

const MOST_BARS = 9;
const FIRST_KERNELS = 9;
const FIRST_ROWS = 12;
/** Parts of ns and of bytes that are due to rounding are no part of the change. */
const ROUNDING = 0.5;

/** A kernel on both sides, per step. */
interface KernelChange {
  name: number;
  kind: number;
  base: number;
  opt: number;
  calls: [base: number, opt: number];
}
/** A bar of the waterfall: from one amount to another. */
export interface Bar {
  name: string;
  from: number;
  to: number;
  low: number | null;
  high: number | null;
  part: Part | null;
  parts: number;
}

/** Formats a change with its sign. */
export function formatChange(change: number, digits = 3, format: (size: number, digits?: number) => string = formatTime): string {
  return `${change > 0 ? "+" : change < 0 ? "−" : "±"}${format(Math.abs(change), digits)}`;
}
const sum = (parts: Part[], get: (part: Part) => number): number => parts.reduce((total, part) => total + get(part), 0);

/** Adds up parts that have the same name, the largest change first. An interval is kept where a name has one part. */
export function groupParts(parts: Part[], getName: (part: Part) => string): { name: string; difference: number; low: number | null; high: number | null; parts: Part[] }[] {
  const groups = new Map<string, Part[]>();
  for (const part of parts) groups.set(getName(part), [...(groups.get(getName(part)) ?? []), part]);
  return [...groups]
    .map(([name, of]) => ({ name, difference: sum(of, (part) => part.difference), low: of.length > 1 ? null : of[0].low, high: of.length > 1 ? null : of[0].high, parts: of }))
    .sort((a, b) => Math.abs(b.difference) - Math.abs(a.difference));
}

/**
 * Bars from the amount before to the amount after: the largest changes one by one, then all others in one bar, then what no
 * part explains.
 */
export function makeBars(start: number, groups: ReturnType<typeof groupParts>, end: number | null = null, most = MOST_BARS): Bar[] {
  const changed = groups.filter(({ difference }) => difference !== 0);
  const bars: Bar[] = [];
  let at = start;
  const add = (name: string, difference: number, rest: Omit<Bar, "name" | "from" | "to">): void => {
    bars.push({ name, from: at, to: at + difference, ...rest });
    at += difference;
  };
  const shown = changed.length > most + 1 ? most : changed.length;
  for (const { name, difference, low, high, parts } of changed.slice(0, shown)) add(name, difference, { low, high, part: parts[0], parts: parts.length });
  const others = changed.slice(shown);
  const rest = { low: null, high: null, part: null };
  if (others.length) add(`${others.length} others`, others.reduce((total, { difference }) => total + difference, 0), { ...rest, parts: others.length });
  if (end !== null && Math.abs(end - at) > ROUNDING) add("not attributed", end - at, { ...rest, parts: 0 });
  return bars;
}

export function makeChange(page: Page) {
  const { data, head, state, timeline, noun } = page;
  const { sides, unit, ends, parts, stages, overview, missing, sheets } = head.comparison!;
  const format = unit === "bytes" ? formatBytes : formatTime;
  const signed = (change: number, digits?: number): string => formatChange(change, digits, format);
  /** What the parts are parts of. */
  const whole = unit === "bytes" ? "memory" : "step";
  const known = parts.length > 0 && parts.every(({ base, opt }) => base !== null && opt !== null);
  const matching = make("p");
  const stageNames = groupParts(parts, ({ stage }) => stage).map(({ name }) => name);
  let open: string | null = stageNames.length > 1 ? null : (stageNames[0] ?? null);
  const color = (change: number): string => (change > 0 ? getKindColor(1) : getKindColor(0));
  const nameStage = (stage: string): string => stage || "rest of the step";
  const nameLeaf = ({ path, stage }: Part): string => (path.length ? shortenName(path[path.length - 1]) : nameStage(stage));
  const findLeaf = (part: Part): void => {
    const name = part.path[part.path.length - 1] ?? "";
    if (data.names.includes(name)) page.search(nameLeaf(part));
    else timeline.say(`${nameLeaf(part)} is not a kernel or a call on the timeline.`);
  };

  /** Goes to the longest run of a stage in a counted step, on both sides. */
  function goToStage(name: string): void {
    const row = state.pair?.[0] ?? state.focus;
    const ranges = data.rows[row].ranges[0].filter((range) => data.names[range.name] === name && data.rows[row].steps[range.step]?.counted);
    const [longest] = ranges.sort((a, b) => b.end - b.start - (a.end - a.start));
    if (!longest) return;
    timeline.selectStage(longest.id);
    timeline.jump(row, longest.start, longest.end, 0.8);
  }
  function openStage(name: string | null): void {
    open = name;
    state.mark = null;
    if (!head.rows.length) return drawParts();
    if (name !== null) goToStage(name);
    else timeline.clear();
    drawParts();
  }

  /** The interval of a change, or of the ratio that the report has for a stage. */
  function describeInterval({ name, low, high }: Bar): string {
    if (low !== null && high !== null) return `[${signed(low)}, ${signed(high)}]`;
    const stage = open === null ? stages.find(({ title }) => title === name) : undefined;
    return stage?.ratio && stage.low !== null && stage.high !== null ? `${stage.ratio.toFixed(2)}× [${stage.low.toFixed(2)}, ${stage.high.toFixed(2)}]` : "";
  }
  function makeBarRow(bar: Bar, least: number, most: number, isWhole: boolean, pick?: () => void): HTMLTableRowElement {
    const row = make("tr");
    const cell = make("td", "fall");
    const box = make("i", "bar-box");
    const [low, high] = isWhole ? [least, bar.to] : [Math.min(bar.from, bar.to), Math.max(bar.from, bar.to)];
    const place = (value: number): number => ((value - least) / (most - least || 1)) * 100;
    box.style.left = `${place(low)}%`;
    box.style.width = `${Math.max(0.4, place(high) - place(low))}%`;
    box.style.background = isWhole || !bar.parts ? "var(--old)" : color(bar.to - bar.from);
    cell.append(box);
    const change = isWhole ? format(bar.to, 4) : signed(bar.to - bar.from);
    const name = make("td", isWhole ? "whole" : "", bar.name);
    name.title = bar.name;
    if (!isWhole && isStage(bar.name)) {
      name.className = "chipped";
      name.prepend(makeChip(getStageColor(bar.name)));
    }
    row.append(name, cell, make("td", isWhole ? "n whole" : "n", change), make("td", "n quiet", describeInterval(bar)));
    if (pick) {
      row.tabIndex = 0;
      row.className = "pick";
      row.onclick = pick;
      row.onkeydown = (event) => {
        if (event.key === "Enter") pick();
      };
    }
    return row;
  }
  /** The first table of the report, where the change has no parts. */
  function drawOverview(): void {
    const title = make("h2", "", overview?.title || "What the sides have in common");
    title.id = "issues-title";
    const why = missing.length ? [make("p", "foot quiet", `No parts of the change: ${missing.join("; ")}.`)] : [];
    find("issues").replaceChildren(title, ...(overview ? [makeSheet(overview, FIRST_ROWS)] : []), ...why);
  }
  /** Without kernels, the first table of the report has the place beside the parts. */
  function drawBeside(): void {
    if (!parts.length || !overview) return find("issues").parentElement!.classList.add("alone");
    find("top").replaceChildren(make("h2", "", overview.title), makeSheet({ ...overview, note: capitalize(overview.note) }, FIRST_ROWS));
    find("top").hidden = false;
  }
  /** The waterfall by stage, or by kernel inside one stage; its bars add up to the change. */
  function drawParts(): void {
    if (!parts.length) return drawOverview();
    const title = make("h2", "", open === null || stageNames.length < 2 ? "Where the change came from " : `Where the change of ${nameStage(open)} came from `);
    title.id = "issues-title";
    const inside = open === null ? parts : parts.filter(({ stage }) => stage === open);
    const isAll = open === null || stageNames.length < 2;
    const groups = open === null ? groupParts(inside, ({ stage }) => nameStage(stage)) : groupParts(inside, nameLeaf);
    const start = isAll && ends ? ends[0] : known ? sum(inside, (part) => part.base ?? 0) : 0;
    const bars = makeBars(start, groups, isAll && ends ? ends[1] : null);
    const end = bars.length ? bars[bars.length - 1].to : start;
    title.append(make("span", "quiet", `${signed(end - start, 4)}${unit === "ns" ? " per step" : ""}`));
    if (!isAll) title.append(makeButton("all stages", () => openStage(null), "link"));
    const amounts = [start, end, ...bars.flatMap(({ from, to }) => [from, to])];
    const [low, most] = [Math.min(...amounts), Math.max(...amounts)];
    const least = known || isAll ? Math.max(0, low - (most - low) * 0.35) : low;
    const what = isAll ? whole : nameStage(open!);
    const makeEnd = (side: number, to: number): Bar => ({ name: `${what}, ${sides[side]}`, from: 0, to, low: null, high: null, part: null, parts: 0 });
    const hasEnds = known || (isAll && ends !== null);
    const table = make("table", "waterfall");
    table.setAttribute("aria-label", "Parts of the change, from the amount before to the amount after");
    const titles = table.createTHead().insertRow();
    const hasIntervals = bars.some((bar) => describeInterval(bar));
    for (const [text, kind] of [["part", ""], ["", "fall"], ["change", "n"], [hasIntervals ? "confidence interval" : "", "n"]]) {
      if (!text && kind === "n") continue;
      const cell = make("th", kind, text || undefined);
      if (!text) cell.append(make("span", "unseen", "bar"));
      cell.scope = "col";
      titles.append(cell);
    }
    const body = table.createTBody();
    const add = (row: HTMLTableRowElement): void => {
      if (!hasIntervals) row.deleteCell(3);
      body.append(row);
    };
    if (hasEnds) add(makeBarRow(makeEnd(0, start), least, most, true));
    for (const bar of bars) {
      const { part } = bar;
      const pick = part && (open === null ? () => openStage(part.stage) : head.rows.length ? () => findLeaf(part) : null);
      add(makeBarRow(bar, least, most, false, pick ?? undefined));
    }
    if (hasEnds) add(makeBarRow(makeEnd(1, end), least, most, true));
    const scroll = make("div", "table");
    scroll.append(table);
    const notes = [
      open === null && stageNames.length > 1 ? "A click opens a stage." : "",
      bars.length ? `Blue: ${unit === "ns" ? "less time" : "less memory"} after; orange: more.` : "Nothing changed.",
      least > 0 && hasEnds ? "The bars do not begin at 0." : "",
      unit === "ns" ? capitalize(overview?.note ?? "") : "",
    ];
    find("issues").replaceChildren(title, scroll, make("p", "foot quiet", notes.filter(Boolean).join(" ")));
  }
  /** Opens the next stage of the waterfall, or one before. */
  function openNext(by: number): void {
    if (stageNames.length < 2) return;
    const at = open === null ? (by > 0 ? -1 : 0) : stageNames.indexOf(open);
    openStage(stageNames[(at + by + stageNames.length) % stageNames.length]);
  }

  // Kernels
  let changes: KernelChange[] = [];
  let named = 1;
  /** Counts the kernels of both sides: per step, mean over the processes of a side. */
  async function count(): Promise<void> {
    const scope = page.getScope();
    const rows = [...page.getRows()];
    const weigh = (row: number): number => {
      const { steps } = data.rows[row];
      const processes = new Set(rows.filter((other) => head.rows[other].side === head.rows[row].side).map((other) => head.rows[other].process));
      const inScope = steps.filter((step) => (scope.kind === "counted" ? step.counted : scope.kind === "steps" ? hasStep(scope, row, step) : true));
      const ranges = scope.kind === "stages" ? new Set(data.rows[row].ranges[0].filter(({ id }) => scope.ranges.has(id)).map(({ step }) => step)).size : 0;
      return 1 / ((scope.kind === "window" ? 1 : ranges || inScope.length || 1) * processes.size);
    };
    const counted = await Promise.all([0, 1].map((side) => countKernels(data, scope, new Set(rows.filter((row) => head.rows[row].side === side)), weigh)));
    const byKey = new Map<string, KernelChange>();
    counted.forEach(({ work }, side) => {
      for (const { name, kind, ns, count: calls } of groupWork(work, (w) => `${w.name},${w.kind}`)) {
        const key = `${name},${kind}`;
        const change = byKey.get(key) ?? { name, kind, base: 0, opt: 0, calls: [0, 0] };
        if (side) change.opt = ns;
        else change.base = ns;
        change.calls[side] = calls;
        byKey.set(key, change);
      }
    });
    changes = [...byKey.values()];
    named = Math.min(...counted.map((side) => side.named));
    page.counts = { work: counted.flatMap(({ work }): Work[] => work), named, exact: counted.every(({ exact }) => exact) };
  }
  const name = (row: KernelChange): string => (row.name < 0 ? `short ${noun}s, merged` : data.short[row.name]);
  const makeColumns = (): Column<KernelChange>[] => [
    { title: noun, get: name, chip: ({ kind }) => getKindColor(kind), full: (row) => data.names[row.name] ?? "" },
    { title: "before", get: ({ base }) => base, show: (v) => (v ? formatTime(v) : "–") },
    { title: "after", get: ({ opt }) => opt, show: (v) => (v ? formatTime(v) : "–") },
    { title: "change", get: ({ base, opt }) => opt - base, show: (v) => formatChange(v), bar: ({ base, opt }) => color(opt - base), size: true },
    { title: "calls", get: ({ calls }) => calls[1] - calls[0], show: (_, { calls }) => calls.map((n) => formatCount(n)).join(" → ") },
  ];
  const describe = (): string => `${page.describeScope()} · per step · ${page.describeExactness()}`;
  function drawKernels(): void {
    const title = make("h2", "", `${noun === "kernel" ? "Kernels" : "Operators"} by change `);
    title.append(make("span", "quiet", describe()));
    if (state.selection) title.append(makeButton("clear selection", timeline.clear, "link"));
    find("top").replaceChildren(title, makeTable(makeColumns(), changes, { name: "By change", by: 3, limit: FIRST_KERNELS, pick: (row) => page.search(name(row)) }));
  }

  // Tabs
  const tree = buildTree(
    parts.map(({ stage, path, difference }): [string[], number, number] => [unit === "bytes" ? path : [nameStage(stage), ...path.map(shortenName)], Math.abs(difference), difference]),
    `change of the ${whole}`,
  );
  /** Says a change in words, and its share of all changes. */
  function describeNode(node: Node): string {
    const size = node.change === 0 ? "no change" : `${format(Math.abs(node.change))} ${node.change < 0 ? "less" : "more"} after`;
    const moved = node.children.size && node.value > Math.abs(node.change) * 1.005 ? `, of parts that changed by ${format(node.value)}` : "";
    return `${size}${moved}`;
  }
  function makeChangeTab(): Parts {
    const [first] = groupParts(parts, nameLeaf);
    const answer = !first?.difference ? `No part of the ${whole} changed.` : `${first.name} changes the ${whole} most: ${signed(first.difference)} of ${signed(tree.change)}.`;
    // Shades by the share of the size that does not cancel out; the sign is also in the text.
    const fill = (node: Node): string => soften(color(node.change), 0.22 + 0.5 * Math.min(1, Math.abs(node.change) / (node.value || 1)));
    const chip = (node: Node): string | undefined => (node.depth === 1 && isStage(node.name) ? getStageColor(node.name) : undefined);
    const note = `As wide as the parts changed, ${format(tree.value)} in all, up or down: blue takes ${unit === "ns" ? "less time" : "less memory"} after, orange more, and pale boxes have parts of both. With their signs they add up to ${signed(tree.change, 4)}. A click, or arrow keys and Enter, zoom.`;
    const pick = (node: Node): void => {
      if (head.rows.length && node.depth > 1 && !node.children.size) page.search(node.name);
    };
    const title = unit === "bytes" ? "Change by allocation site" : "Change by stage, op and kernel";
    const flame = makeFlame(tree, { title, note, format, formatNode: (node) => signed(node.change), describeNode, color: fill, chip, pick });
    return [make("p", "answer", answer), ...(tree.value ? [flame] : []), ...(stages.length ? [makeStageTable()] : []), ...(first ? [makePartTable()] : [])];
  }
  function makeStageTable(): HTMLElement {
    const time = (v: number | null): string => (v === null ? "–" : formatTime(v, 4));
    const ratio = (v: number | null): string => (v === null ? "–" : `${v.toFixed(2)}×`);
    const columns: Column<StageChange>[] = [
      { title: "stage", get: (row) => row.title, chip: (row) => getStageColor(row.stage) },
      { title: "before", get: (row) => row.base ?? 0, show: (_, row) => time(row.base) },
      { title: "after", get: (row) => row.opt ?? 0, show: (_, row) => time(row.opt) },
      { title: "change", get: (row) => row.difference ?? 0, show: (_, row) => (row.difference === null ? "–" : formatChange(row.difference)) },
      { title: "before/after", get: (row) => row.ratio ?? 0, show: (_, row) => ratio(row.ratio) },
      { title: "CI", get: (row) => row.low ?? 0, show: (_, row) => (row.low === null ? "–" : `${ratio(row.low)} – ${ratio(row.high)}`) },
      { title: "verdict", get: (row) => row.word },
    ];
    return makeTable(columns, stages, { name: "Step and stages", by: 1, limit: 20, csv: true, note: "Means of the step and of its stages; before/after above 1 is faster.", pick: (row) => stageNames.includes(row.stage) && openStage(row.stage) });
  }
  function makePartTable(): HTMLElement {
    const columns: Column<Part>[] = [
      ...(unit === "ns" ? [{ title: "stage", get: ({ stage }: Part) => nameStage(stage), chip: ({ stage }: Part) => getStageColor(stage) }] : []),
      { title: unit === "ns" ? "op path and kernel" : "place in the program", get: ({ path }) => path.join(" › "), full: ({ path }) => path.join(" › ") },
      ...(known ? makeAmounts() : []),
      { title: "change", get: ({ difference }) => difference, show: (v) => signed(v), bar: ({ difference }) => color(difference), size: true },
      ...(parts.some(({ low }) => low !== null) ? [{ title: "CI", get: ({ low }: Part) => low ?? 0, show: (_: number, { low, high }: Part) => (low === null || high === null ? "–" : `[${signed(low)}, ${signed(high)}]`) }] : []),
    ];
    const by = columns.findIndex(({ size }) => size);
    return makeTable(columns, parts, { name: "Parts of the change", by, limit: FIRST_ROWS, csv: true, ...(head.rows.length ? { pick: findLeaf } : {}) });
  }
  const makeAmounts = (): Column<Part>[] => [
    { title: "before", get: ({ base }) => base ?? 0, show: (v) => format(v) },
    { title: "after", get: ({ opt }) => opt ?? 0, show: (v) => format(v) },
  ];
  function makeKernelTab(): Parts {
    const faster = changes.filter(({ base, opt }) => opt < base).length;
    const answer = `${formatCount(faster)} of ${formatCount(changes.length)} ${noun}s take less time per step after.`;
    return [make("p", "answer", answer), makeTable(makeColumns(), changes, { name: `All ${noun}s`, by: 3, limit: 25, csv: true, note: describe(), pick: (row) => page.search(name(row)) })];
  }
  const tabs: Tab[] = [
    ...(parts.length ? [{ id: "change", title: "Change", build: makeChangeTab }] : []),
    ...(!LOGS && head.rows.length ? [{ id: "kernels", title: noun === "kernel" ? "Kernels" : "Operators", build: makeKernelTab }] : []),
  ];
  const sheetTab: Tab = { id: "tables", title: "All tables", build: () => listSheets(sheets, !parts.length) };

  /** Says which steps of both sides belong together, where their numbers differ. */
  function drawMatching(): void {
    const { pair } = state;
    const [step] = pair && !isMatchedByNumber(data, ...pair) ? matchSteps(data, ...pair) : [];
    const names = pair && step?.map((index, side) => data.rows[pair[side]].steps[index].number ?? index + 1);
    const text = names ? `Note: the numbers of the steps differ, so steps are compared by order: step ${names[0]} of ${sides[0]} with step ${names[1]} of ${sides[1]}, and so on.` : "";
    matching.textContent = text;
    if (text) find("basis").append(matching);
    else matching.remove();
  }
  return { count, list: () => changes, drawParts, drawBeside, drawMatching, drawKernels, openNext, tabs, sheetTab, openStage, tree };
}
