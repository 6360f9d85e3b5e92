// The tab of ranks: a heat map of rank by step, and means per step.
import { median, type Step } from "./data";
import { formatShare, formatTime } from "./format";
import { describeNumbers, type Page } from "./scope";
import { capitalize, find, makeChooser, type Parts } from "./shell";
import { type Column, make, makeTable } from "./tables";
import { ink, prepareCanvas, setFont, showTip, soften, watchSize, writeText } from "./theme";

const MOST_HEAT_ROWS = 100;
const MEASURES: [title: string, get: (step: Step) => number][] = [
  ["compute", (step) => step.compute],
  ["step time", (step) => step.end - step.start],
  ["exposed communication", (step) => step.comm],
  ["idle", (step) => step.idle],
];

export function makeRanks(page: Page): () => Parts {
  const { data, head, state, timeline, getScope } = page;

  function makeRankTab(): Parts {
    const rows = state.rows.filter((row) => data.hasCompute(row));
    const worst = rows.slice().sort((a, b) => data.getLateness(b) - data.getLateness(a));
    const [first] = worst;
    const late = head.rows[first]?.late;
    const beyond = first === undefined ? 0 : data.getBeyond(first);
    const others = rows.filter((row) => row !== first && head.rows[row].role === head.rows[first].role && head.rows[row].run === head.rows[first].run);
    const name = first === undefined ? "" : data.labelRow(first);
    const other = others.length === 1 ? data.labelRow(others[0]) : "";
    const facts = [beyond > 0 && `${name} works ${formatTime(beyond)} per step longer than ${other || "the median of the others"}`, late && `${other ? `${other} waits` : "the others wait"} ${formatTime(late)} per step for ${beyond > 0 ? "it" : name}`];
    const back = other ? head.rows[others[0]].late : null;
    if (late && back) facts.push(`it waits ${formatTime(back)} for ${other}`);
    const said = facts.filter(Boolean);
    const answer = rows.length < 2 ? "Only one rank was recorded; there is nothing to compare." : said.length ? `${capitalize(said.join("; "))}.` : "No rank works longer than the median of the others.";
    let measure = 0;
    const canvas = make("canvas", "heat");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Heat map of ranks and steps; the table below has the same ranks.");
    const draw = makeHeatMap(canvas, worst, () => measure);
    const bar = make("div", "bar");
    bar.append(
      make("h3", "", "Distance from the median of the step"),
      makeChooser("measure", "Measure of the heat map", MEASURES.map(([title], i): [string, string] => [String(i), title]), (value) => {
        measure = Number(value);
        draw();
      }),
    );
    const scope = getScope();
    const average = (row: number, get: (step: Step) => number): number => {
      const steps = data.rows[row].steps.filter((step) => scope.kind !== "steps" || scope.numbers.has(step.number ?? -1));
      return steps.reduce((sum, step) => sum + get(step), 0) / Math.max(1, steps.length);
    };
    const columns: Column<number>[] = [
      { title: "rank", get: (row) => data.labelRow(row), full: (row) => data.nameRow(row) },
      { title: "host", get: (row) => head.rows[row].host ?? "–" },
      { title: "others wait", get: (row) => head.rows[row].late ?? 0, show: (v) => (v ? formatTime(v) : "–"), bar: () => ink.pin },
      { title: "own work above median", get: (row) => data.getBeyond(row), show: (v) => formatTime(v).replace("-", "−") },
      ...[["step", MEASURES[1][1]] as const, ...MEASURES.filter((_, i) => i !== 1), ["copies", (step: Step) => step.copies] as const].map(([title, get]): Column<number> => ({ title, get: (row) => average(row, get), show: (v) => formatTime(v, 4) })),
    ];
    const note = `Means per step, ${scope.kind === "steps" ? describeNumbers(scope.numbers) : "all steps"}. Own work is a rank's time without its waits for others.`;
    const pick = (row: number): void => {
      state.focus = row;
      timeline.redraw();
    };
    const heat = rows.length > 1 && data.steps.length ? [bar, canvas] : [];
    return [make("p", "answer", answer), ...heat, makeTable(columns, rows, { name: "Ranks", by: rows.length > 2 ? 2 : 0, limit: 12, note, csv: true, pick })];
  }
  /** Draws rank by step: red above the median of the step, blue below. */
  function makeHeatMap(canvas: HTMLCanvasElement, all: number[], getMeasure: () => number): () => void {
    const rows = all.slice(0, MOST_HEAT_ROWS);
    const getRole = (row: number): string => head.rows[row].role ?? "";
    const numbers = [...new Set(all.flatMap((row) => data.rows[row].steps.map((step) => step.number)))].filter((n): n is number => n !== null).sort((a, b) => a - b);
    const steps = new Map(rows.flatMap((row) => data.rows[row].steps.map((step): [string, Step] => [`${row},${step.number}`, step])));
    const height = rows.length > 32 ? 6 : rows.length > 8 ? 12 : 22;
    let left = 96;
    let wide = 1;
    /** Medians of the ranks of a role, by step: other roles do other work. */
    let middles = new Map<string, number[]>();
    const getColor = (share: number): string => soften(share > 0 ? "#d55e00" : "#0072b2", Math.min(1, Math.abs(share)));
    function measureMiddles(of: number[], get: (step: Step) => number): number[] {
      const values = new Map(numbers.map((number): [number, number[]] => [number, []]));
      for (const row of of) for (const step of data.rows[row].steps) if (step.number !== null) values.get(step.number)!.push(get(step));
      return numbers.map((number) => median(values.get(number)!));
    }
    function drawScale(g: CanvasRenderingContext2D, x: number, most: number): void {
      for (let i = -20; i <= 20; i++) {
        g.fillStyle = getColor(i / 20);
        g.fillRect(x + (i + 20) * 3, 26, 3, 10);
      }
      g.fillStyle = ink.quiet;
      writeText(g, `−${formatShare(most)} … +${formatShare(most)}`, x, 46, 130);
    }
    function draw(): void {
      const [, get] = MEASURES[getMeasure()];
      const { g, width } = prepareCanvas(canvas, 22 + rows.length * height);
      setFont(g, 10);
      left = Math.min(240, rows.reduce((most, row) => Math.max(most, Math.ceil(g.measureText(data.labelRow(row)).width) + 10), 96));
      setFont(g, 11);
      wide = Math.min(150, (width - left) / Math.max(1, numbers.length));
      middles = new Map([...new Set(all.map(getRole))].map((role) => [role, measureMiddles(all.filter((row) => getRole(row) === role), get)]));
      const far = (row: number, i: number): number | null => {
        const step = steps.get(`${row},${numbers[i]}`);
        return step ? get(step) / (middles.get(getRole(row))![i] || 1) - 1 : null;
      };
      let most = 0.02;
      for (const row of rows) numbers.forEach((_, i) => (most = Math.max(most, Math.min(5, Math.abs(far(row, i) ?? 0)))));
      g.fillStyle = ink.quiet;
      const every = Math.ceil(50 / wide);
      numbers.forEach((number, i) => i % every === 0 && writeText(g, `step ${number}`, left + i * wide + 3, 9, wide * every));
      rows.forEach((row, k) => {
        numbers.forEach((_, i) => {
          const share = far(row, i);
          if (share === null) return;
          g.fillStyle = getColor(share / most);
          g.fillRect(left + i * wide, 20 + k * height, Math.max(1, wide - 1), height - (height > 4 ? 1 : 0));
        });
      });
      setFont(g, 10);
      g.fillStyle = ink.quiet;
      rows.forEach((row, k) => k % Math.ceil(12 / height) === 0 && writeText(g, data.labelRow(row), 2, 20 + k * height + Math.max(height / 2, 5), left - 4));
      const x = left + numbers.length * wide + 16;
      if (width - x > 140) drawScale(g, x, most);
    }
    const findStep = (event: MouseEvent): { row: number; i: number; step: Step } | null => {
      const row = rows[Math.floor((event.offsetY - 20) / height)];
      const i = Math.floor((event.offsetX - left) / wide);
      const step = steps.get(`${row},${numbers[i]}`);
      return step ? { row, i, step } : null;
    };
    canvas.onpointermove = (event) => {
      const at = findStep(event);
      const [title, get] = MEASURES[getMeasure()];
      showTip(canvas, event.offsetX, event.offsetY, at ? `${data.labelRow(at.row)}, step ${numbers[at.i]}: ${title} ${formatTime(get(at.step), 4)}, median ${formatTime(middles.get(getRole(at.row))![at.i], 4)}` : undefined);
    };
    canvas.onpointerleave = () => showTip(canvas);
    canvas.onclick = (event) => {
      const at = findStep(event);
      if (!at) return;
      timeline.jump(at.row, at.step.start, at.step.end, 0.96);
      find("strip").scrollIntoView({ block: "start" });
    };
    watchSize(canvas, draw);
    queueMicrotask(draw);
    return draw;
  }
  return makeRankTab;
}
