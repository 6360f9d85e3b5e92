// Tabs of a report: idle time and its gaps, kernels, ranks.
import { median, type Step } from "./data";
import { formatCount, formatShare, formatTime } from "./format";
import { buildTree, makeFlame, type Node } from "./flame";
import { describeNumbers, type Page } from "./scope";
import { capitalize, find, makeChooser, type Parts } from "./shell";
import { type Column, countGaps, groupWork, listWindows, make, makeTable, type Work } from "./tables";
import { getCallColor, getCauseColor, getKindColor, getStageColor, ink, isDark, isStage, prepareCanvas, setFont, showTip, soften, watchSize, writeText } from "./theme";

const MOST_GAPS = 300;
/** Names a gap without a host call by what runs around it. */
const shortenCall = (call: string): string => call.replace(/^\(nothing recorded, (.*)\)$/, "$1");
const MOST_HEAT_ROWS = 100;
const MEASURES: [title: string, get: (step: Step) => number][] = [
  ["compute", (step) => step.compute],
  ["step time", (step) => step.end - step.start],
  ["exposed communication", (step) => step.comm],
  ["idle", (step) => step.idle],
];

export function makeTabBuilders(page: Page) {
  const { data, head, state, timeline, noun, hasDevices, getScope, getRows, describeScope, describeExactness } = page;

  const nameWork = (name: number): string => (name < 0 ? `short ${noun}s, merged` : data.short[name]);
  const makeWorkColumns = (): Column<Work>[] => {
    const all = page.counts.work.reduce((sum, { ns }) => sum + ns, 0) || 1;
    return [
      { title: "time", get: (w) => w.ns, show: (v) => formatTime(v), bar: (w) => getKindColor(w.kind) },
      { title: "share", get: (w) => w.ns / all, show: formatShare },
      { title: "count", get: (w) => w.count, show: formatCount },
    ];
  };
  const nameColumn: Column<Work> = { title: noun, get: (w) => nameWork(w.name), chip: (w) => getKindColor(w.kind), full: (w) => data.names[w.name] ?? "" };

  // Gaps
  function goToGap(gap: number): void {
    const { row, start, length } = data.gaps!;
    timeline.jump(row[gap], start[gap], start[gap] + length[gap]);
    timeline.say(`${data.nameRow(row[gap])} · ${timeline.describeGap(gap)}`);
  }
  const isAfterLast = (segment: number): boolean => head.causes[data.gaps!.cause[segment]][0] === "after_last";
  function listGaps(visit: (segment: number, ns: number) => void, visitLast: (ns: number) => void = () => undefined): ReturnType<typeof countGaps> {
    const inside = countGaps(data, getScope(), getRows(), (segment, ns) => {
      if (isAfterLast(segment)) visitLast(ns);
      else visit(segment, ns);
    });
    return inside.filter(({ gap }) => !isAfterLast(data.gaps!.main[gap])).sort((a, b) => b.ns - a.ns);
  }
  function goToLongestGap(): void {
    const [longest] = data.gaps ? listGaps(() => undefined) : [];
    if (longest) goToGap(longest.gap);
    else timeline.say("No idle gap in the selection.");
  }

  /** Measures the rows with idle time: of a process without a device, only the main thread has gaps. */
  function measureScope(): { all: number; idle: number | null } {
    const scope = getScope();
    let all = 0;
    const isIn = (step: Step): boolean => (scope.kind === "counted" ? step.counted : scope.kind === "steps" && scope.numbers.has(step.number ?? -1));
    let idle = scope.kind === "steps" || scope.kind === "counted" ? 0 : null;
    for (const row of getRows()) {
      if (head.rows[row].kind === "thread" && !data.rows[row].gaps.length) continue;
      const [first, last] = data.getExtent(row);
      for (const [start, end] of listWindows(data, scope, row)) all += Math.max(0, Math.min(last, end) - Math.max(first, start));
      if (idle !== null) for (const step of data.rows[row].steps) if (isIn(step)) idle += step.idle;
    }
    return { all, idle };
  }
  function makeTimeTab(): Parts {
    const byCause = new Map<string, number>();
    const byPath = new Map<number, number>();
    const { length } = head.causes;
    let after = 0;
    const gaps = listGaps(
      (segment, ns) => {
        const key = (data.gaps!.path[segment] + 1) * length + data.gaps!.cause[segment];
        byPath.set(key, (byPath.get(key) ?? 0) + ns);
      },
      (ns) => (after += ns),
    );
    let named = 0;
    const paths = [...byPath].map(([key, ns]): [string[], number] => {
      const cause = head.causes[key % length][1];
      byCause.set(cause, (byCause.get(cause) ?? 0) + ns);
      named += ns;
      return [[...data.describePath(Math.floor(key / length) - 1), `‹${cause}›`], ns];
    });
    const { all, idle } = measureScope();
    const total = idle ?? named;
    const [top] = [...byCause].sort((a, b) => b[1] - a[1]);
    const subject = hasDevices ? "GPUs are idle" : "The main threads are idle (in no op, or waiting in one)";
    const answer = top ? `${subject} ${formatShare(all ? total / all : 0)} of the time (${formatTime(total)} in ${formatCount(gaps.length)} gaps). Main cause: ${top[0]}, ${formatShare(top[1] / (named || 1))}.` : "No idle gap is recorded here.";
    const [dropped, droppedNs] = head.dropped_gaps;
    const last = after > 0.005 * total ? ` Another ${formatTime(after)} is after the last ${noun} of the recording.` : "";
    const rest = total - named - after > 0.005 * total ? ` ${formatShare((named + after) / total)} of the idle time is in these gaps.` : "";
    const note = (dropped ? `Without ${formatCount(dropped)} gaps of at most ${formatTime(head.floor)} (${formatTime(droppedNs)} in total).` : "All gaps, by the call of the launching thread.") + last + rest;
    const causeKeys = new Map(head.causes.map(([key, title]) => [`‹${title}›`, key]));
    const color = ({ name }: Node): string | undefined => (causeKeys.has(name) ? getCauseColor(causeKeys.get(name)!) : isStage(name) ? getStageColor(name) : undefined);
    if (!gaps.length) return [make("p", "answer", answer), makeStageTable()];
    const two = make("div", "two");
    two.append(makeGapTable(gaps), makeStageTable());
    return [make("p", "answer", answer), makeFlame(buildTree(paths, "idle"), { title: hasDevices ? "GPU idle time by host call" : "Idle time by host call", note, format: formatTime, color }), two];
  }
  function makeSection(title: string, content: HTMLElement): HTMLElement {
    const box = make("div");
    box.append(make("h3", "", title), content);
    return box;
  }
  function makeGapTable(gaps: { gap: number; ns: number }[]): HTMLElement {
    const { cause, path, main, row } = data.gaps ?? { cause: [], path: [], main: [], row: [] };
    const columns: Column<{ gap: number; ns: number }>[] = [
      { title: "idle", get: ({ ns }) => ns, show: (v) => formatTime(v, 4), bar: ({ gap }) => getCauseColor(head.causes[cause[main[gap]]][0]) },
      { title: "main cause", get: ({ gap }) => head.causes[cause[main[gap]]][1] },
      { title: "host call", rest: true, get: ({ gap }) => shortenCall(data.describePath(path[main[gap]]).at(-1) ?? "nothing recorded"), full: ({ gap }) => data.describePath(path[main[gap]]).join(" › ") },
      { title: hasDevices ? "rank" : "row", get: ({ gap }) => data.labelRow(row[gap]), full: ({ gap }) => data.nameRow(row[gap]) },
    ];
    return makeSection("Longest idle gaps", makeTable(columns, gaps.slice(0, MOST_GAPS), { name: "Longest idle gaps", by: 0, limit: 8, csv: true, pick: ({ gap }) => goToGap(gap) }));
  }
  function makeStageTable(): HTMLElement {
    interface Line {
      stage: number;
      all: number;
      kinds: number[];
    }
    const lines = new Map<number, Line>();
    for (const { stage, kind, ns } of page.counts.work) {
      const line = lines.get(stage) ?? { stage, all: 0, kinds: [0, 0, 0] };
      line.all += ns;
      line.kinds[Math.min(2, kind)] += ns;
      lines.set(stage, line);
    }
    const total = [...lines.values()].reduce((sum, { all }) => sum + all, 0) || 1;
    const columns: Column<Line>[] = [
      { title: "stage", get: ({ stage }) => data.nameStage(stage), chip: ({ stage }) => getStageColor(data.nameStage(stage)) },
      ...["compute", "comm", "copies"].map((title, kind): Column<Line> => ({ title, get: ({ kinds }) => kinds[kind], show: (v) => (v ? formatTime(v) : "–") })),
      { title: "sum", get: ({ all }) => all, show: (v) => formatTime(v), bar: ({ stage }) => getStageColor(data.nameStage(stage)) },
      { title: "share", get: ({ all }) => all / total, show: formatShare },
    ];
    const note = getScope().kind === "window" ? "Device time in the window, by the stage that launched it." : "By the stage that launched the work.";
    return makeSection(hasDevices ? "Device time by stage" : "Operator time by stage", makeTable(columns, [...lines.values()], { name: "Time by stage", by: 4, limit: 12, csv: true, note, pick: ({ stage }) => stage >= 0 && page.search(data.names[stage]) }));
  }
  function makeKernelTab(): Parts {
    const byName = groupWork(page.counts.work, (w) => w.name).sort((a, b) => b.ns - a.ns);
    const all = byName.reduce((sum, { ns }) => sum + ns, 0) || 1;
    let most = 0;
    for (let sum = 0; most < byName.length && sum < 0.9 * all; most++) sum += byName[most].ns;
    const [first] = byName;
    const answer = first ? `${nameWork(first.name)} takes ${formatShare(first.ns / all)} of the ${hasDevices ? "device" : "operator"} time; ${most} of ${byName.length} ${noun}s take 90\u00a0%.` : `No ${noun} ran in the selection.`;
    const kinds = new Map(page.counts.work.map((w) => [nameWork(w.name), w.kind]));
    const color = (node: Node): string => (node.depth === 1 ? getStageColor(node.name) : node.children.size ? getCallColor(node.name) : soften(getKindColor(kinds.get(node.name) ?? 0), isDark() ? 0.55 : 0.42));
    const paths = page.counts.work.map((w): [string[], number] => [[data.nameStage(w.stage), ...data.describePath(w.path), nameWork(w.name)], w.ns]);
    const note = `${capitalize(describeScope())}, ${describeExactness()}. Durations are summed: overlapping work counts twice. ${head.plan ? "A share is not what a fix saves: see top issues for that." : ""}`.trim();
    const columns: Column<Work>[] = [
      nameColumn,
      { title: "stage", get: (w) => data.nameStage(w.stage), chip: (w) => getStageColor(data.nameStage(w.stage)) },
      { title: "launched by", get: (w) => data.describePath(w.path).at(-1) ?? "–" },
      ...makeWorkColumns(),
      { title: "mean", get: (w) => w.ns / w.count, show: (v) => formatTime(v) },
    ];
    return [
      make("p", "answer", answer),
      makeFlame(buildTree(paths, hasDevices ? "device time" : "operator time"), {
        title: `Time by stage, op and ${noun}`,
        note,
        format: formatTime,
        color,
        pick: (node) => {
          if (!node.children.size) page.search(node.name);
        },
      }),
      makeTable(columns, groupWork(page.counts.work, (w) => `${w.name},${w.stage},${data.describePath(w.path).at(-1)}`), { name: `All ${noun}s`, by: 3, limit: 15, csv: true, pick: (w) => page.search(nameWork(w.name)) }),
    ];
  }

  function makeRankTab(): Parts {
    const rows = state.rows.filter((row) => data.hasCompute(row));
    const worst = rows.slice().sort((a, b) => data.getLateness(b) - data.getLateness(a));
    const [first] = worst;
    const late = head.rows[first]?.late;
    const beyond = first === undefined ? 0 : data.getBeyond(first);
    const others = rows.filter((row) => row !== first && head.rows[row].role === head.rows[first].role && head.rows[row].run === head.rows[first].run);
    const name = first === undefined ? "" : data.labelRow(first);
    const other = others.length === 1 ? data.labelRow(others[0]) : "";
    const facts = [beyond > 0 && `${name} works ${formatTime(beyond)} per step longer than ${other || "the median of the others"}`, late && `${other ? `${other} waits` : "the others wait"} ${formatTime(late)} per step for ${beyond > 0 ? "it" : name}`];
    const back = other ? head.rows[others[0]].late : null;
    if (late && back) facts.push(`it waits ${formatTime(back)} for ${other}`);
    const said = facts.filter(Boolean);
    const answer = rows.length < 2 ? "Only one rank was recorded; there is nothing to compare." : said.length ? `${capitalize(said.join("; "))}.` : "No rank works longer than the median of the others.";
    let measure = 0;
    const canvas = make("canvas", "heat");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Heat map of ranks and steps; the table below has the same ranks.");
    const draw = makeHeatMap(canvas, worst, () => measure);
    const bar = make("div", "bar");
    bar.append(
      make("h3", "", "Distance from the median of the step"),
      makeChooser("measure", "Measure of the heat map", MEASURES.map(([title], i): [string, string] => [String(i), title]), (value) => {
        measure = Number(value);
        draw();
      }),
    );
    const scope = getScope();
    const average = (row: number, get: (step: Step) => number): number => {
      const steps = data.rows[row].steps.filter((step) => scope.kind !== "steps" || scope.numbers.has(step.number ?? -1));
      return steps.reduce((sum, step) => sum + get(step), 0) / Math.max(1, steps.length);
    };
    const columns: Column<number>[] = [
      { title: "rank", get: (row) => data.labelRow(row), full: (row) => data.nameRow(row) },
      { title: "host", get: (row) => head.rows[row].host ?? "–" },
      { title: "others wait", get: (row) => head.rows[row].late ?? 0, show: (v) => (v ? formatTime(v) : "–"), bar: () => ink.pin },
      { title: "own work above median", get: (row) => data.getBeyond(row), show: (v) => formatTime(v).replace("-", "−") },
      ...[["step", MEASURES[1][1]] as const, ...MEASURES.filter((_, i) => i !== 1), ["copies", (step: Step) => step.copies] as const].map(([title, get]): Column<number> => ({ title, get: (row) => average(row, get), show: (v) => formatTime(v, 4) })),
    ];
    const note = `Means per step, ${scope.kind === "steps" ? describeNumbers(scope.numbers) : "all steps"}. Own work is a rank's time without its waits for others.`;
    const pick = (row: number): void => {
      state.focus = row;
      timeline.redraw();
    };
    const heat = rows.length > 1 && data.steps.length ? [bar, canvas] : [];
    return [make("p", "answer", answer), ...heat, makeTable(columns, rows, { name: "Ranks", by: rows.length > 2 ? 2 : 0, limit: 12, note, csv: true, pick })];
  }
  /** Draws rank by step: red above the median of the step, blue below. */
  function makeHeatMap(canvas: HTMLCanvasElement, all: number[], getMeasure: () => number): () => void {
    const rows = all.slice(0, MOST_HEAT_ROWS);
    const getRole = (row: number): string => head.rows[row].role ?? "";
    const numbers = [...new Set(all.flatMap((row) => data.rows[row].steps.map((step) => step.number)))].filter((n): n is number => n !== null).sort((a, b) => a - b);
    const steps = new Map(rows.flatMap((row) => data.rows[row].steps.map((step): [string, Step] => [`${row},${step.number}`, step])));
    const height = rows.length > 32 ? 6 : rows.length > 8 ? 12 : 22;
    let left = 96;
    let wide = 1;
    /** Medians of the ranks of a role, by step: other roles do other work. */
    let middles = new Map<string, number[]>();
    const getColor = (share: number): string => soften(share > 0 ? "#d55e00" : "#0072b2", Math.min(1, Math.abs(share)));
    function measureMiddles(of: number[], get: (step: Step) => number): number[] {
      const values = new Map(numbers.map((number): [number, number[]] => [number, []]));
      for (const row of of) for (const step of data.rows[row].steps) if (step.number !== null) values.get(step.number)!.push(get(step));
      return numbers.map((number) => median(values.get(number)!));
    }
    function drawScale(g: CanvasRenderingContext2D, x: number, most: number): void {
      for (let i = -20; i <= 20; i++) {
        g.fillStyle = getColor(i / 20);
        g.fillRect(x + (i + 20) * 3, 26, 3, 10);
      }
      g.fillStyle = ink.quiet;
      writeText(g, `−${formatShare(most)} … +${formatShare(most)}`, x, 46, 130);
    }
    function draw(): void {
      const [, get] = MEASURES[getMeasure()];
      const { g, width } = prepareCanvas(canvas, 22 + rows.length * height);
      setFont(g, 10);
      left = Math.min(240, rows.reduce((most, row) => Math.max(most, Math.ceil(g.measureText(data.labelRow(row)).width) + 10), 96));
      setFont(g, 11);
      wide = Math.min(150, (width - left) / Math.max(1, numbers.length));
      middles = new Map([...new Set(all.map(getRole))].map((role) => [role, measureMiddles(all.filter((row) => getRole(row) === role), get)]));
      const far = (row: number, i: number): number | null => {
        const step = steps.get(`${row},${numbers[i]}`);
        return step ? get(step) / (middles.get(getRole(row))![i] || 1) - 1 : null;
      };
      let most = 0.02;
      for (const row of rows) numbers.forEach((_, i) => (most = Math.max(most, Math.min(5, Math.abs(far(row, i) ?? 0)))));
      g.fillStyle = ink.quiet;
      const every = Math.ceil(50 / wide);
      numbers.forEach((number, i) => i % every === 0 && writeText(g, `step ${number}`, left + i * wide + 3, 9, wide * every));
      rows.forEach((row, k) => {
        numbers.forEach((_, i) => {
          const share = far(row, i);
          if (share === null) return;
          g.fillStyle = getColor(share / most);
          g.fillRect(left + i * wide, 20 + k * height, Math.max(1, wide - 1), height - (height > 4 ? 1 : 0));
        });
      });
      setFont(g, 10);
      g.fillStyle = ink.quiet;
      rows.forEach((row, k) => k % Math.ceil(12 / height) === 0 && writeText(g, data.labelRow(row), 2, 20 + k * height + Math.max(height / 2, 5), left - 4));
      const x = left + numbers.length * wide + 16;
      if (width - x > 140) drawScale(g, x, most);
    }
    const findStep = (event: MouseEvent): { row: number; i: number; step: Step } | null => {
      const row = rows[Math.floor((event.offsetY - 20) / height)];
      const i = Math.floor((event.offsetX - left) / wide);
      const step = steps.get(`${row},${numbers[i]}`);
      return step ? { row, i, step } : null;
    };
    canvas.onpointermove = (event) => {
      const at = findStep(event);
      const [title, get] = MEASURES[getMeasure()];
      showTip(canvas, event.offsetX, event.offsetY, at ? `${data.labelRow(at.row)}, step ${numbers[at.i]}: ${title} ${formatTime(get(at.step), 4)}, median ${formatTime(middles.get(getRole(at.row))![at.i], 4)}` : undefined);
    };
    canvas.onpointerleave = () => showTip(canvas, 0, 0, undefined);
    canvas.onclick = (event) => {
      const at = findStep(event);
      if (!at) return;
      timeline.jump(at.row, at.step.start, at.step.end, 0.96);
      find("strip").scrollIntoView({ block: "start" });
    };
    watchSize(canvas, draw);
    queueMicrotask(draw);
    return draw;
  }
  return { makeTimeTab, makeKernelTab, makeRankTab, goToLongestGap, makeWorkColumns, nameColumn, nameWork };
}
