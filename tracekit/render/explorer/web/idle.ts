// The tab of time: idle time by cause and host call, its longest gaps, and device time by stage.
import type { Step } from "./data";
import { buildTree, makeFlame, type Node } from "./flame";
import { formatCount, formatShare, formatTime } from "./format";
import type { Page } from "./scope";
import type { Parts } from "./shell";
import { type Column, countGaps, hasStep, listWindows, make, makeTable } from "./tables";
import { getCauseColor, getStageColor, isStage } from "./theme";

const MOST_GAPS = 300;

export function makeIdleTime(page: Page) {
  const { data, head, timeline, hasDevices, getScope, getRows } = page;

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

  /** Measures the rows with idle time: of a process without a device, only the main thread has gaps. */
  function measureScope(): { all: number; idle: number | null } {
    const scope = getScope();
    let all = 0;
    const isIn = (row: number, step: Step): boolean => (scope.kind === "counted" ? step.counted : scope.kind === "steps" && hasStep(scope, row, step));
    let idle = scope.kind === "steps" || scope.kind === "counted" ? 0 : null;
    for (const row of getRows()) {
      if (head.rows[row].kind === "thread" && !data.rows[row].gaps.length) continue;
      const [first, last] = data.getExtent(row);
      for (const [start, end] of listWindows(data, scope, row)) all += Math.max(0, Math.min(last, end) - Math.max(first, start));
      if (idle !== null) for (const step of data.rows[row].steps) if (isIn(row, step)) idle += step.idle;
    }
    return { all, idle };
  }
  function makeTimeTab(): Parts {
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
    const subject = hasDevices ? "GPUs are" : "The main threads are";
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
  return { makeTimeTab, goToLongestGap };
}
