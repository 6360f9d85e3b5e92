// Search by name: hits on the timeline, their sum, and steps from one to the next.
import { lowerBound } from "./data";
import { formatCount, formatTime } from "./format";
import type { Page } from "./scope";
import { find } from "./shell";

export function makeSearch(page: Page) {
  const { data, head, state, timeline, getRows, noun } = page;

  function search(query: string): void {
    find<HTMLInputElement>("find").value = query;
    const wanted = query.trim().toLowerCase();
    const note = find("matches");
    if (!wanted) {
      state.hits = null;
      note.textContent = "";
      return timeline.redraw();
    }
    const names = new Set<number>();
    const paths = new Set<number>();
    data.names.forEach((name, i) => {
      if (name.toLowerCase().includes(wanted) || data.short[i].toLowerCase().includes(wanted)) names.add(i);
    });
    data.paths.forEach(([parent, name], i) => {
      if (names.has(name) || paths.has(parent)) paths.add(i);
    });
    state.hits = { names, paths };
    // A comparison counts its sides apart.
    const found = (COMPARISON ? head.comparison!.sides : [""]).map((side) => ({ side, count: 0, ns: 0 }));
    const { sums } = data;
    const rows = getRows();
    const add = (row: number, count: number, ns: number): void => {
      const side = found[(COMPARISON && head.rows[row].side) || 0];
      side.count += count;
      side.ns += ns;
    };
    if (LOGS) for (const { row, name, start, end } of data.ranges) if (rows.has(row) && names.has(name)) add(row, 1, end - start);
    if (!LOGS && sums) for (let i = 0; i < sums.row.length; i++) if (rows.has(sums.row[i]) && (names.has(sums.name[i]) || paths.has(sums.path[i]))) add(sums.row[i], sums.count[i], sums.ns[i]);
    const texts = found.map(({ side, count, ns }) => `${side} ${formatCount(count)} × · ${formatTime(ns)}`.trim());
    note.textContent = found.some(({ count }) => count) ? `${texts.join(" | ")} · Enter: next` : !LOGS && names.size ? `a stage or a call without ${noun}s` : "no match";
    timeline.redraw();
  }
  async function goToHit(back: boolean): Promise<void> {
    const { hits, focus } = state;
    if (!hits) return;
    const from = state.mark?.row === focus ? state.mark.t0 : back ? state.e : state.t;
    await data.loadRow(focus);
    let best: { t0: number; t1: number } | null = null;
    const offer = (t0: number, t1: number): void => {
      if (back ? t0 < from && (!best || t0 > best.t0) : t0 > from && (!best || t0 < best.t0)) best = { t0, t1 };
    };
    for (const { data: boxes } of data.rows[focus].cells) {
      if (!boxes) continue;
      const near = lowerBound(boxes.start, from);
      for (let k = back ? near - 1 : near; k >= 0 && k < boxes.start.length; k += back ? -1 : 1)
        if ((hits.names.has(boxes.name[k]) || hits.paths.has(boxes.path[k])) && boxes.start[k] !== from) {
          offer(boxes.start[k], boxes.start[k] + boxes.length[k]);
          break;
        }
    }
    for (const range of data.rows[focus].ranges.flat()) if (hits.names.has(range.name)) offer(range.start, range.end);
    const place = best as { t0: number; t1: number } | null;
    if (place) timeline.jump(focus, place.t0, place.t1, 0.1);
    else find("matches").textContent = `no ${back ? "earlier" : "later"} match on ${data.nameRow(focus)}`;
  }
  return { search, goToHit };
}
