// Writes a page with SIMULATED rows in the format of the explorer: node simulate.mjs OUT.html [ranks] [steps].
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { deflateRawSync } from "node:zlib";
import { encodeRows, makeRandom, takeDifferences } from "./blocks.mjs";

const FOLDER = new URL("../../tracekit/render/explorer/", import.meta.url);
const US = 1_000;
export const FASTER = 5_000 * US;
const CAUSES = [
  ["host_sync", "synchronizing call", "The host was in a call that waits for the device."],
  ["host_op", "host op", "The host ran an op or a runtime call."],
  ["host_none", "between host ops", "The host was between two ops."],
  ["host_silent", "no host activity", "Nothing was recorded on the host."],
  ["after_last", "after the last op", "No further op until the recording ends."],
];
const KERNELS = [
  ["void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int, float)", 0],
  ["sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 0],
  ["void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)", 0],
  ["ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)", 1],
  ["Memcpy HtoD (Pinned -> Device)", 2],
];

/**
 * Simulates rows, encodes them and fills the template. `hostile` is added to all names. A comparison has one rank a side;
 * its second side spends `FASTER` ns less in gen, in every step.
 */
export function simulatePage({ ranks = 2, steps = 3, kernels = 300, hostile = "", saved = true, comparison = false } = {}) {
  const random = makeRandom(7);
  const names = [];
  const number = new Map();
  const name = (text) => {
    const full = text + hostile;
    if (!number.has(full)) number.set(full, names.push(full) - 1);
    return number.get(full);
  };
  const paths = [];
  const pathNumber = new Map();
  const path = (...texts) => {
    let parent = -1;
    for (const text of texts) {
      const key = `${parent},${text}`;
      if (!pathNumber.has(key)) pathNumber.set(key, paths.push([parent, name(text)]) - 1);
      parent = pathNumber.get(key);
    }
    return parent;
  };
  const stageNames = ["gen", "old_log_prob", "ref", "update_actor"];
  const table = { steps: [], ranges: [], sums: [], gaps: [], segments: [], cells: [], critical: [] };
  const blocks = {};
  const perStep = 60_000 * US;
  const bins = 1024;
  const span = perStep * steps + 500 * US;
  const width = Math.ceil(span / bins);
  const planes = new Float64Array(ranks * 5 * bins);
  const spread = (row, plane, start, length) => {
    for (let t = start; t < start + length; ) {
      const bin = Math.min(bins - 1, Math.floor(t / width));
      const end = Math.min(start + length, (bin + 1) * width);
      planes[(row * 5 + plane) * bins + bin] += end - t;
      t = end;
    }
  };
  const rows = [];
  for (let rank = 0; rank < ranks; rank++) {
    const slow = rank === Math.min(5, ranks - 1) && !comparison ? 1.15 : 1;
    const faster = comparison && rank === 1 ? FASTER : 0;
    rows.push({ ...(comparison ? { side: rank } : {}), kind: "device", rank: comparison ? 0 : rank, device: rank % 8, thread: null, host: `simulated-host-${Math.floor(rank / 8)}`, role: null, run: null, process: rank, lanes: [[0, 7], [1, 20], [2, 13]], late: rank === Math.min(5, ranks - 1) ? 5_000 * US : null, beyond: null });
    const chunks = [];
    const host = [];
    for (let step = 0; step < steps; step++) {
      const long = perStep - faster;
      const begin = step * long;
      const totals = [0, 0, 0];
      const sums = new Map();
      const boxes = [];
      let t = begin + 200 * US;
      let idle = 0;
      let last = begin;
      let before = 0;
      stageNames.forEach((stage, s) => {
        const occurrence = table.ranges.length;
        const room = (perStep - 2_000 * US) / stageNames.length;
        const first = begin + 200 * US + s * room - (s > 0 ? faster : 0);
        table.ranges.push([rank, first, Math.floor(room * 0.97) - (s > 0 ? 0 : faster), name(stage), 0, step + 1]);
        if (s > 0) for (let m = 0; m < 2; m++) table.ranges.push([rank, first + (m * room) / 2, Math.floor(room * 0.45), name(s === 3 ? "mini_batch" : "micro_batch"), 1, step + 1]);
        t = Math.max(t, first + 100 * US);
        for (let k = 0; k < kernels / stageNames.length; k++) {
          const pick = s === 0 ? [0, 2][k % 2] : k % 17 === 0 ? 3 : k % 29 === 0 ? 4 : k % 3;
          const [text, kind] = KERNELS[pick];
          const length = Math.floor((pick === 3 ? 400 : 60 + 120 * random()) * US * (kind === 0 ? slow : 1) * (200 / kernels));
          if (t + length > begin + long - 1_000 * US) break;
          const p = path(`forward (model.py:${10 + s})`, "aten::linear", "cudaLaunchKernel");
          boxes.push([t, length, kind, name(text) + 1, p + 1, name(stage) + 1, 20 * US + Math.floor(random() * 50 * US) + 1, 0, 0]);
          spread(rank, kind, t, length);
          if (kind === 1) spread(rank, 3, t, length);
          totals[kind] += length;
          const key = `${occurrence},${p},${name(text)},${kind}`;
          const sum = sums.get(key) ?? [rank, step + 1, occurrence + 1, p + 1, name(text), kind, 0, 0];
          sum[6]++;
          sum[7] += length;
          sums.set(key, sum);
          if (t > last) {
            const wait = t - last;
            const cause = wait > 900 * US ? 3 : k % 11 === 0 ? 0 : k % 5 === 0 ? 2 : 1;
            const calls = cause === 3 ? -1 : path(`train (main.py:${s + 1})`, cause === 0 ? "cudaStreamSynchronize" : "aten::to");
            const part = Math.floor(wait / 3);
            table.gaps.push([rank, last, wait, before, name(text) + 1, 2]);
            table.segments.push([part, cause, calls + 1], [wait - part, (cause + 1) % 3, path(`train (main.py:${s + 1})`) + 1]);
            idle += wait;
            const bin = Math.floor(last / width);
            for (let b = bin; b <= Math.floor(t / width); b++) planes[(rank * 5 + 4) * bins + b] = (cause + 1) * width;
          }
          before = name(text) + 1;
          last = t + length;
          t = last + Math.floor((k % 11 === 0 ? 60 : 8) * US * random());
          if (rank < 2) host.push([0, begin + Math.floor((k * long) / kernels), 40 * US, path(`train (main.py:${s + 1})`, "aten::to") + 1]);
        }
      });
      table.steps.push([rank, step + 2, begin, long, step > 0 || steps === 1 ? 1 : 0, totals[0], totals[1], totals[2], 0, long - totals[0] - totals[1] - totals[2]]);
      table.sums.push(...sums.values());
      const merged = ranks > 8 && rank > 8 ? mergeBoxes(boxes, 100 * US) : boxes;
      table.cells.push([rank, step + 1, boxes[0][0], last, merged === boxes ? 0 : 100 * US, merged.length, boxes.length]);
      chunks.push(encodeRows(takeDifferences(merged, 0, false)));
      if (rank === 0 || comparison) for (const box of boxes.slice(0, 200)) table.critical.push([rank + 1, box[0], box[1], name(["kernel", "collective", "copy"][box[2]]), box[3]]);
    }
    blocks[`k${rank}`] = Buffer.concat(chunks);
    if (rank < 2) {
      blocks[`h${rank}`] = encodeRows(takeDifferences(host.sort((a, b) => a[1] - b[1]), 1));
      const curve = Array.from({ length: 400 }, (_, i) => [Math.floor((i * span) / 400), Math.floor((2 + Math.sin(i / 9)) * 2 ** 30), 4 * 2 ** 30]);
      blocks[`curve${rank}`] = encodeRows(takeDifferences(curve, 0, false));
    }
  }
  const pieces = Array.from({ length: 900 }, (_, i) => [i * 20 * US, Math.floor((i % 7 ? 4_000 : 90_000) * US * random()) + 1, Math.floor(2 ** 20 * (1 + 30 * random())), i < 9 ? 0 : path(`train (main.py:${i % 4})`, `forward (model.py:${i % 13})`, "aten::empty") + 1, i < 9 ? 1 : 0, i % 3, i % 50 ? 0 : 3]);
  blocks.mem0 = encodeRows(takeDifferences(pieces, 0, false));
  blocks.steps = encodeRows(takeDifferences(table.steps, 2));
  blocks.ranges = encodeRows(takeDifferences(table.ranges, 1));
  blocks.sums = encodeRows(table.sums, 8);
  blocks.gaps = encodeRows(takeDifferences(table.gaps, 1));
  blocks.segments = encodeRows(table.segments, 3);
  blocks.cells = encodeRows(table.cells, 7);
  blocks.critical = encodeRows(takeDifferences(table.critical, 1));
  blocks.bins = Uint8Array.from(planes, (ns, i) => (Math.floor(i / bins) % 5 === 4 ? ns / width : Math.min(255, Math.round((ns * 255) / width))));
  blocks.names = Buffer.from(JSON.stringify({ names, paths }));
  const findings = ["Rank 5 keeps the other ranks waiting", "The GPU is idle while the host runs small ops", "15 % of update_actor is exposed communication", "Copies from pageable memory"].map((claim, i) => ({
    rule: "simulated",
    severity: "high",
    number: i + 1,
    claim: claim + hostile,
    advice: "Advice of a simulated finding: launch fewer kernels, or balance the ranks.",
    caveats: ["the numbers are simulated"],
    saving: saved ? { alone: (5 - i) * 1_000 * US, before: (60 - i * 4) * 1_000 * US, step: (56 - i * 4) * 1_000 * US, behind: i === 3 ? 1 : null } : null,
    cost: (6 - i) * 1_000 * US,
    pins: (ranks ? [0, 1] : []).map((k) => ({ row: i === 0 ? Math.min(5, ranks - 1) : 0, t0: (k + 1) * perStep * 0.6 + i * 7_000 * US, t1: (k + 1) * perStep * 0.6 + (i * 7_000 + 3_000) * US, name: k ? "median" : "worst" })),
  }));
  const head = {
    title: `Simulated run${hostile}`,
    identity: ["SIMULATED DATA", `${ranks} ranks`],
    sentence: "SIMULATED: a step takes 60 ms.",
    t0: "0",
    span,
    bins,
    width,
    rows,
    kinds: ["compute", "communication", "copies"],
    causes: CAUSES,
    findings,
    plan: saved ? { recorded: 60_000 * US, steps: [56, 52, 48, 47].map((ms) => ms * 1_000 * US) } : null,
    skipped: [],
    floor: 0,
    dropped_gaps: [0, 0],
    memories: [{ file: "snapshot.pickle", rank: 0, span: 900 * 20 * US, t0: null, peak: 0, peak_t: 0, pieces: pieces.length + 54, timed: true, floor: 512, merged: 72, hidden: 5, marks: [[0, "asleep"]] }], holders: ["trainer state", "activations", "other in use"],
    ...(comparison ? { findings: [], plan: null, memories: [], comparison: describeChange(hostile, perStep) } : {}),
    counted: steps > 1 && !comparison ? Array.from({ length: steps - 1 }, (_, i) => i + 2) : null,
    host_floor: 0,
  };
  return fillTemplate(head, blocks, names);
}

/** The change of a simulated comparison, by hand: gen takes less time by `FASTER`, of which two kernels and idle time. */
function describeChange(hostile, perStep) {
  const part = (stage, path, base, difference) => ({ stage: stage && stage + hostile, path: path.map((text) => text + hostile), base, opt: base + difference, difference, low: difference - 1_000 * US, high: difference + 1_000 * US });
  return {
    sides: ["before", "after"].map((text) => text + hostile),
    unit: "ns",
    ends: [perStep, perStep - FASTER],
    overview: { section: "", title: `Step and stages${hostile}`, columns: [["stage", 0], ["change", 1]], rows: [[`gen${hostile}`, "−5.0"]], note: "Each instant of a step is counted once." },
    missing: [],
    parts: [
      part("gen", ["aten::linear", KERNELS[1][0]], 8_000 * US, -4_000 * US),
      part("gen", ["aten::add", KERNELS[0][0]], 500 * US, 1_000 * US),
      part("gen", ["idle: host op"], 3_000 * US, -2_000 * US),
      part("update_actor", ["aten::linear", KERNELS[1][0]], 9_000 * US, 250 * US),
      part("", ["wait at step end"], perStep - 20_500 * US, -250 * US),
    ],
    stages: [
      { title: "step", stage: "step", base: perStep, opt: perStep - FASTER, difference: -FASTER, ratio: 1.09, low: 1.05, high: 1.13, word: "improvement" },
      { title: `gen${hostile}`, stage: `gen${hostile}`, base: 14_500 * US, opt: 9_500 * US, difference: -FASTER, ratio: 1.53, low: 1.4, high: 1.6, word: "improvement" },
    ],
    sheets: [{ section: "Other metrics", title: `Counts${hostile}`, columns: [["metric", 0], ["before", 1]], rows: [[`launches${hostile}`, "300"]], note: "A note." }],
  };
}

/** Joins all boxes shorter than `tau` into one box per 20, the way the page's data does when it is too large. */
function mergeBoxes(boxes, tau) {
  const merged = [];
  for (let i = 0; i < boxes.length; i += 20) {
    const part = boxes.slice(i, i + 20).filter((box) => box[1] < tau && box[2] === 0);
    merged.push(...boxes.slice(i, i + 20).filter((box) => box[1] >= tau || box[2] !== 0));
    if (!part.length) continue;
    const end = part[part.length - 1][0] + part[part.length - 1][1];
    merged.push([part[0][0], end - part[0][0], 0, 0, 0, part[0][5], 0, part.length - 1, part.reduce((sum, box) => sum + box[1], 0)]);
  }
  return merged.sort((a, b) => a[0] - b[0]);
}

function fillTemplate(head, blocks) {
  const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const hash = (text) => createHash("sha256").update(text).digest("base64");
  const read = (file) => readFileSync(new URL(file, FOLDER), "utf8");
  const [style, code] = [read("page.css"), read(head.comparison ? "comparison.js" : head.memories.length ? "memory.js" : "page.js")];
  const values = {
    title: escape(head.title),
    identity: escape(head.identity.join(" · ")),
    sentence: escape(head.sentence),
    style,
    style_hash: hash(style),
    code,
    code_hash: hash(code),
    findings: head.findings.map(({ claim, advice }) => `<li><h3>${escape(claim)}</h3><p>${advice}</p></li>`).join(""),
    kernels: "<tr><td>kernel</td><td>compute</td><td class=n>1</td><td class=n>1 ms</td><td class=n>1 %</td></tr>",
    skipped_title: "1 question could not be answered from this recording",
    skipped: "<li>a simulated reason</li>",
    gate: head.comparison ? '<div id="gate"><span class="badge failed">fail: exposed_comm&gt;1%</span><span class="badge">pass: step_time&gt;3%</span></div>' : "",
    basis: "<p>4 runs a side</p>",
    notes: head.comparison ? "<details id=skipped><summary>Further caveats</summary><ul><li>a simulated caveat</li></ul></details>" : "<details id=notes><summary>1 note</summary><ul><li>a simulated caveat</li></ul></details>",
    parts: "<tr><td>gen</td><td>gemm</td><td>8 ms</td><td>4 ms</td><td>−4 ms</td></tr>",
    tables: "<details><summary>All tables</summary></details>",
    head: JSON.stringify(head).replaceAll("<", "\\u003c"),
    blocks: Object.entries(blocks).map(([id, bytes]) => `<script type="application/octet-stream" id="b-${id}">${deflateRawSync(bytes).toString("base64")}</script>`).join("\n"),
  };
  return read(head.comparison ? "comparison.html" : "page.html").replace(/\{\{(\w+)\}\}/g, (_, key) => values[key]);
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const [out, ranks = "2", steps = "3"] = process.argv.slice(2);
  writeFileSync(out, simulatePage({ ranks: Number(ranks), steps: Number(steps) }));
}
