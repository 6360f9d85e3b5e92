// What a comparison shows around the two timelines: where the change came from, kernels by change, and tabs; which rows are compared.
import { alignRows, pairRow } from "./align";
import { makeChange } from "./change";
import { makeIdleTime } from "./idle";
import type { Content, Page } from "./scope";
import { makeChooser, makeSwitch } from "./shell";

export function makeComparison(page: Page): Content & Pick<ReturnType<typeof makeChange>, "list"> {
  const { data, head, state, timeline } = page;
  const change = makeChange(page);
  const { makeTimeTab, goToLongestGap } = makeIdleTime(page);
  /** Shows a row and its partner, aligned at stage starts or in plain time. */
  function showPair(row: number, aligned: boolean): void {
    const pair = pairRow(data, row);
    state.pair = pair;
    state.alignment = aligned ? alignRows(data, ...pair) : null;
    state.focus = row;
    state.selection = state.mark = null;
    timeline.setView(0, timeline.getSpan());
  }

  function listControls(): HTMLElement[] {
    const aligned = makeSwitch("aligned", "align stages", "Begin the same stage of the same step at the same place", state.alignment !== null, (on) => {
      showPair(state.focus, on);
      void page.refresh();
    });
    const base = state.rows.filter((row) => head.rows[row].side === 0 && data.hasCompute(row));
    if (base.length < 2) return [aligned];
    const chooser = makeChooser("pair", "Rank or run to compare", base.map((row): [string, string] => [String(row), pairRow(data, row).map((one) => data.nameRow(one)).join(" | ")]), (value) => {
      showPair(Number(value), state.alignment !== null);
      void page.refresh();
    });
    chooser.value = String(state.pair![0]);
    return [chooser, aligned];
  }
  return {
    list: change.list,
    listTabs: () => [...change.tabs, ...(head.rows.length ? [{ id: "time", title: "Idle time", build: makeTimeTab }] : []), change.sheetTab],
    listControls,
    chooseFocus: (row, aligned) => showPair(row ?? Math.max(0, state.rows.findIndex((i) => data.hasCompute(i))), aligned),
    openIssue: () => undefined,
    openNext: change.openNext,
    goToLongestGap,
    drawFirst: change.drawGate,
    focus: () => undefined,
    count: change.count,
    draw() {
      change.drawParts();
      if (head.rows.length) change.drawKernels();
    },
  };
}
