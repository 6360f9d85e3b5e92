// The numbers that a page shows with scripts: each is one of the JSON's, rounded as the page rounds, or a sum of the page's
// exact data whose total is the JSON's. A number of which neither is known fails.
import assert from "node:assert/strict";
import { test } from "node:test";
import { makeRandom } from "../blocks.mjs";
import { load } from "../load.mjs";
import { Ledger, listLeaves, readNumbers, readShown, removeNames } from "./numbers.mjs";
import { open, read, readFile, settle } from "./pages.mjs";
import { prepareWritten, readTable } from "./written.mjs";

const { formatTime, formatShare, formatCount, formatBytes, shortenName } = await load("format");
/** Least numbers that are compared on each page. */
const LEAST = { one: 800, two: 900, many: 2_500, nsys: 230, verl: 1_600, snapshot: 100, log: 80, nested: 50 };
prepareWritten(...Object.keys(LEAST), "runs");

const sum = (list, get = (one) => one) => list.reduce((total, one) => total + get(one), 0);
/** Adds up by key, in order of the first of each. */
function group(list, getKey) {
  const groups = new Map();
  for (const one of list) {
    const key = getKey(one);
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  return groups;
}
const tableOf = (file, question, table) => {
  try {
    return readTable(file, question, table);
  } catch {
    return null;
  }
};
const median = (list) => {
  const sorted = list.toSorted((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
};

/** What is counted now, and in the whole recording, with names; rows and their steps as the page has them. */
const readExact = (page) =>
  read(page, () => {
    const { data, getCounts, state } = explorer;
    const last = (path) => data.describePath(path).at(-1) ?? null;
    const work = getCounts().work.map(({ stage, path, name, kind, count, ns }) => ({ stage: data.nameStage(stage), path: data.describePath(path), op: last(path), id: name, name: data.names[name] ?? null, kind, count, ns }));
    const whole = Array.from(data.sums?.ns ?? [], (ns, i) => {
      const row = data.sums.row[i];
      const range = data.ranges[data.sums.occurrence[i]];
      return { row, step: data.rows[row].steps[data.sums.step[i]]?.number ?? null, stage: data.nameStage(range ? range.name : -1), name: data.names[data.sums.name[i]], kind: data.sums.kind[i], count: data.sums.count[i], ns };
    });
    const rows = data.rows.map(({ steps, ranges, cells }, i) => ({ ...data.head.rows[i], first: Math.min(...cells.map(({ start }) => start)), last: Math.max(...cells.map(({ end }) => end)), name: data.nameRow(i), label: data.labelRow?.(i) ?? data.nameRow(i), steps, ranges: ranges[0].map((range) => ({ ...range, text: data.names[range.name] })) }));
    const segments = Array.from(data.gaps?.row ?? [], (row, i) => {
      let at = data.gaps.start[i];
      return Array.from({ length: data.gaps.first[i + 1] - data.gaps.first[i] }, (_, k) => {
        const segment = data.gaps.first[i] + k;
        const cause = data.head.causes[data.gaps.cause[segment]];
        const part = { row, start: at, ns: data.gaps.segment[segment], cause: cause[0], top: data.describePath(data.gaps.path[segment])[0] ?? `‹${cause[1]}›` };
        at += part.ns;
        return part;
      });
    }).flat();
    const gaps = Array.from(data.gaps?.row ?? [], (row, i) => ({ row, start: data.gaps.start[i], ns: data.gaps.length[i], cause: data.head.causes[data.gaps.cause[data.gaps.main[i]]] }));
    const { head } = data;
    return { work, whole, rows, gaps, segments, shown: state.rows, head: { counted: head.counted, floor: head.floor, dropped_gaps: head.dropped_gaps, causes: head.causes, memories: head.memories, title: head.title, identity: head.identity } };
  });

// Sources of the first screen

const SHARES = ["compute_ratio", "exposed_comm_ratio", "copy_ratio", "idle_ratio", "host_op_ratio", "host_collective_ratio", "host_loader_ratio", "host_gc_ratio", "host_no_op_ratio"];

function checkAnswer(ledger, text, report, file) {
  const metrics = new Map(report.headline.map(({ name, value }) => [name, value]));
  const overview = report.overview ? report.overview.rows.map((row) => Object.fromEntries(report.overview.headings.map(({ name }, k) => [name, row[k]]))) : [];
  const names = overview.flatMap(({ stage, where, how }) => [stage, where, how]);
  if (metrics.has("step_wall")) {
    const values = [metrics.get("step_wall"), ...SHARES.filter((name) => metrics.get(name)).map((name) => metrics.get(name))];
    const late = /waits? .* for rank (\d+)/.exec(text.replaceAll("\u00a0", " "));
    const waits = tableOf(file, "stragglers", "waits");
    // Of two ranks, the other one is named, too.
    const others = late ? tableOf(file, "stragglers", "ranks").map(({ rank }) => rank).filter((rank) => rank !== Number(late[1])) : [];
    if (others.length === 1) values.push(others[0]);
    if (late) values.push(sum(waits.filter(({ late_rank }) => late_rank === Number(late[1])), ({ each_ns }) => each_ns), Number(late[1]));
    return ledger.numbers("answer", text, names, values);
  }
  const [first, ...rest] = overview;
  if (metrics.has("logged_step")) return ledger.numbers("answer", text, names, [first.mean_ns, metrics.get("logged_step"), ...rest.slice(0, 4).filter(({ share_ratio }) => share_ratio >= 0.02).map(({ share_ratio }) => share_ratio)]);
  return ledger.numbers("answer", text, names, [metrics.get("peak_requested"), ...overview.slice(0, 4).map(({ share_ratio }) => share_ratio)]);
}

const listFindings = (report) => report.sections.flatMap(({ findings }) => findings).sort((a, b) => a.rank - b.rank);

/** Opens each issue, and compares its claim, saving, caveats and intervals. */
async function checkIssues(ledger, page, report) {
  const more = page.locator("#issues .foot button");
  if (await more.count()) await more.click();
  const findings = listFindings(report);
  const gains = await page.$$eval(".issues .go", (all) => all.map((button) => [...button.children].map(({ className, textContent }) => [className, textContent])));
  assert.equal(gains.length, findings.length);
  for (const [i, finding] of findings.entries()) {
    const shown = Object.fromEntries(gains[i]);
    ledger.equal("issues", shown.pin, String(i + 1));
    ledger.equal("issues", shown.claim, finding.claim);
    const alone = finding.saving?.alone_ns;
    ledger.equal("issues", shown.gain, alone === undefined ? undefined : alone > 0 ? `−${formatTime(alone)}` : "–", finding.rule);
    await page.locator(".issues .go").nth(i).click();
    await settle(page);
    const [advice, ...facts] = await page.$$eval(`.issues > li:nth-child(${i + 1}) > p`, (all) => all.flatMap((line) => (line.childElementCount ? [...line.children] : [line]).map(({ textContent }) => textContent)));
    ledger.equal("issues", advice, finding.advice);
    const lengths = finding.instances.map(({ place }) => Number(BigInt(place.end_ns) - BigInt(place.start_ns)));
    const { before_ns: before, step_ns: step } = finding.saving ?? {};
    const behind = /#(\d+)/.exec(facts.join(" "));
    if (behind) assert.ok(findings[behind[1] - 1].saving, finding.claim);
    ledger.some("issues", facts.join(" ; "), [...finding.caveats, ...finding.instances.map(({ place }) => `rank ${place.rank}`), behind?.[0] ?? ""], [alone, before, step, ...lengths].filter((value) => value !== undefined));
  }
  const replay = report.replays.find(({ refusal }) => !refusal);
  const plan = await page.$$eval("#issues > .foot", (all) => all.map(({ textContent }) => textContent).join(""));
  if (replay && /With/.test(plan)) {
    const savings = findings.filter(({ saving }) => saving?.recorded_ns === replay.recorded_ns).map(({ saving }) => saving).sort((a, b) => a.number - b.number);
    const steps = [replay.recorded_ns, ...savings.map(({ step_ns }) => step_ns)];
    const [count] = savings.length === 2 ? [] : [savings.length];
    ledger.numbers("plan", plan.replace(/^\d+ more/, ""), [], [...(count ? [count] : []), ...(steps.length > 6 ? [...steps.slice(0, 5), steps.at(-1)] : steps), steps.at(-1) / steps[0] - 1]);
  } else assert.equal(readNumbers(plan).length, 0, plan);
}

// Kernels

const addUp = (list) => ({ ns: sum(list, ({ ns }) => ns), count: sum(list, ({ count }) => count) });

/** The sums of the whole recording are the report's, to the ns: by kernel, and by the stage that launched them. */
function checkWhole(ledger, exact, file) {
  const kernels = tableOf(file, "kernels", "kernels");
  if (!kernels) return;
  const byName = group(exact.whole, ({ name }) => name);
  const ofReport = group(kernels, ({ name }) => name);
  assert.deepEqual([...byName.keys()].sort(), [...ofReport.keys()].sort());
  for (const [name, list] of ofReport) ledger.equal("sums by kernel", addUp(byName.get(name)), { ns: sum(list, ({ total_ns }) => total_ns), count: sum(list, ({ count }) => count) }, name);
  const total = addUp(exact.whole);
  const byStage = tableOf(file, "attribution", "launched_by_stage");
  ledger.equal("sums by stage", total, { ns: sum(byStage, ({ dur_ns }) => dur_ns), count: sum(byStage, ({ count }) => count) });
}

/** A table of kernels is the groups of what is counted, the largest first. */
function checkWork(ledger, { place, columns, rows }, groups, total, listTexts) {
  const sorted = groups.map((list) => ({ list, ...addUp(list) })).sort((a, b) => b.ns - a.ns);
  assert.equal(columns.length, listTexts(sorted[0]).length, place);
  rows.forEach((row, i) => {
    const texts = listTexts(sorted[i], total);
    ledger.equal(`${place} table`, row, texts, `row ${i}`);
    ledger.add(`${place} table`, texts.length - 2);
  });
  return sorted;
}

/** Numbers by process and step of the report, or null: getValue(rank, step, name). */
function readValues(report) {
  if (!report.values) return null;
  const names = report.values.headings.map(({ name }) => name);
  const lines = report.values.rows.map((row) => Object.fromEntries(names.map((name, k) => [name, row[k]])));
  const whole = new Map(lines.filter(({ stage }) => stage === null).map((line) => [`${line.rank ?? null},${line.step},${line.name}`, line.value]));
  return (rank, step, name) => whole.get(`${rank},${step},${name}`);
}

/** Steps of rows with a device: what the heat map and the table of ranks show is the report's, to the ns. */
function checkSteps(ledger, exact, getValue) {
  for (const row of exact.rows)
    for (const { number, compute, comm, copies, idle, start, end } of row.steps) {
      const at = `rank ${row.rank}, step ${number}`;
      const get = (name) => getValue(row.rank, number, name);
      ledger.equal("steps of ranks", comm, get("exposed_comm"), at);
      ledger.equal("steps of ranks", idle, get("gpu_idle"), at);
      ledger.equal("steps of ranks", compute + comm + copies, get("gpu_busy"), at);
      ledger.equal("steps of ranks", end - start, get("gpu_busy") + get("gpu_idle"), at);
    }
}

/** Idle time by cause is the report's: of GPUs from the first to the last op, of hosts without one in the steps. */
function checkCauses(ledger, exact, file) {
  const getShare = (rows, cause) => sum(rows, (row) => row.window_ns * (row[cause] ?? 0));
  const ofGpus = tableOf(file, "idle", "idle_causes")?.filter(({ stage }) => stage === "(first to last device op)");
  const [, dropped] = exact.head.dropped_gaps;
  if (ofGpus?.length)
    for (const cause of Object.keys(ofGpus[0]).filter((name) => exact.head.causes.some(([key]) => key === name))) {
      const ns = sum(exact.segments.filter((segment) => segment.cause === cause), (segment) => Math.max(0, Math.min(segment.start + segment.ns, exact.rows[segment.row].last) - Math.max(segment.start, exact.rows[segment.row].first)));
      const missing = getShare(ofGpus, cause) - ns;
      ledger.equal("idle causes", missing > -1 && missing < dropped + 1, true, `${cause}: ${ns}, ${missing} more in the report`);
    }
  // Of gaps after the last op, the report's table has those that are as long as its shortest gap.
  const listed = tableOf(file, "idle", "idle_gaps") ?? [];
  const least = Math.min(...listed.map(({ dur_ns }) => dur_ns));
  const lasting = exact.gaps.filter(({ cause, ns }) => cause[0] === "after_last" && ns > least).map(({ ns }) => ns);
  const ofReport = listed.filter(({ why, dur_ns }) => why === "after the last op" && dur_ns > least).map(({ dur_ns }) => dur_ns);
  ledger.equal("idle causes", lasting.sort((a, b) => b - a), ofReport.sort((a, b) => b - a));
  const ofHosts = tableOf(file, "cpu", "cpu_time");
  for (const [cause, column] of ofHosts ? [["host_silent", "silent"], ["host_none", "between"], ["host_code", "python"]] : []) {
    const parts = exact.segments.filter((segment) => segment.cause === cause);
    const ns = sum(parts, (part) => sum(exact.rows[part.row].steps, ({ start, end }) => Math.max(0, Math.min(end, part.start + part.ns) - Math.max(start, part.start))));
    ledger.equal("idle causes", Math.abs(ns - getShare(ofHosts, column)) < 1, true, `${cause}: ${ns}`);
  }
  if (ofHosts) {
    const rows = exact.rows.filter((_, i) => exact.gaps.some(({ row }) => row === i));
    ledger.equal("idle causes", sum(rows, ({ steps }) => sum(steps, ({ start, end }) => end - start)), sum(ofHosts, ({ window_ns }) => window_ns));
  }
}

/** Of hosts without a GPU, the rows have outermost ops alone: the same as the report where an op is never inside another. */
function checkOperators(ledger, exact, file) {
  const operators = tableOf(file, "operators", "operators_by_host_time");
  const byName = group(exact.whole, ({ name }) => name);
  for (const { name, count, total_ns: ns } of operators) {
    const own = byName.has(name) ? addUp(byName.get(name)) : { count: 0, ns: 0 };
    if (own.count === count) ledger.equal("operators", own.ns, ns, name);
    else ledger.equal("operators", own.count < count && own.ns <= ns, true, name);
  }
  for (const [op, list] of group(tableOf(file, "communication", "collectives"), (line) => line.op)) {
    const own = [...byName].filter(([name]) => name === `gloo:${op}`).flatMap(([, of]) => of);
    if (own.length) ledger.equal("operators", addUp(own), { ns: sum(list, ({ dur_ns }) => dur_ns), count: sum(list, ({ count }) => count) }, op);
  }
}

// Tabs

async function openTab(page, id) {
  await page.click(`#tab-${id}`);
  await settle(page);
  for (const button of await page.locator(`#panel-${id} .foot button:has-text("all ")`).all()) await button.click();
  return readShown(page);
}
const textOf = (shown, place, kind) => shown.texts.filter((text) => text.place === place && text.kind.split(" ").includes(kind)).map(({ text }) => text);

function listCounted(exact, row) {
  const { counted } = exact.head;
  return row.steps.filter(({ number }) => !counted || counted.includes(number));
}

async function checkTime(ledger, page, exact, report, file) {
  const shown = await openTab(page, "time");
  const getValue = readValues(report);
  const rows = exact.rows.filter(({ kind }, i) => kind === "device" || exact.gaps.some(({ row }) => row === i));
  const steps = rows.flatMap((row) => listCounted(exact, row).map((step) => ({ row, step })));
  const idle = exact.head.counted ? sum(steps, ({ step }) => step.idle) : null;
  const all = sum(steps, ({ step }) => step.end - step.start);
  // Gaps in the counted steps, clipped to them; those after the last op are no gaps.
  const inside = exact.gaps.map((gap) => ({ ...gap, part: sum(listCounted(exact, exact.rows[gap.row]), ({ start, end }) => Math.max(0, Math.min(end, gap.start + gap.ns) - Math.max(start, gap.start))) })).filter(({ part, cause }) => part > 0 && cause[0] !== "after_last").sort((a, b) => b.part - a.part);
  const [answer] = textOf(shown, "panel-time", "answer");
  if (rows[0].kind === "device" && getValue) {
    const total = sum(steps, ({ row, step }) => getValue(row.rank, step.number, "gpu_idle"));
    ledger.equal("idle time", idle, total);
  }
  const gaps = shown.tables.find(({ label }) => label === "Longest idle gaps");
  gaps.rows.forEach((row, i) => ledger.equal("gaps", row[0], formatTime(inside[i].part, 4), `gap ${i}`));
  const ofReport = tableOf(file, "idle", "idle_gaps")?.filter(({ step, why }) => exact.head.counted.includes(step) && why !== "after the last op");
  // The table of the report has the longest gaps of the whole recording, so all of the counted steps that are as long.
  ofReport?.forEach(({ dur_ns, why }, i) => {
    if (inside[i].part === inside[i].ns) ledger.equal("gaps", [inside[i].ns, inside[i].cause[1]], [dur_ns, why], `gap ${i}`);
  });
  const clipped = exact.segments.flatMap((segment) => {
    const value = sum(listCounted(exact, exact.rows[segment.row]), ({ start, end }) => Math.max(0, Math.min(end, segment.start + segment.ns) - Math.max(start, segment.start)));
    return value > 0 ? [{ ...segment, value }] : [];
  });
  const before = clipped.filter(({ cause }) => cause !== "after_last");
  const addBy = (get) => [...group(before, get)].map(([name, list]) => ({ name, value: sum(list, ({ value }) => value) })).sort((a, b) => b.value - a.value);
  checkLevel(ledger, shown, "panel-time", addBy(({ top }) => top), formatTime);
  const named = sum(before, ({ value }) => value);
  const [main] = addBy(({ cause }) => cause);
  const title = exact.head.causes.find(([cause]) => cause === main.name)[1];
  const subject = rows[0].kind === "device" ? "GPUs are idle" : "The main threads are idle (in no op, or waiting in one)";
  ledger.equal("idle time", answer, `${subject} ${formatShare(idle / all)} of the time (${formatTime(idle)} in ${formatCount(inside.length)} gaps). Main cause: ${title}, ${formatShare(main.value / named)}.`);
  ledger.add("idle time", 3);
  // Parts of the idle time are noted where they are more than 0.5 %.
  const after = sum(clipped, ({ value }) => value) - named;
  const [dropped, droppedNs] = exact.head.dropped_gaps;
  exact.idleNote = [...(dropped ? [dropped, exact.head.floor, droppedNs] : []), ...(after > 0.005 * idle ? [after] : []), ...(idle - named - after > 0.005 * idle ? [(named + after) / idle] : [])];
  checkTexts(ledger, shown, report, exact, [exact.work.length, Math.min(300, inside.length), group(exact.work, ({ id, kind }) => `${id},${kind}`).size]);
  const stages = shown.tables.find(({ label }) => label === "Time by stage");
  const total = addUp(exact.work).ns;
  const time0 = (ns) => (ns ? formatTime(ns) : "–");
  const byStage = [...group(exact.work, ({ stage }) => stage).values()];
  checkWork(ledger, stages, byStage, total, ({ list, ns }) => [list[0].stage, ...[0, 1, 2].map((kind) => time0(sum(list.filter((one) => Math.min(2, one.kind) === kind), (one) => one.ns))), formatTime(ns), formatShare(ns / total)]);
}

async function checkKernels(ledger, page, exact, report) {
  const shown = await openTab(page, "kernels");
  const total = addUp(exact.work).ns;
  const byName = [...group(exact.work, ({ id }) => id).values()].map((list) => ({ list, ...addUp(list) })).sort((a, b) => b.ns - a.ns);
  let most = 0;
  for (let part = 0; most < byName.length && part < 0.9 * total; most++) part += byName[most].ns;
  const [answer] = textOf(shown, "panel-kernels", "answer");
  const first = shortenName(byName[0].list[0].name);
  ledger.equal("kernels answer", [answer.startsWith(`${first} takes ${formatShare(byName[0].ns / total)} of`), answer.includes(`; ${most} of ${byName.length} `)], [true, true], answer);
  ledger.add("kernels answer", 2);
  const table = shown.tables.find(({ place }) => place === "panel-kernels");
  checkLevel(ledger, shown, "panel-kernels", [...group(exact.work, ({ stage }) => stage)].map(([name, list]) => ({ name, value: addUp(list).ns })), formatTime);
  const groups = [...group(exact.work, ({ id, stage, op }) => `${id},${stage},${op}`).values()];
  checkTexts(ledger, shown, report, exact, [groups.length, group(exact.work, ({ id, kind }) => `${id},${kind}`).size]);
  checkWork(ledger, table, groups, total, ({ list: [one], ns, count }) => [shortenName(one.name), one.stage, one.op ?? "–", formatTime(ns), formatShare(ns / total), formatCount(count), formatTime(ns / count)]);
}

async function checkRanks(ledger, page, exact, report, file) {
  const shown = await openTab(page, "ranks");
  const waits = tableOf(file, "stragglers", "waits") ?? [];
  const work = tableOf(file, "stragglers", "ranks") ?? [];
  const isOf = (row) => (line) => (line.late_rank ?? line.rank) === row.rank && (line.role === undefined || line.role === row.role);
  const rows = new Map(exact.rows.map((row) => [row.label, row]));
  const mean = (list, get) => sum(list, get) / Math.max(1, list.length);
  const table = shown.tables.find(({ label }) => label === "Ranks");
  for (const line of table.rows) {
    const row = rows.get(line[0]);
    const steps = listCounted(exact, row);
    const late = sum(waits.filter(isOf(row)), ({ each_ns }) => each_ns);
    const beyond = work.find(isOf(row))?.beyond_ns;
    ledger.equal("ranks", line[2], late ? formatTime(late) : "–", line[0]);
    if (beyond !== undefined) ledger.equal("ranks", line[3], formatTime(beyond), line[0]);
    const texts = [({ start, end }) => end - start, ({ compute }) => compute, ({ comm }) => comm, ({ idle }) => idle, ({ copies }) => copies].map((get) => formatTime(mean(steps, get), 4));
    ledger.equal("ranks", line.slice(4), texts, line[0]);
    ledger.add("ranks", 4);
  }
  checkTexts(ledger, shown, report, exact, [rows.size, group(exact.work, ({ id, kind }) => `${id},${kind}`).size]);
  const names = exact.rows.flatMap(({ name, label }) => [name, label].flatMap((text) => [text, text[0].toUpperCase() + text.slice(1)]));
  const times = exact.rows.flatMap((row) => [work.find(isOf(row))?.beyond_ns ?? NaN, sum(waits.filter(isOf(row)), ({ each_ns }) => each_ns)]);
  ledger.some("ranks", textOf(shown, "panel-ranks", "answer")[0] ?? "", names, times);
}

/** The level of an icicle that screen readers get: the whole, then the largest parts. */
function checkLevel(ledger, shown, place, lists, format) {
  const total = sum(lists, ({ value }) => value);
  const level = shown.texts.filter((text) => text.place === place && text.tag === "li").map(({ text }) => text);
  const parts = lists.toSorted((a, b) => b.value - a.value).slice(0, 20);
  const first = `${level[0]?.split(" · ")[0]} · ${format(total)} · ${formatShare(1)}`;
  const lines = [first, ...parts.map(({ name, value }) => `${name} · ${format(value)} · ${formatShare(value / total)}`)];
  // Of equal parts, either may be first.
  ledger.equal(`${place} icicle`, level.toSorted(), lines.toSorted());
  ledger.add(`${place} icicle`, level.length * 2 - 1);
}

/** Every other text with a digit has a source; one that has none fails. */
function checkTexts(ledger, shown, report, exact, lengths) {
  const rows = exact.rows.flatMap(({ name, label }) => [name, label]);
  const { strings } = listLeaves(report);
  const bounded = report.headline.filter(({ low }) => low !== null);
  const silent = report.sections.filter(({ status }) => status !== "ok");
  const own = [...exact.head.causes.map(([, title]) => title), ...exact.rows.flatMap(({ steps }) => steps.map(({ number }) => `step ${number}`))];
  const { counted } = exact.head;
  const scope = [...(counted ?? []), exact.shown.length, 1];
  for (const { place, tag, kind, id, text } of shown.texts) {
    const has = (name) => kind.split(" ").includes(name);
    if (tag === "h1" || place === "issues" || has("answer") || (tag === "li" && has("unseen"))) continue;
    if (tag === "li" && place.startsWith("panel")) continue;
    if (place === "header" || tag === "b" || has("who") || (tag === "span" && place === "")) ledger.some("title", text, [report.title, ...report.identity, ...exact.head.identity], []);
    else if (id === "detail") ledger.some("detail", text, [...rows, ...own, ...strings], []);
    else if (tag === "summary") ledger.some(place, text, [], place === "notes" ? [shown.notes] : [silent.length]);
    // The middle of a long list is cut.
    else if (tag === "li" && text.startsWith("Comparable reports agree in")) ledger.some(place, text, strings, readNumbers(report.fingerprint.join()).map(({ value }) => value));
    else if (tag === "li") ledger.some(place, text, strings, []);
    else if (tag === "p" && place === "") ledger.some("basis", text.replace(/(\d)–([\d.,]+)\s?(\S+)(?=\))/, "$1 $3 – $2 $3"), [...report.basis, ...bounded.map(({ label }) => label)], bounded.flatMap(({ value, low, high }) => [value, low, high]));
    else if (id === "scope" || (place === "top" && has("quiet"))) ledger.some("scope", text, rows, scope);
    else if (tag === "button" && /^all [\d,]+$/.test(text)) ledger.some("rows", text, [], lengths);
    else if (tag === "option" || tag === "button" || has("key")) ledger.some("names", text, [...rows, ...strings], []);
    else if (has("line") && place === "panel-time") ledger.numbers("gaps", text, [], exact.idleNote);
    else if (has("line")) ledger.some("notes", text, rows, scope);
    else if (has("foot") || has("quiet")) ledger.some("notes", text, rows, scope);
    else assert.fail(`${place} ${tag} ${kind}: "${text}" has no source`);
  }
}

/** The tab of snapshots: their peaks, and the allocations at the peak by stack, which add up to the report's by site. */
async function checkMemory(ledger, page, exact, report, file) {
  const peaks = tableOf(file, "memory-peak", "snapshot_peaks");
  const sites = tableOf(file, "memory-peak", "live_peak");
  const choices = await page.$$eval("#snapshot option", (all) => all.map(({ value }) => value));
  for (const number of choices) {
    const memory = exact.head.memories[number];
    const ofReport = peaks.find(({ source }) => source === memory.file);
    ledger.equal("snapshots", memory.peak, ofReport.peak_bytes, memory.file);
    await page.selectOption("#snapshot", number);
    await settle(page);
    const shown = await readShown(page);
    const [answer, moment] = textOf(shown, "panel-memory", "answer");
    ledger.equal("snapshots", answer.startsWith(`${formatBytes(ofReport.peak_bytes)} are in use at the peak`), true, answer);
    const total = readNumbers(moment).find(({ unit }) => unit.endsWith("B"));
    assert.ok(total, moment);
    ledger.equal("snapshots", moment.includes(`: ${formatBytes(ofReport.peak_bytes)} in `), true, moment);
    const [table] = shown.tables.filter(({ place }) => place === "panel-memory");
    const live = table.rows.map(([site, , bytes, count]) => ({ site, bytes: readNumbers(bytes)[0], count: Number(count.replaceAll(",", "")) }));
    const blocks = readNumbers(moment.slice(moment.lastIndexOf(" in ")))[0].value;
    ledger.equal("snapshots", sum(live, ({ count }) => count), blocks, moment);
    if (ofReport === peaks[0]) {
      // The report lists the allocations of the highest peak.
      const largest = sites.reduce((most, site) => (site.size_bytes > most.size_bytes ? site : most));
      ledger.equal("snapshots", answer.includes(`Largest site: ${largest.where}, ${formatBytes(largest.size_bytes)}`), true, answer);
      for (const { where, size_bytes: size, block_count: count } of sites) {
        const of = live.filter(({ site }) => site === where);
        ledger.equal("snapshots", sum(of, (one) => one.count), count, where);
        if (of.length === 1) ledger.equal("snapshots", table.rows[live.indexOf(of[0])][2], formatBytes(size), where);
      }
      ledger.equal("snapshots", sum(sites, ({ size_bytes: size }) => size), ofReport.peak_bytes);
    }
    const level = shown.texts.filter(({ place, tag }) => place === "panel-memory" && tag === "li").map(({ text }) => text);
    ledger.equal("snapshots", level[0], `in use · ${formatBytes(ofReport.peak_bytes)} · ${formatShare(1)}`);
    checkTexts(ledger, shown, report, exact, [live.length]);
  }
}

/** A log alone: the report's table of stages, and the stages of all its steps. */
async function checkLog(ledger, page, exact, report, file) {
  const stages = tableOf(file, "run-log", "logged_stages");
  const shown = await readShown(page);
  const outside = (text) => textOf(shown, text, "foot");
  const first = shown.tables.find(({ place }) => place === "top");
  first.rows.forEach((row, i) => {
    const { stage, mean_ns: ns, share_ratio: share, gpu_hours: hours, how } = stages[i];
    ledger.equal("stages of the log", row, [stage, formatTime(ns), formatShare(share), ...(hours === undefined ? [] : [hours.toFixed(2)]), how ?? ""]);
    ledger.add("stages of the log", 2);
  });
  const [row] = exact.rows;
  const matrix = report.sections.find(({ id }) => id === "rl-matrix").sheets.find(({ name }) => name === "matrix");
  const lists = group(row.ranges, ({ text }) => text);
  const table = shown.tables.find(({ place }) => place === "panel-time");
  assert.equal(table.rows.length, lists.size);
  const ofStage = new Map(stages.map((line) => [line.stage, line]));
  // A stage that the report's table leaves out has its mean over all steps.
  const total = sum(row.steps, ({ start, end }) => end - start);
  for (const [name, time, share, count, longest] of table.rows) {
    const list = lists.get(name);
    const ns = sum(list, ({ start, end }) => end - start);
    const most = list.reduce((a, b) => (b.end - b.start > a.end - a.start ? b : a));
    const place = row.steps[most.step].number;
    const { mean_ns: mean, share_ratio: part } = ofStage.get(name) ?? { mean_ns: ns / row.steps.length, share_ratio: ns / total };
    ledger.equal("stages of the log", [time, share, count, longest], [formatTime(mean), formatShare(part), formatCount(list.length), `${formatTime(most.end - most.start)} in step ${place}`], name);
    ledger.add("stages of the log", 4);
    const ofReport = matrix.rows.find((line) => line[0] === name);
    matrix.headings.forEach((heading, k) => {
      if (heading.name === "mean_ns") return ledger.equal("stages of the log", Math.abs(ns / row.steps.length - ofReport[k]) < 0.01, true, `${name}: mean ${ofReport[k]}`);
      const number = /^in_step_/.test(heading.name) && Number(/\d+/.exec(heading.title)[0]);
      const range = list.find((one) => row.steps[one.step].number === number);
      if (range && ofReport[k] !== null) ledger.equal("steps of the log", range.end - range.start, ofReport[k], `${name}, step ${number}`);
    });
  }
  const others = [...lists.keys()].filter((name) => !ofStage.has(name));
  ledger.equal("stages of the log", /(\S+): mean of all steps\./.exec(outside("panel-time").join(" "))?.[1], others[0]);
  const [answer] = textOf(shown, "panel-time", "answer");
  const longest = row.steps.reduce((a, b) => (b.end - b.start > a.end - a.start ? b : a));
  const reported = stages.find(({ stage }) => lists.has(stage));
  ledger.equal("stages of the log", answer, `${reported.stage} takes ${formatShare(reported.share_ratio)} of a step on average, ${formatTime(reported.mean_ns)}. The longest step of the log takes ${formatTime(longest.end - longest.start, 4)} by its own timer, step ${longest.number}.`);
  ledger.add("stages of the log", 3);
  const captions = report.sections.flatMap(({ sheets }) => sheets.map(({ caption }) => caption));
  for (const place of ["panel-time", "top"]) ledger.some("stages of the log", outside(place).join(" "), captions, []);
  checkTexts(ledger, { ...shown, texts: shown.texts.filter(({ kind }) => !kind.split(" ").includes("foot")) }, report, exact, []);
}

/** The whole recording: the table of kernels is the report's. */
async function checkWholeTop(ledger, page, file) {
  const button = page.locator('#top button:has-text("whole recording")');
  if (!(await button.count())) return;
  await button.click();
  await settle(page);
  const all = page.locator('#top .foot button:has-text("all ")');
  if (await all.count()) await all.click();
  const kernels = tableOf(file, "kernels", "kernels");
  const table = (await readShown(page)).tables.find(({ place }) => place === "top");
  assert.equal(table.rows.length, kernels.length);
  table.rows.forEach((row, i) => {
    const { total_ns: ns, share_ratio: share, count } = kernels[i];
    ledger.equal("whole recording", row.slice(1), [formatTime(ns), formatShare(share), formatCount(count)], row[0]);
    ledger.add("whole recording", 2);
  });
  await page.locator('#top button:has-text("counted steps only")').click();
  await settle(page);
}

/** Cells of the heat map under the pointer, by chance: value, and median of the step over the ranks of the role. */
async function checkHeatMap(ledger, page, exact, turns = 6) {
  await page.click("#tab-ranks");
  await settle(page);
  const measures = [["compute", ({ compute }) => compute], ["step time", ({ start, end }) => end - start], ["exposed communication", ({ comm }) => comm], ["idle", ({ idle }) => idle]];
  const box = await page.locator("canvas.heat").boundingBox();
  const random = makeRandom(5);
  for (const [i, [title, get]] of measures.entries()) {
    await page.selectOption("#measure", String(i));
    for (let turn = 0; turn < turns; ) {
      await page.mouse.move(box.x + 96 + random() * (box.width - 96), box.y + 20 + random() * (box.height - 22));
      const tip = await page.$eval("#tip", (element) => (element.hidden ? null : element.textContent));
      if (tip === null) continue;
      const [, name, number] = /^(.*), step (\d+): /.exec(tip);
      const row = exact.rows.find(({ label }) => label === name);
      const find = ({ steps }) => steps.filter((step) => step.number === Number(number)).map(get);
      const peers = exact.rows.filter(({ lanes, role }) => lanes.some(([kind]) => kind === 0) && role === row.role);
      ledger.equal("heat map", tip, `${name}, step ${number}: ${title} ${formatTime(find(row)[0], 4)}, median ${formatTime(median(peers.flatMap(find)), 4)}`);
      ledger.add("heat map");
      turn++;
    }
  }
}

// The pages

async function checkTop(ledger, page, exact) {
  const { tables } = await readShown(page);
  const table = tables.find(({ place }) => place === "top");
  const total = addUp(exact.work).ns;
  const texts = ({ list: [{ name }], ns, count }) => [shortenName(name), formatTime(ns), formatShare(ns / total), formatCount(count)];
  checkWork(ledger, table, [...group(exact.work, ({ id, kind }) => `${id},${kind}`).values()], total, texts);
}

for (const name of Object.keys(LEAST))
  test(`${name}: every number that is shown has its source`, (context) =>
    open(`${name}.html`, async (page) => {
      // Dates in ns are beyond the exact integers of a number.
      const report = JSON.parse(readFile(`${name}.json`).replace(/"(start_ns|end_ns)": ?(\d+)/g, '"$1": "$2"'));
      const ledger = new Ledger();
      const file = `${name}.json`;
      await read(page, () => document.querySelectorAll("main > details").forEach((box) => (box.open = true)));
      await settle(page);
      const exact = await readExact(page);
      const tabs = await page.$$eval("[role=tab]", (all) => all.map(({ id }) => id.replace("tab-", "")));
      checkAnswer(ledger, await page.textContent("h1"), report, file);
      const isLog = name === "log" || name === "nested";
      if (exact.rows.length && !isLog) {
        checkWhole(ledger, exact, file);
        checkCauses(ledger, exact, file);
        if (exact.rows[0].kind === "thread") checkOperators(ledger, exact, file);
        if (exact.rows[0].kind === "device" && readValues(report)) checkSteps(ledger, exact, readValues(report));
        await checkTop(ledger, page, exact);
        await checkTime(ledger, page, exact, report, file);
        await checkKernels(ledger, page, exact, report);
        if (tabs.includes("ranks")) {
          await checkRanks(ledger, page, exact, report, file);
          await checkHeatMap(ledger, page, exact);
        }
        await checkWholeTop(ledger, page, file);
      }
      if (isLog) await checkLog(ledger, page, exact, report, file);
      if (tabs.includes("memory")) await checkMemory(ledger, page, exact, report, file);
      await checkIssues(ledger, page, report);
      assert.ok(ledger.total >= LEAST[name], `${ledger.total} numbers`);
      context.diagnostic(`${ledger.total} numbers: ${[...ledger.counts].map(([place, count]) => `${place} ${count}`).join(", ")}`);
    }));

test("runs: of several logs, the table of stages adds up the steps of all of them", () =>
  open("runs.html", async (page) => {
    const { rows } = await readExact(page);
    assert.ok(rows.length > 1);
    const steps = rows.flatMap((row) => row.steps);
    const total = sum(steps, ({ start, end }) => end - start);
    const lists = group(rows.flatMap((row) => row.ranges), ({ text }) => text);
    const table = (await readShown(page)).tables.find(({ place }) => place === "panel-time");
    assert.equal(table.rows.length, lists.size);
    for (const [name, time, share, count] of table.rows) {
      const ns = sum(lists.get(name), ({ start, end }) => end - start);
      assert.deepEqual([time, share, count], [formatTime(ns / steps.length), formatShare(ns / total), formatCount(lists.get(name).length)], name);
    }
  }));
