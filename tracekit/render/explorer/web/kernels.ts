// Kernels of the selection: the top ones beside the issues, and their tab. Without a device, operators take their place.
import { buildTree, makeFlame, type Node } from "./flame";
import { formatCount, formatShare, formatTime } from "./format";
import type { Page } from "./scope";
import { capitalize, find, type Parts } from "./shell";
import { type Column, groupWork, make, makeButton, makeTable, type Work } from "./tables";
import { getCallColor, getKindColor, getStageColor, isDark, soften } from "./theme";

const FIRST_KERNELS = 8;

export function makeKernels(page: Page) {
  const { data, head, state, timeline, noun, hasDevices, describeScope, describeExactness } = page;

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

  function drawTop(): void {
    const title = make("h2", "", `Top ${noun}s `);
    title.id = "top-title";
    title.append(make("span", "quiet", `${page.describeScope()} · ${page.describeExactness()}`));
    const add = (text: string, act: () => void): void => {
      title.append(
        makeButton(
          text,
          () => {
            act();
            void page.refresh();
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
    const table = makeTable([nameColumn, ...makeWorkColumns()], rows, { name: `Top ${noun}s`, by: 1, limit: FIRST_KERNELS, pick: (w) => page.search(nameWork(w.name)) });
    find("top").replaceChildren(title, table);
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
  return { drawTop, makeKernelTab };
}
