// The page: answers first, details when they are opened. The fragment keeps the view, so a link shows the same.
import { BEFORE, buildStaircase, getBandColor, listLive, loadPieces, makeBands, type Pieces } from "./bands";
import { Data, formatBytes, formatCount, formatShare, formatTime, type Finding, type Head, lowerBound, median, type Step } from "./data";
import { buildTree, makeFlame, type Node } from "./flame";
import { assignStages, getCallColor, getCauseColor, getKindColor, getStageColor, ink, isDark, isStage, prepareCanvas, redrawAll, setFont, setPrinting, setTheme, showTip, soften, watchSize, writeText } from "./theme";
import { type Column, countGaps, countKernels, type Counts, groupWork, listWindows, make, makeButton, makeChip, makeTable, type Scope, type Work } from "./tables";
import { makeTimeline, type Timeline } from "./timeline";

const FIRST_ISSUES = 3;
const FIRST_KERNELS = 8;
const MOST_GAPS = 300;
const MOST_HEAT_ROWS = 100;
const TABS = ["time", "kernels", "ranks", "memory"] as const;
type Tab = (typeof TABS)[number];

const find = <T extends HTMLElement = HTMLElement>(id: string): T => document.getElementById(id) as T;
const capitalize = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

function readTheme(): string | null {
  try {
    return localStorage.getItem("tracekit-theme");
  } catch {
    return null;
  }
}
function keepTheme(): void {
  try {
    localStorage.setItem("tracekit-theme", isDark() ? "dark" : "light");
  } catch {
    // Without storage, the choice lasts for this visit.
  }
}

document.documentElement.classList.add("js");
setTheme(readTheme());
const head = JSON.parse(find("head").textContent!) as Head;
const data = new Data(head);
Data.takeBlocks();
await data.loadFirst();
assignStages(
  data.ranges
    .filter((range) => range.depth === 0)
    .sort((a, b) => a.start - b.start)
    .map((range) => data.names[range.name]),
);
const answer = document.querySelector("h1")!;
answer.textContent = answer.textContent!.replace(/(\d) (?=%|[mµn]?s\b)/g, "$1\u00a0");
for (const id of ["tools", "strip", "more"]) find(id).hidden = false;

const hasDevices = head.rows.some((row) => row.kind === "device");
const noun = hasDevices ? "kernel" : "operator";
const countedSteps = head.counted?.length ? new Set(head.counted) : null;
let counts: Counts = { work: [], named: 1, exact: true };
let onlyRow: number | null = null;
let withWarmUp = false;
let issue = -1;
let allIssues = false;
let tab: Tab = "time";
const shown = new Set<Tab>();

const timeline: Timeline = makeTimeline(data, find<HTMLCanvasElement>("timeline"), find<HTMLCanvasElement>("overview"), find("detail"), {
  selected: () => {
    void refresh();
    writeLink();
  },
  focused: () => {
    writeLink();
    if (onlyRow === null) return drawTop();
    onlyRow = timeline.state.focus;
    void refresh();
  },
  moved: () => writeLink(),
  pinned: (finding) => openIssue(finding),
  nextPin: (by) => {
    const pinned = head.findings.map((_, i) => i).filter((i) => head.findings[i].pins.length);
    if (pinned.length) openIssue(pinned[(pinned.indexOf(issue) + (issue < 0 && by < 0 ? 0 : by) + pinned.length) % pinned.length]);
  },
  longestGap: () => goToLongestGap(),
});
const { state } = timeline;

// Scope
const getScope = (): Scope => state.selection?.scope ?? (countedSteps && !withWarmUp ? { kind: "steps", numbers: countedSteps } : { kind: "all" });
const getRows = (): Set<number> => new Set(onlyRow === null ? state.rows : [onlyRow]);

function describeNumbers(numbers: Set<number>): string {
  const list = [...numbers].sort((a, b) => a - b);
  const last = list[list.length - 1];
  if (list.length === 1) return `step ${last}`;
  return last - list[0] === list.length - 1 ? `steps ${list[0]}–${last}` : `steps ${list.slice(0, 6).join(", ")}${list.length > 6 ? ", …" : ""}`;
}
function describeScope(): string {
  const scope = getScope();
  const rows = onlyRow !== null ? data.nameRow(onlyRow) : state.rows.length > 1 ? `${formatCount(state.rows.length)} ${hasDevices ? "GPUs" : "threads"}` : data.nameRow(state.rows[0]);
  if (scope.kind === "all") return `whole recording · ${rows}`;
  if (scope.kind === "steps") return `${describeNumbers(scope.numbers)} · ${rows}`;
  if (scope.kind === "window") return `${formatTime(scope.t1 - scope.t0, 4)} selected · ${rows}`;
  const range = data.ranges[[...scope.ranges][0]];
  const number = data.rows[range.row].steps[range.step]?.number;
  return `${data.names[range.name]}${number == null ? "" : ` in step ${number}`} · ${rows}`;
}
const describeExactness = (): string => (counts.named < 0.9995 ? `${formatShare(counts.named)} by name` : counts.exact ? "exact" : "estimated at the edges");
const nameWork = (name: number): string => (name < 0 ? `short ${noun}s, merged` : data.short[name]);

// Issues
function openIssue(finding: number, pin = 0): void {
  issue = finding;
  const { number, claim, pins } = head.findings[finding];
  const place = pins[pin];
  if (place) {
    if (!state.rows.includes(place.row)) {
      chooseRows("", "");
      void refresh();
    }
    timeline.jump(place.row, place.t0, place.t1);
    timeline.say(`${number} · ${claim} · ${data.nameRow(place.row)}, ${formatTime(place.t1 - place.t0, 4)}`);
  }
  drawIssues();
}
function describeSaving({ saving }: Finding): string {
  if (!saving) return "";
  const alone = saving.alone > 0 ? `saves ${formatTime(saving.alone)} of the step alone` : "saves nothing alone";
  if (saving.behind !== null) return `Predicted: ${alone}; little more once #${saving.behind} is fixed.`;
  const steps = `${formatTime(saving.before)} → ${formatTime(saving.step)}`;
  return saving.before === head.plan?.recorded ? `Predicted: a step of ${steps}.` : `Predicted: ${alone}; ${steps} after the fixes above.`;
}
function makeIssue(finding: Finding, i: number): HTMLLIElement {
  const item = make("li");
  const open = i === issue;
  const button = makeButton("", () => openIssue(i), `go${open ? " on" : ""}`);
  button.setAttribute("aria-expanded", String(open));
  button.append(make("span", "pin", String(finding.number)), make("span", "claim", finding.claim));
  const gain = finding.saving ? finding.saving.alone : null;
  if (gain !== null) button.append(make("span", "gain", gain > 0 ? `−${formatTime(gain)}` : "–"));
  item.append(button);
  if (open || (issue < 0 && i === 0 && head.rows.length <= 2)) item.append(make("p", "try", finding.advice));
  if (!open) return item;
  const facts = [describeSaving(finding), ...finding.caveats.map((caveat) => `Note: ${caveat}`)].filter(Boolean);
  if (facts.length) item.append(make("p", "try quiet", facts.join(" ")));
  if (finding.pins.length > 1) {
    const go = make("p", "try");
    go.append(...finding.pins.map((pin, k) => makeButton(`${pin.name}${head.rows.length > 1 ? `, ${data.nameRow(pin.row)}` : ""}: ${formatTime(pin.t1 - pin.t0)}`, () => openIssue(i, k), "link")));
    item.append(go);
  }
  return item;
}
function describePlan(): string {
  if (!head.plan || head.plan.steps.length < 2) return "";
  const { recorded, steps } = head.plan;
  const last = steps[steps.length - 1];
  const path = [recorded, ...(steps.length > 5 ? steps.slice(0, 4) : steps)].map((ns) => formatTime(ns));
  if (steps.length > 5) path.push("…", formatTime(last));
  return `With ${steps.length === 2 ? "both" : `all ${steps.length}`} fixes, a step takes ${path.join(" → ")} (−${formatShare(1 - last / recorded)}), predicted by replay.`;
}
function drawIssues(): void {
  const list = make("ol", "issues");
  const limit = allIssues ? Infinity : FIRST_ISSUES;
  head.findings.forEach((finding, i) => {
    if (i < limit || i === issue) list.append(makeIssue(finding, i));
  });
  const title = make("h2", "", "Top issues ");
  title.id = "issues-title";
  if (head.findings.some((finding) => finding.saving)) title.append(make("span", "quiet", "predicted saving per step"));
  const box = find("issues");
  box.replaceChildren(title, list);
  if (!head.findings.length) list.replaceWith(make("p", "quiet", "No issue was found."));
  const foot = make("p", "foot quiet");
  const more = head.findings.length - FIRST_ISSUES;
  if (more > 0 && !allIssues)
    foot.append(
      makeButton(`${more} more`, () => {
        allIssues = true;
        drawIssues();
      }),
    );
  foot.append(describePlan());
  box.append(foot);
}

// Top kernels
const makeWorkColumns = (): Column<Work>[] => {
  const all = counts.work.reduce((sum, { ns }) => sum + ns, 0) || 1;
  return [
    { title: "time", get: (w) => w.ns, show: (v) => formatTime(v), bar: (w) => getKindColor(w.kind) },
    { title: "share", get: (w) => w.ns / all, show: formatShare },
    { title: "count", get: (w) => w.count, show: formatCount },
  ];
};
const nameColumn: Column<Work> = { title: noun, get: (w) => nameWork(w.name), chip: (w) => getKindColor(w.kind), full: (w) => data.names[w.name] ?? "" };

function drawTop(): void {
  const title = make("h2", "", `Top ${noun}s `);
  title.id = "top-title";
  title.append(make("span", "quiet", `${describeScope()} · ${describeExactness()}`));
  const add = (text: string, act: () => void): void => {
    title.append(
      makeButton(
        text,
        () => {
          act();
          void refresh();
        },
        "link",
      ),
    );
  };
  if (state.rows.length > 1)
    add(onlyRow === null ? `only ${data.nameRow(state.focus)}` : "all rows", () => {
      onlyRow = onlyRow === null ? state.focus : null;
    });
  if (state.selection) add("clear selection", timeline.clear);
  else if (countedSteps && countedSteps.size < new Set(data.steps.map((step) => step.number)).size)
    add(withWarmUp ? "counted steps only" : "whole recording", () => {
      withWarmUp = !withWarmUp;
    });
  const rows = groupWork(counts.work, (w) => `${w.name},${w.kind}`);
  const table = makeTable([nameColumn, ...makeWorkColumns()], rows, { name: `Top ${noun}s`, by: 1, limit: FIRST_KERNELS, pick: (w) => search(nameWork(w.name)) });
  find("top").replaceChildren(title, table);
}

let refreshing = 0;
/** Counts again, and shows it. */
async function refresh(): Promise<void> {
  const turn = ++refreshing;
  if (!head.rows.length) {
    shown.clear();
    return showTab("memory");
  }
  const counted = data.sums ? await countKernels(data, getScope(), getRows()) : counts;
  if (turn !== refreshing) return;
  counts = counted;
  drawLegend();
  drawIssues();
  drawTop();
  find("scope").textContent = describeScope();
  shown.clear();
  showTab(tab);
}

// Search
function search(query: string): void {
  find<HTMLInputElement>("find").value = query;
  const wanted = query.trim().toLowerCase();
  const note = find("matches");
  if (!wanted) {
    state.hits = null;
    note.textContent = "";
    return timeline.redraw();
  }
  const names = new Set<number>();
  const paths = new Set<number>();
  data.names.forEach((name, i) => {
    if (name.toLowerCase().includes(wanted) || data.short[i].toLowerCase().includes(wanted)) names.add(i);
  });
  data.paths.forEach(([parent, name], i) => {
    if (names.has(name) || paths.has(parent)) paths.add(i);
  });
  state.hits = { names, paths };
  let count = 0;
  let ns = 0;
  const { sums } = data;
  const rows = getRows();
  for (let i = 0; sums && i < sums.row.length; i++)
    if (rows.has(sums.row[i]) && (names.has(sums.name[i]) || paths.has(sums.path[i]))) {
      count += sums.count[i];
      ns += sums.ns[i];
    }
  note.textContent = count ? `${formatCount(count)} × · ${formatTime(ns)} · Enter: next` : names.size ? `a stage or a call without ${noun}s` : "no match";
  timeline.redraw();
}
async function goToHit(back: boolean): Promise<void> {
  const { hits, focus } = state;
  if (!hits) return;
  const from = state.mark?.row === focus ? state.mark.t0 : back ? state.e : state.t;
  await data.loadRow(focus);
  let best: { t0: number; t1: number } | null = null;
  const offer = (t0: number, t1: number): void => {
    if (back ? t0 < from && (!best || t0 > best.t0) : t0 > from && (!best || t0 < best.t0)) best = { t0, t1 };
  };
  for (const { data: boxes } of data.rows[focus].cells) {
    if (!boxes) continue;
    const near = lowerBound(boxes.start, from);
    for (let k = back ? near - 1 : near; k >= 0 && k < boxes.start.length; k += back ? -1 : 1)
      if ((hits.names.has(boxes.name[k]) || hits.paths.has(boxes.path[k])) && boxes.start[k] !== from) {
        offer(boxes.start[k], boxes.start[k] + boxes.length[k]);
        break;
      }
  }
  for (const range of data.rows[focus].ranges.flat()) if (hits.names.has(range.name)) offer(range.start, range.end);
  const place = best as { t0: number; t1: number } | null;
  if (place) timeline.jump(focus, place.t0, place.t1, 0.1);
  else find("matches").textContent = `no ${back ? "earlier" : "later"} match on ${data.nameRow(focus)}`;
}

// Legend and controls
function makeKey(text: string, color: string, note = ""): HTMLElement {
  const key = make("span", "key", text);
  if (note) key.title = note;
  key.prepend(makeChip(color));
  return key;
}
let causes: number[] | null = null;
function listCauses(): number[] {
  const seen = new Set<number>();
  const { bins, rows } = head;
  for (let row = 0; row < rows.length; row++) for (let k = 0, at = (row * 5 + 4) * bins; k < bins; k += 3) seen.add(data.bins[at + k]);
  seen.delete(0);
  return [...seen].map((stored) => stored - 1).sort((a, b) => a - b);
}
function drawLegend(): void {
  causes ??= listCauses();
  const keys = causes.map((cause) => makeKey(head.causes[cause][1], getCauseColor(head.causes[cause][0]), head.causes[cause][2]));
  find("legend").replaceChildren(...(keys.length ? [make("span", "quiet", "idle:")] : []), ...keys);
}
function chooseRows(run: string, role: string): void {
  state.rows = head.rows.map((_, i) => i).filter((i) => (!run || head.rows[i].run === run) && (!role || head.rows[i].role === role));
  if (!state.rows.length) state.rows = head.rows.map((_, i) => i);
  for (const [id, value] of [["run", run], ["role", role]] as const) {
    const chooser = document.getElementById(id) as HTMLSelectElement | null;
    if (chooser) chooser.value = value;
  }
  if (!state.rows.includes(state.focus)) state.focus = state.rows[0];
  onlyRow = null;
  timeline.redraw();
}
function makeChooser(id: string, label: string, choices: [value: string, text: string][], act: (value: string) => void): HTMLSelectElement {
  const chooser = make("select");
  chooser.id = id;
  chooser.setAttribute("aria-label", label);
  for (const [value, text] of choices) {
    const option = make("option", "", text);
    option.value = value;
    chooser.append(option);
  }
  chooser.onchange = () => act(chooser.value);
  return chooser;
}
function makeSwitch(id: string, text: string, key: "critical" | "host", title: string): HTMLButtonElement {
  const button = makeButton(text, () => {
    state[key] = !state[key];
    button.setAttribute("aria-pressed", String(state[key]));
    timeline.redraw();
    writeLink();
  });
  button.id = id;
  button.title = title;
  button.setAttribute("aria-pressed", "false");
  return button;
}
function listValues(key: "run" | "role"): string[] {
  return [...new Set(head.rows.map((row) => row[key]))].filter((value): value is string => value !== null);
}
function chooseStep(): Step | undefined {
  const { steps } = data.rows[state.focus];
  const steady = steps.filter((step) => step.counted);
  return (steady.length ? steady : steps).slice().sort((a, b) => b.end - b.start - (a.end - a.start))[0];
}
function makeControls(): void {
  const field = make("input");
  field.id = "find";
  field.type = "search";
  field.placeholder = `Find ${noun}, stage, call ( / )`;
  field.setAttribute("aria-label", "Find in the timeline");
  field.oninput = () => search(field.value);
  field.onkeydown = (event) => {
    if (event.key === "Enter") void goToHit(event.shiftKey);
    if (event.key !== "Escape") return;
    search("");
    find("timeline").focus();
  };
  const matches = make("span", "quiet");
  matches.id = "matches";
  matches.setAttribute("aria-live", "polite");
  const box = find("controls");
  box.append(field, matches);
  for (const key of ["run", "role"] as const) {
    const values = listValues(key);
    if (values.length < 2) continue;
    const choose = (): void => {
      chooseRows((document.getElementById("run") as HTMLSelectElement | null)?.value ?? "", (document.getElementById("role") as HTMLSelectElement | null)?.value ?? "");
      void refresh();
    };
    box.append(makeChooser(key, `Show one ${key}`, [["", `all ${key}s`], ...values.map((value): [string, string] => [value, value])], choose));
  }
  if (head.rows.length > 2)
    box.append(
      makeChooser("order", "Order of the rows", [["rank", "by rank"], ["late", "slowest first"]], (value) => {
        state.order = value === "late" ? "late" : "rank";
        timeline.redraw();
      }),
    );
  if (Data.has("critical")) box.append(makeSwitch("critical", "critical path", "critical", "Show the critical path as a lane"));
  if (head.rows.some((row) => Data.has(`h${row.process}`))) box.append(makeSwitch("host", "host threads", "host", "Show the calls of the host's threads"));
  box.append(
    makeButton("whole run", () => {
      state.mark = null;
      timeline.glide(0, head.span);
    }),
    makeButton("one step", () => {
      const step = chooseStep();
      if (step) timeline.glide(step.start - (step.end - step.start) * 0.01, step.end + (step.end - step.start) * 0.01);
    }),
  );
}

// Gaps
function goToGap(gap: number): void {
  const { row, start, length } = data.gaps!;
  timeline.jump(row[gap], start[gap], start[gap] + length[gap]);
  timeline.say(`${data.nameRow(row[gap])} · ${timeline.describeGap(gap)}`);
}
const isAfterLast = (segment: number): boolean => head.causes[data.gaps!.cause[segment]][0] === "after_last";
function listGaps(visit: (segment: number, ns: number) => void): ReturnType<typeof countGaps> {
  const inside = countGaps(data, getScope(), getRows(), (segment, ns) => {
    if (!isAfterLast(segment)) visit(segment, ns);
  });
  return inside.filter(({ gap }) => !isAfterLast(data.gaps!.main[gap])).sort((a, b) => b.ns - a.ns);
}
function goToLongestGap(): void {
  const [longest] = data.gaps ? listGaps(() => undefined) : [];
  if (longest) goToGap(longest.gap);
  else timeline.say("No idle gap in the selection.");
}

// Tabs
function measureScope(): { all: number; idle: number | null } {
  const scope = getScope();
  let all = 0;
  let idle = scope.kind === "steps" ? 0 : null;
  for (const row of getRows()) {
    const [first, last] = data.getExtent(row);
    for (const [start, end] of listWindows(data, scope, row)) all += Math.max(0, Math.min(last, end) - Math.max(first, start));
    if (scope.kind === "steps" && idle !== null) for (const step of data.rows[row].steps) if (scope.numbers.has(step.number ?? -1)) idle += step.idle;
  }
  return { all, idle };
}
function makeTimeTab(): (HTMLElement | string)[] {
  const byCause = new Map<string, number>();
  const byPath = new Map<number, number>();
  const { length } = head.causes;
  const gaps = listGaps((segment, ns) => {
    const key = (data.gaps!.path[segment] + 1) * length + data.gaps!.cause[segment];
    byPath.set(key, (byPath.get(key) ?? 0) + ns);
  });
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
  const subject = hasDevices ? "GPUs are" : "The threads are";
  const answer = top ? `${subject} idle ${formatShare(all ? total / all : 0)} of the time (${formatTime(total)} in ${formatCount(gaps.length)} gaps). Main cause: ${top[0]}, ${formatShare(top[1] / (named || 1))}.` : "No idle gap is recorded here.";
  const [dropped, droppedNs] = head.dropped_gaps;
  const rest = total - named > 0.005 * total ? ` ${formatShare(named / total)} of the idle time is in these gaps.` : "";
  const note = (dropped ? `Without ${formatCount(dropped)} gaps of at most ${formatTime(head.floor)} (${formatTime(droppedNs)} in total).` : "All gaps, by the call of the launching thread.") + rest;
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
    { title: "host call", get: ({ gap }) => data.describePath(path[main[gap]]).at(-1) ?? "nothing recorded", full: ({ gap }) => data.describePath(path[main[gap]]).join(" › ") },
    { title: hasDevices ? "rank" : "row", get: ({ gap }) => data.nameRow(row[gap]) },
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
  for (const { stage, kind, ns } of counts.work) {
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
  return makeSection(hasDevices ? "Device time by stage" : "Operator time by stage", makeTable(columns, [...lines.values()], { name: "Time by stage", by: 4, limit: 12, csv: true, note, pick: ({ stage }) => stage >= 0 && search(data.names[stage]) }));
}
function makeKernelTab(): (HTMLElement | string)[] {
  const byName = groupWork(counts.work, (w) => w.name).sort((a, b) => b.ns - a.ns);
  const all = byName.reduce((sum, { ns }) => sum + ns, 0) || 1;
  let most = 0;
  for (let sum = 0; most < byName.length && sum < 0.9 * all; most++) sum += byName[most].ns;
  const [first] = byName;
  const answer = first ? `${nameWork(first.name)} takes ${formatShare(first.ns / all)} of the ${hasDevices ? "device" : "operator"} time; ${most} of ${byName.length} ${noun}s take 90\u00a0%.` : `No ${noun} ran in the selection.`;
  const kinds = new Map(counts.work.map((w) => [nameWork(w.name), w.kind]));
  const color = (node: Node): string => (node.depth === 1 ? getStageColor(node.name) : node.children.size ? getCallColor(node.name) : soften(getKindColor(kinds.get(node.name) ?? 0), isDark() ? 0.55 : 0.42));
  const paths = counts.work.map((w): [string[], number] => [[data.nameStage(w.stage), ...data.describePath(w.path), nameWork(w.name)], w.ns]);
  const note = `${capitalize(describeScope())}, ${describeExactness()}. Durations are summed: overlapping work counts twice.`;
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
        if (!node.children.size) search(node.name);
      },
    }),
    makeTable(columns, groupWork(counts.work, (w) => `${w.name},${w.stage},${data.describePath(w.path).at(-1)}`), { name: `All ${noun}s`, by: 3, limit: 15, csv: true, pick: (w) => search(nameWork(w.name)) }),
  ];
}

const MEASURES: [title: string, get: (step: Step) => number][] = [
  ["compute", (step) => step.compute],
  ["step time", (step) => step.end - step.start],
  ["exposed communication", (step) => step.comm],
  ["idle", (step) => step.idle],
];
function makeRankTab(): (HTMLElement | string)[] {
  const rows = state.rows.filter((row) => data.hasCompute(row));
  const worst = rows.slice().sort((a, b) => data.getLateness(b) - data.getLateness(a));
  const [first] = worst;
  const late = head.rows[first]?.late;
  const beyond = first === undefined ? 0 : data.getBeyond(first);
  const facts = [beyond > 0 && `${data.nameRow(first)} computes ${formatTime(beyond)} per step more than the median`, late && `the others wait ${formatTime(late)} per step for ${beyond > 0 ? "it" : data.nameRow(first)}`].filter(Boolean);
  const answer = rows.length < 2 ? "Only one rank was recorded; there is nothing to compare." : facts.length ? `${capitalize(facts.join("; "))}.` : "No rank computes more than the median.";
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
    { title: hasDevices ? "rank" : "row", get: (row) => data.nameRow(row) },
    { title: "host", get: (row) => head.rows[row].host ?? "–" },
    { title: "others wait", get: (row) => head.rows[row].late ?? 0, show: (v) => (v ? formatTime(v) : "–"), bar: () => ink.pin },
    { title: "above median", get: (row) => data.getBeyond(row), show: (v) => formatTime(v) },
    ...[["step", MEASURES[1][1]] as const, ...MEASURES.filter((_, i) => i !== 1), ["copies", (step: Step) => step.copies] as const].map(([title, get]): Column<number> => ({ title, get: (row) => average(row, get), show: (v) => formatTime(v, 4) })),
  ];
  const note = `Means per step, ${scope.kind === "steps" ? describeNumbers(scope.numbers) : "all steps"}.`;
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
  const compared = all.flatMap((row) => data.rows[row].steps);
  const numbers = [...new Set(compared.map((step) => step.number))].filter((n): n is number => n !== null).sort((a, b) => a - b);
  const steps = new Map(rows.flatMap((row) => data.rows[row].steps.map((step): [string, Step] => [`${row},${step.number}`, step])));
  const height = rows.length > 32 ? 6 : rows.length > 8 ? 12 : 22;
  const left = 96;
  let wide = 1;
  let middles: number[] = [];
  const getColor = (share: number): string => soften(share > 0 ? "#d55e00" : "#0072b2", Math.min(1, Math.abs(share)));
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
    wide = Math.min(150, (width - left) / Math.max(1, numbers.length));
    middles = numbers.map((number) => median(compared.filter((step) => step.number === number).map(get)));
    const far = (row: number, i: number): number | null => {
      const step = steps.get(`${row},${numbers[i]}`);
      return step ? get(step) / (middles[i] || 1) - 1 : null;
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
    rows.forEach((row, k) => k % Math.ceil(12 / height) === 0 && writeText(g, data.nameRow(row), 2, 20 + k * height + Math.max(height / 2, 5), left - 4));
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
    showTip(canvas, event.offsetX, event.offsetY, at ? `${data.nameRow(at.row)}, step ${numbers[at.i]}: ${title} ${formatTime(get(at.step), 4)}, median ${formatTime(middles[at.i], 4)}` : undefined);
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

let snapshot = 0;
const staircases = new Map<number, { pieces: Pieces; stairs: ReturnType<typeof buildStaircase> }>();
async function makeMemoryTab(): Promise<(HTMLElement | string)[]> {
  const { memories } = head;
  if (!memories.length) return [make("p", "quiet", head.rows.some((_, row) => Data.has(`curve${row}`)) ? "No memory snapshot was given. The timeline shows the memory curve of the trace." : "No memory snapshot was given.")];
  let loaded = staircases.get(snapshot);
  if (!loaded) {
    const pieces = await loadPieces(data, snapshot);
    if (!pieces) return [make("p", "quiet", "The snapshot does not fit into this page.")];
    loaded = { pieces, stairs: buildStaircase(pieces, memories[snapshot].span) };
    staircases.set(snapshot, loaded);
  }
  const { pieces, stairs } = loaded;
  const held = new Map<string, number>();
  for (const i of listLive(pieces, stairs.peakTime)) held.set(pieces.site[i], (held.get(pieces.site[i]) ?? 0) + pieces.size[i]);
  const before = held.get(BEFORE);
  const [top] = [...held].filter(([site]) => site !== BEFORE).sort((a, b) => b[1] - a[1]);
  const answer = `${formatBytes(stairs.peak)} are in use at the peak${top ? `. Largest site: ${top[0]}, ${formatBytes(top[1])}` : ""}${before ? `; ${formatBytes(before)} were allocated before the history` : ""}.`;
  const moment = make("div");
  const showMoment = (time: number): void => moment.replaceChildren(...makeMoment(pieces, stairs, time));
  const bands = makeBands(stairs, memories[snapshot].span, showMoment);
  const bar = make("div", "bar");
  bar.append(make("h3", "", "Memory in use by allocation site"), makeButton("go to the peak", () => bands.choose(stairs.peakTime)));
  if (memories.length > 1)
    bar.append(
      makeChooser("snapshot", "Snapshot", memories.map((memory, i): [string, string] => [String(i), memory.rank === null ? memory.file : `rank ${memory.rank} · ${memory.file}`]), (value) => {
        snapshot = Number(value);
        shown.delete("memory");
        showTab("memory");
      }),
    );
  for (const chooser of bar.querySelectorAll("select")) chooser.value = String(snapshot);
  const legend = make("div", "legend");
  legend.append(...stairs.names.map((name, band) => makeKey(name, getBandColor(stairs, band))));
  showMoment(stairs.peakTime);
  return [make("p", "answer", answer), bar, bands.canvas, legend, moment];
}
function makeMoment(pieces: Pieces, stairs: ReturnType<typeof buildStaircase>, time: number): HTMLElement[] {
  interface Line {
    path: number;
    size: number;
    count: number;
    site: string;
  }
  const live = listLive(pieces, time);
  const lines = new Map<string, Line>();
  const paths: [string[], number][] = [];
  let total = 0;
  for (const i of live) {
    const key = `${pieces.path[i]},${pieces.site[i]}`;
    const line = lines.get(key) ?? { path: pieces.path[i], size: 0, count: 0, site: pieces.site[i] };
    line.size += pieces.size[i];
    line.count++;
    lines.set(key, line);
    total += pieces.size[i];
  }
  for (const { path, size, site } of lines.values()) {
    const frames = data.listPath(path).map((name) => data.names[name]);
    paths.push([frames.length ? frames : [site], size]);
  }
  const getColor = (site: string): string => {
    const band = stairs.names.indexOf(site);
    return getBandColor(stairs, band < 0 ? stairs.names.length - 1 : band);
  };
  const columns: Column<Line>[] = [
    { title: "site", get: ({ site }) => site, chip: ({ site }) => getColor(site) },
    { title: "innermost call", get: ({ path }) => data.names[data.listPath(path).pop() ?? -1] ?? "–" },
    { title: "bytes", get: ({ size }) => size, show: formatBytes, bar: ({ site }) => getColor(site) },
    { title: "allocations", get: ({ count }) => count, show: formatCount },
  ];
  return [
    make("p", "answer", `At ${formatTime(time, 6)}: ${formatBytes(total)} in ${formatCount(live.length)} allocations.`),
    makeFlame(buildTree(paths, "in use"), { title: "By stack at this moment", note: "The outermost call is on top. The width is the number of bytes.", format: formatBytes }),
    makeTable(columns, [...lines.values()], { name: "Allocations at this moment", by: 2, limit: 10, csv: true }),
  ];
}

const BUILDERS: Record<Tab, () => (HTMLElement | string)[] | Promise<(HTMLElement | string)[]>> = { time: makeTimeTab, kernels: makeKernelTab, ranks: makeRankTab, memory: makeMemoryTab };
function showTab(wanted: Tab): void {
  tab = wanted;
  for (const name of TABS) {
    const button = find(`tab-${name}`);
    button.setAttribute("aria-selected", String(name === tab));
    button.tabIndex = name === tab ? 0 : -1;
    find(`panel-${name}`).hidden = name !== tab;
  }
  if (shown.has(tab) || !data.sums) return;
  shown.add(tab);
  void Promise.resolve(BUILDERS[wanted]()).then((parts) => find(`panel-${wanted}`).replaceChildren(...parts));
}

// Keys, theme, link
const KEYS: [string, string][] = [
  ["w s", "zoom in, out"],
  ["a d ← →", "pan"],
  ["↑ ↓", "previous, next row"],
  ["n p", "next, previous issue"],
  ["g", "longest idle gap of the selection"],
  ["f", "fit the marked or selected part"],
  ["Home", "whole run"],
  ["shift-drag, or drag on the axis", "select: tables and graphs count the selection; at step or stage edges it counts them whole"],
  ["click on a step, double click on a stage", "count this step or stage"],
  ["Esc", "clear"],
  ["/", "find; Enter goes to the next match"],
  ["ctrl-wheel, or wheel after a click", "zoom"],
];
function showKeys(): void {
  const dialog = find<HTMLDialogElement>("help");
  const table = make("table");
  for (const [key, text] of KEYS) {
    const row = table.insertRow();
    row.insertCell().append(make("kbd", "", key));
    row.insertCell().textContent = text;
  }
  dialog.replaceChildren(make("h2", "", "Keys"), table, makeButton("close", () => dialog.close()));
  dialog.showModal();
}
function changeTheme(theme: string | null): void {
  setTheme(theme);
  redrawAll();
  void refresh();
}

let linking = 0;
function makeLink(): string {
  const { selection } = state;
  const parts = [`v=${Math.round(state.t)}-${Math.round(state.e)}`, `r=${state.focus}`];
  if (selection?.scope.kind === "window") parts.push(`s=${selection.t0}-${selection.t1}`);
  if (selection?.scope.kind === "steps") parts.push(`n=${[...selection.scope.numbers].join(".")}`);
  if (onlyRow !== null) parts.push("o=1");
  if (state.critical) parts.push("c=1");
  if (state.host) parts.push("h=1");
  return `#${parts.join("&")}&t=${tab}`;
}
function writeLink(): void {
  clearTimeout(linking);
  linking = window.setTimeout(() => history.replaceState(null, "", makeLink()), 300);
}
function readLink(): void {
  const link = new URLSearchParams(location.hash.slice(1));
  const readPair = (key: string): [number, number] | null => {
    const match = /^(-?\d+)-(\d+)$/.exec(link.get(key) ?? "");
    return match && [Number(match[1]), Number(match[2])];
  };
  const row = Number(link.get("r") ?? NaN);
  const worst = state.rows.slice().sort((a, b) => data.getLateness(b) - data.getLateness(a))[0];
  state.focus = head.rows[row] ? row : head.rows.length > 2 ? worst : (head.findings.find(({ pins }) => pins.length)?.pins[0].row ?? 0);
  if (!head.rows[state.focus]) state.focus = 0;
  const view = readPair("v");
  const step = chooseStep();
  const [start, end] = head.rows.length > 2 && step ? [step.start, step.end] : data.getExtent(state.focus);
  // One or two rows show the whole run, unless most of it is not recorded.
  if (view) timeline.setView(...view);
  else if (head.rows.length > 2 || end - start < head.span / 2) timeline.setView(start - (end - start) * 0.02, end + (end - start) * 0.02);
  const [t0, t1] = readPair("s") ?? [0, 0];
  if (t1 > t0) state.selection = { t0, t1, scope: { kind: "window", t0, t1 } };
  const numbers = link.get("n")?.split(".").map(Number);
  if (numbers) timeline.selectSteps(numbers);
  if (link.get("o")) onlyRow = state.focus;
  for (const [key, name] of [["c", "critical"], ["h", "host"]] as const)
    if (link.get(key)) {
      state[name] = true;
      document.getElementById(name)?.setAttribute("aria-pressed", "true");
    }
  const wanted = link.get("t") as Tab;
  if (TABS.includes(wanted)) tab = wanted;
}

function connectPage(): void {
  TABS.forEach((name, i) => {
    const button = find(`tab-${name}`);
    if (name === "kernels") button.textContent = capitalize(`${noun}s`);
    button.onclick = () => {
      showTab(name);
      writeLink();
    };
    button.onkeydown = (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const next = TABS[(i + by + TABS.length) % TABS.length];
      showTab(next);
      find(`tab-${next}`).focus();
    };
  });
  find("keys").onclick = showKeys;
  find("theme").onclick = () => {
    changeTheme(isDark() ? "light" : "dark");
    keepTheme();
  };
  find("copy").onclick = () => {
    history.replaceState(null, "", makeLink());
    void navigator.clipboard?.writeText(location.href);
    timeline.say("The link to this view is in the clipboard and in the address.");
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => readTheme() ?? changeTheme(null));
  let dark = false;
  const print = (on: boolean): void => {
    setPrinting(on);
    if (on) dark = isDark();
    if (dark) changeTheme(on ? "light" : "dark");
    else redrawAll();
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  addEventListener("hashchange", () => {
    readLink();
    timeline.redraw();
    void refresh();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || (event.target as HTMLElement).matches("input, select")) return;
    if (event.key === "/") {
      event.preventDefault();
      find("find").focus();
    } else if (event.key === "?") showKeys();
    else if (event.target === document.body ? /^(?:[wasdnpgf]|Home|Escape)$/.test(event.key) : /^[wasdnpgf]$/.test(event.key) && !(event.target as HTMLElement).matches("canvas")) {
      find("timeline").focus({ preventScroll: true });
      find("timeline").dispatchEvent(new KeyboardEvent("keydown", { key: event.key }));
    }
  });
}

connectPage();
if (head.rows.length) {
  makeControls();
  readLink();
  drawLegend();
  drawIssues();
  timeline.draw();
  performance.mark("first-picture");
  await data.loadTables();
  timeline.redraw();
  await refresh();
} else {
  // Snapshots alone have no timeline.
  for (const id of ["strip", "top", "tab-time", "tab-kernels", "tab-ranks"]) find(id).hidden = true;
  await data.loadTables();
  drawIssues();
  showTab("memory");
}
performance.mark("complete");
Object.assign(window, { explorer: { data, timeline, state, getCounts: () => counts } });
