// The tab of memory snapshots: bands by site or holder over time, and the allocations of one moment.
import { BEFORE, buildStaircase, getBandColor, listLive, loadPieces, makeBands, type Pieces } from "./bands";
import type { Data, Snapshot } from "./data";
import { formatBytes, formatCount, formatMoment } from "./format";
import { buildTree, makeFlame } from "./flame";
import { makeKey } from "./scope";
import { makeChooser, type Parts } from "./shell";
import { type Column, make, makeButton, makeTable } from "./tables";

/** The shown snapshot: the one with the highest peak at first, which the answer of the page is about. */
let snapshot = -1;
let by = "site";
const staircases = new Map<string, { pieces: Pieces; stairs: ReturnType<typeof buildStaircase> }>();
export async function makeMemoryTab(data: Data, rebuild: () => void): Promise<Parts> {
  const { head } = data;
  const { memories } = head;
  if (snapshot < 0) snapshot = memories.reduce((most, { peak }, i) => (peak > memories[most].peak ? i : most), 0);
  const key = `${snapshot} ${by}`;
  let loaded = staircases.get(key);
  if (!loaded) {
    const pieces = await loadPieces(data, snapshot);
    if (!pieces) return [make("p", "quiet", "The snapshot does not fit into this page.")];
    if (by === "holder") pieces.site = pieces.holder;
    loaded = { pieces, stairs: buildStaircase(pieces, memories[snapshot].span) };
    staircases.set(key, loaded);
  }
  const { pieces, stairs } = loaded;
  const held = new Map<string, number>();
  for (const i of listLive(pieces, stairs.peakTime)) held.set(pieces.site[i], (held.get(pieces.site[i]) ?? 0) + pieces.size[i]);
  const before = held.get(BEFORE);
  const [top] = [...held].filter(([site]) => site !== BEFORE).sort((a, b) => b[1] - a[1]);
  const { rank } = memories[snapshot];
  const where = memories.length > 1 && rank !== null ? ` of rank ${rank}` : "";
  const answer = `${formatBytes(stairs.peak)} are in use at the peak${where}${top ? `. Largest ${by}: ${top[0]}, ${formatBytes(top[1])}` : ""}${before ? `; ${formatBytes(before)} were allocated before the history` : ""}.`;
  const moment = make("div");
  const showMoment = (time: number): void => moment.replaceChildren(...makeMoment(data, memories[snapshot], pieces, stairs, time));
  const bands = makeBands(stairs, memories[snapshot], showMoment);
  const bar = make("div", "bar");
  bar.append(make("h3", "", `Memory in use by ${by === "site" ? "allocation site" : by}`), makeButton("go to the peak", () => bands.choose(stairs.peakTime)));
  if (memories.length > 1)
    bar.append(
      makeChooser("snapshot", "Snapshot", memories.map((memory, i): [string, string] => [String(i), memory.rank === null ? memory.file : `rank ${memory.rank} · ${memory.file}`]), (value) => {
        snapshot = Number(value);
        rebuild();
      }),
    );
  if (new Set(pieces.holder).size > 1)
    bar.append(
      makeChooser("memory-by", "Bands", [["site", "by call site"], ["holder", "by holder"]], (value) => {
        by = value;
        rebuild();
      }),
    );
  for (const chooser of bar.querySelectorAll("select")) chooser.value = chooser.id === "snapshot" ? String(snapshot) : by;
  const legend = make("div", "legend");
  legend.append(...stairs.names.map((name, band) => makeKey(name, getBandColor(stairs, band))));
  showMoment(stairs.peakTime);
  const { floor, merged, hidden, marks } = memories[snapshot];
  const facts = [
    ...(floor == null ? [] : [`${formatCount(merged ?? 0)} allocations of at most ${formatBytes(floor)} are merged by stack; the peak is exact.`]),
    ...(hidden ? [`${formatCount(hidden)} short ones are not drawn.`] : []),
    ...(marks?.length ? [`Serving engine, by the log: ${marks.map(([time, state]) => `${state} from ${formatMoment(memories[snapshot], time, 5)}`).join(", ")}.`] : []),
  ];
  return [make("p", "answer", answer), bar, bands.canvas, legend, ...(facts.length ? [make("p", "foot quiet", facts.join(" "))] : []), moment];
}
function makeMoment(data: Data, memory: Snapshot, pieces: Pieces, stairs: ReturnType<typeof buildStaircase>, time: number): HTMLElement[] {
  interface Line {
    path: number;
    size: number;
    count: number;
    site: string;
  }
  const live = listLive(pieces, time);
  const lines = new Map<string, Line>();
  const paths: [string[], number][] = [];
  let total = 0;
  for (const i of live) {
    const key = `${pieces.path[i]},${pieces.site[i]}`;
    const line = lines.get(key) ?? { path: pieces.path[i], size: 0, count: 0, site: pieces.site[i] };
    line.size += pieces.size[i];
    line.count += 1 + (pieces.more?.[i] ?? 0);
    lines.set(key, line);
    total += pieces.size[i];
  }
  for (const { path, size, site } of lines.values()) {
    const frames = data.listPath(path).map((name) => data.names[name]);
    paths.push([frames.length ? frames : [site], size]);
  }
  const getColor = (site: string): string => {
    const band = stairs.names.indexOf(site);
    return getBandColor(stairs, band < 0 ? stairs.names.length - 1 : band);
  };
  const columns: Column<Line>[] = [
    { title: by, get: ({ site }) => site, chip: ({ site }) => getColor(site) },
    { title: "innermost call", get: ({ path }) => data.names[data.listPath(path).pop() ?? -1] ?? "–" },
    { title: "bytes", get: ({ size }) => size, show: formatBytes, bar: ({ site }) => getColor(site) },
    { title: "allocations", get: ({ count }) => count, show: formatCount },
  ];
  return [
    make("p", "answer", `At ${formatMoment(memory, time, 6)}: ${formatBytes(total)} in ${formatCount([...lines.values()].reduce((sum, { count }) => sum + count, 0))} allocations.`),
    makeFlame(buildTree(paths, "in use"), { title: "By stack at this moment", note: "The outermost call is on top. The width is the number of bytes.", format: formatBytes }),
    makeTable(columns, [...lines.values()], { name: "Allocations at this moment", by: 2, limit: 10, csv: true }),
  ];
}
