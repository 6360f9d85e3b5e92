// A comparison: parts of the change as a waterfall and an icicle, kernels of both sides, and the tables of the report.
import type { Part, StageChange } from "./data";
import { formatCount, formatTime, shortenName } from "./format";
import { buildTree, makeFlame, type Node } from "./flame";
import type { Page } from "./scope";
import { find, type Parts, type Tab } from "./shell";
import { type Column, countKernels, groupWork, make, makeButton, makeChip, makeTable, type Work } from "./tables";
import { getKindColor, getStageColor, isStage, soften } from "./theme";

const MOST_BARS = 9;
const FIRST_KERNELS = 9;

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
export function formatChange(ns: number, digits = 3): string {
  return `${ns > 0 ? "+" : ns < 0 ? "−" : "±"}${formatTime(Math.abs(ns), digits)}`;
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

/** Bars from the time before to the time after: the largest changes one by one, then all others in one bar. */
export function makeBars(start: number, groups: ReturnType<typeof groupParts>, most = MOST_BARS): Bar[] {
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
  if (others.length) add(`${others.length} others`, others.reduce((total, { difference }) => total + difference, 0), { low: null, high: null, part: null, parts: others.length });
  return bars;
}

export function makeChange(page: Page) {
  const { data, head, state, timeline, noun } = page;
  const { sides, parts, stages, sheets, outcomes } = head.comparison!;
  const known = parts.length > 0 && parts.every(({ base, opt }) => base !== null && opt !== null);
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
    if (name !== null) goToStage(name);
    else timeline.clear();
    drawParts();
  }

  /** The interval of a change, or of the ratio that the report has for a stage. */
  function describeInterval({ name, low, high }: Bar): string {
    if (low !== null && high !== null) return `[${formatChange(low)}, ${formatChange(high)}]`;
    const stage = open === null ? stages.find(({ title }) => title === name) : undefined;
    return stage?.ratio && stage.low !== null && stage.high !== null ? `${stage.ratio.toFixed(2)}× [${stage.low.toFixed(2)}, ${stage.high.toFixed(2)}]` : "";
  }
  function makeBarRow(bar: Bar, least: number, most: number, whole: boolean, pick?: () => void): HTMLTableRowElement {
    const row = make("tr");
    const cell = make("td", "fall");
    const box = make("i", "bar-box");
    const [low, high] = whole ? [least, bar.to] : [Math.min(bar.from, bar.to), Math.max(bar.from, bar.to)];
    const place = (value: number): number => ((value - least) / (most - least || 1)) * 100;
    box.style.left = `${place(low)}%`;
    box.style.width = `${Math.max(0.4, place(high) - place(low))}%`;
    box.style.background = whole ? "var(--old)" : color(bar.to - bar.from);
    cell.append(box);
    const change = whole ? formatTime(bar.to, 4) : formatChange(bar.to - bar.from);
    const name = make("td", whole ? "whole" : "", bar.name);
    name.title = bar.name;
    if (!whole && isStage(bar.name)) name.prepend(makeChip(getStageColor(bar.name)));
    row.append(name, cell, make("td", whole ? "n whole" : "n", change), make("td", "n quiet", describeInterval(bar)));
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
  /** The waterfall by stage, or by kernel inside one stage; its bars add up to the change. */
  function drawParts(): void {
    const title = make("h2", "", open === null || stageNames.length < 2 ? "Where the change came from " : `Where the change of ${nameStage(open)} came from `);
    title.id = "issues-title";
    const box = find("issues");
    if (!parts.length) {
      box.replaceChildren(title, make("p", "quiet", "The change was not attributed to stages or kernels; the tables below say why."));
      return;
    }
    const inside = open === null ? parts : parts.filter(({ stage }) => stage === open);
    const groups = open === null ? groupParts(inside, ({ stage }) => nameStage(stage)) : groupParts(inside, nameLeaf);
    const change = sum(inside, ({ difference }) => difference);
    const step = stages[0];
    const start = known ? sum(inside, (part) => part.base ?? 0) : (step?.base ?? 0);
    title.append(make("span", "quiet", `${formatChange(change, 4)} per step`));
    if (open !== null && stageNames.length > 1) title.append(makeButton("all stages", () => openStage(null), "link"));
    const bars = makeBars(start, groups);
    const end = bars.length ? bars[bars.length - 1].to : start;
    const amounts = [start, end, ...bars.flatMap(({ from, to }) => [from, to])];
    const [low, most] = [Math.min(...amounts), Math.max(...amounts)];
    const least = Math.max(0, low - (most - low) * 0.35);
    const what = open === null || stageNames.length < 2 ? "step" : nameStage(open);
    const whole = (side: number, to: number): Bar => ({ name: `${what}, ${sides[side]}`, from: 0, to, low: null, high: null, part: null, parts: 0 });
    const table = make("table", "waterfall");
    table.setAttribute("aria-label", "Parts of the change, from the time before to the time after");
    const titles = table.createTHead().insertRow();
    for (const [text, kind] of [["part", ""], ["", "fall"], ["change", "n"], ["confidence interval", "n"]]) {
      const head = make("th", kind, text || undefined);
      if (!text) head.append(make("span", "unseen", "bar"));
      head.scope = "col";
      titles.append(head);
    }
    const body = table.createTBody();
    body.append(makeBarRow(whole(0, start), least, most, true));
    for (const bar of bars) {
      const { part } = bar;
      const pick = part && (open === null ? () => openStage(part.stage) : () => findLeaf(part));
      body.append(makeBarRow(bar, least, most, false, pick ?? undefined));
    }
    body.append(makeBarRow(whole(1, end), least, most, true));
    const scroll = make("div", "table");
    scroll.append(table);
    const note = `${least > 0 ? "The bars do not begin at 0. " : ""}Each instant of a step is counted once: the parts add up to the change.${open === null && stageNames.length > 1 ? " A click opens a stage." : ""}`;
    box.replaceChildren(title, scroll, make("p", "foot quiet", note));
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
      const inScope = steps.filter((step) => (scope.kind === "counted" ? step.counted : scope.kind === "steps" ? scope.numbers.has(step.number ?? -1) : true));
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
  function makeChangeTab(): Parts {
    const total = sum(parts, ({ difference }) => difference);
    const moved = sum(parts, ({ difference }) => Math.abs(difference));
    const [first] = groupParts(parts, nameLeaf);
    const answer = first?.difference ? `${first.name} changes the step most: ${formatChange(first.difference)} of ${formatChange(total)}.` : first ? "No part of the step changed." : "The change was not attributed.";
    const paths = parts.map(({ stage, path, difference }): [string[], number, number] => [[nameStage(stage), ...path.map(shortenName)], Math.abs(difference), difference]);
    const fill = (node: Node): string => (node.depth === 1 && isStage(node.name) ? getStageColor(node.name) : soften(color(node.change), 0.2 + 0.5 * Math.min(1, Math.abs(node.change) / (node.value || 1))));
    const note = `The width is the size of the change, ${formatTime(moved)} in all; blue parts take less time after, orange ones more. They add up to ${formatChange(total, 4)}.`;
    const pick = (node: Node): void => {
      if (node.depth > 1 && !node.children.size) page.search(node.name);
    };
    const flame = makeFlame(buildTree(paths, "change of the step"), { title: "Change by stage, op and kernel", note, format: formatTime, formatNode: (node) => formatChange(node.change), color: fill, pick });
    return [make("p", "answer", answer), ...(first ? [flame] : []), ...(stages.length ? [makeStageTable()] : []), ...(first ? [makePartTable()] : [])];
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
      { title: "stage", get: ({ stage }) => nameStage(stage), chip: ({ stage }) => getStageColor(stage) },
      { title: "op path and kernel", get: ({ path }) => path.join(" › "), full: ({ path }) => path.join(" › ") },
      { title: "before", get: ({ base }) => base ?? 0, show: (v) => formatTime(v) },
      { title: "after", get: ({ opt }) => opt ?? 0, show: (v) => formatTime(v) },
      { title: "change", get: ({ difference }) => difference, show: (v) => formatChange(v), bar: ({ difference }) => color(difference), size: true },
      { title: "CI", get: ({ low }) => low ?? 0, show: (_, { low, high }) => (low === null || high === null ? "–" : `[${formatChange(low)}, ${formatChange(high)}]`) },
    ];
    return makeTable(columns, parts, { name: "Parts of the change", by: 4, limit: 12, csv: true, pick: findLeaf });
  }
  function makeKernelTab(): Parts {
    const faster = changes.filter(({ base, opt }) => opt < base).length;
    const answer = `${formatCount(faster)} of ${formatCount(changes.length)} ${noun}s take less time per step after.`;
    return [make("p", "answer", answer), makeTable(makeColumns(), changes, { name: `All ${noun}s`, by: 3, limit: 25, csv: true, note: describe(), pick: (row) => page.search(name(row)) })];
  }
  function makeSheetTab(): Parts {
    return sheets.map(({ section, title, columns, rows, note }) => {
      const box = make("details");
      const head = columns.map(([text, numeric], i): Column<string[]> => ({ title: text, get: (row) => row[i], ...(numeric ? { text: true } : {}) }));
      box.append(make("summary", "", title === section ? title : `${section}: ${title}`));
      // A table is built when it is opened.
      box.ontoggle = () => box.childElementCount < 2 && box.append(makeTable(head, rows, { name: title, by: -1, limit: 100, note }));
      return box;
    });
  }
  const tabs: Tab[] = [
    { id: "change", title: "Change", build: makeChangeTab },
    { id: "kernels", title: noun === "kernel" ? "Kernels" : "Operators", build: makeKernelTab },
  ];
  const sheetTab: Tab = { id: "tables", title: "All tables", build: makeSheetTab };

  /** Says how each rule of the gate came out, beside the verdict. */
  function drawGate(): void {
    find("gate").replaceChildren(
      ...outcomes.map(([rule, , outcome]) => {
        const badge = make("span", /^(?:pass|accepted)/.test(outcome) ? "badge" : "badge failed", `${outcome}: ${rule}`);
        return badge;
      }),
    );
  }
  return { count, list: () => changes, drawParts, drawKernels, drawGate, openNext, tabs, sheetTab, openStage };
}
