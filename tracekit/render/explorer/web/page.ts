// The page: answers first, details when they are opened. The fragment keeps the view, so a link shows the same.
import { makeChange } from "./change";
import { Data, type Head, type Step } from "./data";
import { makeIssues } from "./issues";
import { makeKey, makePage } from "./scope";
import { makeSearch } from "./search";
import { buildShell, capitalize, connectShell, find, makeChooser, makeSwitch, makeTabs, type Tab } from "./shell";
import { makeMemoryTab } from "./snapshots";
import { makeStages } from "./stages";
import { makeTabBuilders } from "./tabs";
import { countKernels, groupWork, make, makeButton, makeTable } from "./tables";
import { assignStages, getCauseColor } from "./theme";
import { makeTimeline } from "./timeline";

const FIRST_KERNELS = 8;

// Each kind of page has a program of its own, so a report does not carry the code of comparisons.
declare const COMPARISON: boolean;

buildShell();
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

const timeline = makeTimeline(data, find<HTMLCanvasElement>("timeline"), find<HTMLCanvasElement>("overview"), find("detail"), {
  selected: () => {
    void refresh();
    writeLink();
  },
  focused: () => {
    writeLink();
    if (page.onlyRow === null) return change ? undefined : drawTop();
    page.onlyRow = timeline.state.focus;
    void refresh();
  },
  moved: () => writeLink(),
  pinned: (finding) => issues.openIssue(finding),
  nextPin: (by) => (change ?? issues).openNext(by),
  longestGap: () => builders.goToLongestGap(),
});
const page = makePage(data, timeline);
const { state, noun } = page;
page.refresh = refresh;
const { search, goToHit } = makeSearch(page);
page.search = search;
const builders = makeTabBuilders(page);
const issues = makeIssues(page, chooseRows);
const change = COMPARISON ? makeChange(page) : null;
const stages = page.hasWork ? null : makeStages(page);
const timeTab: Tab = { id: "time", title: "Time", build: stages ? stages.makeStageTab : builders.makeTimeTab };
const memoryTab: Tab = { id: "memory", title: "Memory", build: () => makeMemoryTab(data, () => tabs.rebuild("memory")) };
/** The tabs that have something to show. */
function listTabs(): Tab[] {
  if (change) return [...change.tabs, ...(head.rows.length ? [{ ...timeTab, title: "Idle time" }] : []), change.sheetTab];
  const list = head.rows.length ? [timeTab] : [];
  if (head.rows.length && !stages) list.push({ id: "kernels", title: capitalize(`${noun}s`), build: builders.makeKernelTab });
  if (head.rows.filter((_, row) => data.hasCompute(row)).length > 1) list.push({ id: "ranks", title: "Ranks", build: builders.makeRankTab });
  if (head.memories.length) list.push(memoryTab);
  return list;
}
const tabs = makeTabs(listTabs(), writeLink);

// Top kernels
function drawTop(): void {
  if (stages) return stages.drawStages();
  const title = make("h2", "", `Top ${noun}s `);
  title.id = "top-title";
  title.append(make("span", "quiet", `${page.describeScope()} · ${page.describeExactness()}`));
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
    add(page.onlyRow === null ? `only ${data.labelRow(state.focus)}` : "all rows", () => {
      page.onlyRow = page.onlyRow === null ? state.focus : null;
    });
  if (state.selection) add("clear selection", timeline.clear);
  else if (head.counted?.length && head.counted.length < new Set(data.steps.map((step) => step.number)).size)
    add(page.withWarmUp ? "counted steps only" : "whole recording", () => {
      page.withWarmUp = !page.withWarmUp;
    });
  const rows = groupWork(page.counts.work, (w) => `${w.name},${w.kind}`);
  const table = makeTable([builders.nameColumn, ...builders.makeWorkColumns()], rows, { name: `Top ${noun}s`, by: 1, limit: FIRST_KERNELS, pick: (w) => search(builders.nameWork(w.name)) });
  find("top").replaceChildren(title, table);
}

let refreshing = 0;
/** Counts again, and shows it. */
async function refresh(): Promise<void> {
  const turn = ++refreshing;
  if (!data.sums) return;
  if (change) await change.count();
  else if (head.rows.length) {
    const counted = await countKernels(data, page.getScope(), page.getRows());
    if (turn === refreshing) page.counts = counted;
  }
  if (turn !== refreshing) return;
  if (head.rows.length) drawLegend();
  if (change) {
    change.drawParts();
    if (head.rows.length) change.drawKernels();
  } else {
    issues.drawIssues();
    if (head.rows.length) drawTop();
  }
  if (head.rows.length) find("scope").textContent = page.describeScope();
  tabs.refresh();
}

// Legend and controls
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
  page.onlyRow = null;
  timeline.redraw();
}
function listValues(key: "run" | "role"): string[] {
  return [...new Set(head.rows.map((row) => row[key]))].filter((value): value is string => value !== null);
}
function chooseStep(): Step | undefined {
  const { steps } = data.rows[state.focus];
  const steady = steps.filter((step) => step.counted);
  return (steady.length ? steady : steps).slice().sort((a, b) => b.end - b.start - (a.end - a.start))[0];
}
function showStep(): void {
  const step = chooseStep();
  if (step && state.alignment) timeline.jump(state.focus, step.start, step.end, 0.8);
  else if (step) timeline.glide(step.start - (step.end - step.start) * 0.01, step.end + (step.end - step.start) * 0.01);
}
function listRowControls(): HTMLElement[] {
  if (!state.pair) {
    const readChooser = (id: string): string => (document.getElementById(id) as HTMLSelectElement | null)?.value ?? "";
    const choose = (): void => {
      chooseRows(readChooser("run"), readChooser("role"));
      void refresh();
    };
    const keys = (["run", "role"] as const).filter((key) => listValues(key).length > 1);
    const list = keys.map((key) => makeChooser(key, `Show one ${key}`, [["", `all ${key}s`], ...listValues(key).map((value): [string, string] => [value, value])], choose));
    if (head.rows.length > 2)
      list.push(
        makeChooser("order", "Order of the rows", [["rank", "by rank"], ["late", "slowest first"]], (value) => {
          state.order = value === "late" ? "late" : "rank";
          timeline.redraw();
        }),
      );
    return list;
  }
  const aligned = makeSwitch("aligned", "align stages", "Begin the same stage of the same step at the same place", state.alignment !== null, (on) => {
    timeline.setPair(state.pair!, on);
    void refresh();
  });
  const base = state.rows.filter((row) => head.rows[row].side === 0 && data.hasCompute(row));
  if (base.length < 2) return [aligned];
  const chooser = makeChooser("pair", "Rank or run to compare", base.map((row): [string, string] => [String(row), data.pairRow(row).map((one) => data.nameRow(one)).join(" | ")]), (value) => {
    timeline.setPair(data.pairRow(Number(value)), state.alignment !== null);
    void refresh();
  });
  chooser.value = String(state.pair[0]);
  return [chooser, aligned];
}
function makeControls(): void {
  const field = make("input");
  field.id = "find";
  field.type = "search";
  field.placeholder = stages ? "Find stage ( / )" : `Find ${noun}, stage, call ( / )`;
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
  const overlay = (key: "critical" | "host") => (on: boolean): void => {
    state[key] = on;
    timeline.redraw();
    writeLink();
  };
  const box = find("controls");
  box.append(field, matches, ...listRowControls());
  if (Data.has("critical")) box.append(makeSwitch("critical", "critical path", "Show the critical path as a lane", state.critical, overlay("critical")));
  if (head.rows.some((row) => Data.has(`h${row.process}`))) box.append(makeSwitch("host", "host threads", "Show the calls of the host's threads", state.host, overlay("host")));
  box.append(
    makeButton("whole run", () => {
      state.mark = null;
      timeline.glide(0, timeline.getSpan());
    }),
    makeButton("one step", showStep),
  );
}

// Link
let linking = 0;
function makeLink(): string {
  const { selection } = state;
  const parts = [`v=${Math.round(state.t)}-${Math.round(state.e)}`, `r=${state.focus}`];
  if (selection?.scope.kind === "window") parts.push(`s=${selection.t0}-${selection.t1}`);
  if (selection?.scope.kind === "steps") parts.push(`n=${[...selection.scope.numbers].join(".")}`);
  if (selection?.scope.kind === "stages") parts.push(`g=${[...selection.scope.ranges][0]}`);
  if (page.onlyRow !== null) parts.push("o=1");
  if (state.pair && !state.alignment) parts.push("p=1");
  if (state.critical) parts.push("c=1");
  if (state.host) parts.push("h=1");
  return `#${parts.join("&")}&t=${tabs.getCurrent()}`;
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
  if (change) {
    const base = head.rows[row] ? row : Math.max(0, state.rows.findIndex((i) => data.hasCompute(i)));
    timeline.setPair(data.pairRow(base), !link.get("p"));
    state.focus = base;
  }
  const view = readPair("v");
  const step = chooseStep();
  const [start, end] = head.rows.length > 2 && step ? [step.start, step.end] : data.getExtent(state.focus);
  // One or two rows show the whole run, unless most of it is not recorded; a comparison shows the whole run of both.
  if (view) timeline.setView(...view);
  else if (!change && (head.rows.length > 2 || end - start < head.span / 2)) timeline.setView(start - (end - start) * 0.02, end + (end - start) * 0.02);
  const [t0, t1] = readPair("s") ?? [0, 0];
  if (t1 > t0) timeline.selectWindow(t0, t1);
  const numbers = link.get("n")?.split(".").map(Number);
  if (numbers) timeline.selectSteps(numbers);
  const stage = Number(link.get("g") ?? NaN);
  if (data.ranges[stage]) timeline.selectStage(stage);
  if (link.get("o")) page.onlyRow = state.focus;
  state.critical = link.has("c");
  state.host = link.has("h");
  for (const key of ["critical", "host"] as const) document.getElementById(key)?.setAttribute("aria-pressed", String(state[key]));
  document.getElementById("aligned")?.setAttribute("aria-pressed", String(state.alignment !== null));
  const wanted = link.get("t") ?? "";
  if (tabs.has(wanted)) tabs.show(wanted);
}

connectShell(() => void refresh(), () => {
  history.replaceState(null, "", makeLink());
  void navigator.clipboard?.writeText(location.href);
  timeline.say("The link to this view is in the clipboard and in the address.");
});
addEventListener("hashchange", () => {
  readLink();
  timeline.redraw();
  void refresh();
});
change?.drawGate();
if (head.rows.length) {
  find("top").hidden = false;
  readLink();
  makeControls();
  drawLegend();
  if (!change) issues.drawIssues();
  timeline.draw();
  performance.mark("first-picture");
} else {
  // Snapshots or tables alone have no timeline.
  for (const id of ["strip", "top"]) find(id).hidden = true;
}
await data.loadTables();
timeline.redraw();
await refresh();
tabs.show(tabs.getCurrent());
performance.mark("complete");
Object.assign(window, { explorer: { data, timeline, state, change, getCounts: () => page.counts } });
