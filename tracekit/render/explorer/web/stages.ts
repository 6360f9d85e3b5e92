// Stages of logs: their lines have the length of each stage, and nothing of devices.
import type { Data, Step } from "./data";
import { formatCount, formatShare, formatTime } from "./format";
import { describeNumbers, type Page } from "./scope";
import { find, type Parts } from "./shell";
import { type Column, hasStep, listWindows, make, makeButton, makeTable, type Scope } from "./tables";
import { getStageColor, ink, prepareCanvas, setFont, showTip, watchSize, writeText } from "./theme";

const FIRST_STAGES = 10;
const CHART = 180;
/** Of more logs, one chart has the steps of all. */
const MOST_CHARTS = 6;

/** A stage in the counted part: its time in all, the steps that have it, and the longest of them. */
export interface StageTime {
  name: number;
  ns: number;
  steps: number;
  most: number;
  longest: number | null;
}
export interface StageTimes {
  lines: StageTime[];
  /** Steps that are counted, in whole or in part, and their time. */
  steps: number;
  ns: number;
}

/** Adds up stages by name in a scope: whole steps as the log has them, a window clipped to it. */
export function countStages(data: Data, scope: Scope, rows: Set<number>): StageTimes {
  const lines = new Map<number, StageTime & { seen: Set<string> }>();
  const result: StageTimes = { lines: [], steps: 0, ns: 0 };
  for (const row of rows) {
    const { steps, ranges } = data.rows[row];
    const windows = listWindows(data, scope, row);
    const clip = (start: number, end: number): number => windows.reduce((sum, [t0, t1]) => sum + Math.max(0, Math.min(end, t1) - Math.max(start, t0)), 0);
    for (const step of steps) {
      const ns = clip(step.start, step.end);
      if (ns > 0) result.steps++;
      result.ns += ns;
    }
    for (const range of ranges[0]) {
      const step: Step | undefined = steps[range.step];
      if (!isCounted(scope, row, range.id, step)) continue;
      const ns = scope.kind === "window" ? clip(range.start, range.end) : range.end - range.start;
      if (ns <= 0) continue;
      const line = lines.get(range.name) ?? { name: range.name, ns: 0, steps: 0, most: 0, longest: null, seen: new Set() };
      line.ns += ns;
      line.seen.add(`${row},${range.step}`);
      if (ns > line.most) [line.most, line.longest] = [ns, step?.number ?? null];
      lines.set(range.name, line);
    }
  }
  result.lines = [...lines.values()].map(({ seen, ...line }) => ({ ...line, steps: seen.size })).sort((a, b) => b.ns - a.ns);
  return result;
}
function isCounted(scope: Scope, row: number, range: number, step: Step | undefined): boolean {
  if (scope.kind === "stages") return scope.ranges.has(range);
  if (scope.kind === "steps") return hasStep(scope, row, step);
  return scope.kind !== "counted" || (step?.counted ?? false);
}

/** Time of the longest step of rows, or of its stages if they take longer. */
function measureHighest({ data }: Page, rows: number[]): number {
  const ends = rows.flatMap((row) => {
    const stages = new Map<number, number>();
    for (const { step, start, end } of data.rows[row].ranges[0]) stages.set(step, (stages.get(step) ?? 0) + end - start);
    return data.rows[row].steps.map(({ index, start, end }) => Math.max(end - start, stages.get(index) ?? 0));
  });
  return ends.reduce((most, ns) => Math.max(most, ns), 1);
}
/** One bar per step, as high as the step is long; stages from the bottom in the order of the log, the rest is in no timer. */
function makeStageChart(page: Page, rows: number[], high = measureHighest(page, rows)): HTMLCanvasElement {
  const { data, state, timeline } = page;
  const canvas = make("canvas", "stages");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Stages of each step${COMPARISON ? ` of ${data.nameSide(rows[0])}` : ""}, one bar per step; the table below has their times.`);
  const steps = rows.flatMap((row) => data.rows[row].steps.map((step) => ({ row, step })));
  const stacks = steps.map(({ row, step }) => data.rows[row].ranges[0].filter((range) => range.step === step.index));
  const left = 60;
  let wide = 1;
  const draw = (): void => {
    const { g, width } = prepareCanvas(canvas, CHART + 18);
    wide = Math.min(60, (width - left) / steps.length);
    setFont(g, 10);
    g.fillStyle = ink.quiet;
    writeText(g, formatTime(high), 2, 8, left - 6);
    writeText(g, "0", 2, CHART - 4, left - 6);
    const every = Math.ceil(26 / wide);
    steps.forEach(({ step }, i) => {
      const x = left + i * wide;
      const bar = Math.max(1, wide - (wide > 3 ? 1 : 0));
      g.fillStyle = ink.lane;
      g.fillRect(x, CHART * (1 - (step.end - step.start) / high), bar, (CHART * (step.end - step.start)) / high);
      let sum = 0;
      for (const { start, end, name } of stacks[i]) {
        g.fillStyle = getStageColor(data.names[name]);
        sum += end - start;
        g.fillRect(x, CHART * (1 - sum / high), bar, (CHART * (end - start)) / high);
      }
      g.fillStyle = ink.quiet;
      if (i % every === 0) writeText(g, String(step.number ?? ""), x, CHART + 10, wide * every);
    });
  };
  const findBar = (event: MouseEvent): number => Math.floor((event.offsetX - left) / wide);
  canvas.onpointermove = (event) => {
    const at = steps[findBar(event)];
    const parts = at && stacks[findBar(event)].slice().sort((a, b) => b.end - b.start - (a.end - a.start));
    showTip(canvas, event.offsetX, event.offsetY, at && `${at.step.number === null ? "step" : describeNumbers(new Set([at.step.number]))} · ${formatTime(at.step.end - at.step.start, 4)}: ${parts.slice(0, 5).map(({ name, start, end }) => `${data.names[name]} ${formatTime(end - start)}`).join(", ")}`);
  };
  canvas.onpointerleave = () => showTip(canvas);
  canvas.onclick = (event) => {
    const at = steps[findBar(event)];
    if (at?.step.number == null) return;
    if (COMPARISON) state.focus = at.row;
    timeline.selectSteps([at.step.number]);
  };
  watchSize(canvas, draw);
  queueMicrotask(draw);
  return canvas;
}

/** A chart for each row, as high as the longest step of all. */
export function makeStageCharts(page: Page, rows: number[]): HTMLElement {
  const high = measureHighest(page, rows);
  const charts = make("div", "two");
  for (const row of rows) {
    const box = make("div");
    box.append(make("h3", "", `Stages by step, ${page.data.nameRow(row)}`), makeStageChart(page, [row], high));
    charts.append(box);
  }
  return charts;
}

export function makeStages(page: Page) {
  const { data, head, state, timeline } = page;
  const color = (name: string): string => getStageColor(name);
  const count = (): StageTimes => countStages(data, page.getScope(), page.getRows());

  /** Table of the stages; without a selection that of the report, which leaves out the first steps. */
  function drawStages(): void {
    const title = make("h2", "", "Stages of the step ");
    title.id = "top-title";
    const { overview } = head;
    if (overview && !state.selection) {
      const hours = overview.rows.some(([, , , h]) => h !== null);
      type Row = NonNullable<typeof overview>["rows"][number];
      const columns: Column<Row>[] = [
        { title: "stage", get: ([name]) => name, chip: ([name]) => color(name), full: ([, , , , how]) => how },
        { title: "per step", get: ([, ns]) => ns, show: (v) => formatTime(v), bar: ([name]) => color(name) },
        { title: "share", get: ([, , share]) => share, show: formatShare },
        ...(hours ? [{ title: "GPU-hours", get: ([, , , h]: Row) => h ?? 0, show: (v: number, [, , , h]: Row) => (h === null ? "–" : v.toFixed(2)) }] : []),
        { title: "note", get: ([, , , , how]) => how },
      ];
      const table = makeTable(columns, overview.rows, { name: "Stages of the step", by: -1, limit: FIRST_STAGES, note: overview.caption, csv: true, pick: ([name]) => page.search(name) });
      find("top").replaceChildren(title, table);
      return;
    }
    title.append(make("span", "quiet", page.describeScope()));
    if (state.selection) title.append(makeButton("clear selection", timeline.clear, "link"));
    find("top").replaceChildren(title, makeStageTimes(count(), "Stages of the selection"));
  }
  function makeStageTimes({ lines, steps, ns }: StageTimes, name: string): HTMLElement {
    const text = (line: StageTime): string => data.names[line.name];
    const reported = getReported();
    const findReported = (line: StageTime) => reported?.find(([stage]) => stage === text(line));
    const getMean = (line: StageTime): number => findReported(line)?.[1] ?? line.ns / (steps || 1);
    const getShare = (line: StageTime): number => findReported(line)?.[2] ?? line.ns / (ns || 1);
    // Timers that are nested in others, or run beside the step.
    const others = lines.filter((line) => !findReported(line));
    const columns: Column<StageTime>[] = [
      { title: "stage", get: text, chip: (line) => color(text(line)) },
      { title: "per step", get: getMean, show: (v) => formatTime(v), bar: (line) => color(text(line)) },
      { title: "share", get: getShare, show: formatShare },
      { title: "steps", get: (line) => line.steps, show: formatCount },
      { title: "longest", get: (line) => line.most, show: (v, line) => `${formatTime(v)}${line.longest === null ? "" : ` in step ${line.longest}`}` },
    ];
    const beyond = lines.reduce((sum, line) => sum + line.ns, 0) > ns ? " Shares are of the steps' own timers; a stage between steps is in none, so the sum exceeds 100\u00a0%." : "";
    const note = reported ? `${head.overview!.caption}${others.map((line) => ` ${text(line)}: mean of all steps.`).join("")} The last two columns are of all steps. Selected steps count by their own timers.` : `Exact, of the log: ${formatCount(steps)} ${steps === 1 ? "step" : "steps"}, ${formatTime(ns, 4)}.${beyond}`;
    return makeTable(columns, lines, { name, by: 1, limit: 12, csv: true, note, pick: (line) => page.search(text(line)) });
  }

  function makeStageTab(): Parts {
    const times = count();
    const rows = [...page.getRows()];
    const steps = rows.flatMap((row) => data.rows[row].steps.map((step) => ({ row, step })));
    const [top] = times.lines;
    if (!top || !steps.length) return [make("p", "answer", "The log has no timed stage here.")];
    const longest = steps.reduce((most, one) => (one.step.end - one.step.start > most.step.end - most.step.start ? one : most)).step;
    const where = longest.number === null ? "" : `, step ${longest.number}`;
    const answer = `${describeTop(times)} The longest step of the log takes ${formatTime(longest.end - longest.start, 4)} by its own timer${where}.`;
    const charts = rows.length > 1 && rows.length <= MOST_CHARTS ? [makeStageCharts(page, rows)] : [make("h3", "", "Stages by step"), makeStageChart(page, rows)];
    return [make("p", "answer", answer), ...charts, makeStageTimes(times, "Stages")];
  }
  /** The longest stage: by the table of the report where that is shown, so that it says the same as the answer of the page. */
  function describeTop(times: StageTimes): string {
    const reported = getReported()?.[0];
    if (reported) return `${reported[0]} takes ${formatShare(reported[2])} of a step on average, ${formatTime(reported[1])}.`;
    const [top] = times.lines;
    return `${data.names[top.name]} takes ${formatShare(top.ns / (times.ns || 1))} of ${times.steps === 1 ? "the step" : `${formatCount(times.steps)} steps`}.`;
  }
  /** Stages of the report with their mean and share of the wall time, longest first; undefined for several logs, or a selection. */
  function getReported(): NonNullable<typeof head.overview>["rows"] | undefined {
    if (state.selection) return;
    const known = new Set(data.ranges.map((range) => data.names[range.name]));
    return head.overview?.rows.filter(([name]) => known.has(name));
  }
  return { drawStages, makeStageTab };
}
