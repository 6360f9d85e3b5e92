// What the parts of a page share: its data, and the part of the recording that is counted.
import type { Data, Head } from "./data";
import { formatCount, formatShare, formatTime } from "./format";
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
  /** False where only logs were read: nothing of kernels, ops or idle time. */
  hasWork: boolean;
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

export function makeKey(text: string, color: string, note = ""): HTMLElement {
  const key = make("span", "key", text);
  if (note) key.title = note;
  key.prepend(makeChip(color));
  return key;
}

export function describeNumbers(numbers: Set<number>): string {
  if (!numbers.size) return "no step";
  const list = [...numbers].sort((a, b) => a - b);
  const last = list[list.length - 1];
  if (list.length === 1) return `step ${last}`;
  return last - list[0] === list.length - 1 ? `steps ${list[0]}–${last}` : `steps ${list.slice(0, 6).join(", ")}${list.length > 6 ? ", …" : ""}`;
}

export function makePage(data: Data, timeline: Timeline): Page {
  const { head } = data;
  const { state } = timeline;
  const hasDevices = head.rows.some((row) => row.kind === "device");
  const hasWork = head.rows.some((row) => row.kind !== "log");
  const counted = head.counted?.length ? new Set(head.counted) : null;
  const getDefault = (): Scope => (head.comparison ? { kind: "counted" } : counted ? { kind: "steps", numbers: counted } : { kind: "all" });
  const page: Page = {
    data,
    head,
    timeline,
    state,
    hasDevices,
    hasWork,
    noun: hasDevices ? "kernel" : "operator",
    counts: { work: [], named: 1, exact: true },
    onlyRow: null,
    withWarmUp: false,
    getScope: () => state.selection?.scope ?? (page.withWarmUp ? { kind: "all" } : getDefault()),
    // A window is one of the shown pair: other rows have clocks of their own.
    getRows: () => new Set(page.onlyRow !== null ? [page.onlyRow] : state.pair && state.selection?.scope.kind === "window" ? state.pair : state.rows),
    describeScope: () => `${describePart()} · ${describeRows()}`,
    describeExactness: () => (page.counts.named < 0.9995 ? `${formatShare(page.counts.named)} by name` : page.counts.exact ? "exact" : "estimated at the edges"),
    search: () => undefined,
    refresh: async () => undefined,
  };
  const describeRows = (): string => {
    const rows = [...page.getRows()];
    return rows.length > 1 ? `${formatCount(rows.length)} ${hasDevices ? "GPUs" : hasWork ? "threads" : "logs"}` : data.nameRow(rows[0]);
  };
  /** Numbers of steps; where the rows of a comparison differ in them, of both sides. */
  const describeSteps = ({ numbers, matched }: Extract<Scope, { kind: "steps" }>): string => {
    if (!matched || !state.pair) return describeNumbers(numbers);
    const texts = state.pair.map((row) => describeNumbers(new Set([...(matched.get(row) ?? [])].map((step) => data.rows[row].steps[step].number ?? step + 1))));
    return texts[0] === texts[1] ? texts[0] : texts.map((text, side) => `${text} of ${head.comparison!.sides[side]}`).join(", ");
  };
  const describePart = (): string => {
    const scope = page.getScope();
    if (scope.kind === "all") return "whole recording";
    if (scope.kind === "counted") return "counted steps";
    if (scope.kind === "steps") return describeSteps(scope);
    if (scope.kind === "window") return `${formatTime(scope.t1 - scope.t0, 4)} selected`;
    const ranges = [...scope.ranges].map((id) => data.ranges[id]);
    const [{ name }] = ranges;
    const listSteps = (row: number): Set<number> => new Set(ranges.filter((range) => range.row === row && range.step >= 0).map(({ step }) => step));
    const own = ranges.find(({ row }) => row === state.focus) ?? ranges[0];
    const matched = new Map((state.pair ?? [own.row]).map((row) => [row, listSteps(row)]));
    const numbers = new Set([...listSteps(own.row)].map((step) => data.rows[own.row].steps[step].number).filter((number) => number !== null));
    return `${data.names[name]}${numbers.size ? ` in ${describeSteps({ kind: "steps", numbers, ...(state.pair && { matched }) })}` : ""}`;
  };
  return page;
}
