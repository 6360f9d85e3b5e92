// Stages of the logs of both sides: their means before and after in the counted part, and the stages of each step.
import { formatCount, formatTime } from "./format";
import { formatChange } from "./change";
import type { Page } from "./scope";
import { find, type Parts } from "./shell";
import { countStages, makeStageCharts } from "./stages";
import { type Column, make, makeButton, makeTable } from "./tables";
import { getKindColor, getStageColor } from "./theme";

/** A stage on both sides: its mean over the steps that have it, null where a side has none; and the number of these. */
export interface StagePair {
  name: string;
  means: [base: number | null, opt: number | null];
  steps: [base: number, opt: number];
}
const WHOLE = "step";

export function makeStageChange(page: Page) {
  const { data, head, state, timeline } = page;
  const listSide = (side: number): number[] => [...page.getRows()].filter((row) => head.rows[row].side === side);

  /** The step and its stages on both sides, in the counted part; the step first, then the largest change. */
  function listStages(): StagePair[] {
    const pairs = new Map<string, StagePair>();
    [0, 1].forEach((side) => {
      const { lines, steps, ns } = countStages(data, page.getScope(), new Set(listSide(side)));
      const whole = steps ? [{ name: WHOLE, ns, steps }] : [];
      for (const { name, ns: time, steps: count } of [...whole, ...lines.map((line) => ({ ...line, name: data.names[line.name] }))]) {
        const pair = pairs.get(name) ?? { name, means: [null, null], steps: [0, 0] };
        pair.means[side] = time / count;
        pair.steps[side] = count;
        pairs.set(name, pair);
      }
    });
    return [...pairs.values()].sort((a, b) => Number(b.name === WHOLE) - Number(a.name === WHOLE) || Math.abs(getChange(b)) - Math.abs(getChange(a)));
  }
  const getChange = ({ means: [base, opt] }: StagePair): number => (opt ?? 0) - (base ?? 0);
  function makeStageTable(name: string): HTMLElement {
    const write = (ns: number | null): string => (ns === null ? "–" : formatTime(ns));
    const columns: Column<StagePair>[] = [
      { title: "stage", get: (pair) => pair.name, chip: (pair) => getStageColor(pair.name) },
      { title: "before", get: ({ means }) => means[0] ?? 0, show: (_, { means }) => write(means[0]) },
      { title: "after", get: ({ means }) => means[1] ?? 0, show: (_, { means }) => write(means[1]) },
      { title: "change", get: getChange, show: (v, { means }) => (means.includes(null) ? "–" : formatChange(v)), bar: (pair) => getKindColor(getChange(pair) > 0 ? 1 : 0), size: true },
      { title: "steps", get: ({ steps }) => steps[1] - steps[0], show: (_, { steps }) => steps.map((n) => formatCount(n)).join(" → ") },
    ];
    return makeTable(columns, listStages(), { name, by: -1, limit: 12, csv: true, note: "Means over the steps that have the stage, as logged.", pick: (pair) => pair.name !== WHOLE && page.search(pair.name) });
  }
  function drawStages(): void {
    const title = make("h2", "", "Stages by change ");
    title.append(make("span", "quiet", page.describeScope()));
    if (state.selection) title.append(makeButton("clear selection", timeline.clear, "link"));
    find("issues").parentElement!.classList.add("logs");
    find("top").replaceChildren(title, makeStageTable("Stages by change"));
  }
  /** Charts of the shown logs, as high as the longest step of both. */
  function makeStageTab(): Parts {
    const pair = state.pair!;
    const [step, top] = listStages();
    const change = step && !step.means.includes(null) ? ` The step changes by ${formatChange(getChange(step))}.` : "";
    const answer = top ? `${top.name} changes most: ${top.means.includes(null) ? `only ${top.means[0] === null ? "after" : "before"}` : formatChange(getChange(top))}.${change}` : "The logs have no timed stage here.";
    return [make("p", "answer", answer), makeStageCharts(page, pair), makeStageTable("Stages")];
  }
  return { drawStages, makeStageTab, listStages };
}
