// What the parts of a page share: its data, and the part of the recording that is counted.
import { describeSteps, listStagesSteps } from "./align";
import type { Data, Head } from "./data";
import { formatCount, formatShare, formatTime } from "./format";
import { makeChooser, type Tab } from "./shell";
import { type Counts, make, makeChip, type Scope } from "./tables";
import type { Timeline } from "./timeline";
import type { TimelineState } from "./view";

export interface Page {
  data: Data;
  head: Head;
  timeline: Timeline;
  state: TimelineState;
  noun: string;
  hasDevices: boolean;
  counts: Counts;
  onlyRow: number | null;
  withWarmUp: boolean;
  getScope: () => Scope;
  getRows: () => Set<number>;
  describeScope: () => string;
  describeExactness: () => string;
  search: (query: string) => void;
  refresh: () => Promise<void>;
}

/** What differs between a report and a comparison. */
export interface Content {
  listTabs: () => Tab[];
  /** Controls of the rows. */
  listControls: () => HTMLElement[];
  /** Brings up the row of a link; without one, the row to look at first. */
  chooseFocus: (row: number | null, aligned: boolean) => void;
  openIssue: (finding: number) => void;
  openNext: (by: number) => void;
  goToLongestGap: () => void;
  /** Draws what needs no kernels. */
  drawFirst?: () => void;
  /** Draws what depends on the row in focus. */
  focus: () => void;
  count: (isLatest: () => boolean) => Promise<void>;
  draw: () => void;
}

/** A chooser of the order of thin rows. */
export const makeOrder = ({ state, redraw }: Timeline): HTMLSelectElement =>
  makeChooser("order", "Order of the rows", [["rank", "by rank"], ["late", "slowest first"]], (value) => {
    state.order = value === "late" ? "late" : "rank";
    redraw();
  });

export function makeKey(text: string, color: string, note = ""): HTMLElement {
  const key = make("span", "key", text);
  if (note) key.title = note;
  key.prepend(makeChip(color));
  return key;
}

export function describeNumbers(numbers: Set<number>): string {
  const list = [...numbers].sort((a, b) => a - b);
  const last = list[list.length - 1];
  if (list.length === 1) return `step ${last}`;
  return last - list[0] === list.length - 1 ? `steps ${list[0]}–${last}` : `steps ${list.slice(0, 6).join(", ")}${list.length > 6 ? ", …" : ""}`;
}

export function makePage(data: Data, timeline: Timeline): Page {
  const { head } = data;
  const { state } = timeline;
  const hasDevices = head.rows.some((row) => row.kind === "device");
  const counted = head.counted?.length ? new Set(head.counted) : null;
  const getDefault = (): Scope => (COMPARISON ? { kind: "counted" } : counted ? { kind: "steps", numbers: counted } : { kind: "all" });
  const page: Page = {
    data,
    head,
    timeline,
    state,
    hasDevices,
    noun: hasDevices ? "kernel" : "operator",
    counts: { work: [], named: 1, exact: true },
    onlyRow: null,
    withWarmUp: false,
    getScope: () => state.selection?.scope ?? (page.withWarmUp ? { kind: "all" } : getDefault()),
    // A window is one of the shown pair: other rows have clocks of their own.
    getRows: () => new Set(page.onlyRow !== null ? [page.onlyRow] : COMPARISON && state.pair && state.selection?.scope.kind === "window" ? state.pair : state.rows),
    describeScope: () => `${describePart()} · ${describeRows()}`,
    describeExactness: () => (page.counts.named < 0.9995 ? `${formatShare(page.counts.named)} by name` : page.counts.exact ? "exact" : "estimated at the edges"),
    search: () => undefined,
    refresh: async () => undefined,
  };
  const describeRows = (): string => {
    const rows = [...page.getRows()];
    return rows.length > 1 ? `${formatCount(rows.length)} ${LOGS ? "logs" : hasDevices ? "GPUs" : "threads"}` : data.nameRow(rows[0]);
  };
  const describePart = (): string => {
    const scope = page.getScope();
    if (scope.kind === "all") return "whole recording";
    if (scope.kind === "counted") return "counted steps";
    if (scope.kind === "steps") return COMPARISON && state.pair && scope.matched ? describeSteps(data, state.pair, scope.matched) : describeNumbers(scope.numbers);
    if (scope.kind === "window") return `${formatTime(scope.t1 - scope.t0, 4)} selected`;
    const range = data.ranges[[...scope.ranges][0]];
    const number = data.rows[range.row].steps[range.step]?.number;
    return `${data.names[range.name]}${number == null ? "" : ` in ${COMPARISON ? describeSteps(data, state.pair!, listStagesSteps(data, scope.ranges)) : `step ${number}`}`}`;
  };
  return page;
}
