// What a comparison shows around the two timelines: where the change came from, kernels by change, and tabs; which rows are compared.
import { addToAlignment, alignRows, measureBeyond, nameInHeat, pairRow } from "./align";
import { makeChange } from "./change";
import { makeIdleTime } from "./idle";
import { type Content, makeOrder, type Page } from "./scope";
import { makeChooser, makeSwitch } from "./shell";
import { makeStageChange } from "./stage_change";

export function makeComparison(page: Page): Content & Pick<ReturnType<typeof makeChange>, "list" | "tree"> {
  const { data, head, state, timeline } = page;
  const change = makeChange(page);
  const beyond = measureBeyond(data);
  head.rows.forEach((row, i) => (row.beyond = beyond[i]));
  const stages = LOGS ? makeStageChange(page) : null;
  const idle = LOGS ? null : makeIdleTime(page);
  /** Shows a row and its partner, aligned at stage starts or in plain time. */
  function showPair(row: number, aligned: boolean): void {
    const pair = pairRow(data, row);
    state.pair = pair;
    const alignment = aligned ? alignRows(data, ...pair) : null;
    state.alignment = alignment;
    if (alignment) state.rows.filter((other) => !pair.includes(other)).forEach((other) => addToAlignment(data, alignment, other, pair[head.rows[other].side ?? 0]));
    state.focus = row;
    state.selection = state.mark = null;
    timeline.setView(0, timeline.getSpan());
  }

  function listControls(): HTMLElement[] {
    const aligned = makeSwitch("aligned", "align stages", "Begin the same stage of the same step at the same place", state.alignment !== null, (on) => {
      showPair(state.focus, on);
      void page.refresh();
    });
    const [base, opt] = [0, 1].map((side) => state.rows.filter((row) => head.rows[row].side === side && (LOGS || data.hasCompute(row))));
    if (base.length < 2) return LOGS || opt.length < 2 ? [aligned] : [makeOrder(timeline), aligned];
    const chooser = makeChooser("pair", "Rank or run to compare", base.map((row): [string, string] => [String(row), [...new Set(pairRow(data, row).map((one) => nameInHeat(data, one)))].join(" | ")]), (value) => {
      showPair(Number(value), state.alignment !== null);
      void page.refresh();
    });
    chooser.value = String(state.pair![0]);
    return LOGS ? [chooser, aligned] : [chooser, makeOrder(timeline), aligned];
  }
  return {
    list: change.list,
    tree: change.tree,
    listTabs: () => [...change.tabs, ...(head.rows.length ? [idle ? { id: "time", title: "Idle time", build: idle.makeTimeTab } : { id: "stages", title: "Stages", build: stages!.makeStageTab }] : []), change.sheetTab],
    listControls,
    /** Another pair is shown at the same place. */
    chooseFocus(row, aligned) {
      const { t, e, pair } = state;
      showPair(row ?? Math.max(0, state.rows.findIndex((i) => data.hasCompute(i))), aligned);
      if (pair) timeline.setView(t, e);
    },
    openIssue: () => undefined,
    openNext: change.openNext,
    goToLongestGap: () => idle?.goToLongestGap(),
    /** The pair may also be chosen on the timeline. */
    focus() {
      const chooser = document.getElementById("pair") as HTMLSelectElement | null;
      if (chooser && state.pair) chooser.value = String(state.pair[0]);
      change.drawMatching();
    },
    count: async () => (LOGS ? undefined : change.count()),
    draw() {
      change.drawParts();
      change.drawMatching();
      if (LOGS) stages!.drawStages();
      else if (head.rows.length) change.drawKernels();
      else change.drawBeside();
    },
  };
}
