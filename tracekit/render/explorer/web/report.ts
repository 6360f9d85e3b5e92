// What a report shows around the timeline: issues, top kernels, and tabs; choosers of run, role and order.
import { makeIdleTime } from "./idle";
import { makeIssues } from "./issues";
import { makeKernels } from "./kernels";
import { makeRanks } from "./ranks";
import { type Content, makeOrder, type Page } from "./scope";
import { capitalize, makeChooser, type Tab } from "./shell";
import { makeMemoryTab } from "./snapshots";
import { makeStages } from "./stages";
import { countKernels, listSheets } from "./tables";

export function makeReport(page: Page, rebuild: (tab: string) => void): Content {
  const { data, head, state, noun, timeline } = page;
  const issues = makeIssues(page, chooseRows);
  const stages = LOGS ? makeStages(page) : null;
  const kernels = LOGS ? null : makeKernels(page);
  const idle = LOGS ? null : makeIdleTime(page);
  const drawTop = kernels?.drawTop ?? stages!.drawStages;

  /** The tabs that have something to show. */
  function listTabs(): Tab[] {
    const list: Tab[] = head.rows.length ? [{ id: "time", title: "Time", build: idle?.makeTimeTab ?? stages!.makeStageTab }] : [];
    if (head.rows.length && kernels) list.push({ id: "kernels", title: capitalize(`${noun}s`), build: kernels.makeKernelTab });
    if (!LOGS && head.rows.filter((_, row) => data.hasCompute(row)).length > 1) list.push({ id: "ranks", title: "Ranks", build: makeRanks(page) });
    if (MEMORY && head.memories.length) list.push({ id: "memory", title: "Memory", build: () => makeMemoryTab(data, () => rebuild("memory")) });
    if (LOGS && head.sheets) list.push({ id: "tables", title: "All tables", build: () => listSheets(head.sheets!, false) });
    return list;
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
  function listControls(): HTMLElement[] {
    const readChooser = (id: string): string => (document.getElementById(id) as HTMLSelectElement | null)?.value ?? "";
    const choose = (): void => {
      chooseRows(readChooser("run"), readChooser("role"));
      void page.refresh();
    };
    const keys = (["run", "role"] as const).filter((key) => listValues(key).length > 1);
    const list = keys.map((key) => makeChooser(key, `Show one ${key}`, [["", `all ${key}s`], ...listValues(key).map((value): [string, string] => [value, value])], choose));
    if (!LOGS && head.rows.length > 2) list.push(makeOrder(timeline));
    return list;
  }
  /** Brings up the row of a link, the slowest of many ranks, or the row of the first issue. */
  function chooseFocus(row: number | null): void {
    const [worst] = state.rows.slice().sort((a, b) => data.getLateness(b) - data.getLateness(a));
    const pinned = head.findings.find(({ pins }) => pins.length)?.pins[0].row ?? 0;
    const focus = row ?? (head.rows.length > 2 ? worst : pinned);
    state.focus = head.rows[focus] ? focus : 0;
  }
  return {
    listTabs,
    listControls,
    chooseFocus,
    openIssue: issues.openIssue,
    openNext: issues.openNext,
    goToLongestGap: () => idle?.goToLongestGap(),
    drawFirst: issues.drawIssues,
    focus: drawTop,
    async count(isLatest) {
      if (LOGS || !head.rows.length) return;
      const counted = await countKernels(data, page.getScope(), page.getRows());
      if (isLatest()) page.counts = counted;
    },
    draw() {
      issues.drawIssues();
      if (head.rows.length) drawTop();
    },
  };
}
