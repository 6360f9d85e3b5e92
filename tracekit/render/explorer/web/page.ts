// The page: answers first, details when they are opened. The fragment keeps the view, so a link shows the same.
import { makeComparison } from "./comparison";
import { Data, type Head, type Step } from "./data";
import { makeReport } from "./report";
import { makeKey, makePage } from "./scope";
import { makeSearch } from "./search";
import { buildShell, connectShell, find, makeSwitch, makeTabs } from "./shell";
import { make, makeButton } from "./tables";
import { assignStages, getCauseColor } from "./theme";
import { makeTimeline } from "./timeline";

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
    if (page.onlyRow === null) return content.focus();
    page.onlyRow = timeline.state.focus;
    void refresh();
  },
  paired: (row) => content.chooseFocus(row, state.alignment !== null),
  moved: () => writeLink(),
  pinned: (finding) => content.openIssue(finding),
  nextPin: (by) => content.openNext(by),
  longestGap: () => content.goToLongestGap(),
});
const page = makePage(data, timeline);
const { state, noun } = page;
page.refresh = refresh;
const { search, goToHit } = makeSearch(page);
page.search = search;
const content = COMPARISON ? makeComparison(page) : makeReport(page, (tab) => tabs.rebuild(tab));
const tabs = makeTabs(content.listTabs(), writeLink);

let refreshing = 0;
/** Counts again, and shows it. */
async function refresh(): Promise<void> {
  const turn = ++refreshing;
  if (!data.sums) return;
  await content.count(() => turn === refreshing);
  if (turn !== refreshing) return;
  content.draw();
  if (head.rows.length) {
    drawLegend();
    find("scope").textContent = page.describeScope();
  }
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
function chooseStep(): Step | undefined {
  const { steps } = data.rows[state.focus];
  const steady = steps.filter((step) => step.counted);
  return (steady.length ? steady : steps).slice().sort((a, b) => b.end - b.start - (a.end - a.start))[0];
}
function showStep(): void {
  const step = chooseStep();
  if (COMPARISON && step && state.alignment) timeline.jump(state.focus, step.start, step.end, 0.8);
  else if (step) timeline.glide(step.start - (step.end - step.start) * 0.01, step.end + (step.end - step.start) * 0.01);
}
function makeControls(): void {
  const field = make("input");
  field.id = "find";
  field.type = "search";
  field.placeholder = LOGS ? "Find stage ( / )" : `Find ${noun}, stage, call ( / )`;
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
  box.append(field, matches, ...content.listControls());
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
  if (COMPARISON && !state.alignment) parts.push("p=1");
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
  content.chooseFocus(head.rows[row] ? row : null, !link.get("p"));
  const view = readPair("v");
  const step = chooseStep();
  const isMany = !LOGS && head.rows.length > 2;
  const [start, end] = isMany && step ? [step.start, step.end] : data.getExtent(state.focus);
  // One or two rows, and logs, show the whole run, unless most of it is not recorded; a comparison that of both.
  if (view) timeline.setView(...view);
  else if (!COMPARISON && !LOGS && (isMany || end - start < head.span / 2)) timeline.setView(start - (end - start) * 0.02, end + (end - start) * 0.02);
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
  if (COMPARISON) document.getElementById("aligned")?.setAttribute("aria-pressed", String(state.alignment !== null));
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
content.drawFirst?.();
if (head.rows.length) {
  find("top").hidden = false;
  readLink();
  makeControls();
  drawLegend();
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
Object.assign(window, { explorer: { data, timeline, state, change: content, getCounts: () => page.counts } });
