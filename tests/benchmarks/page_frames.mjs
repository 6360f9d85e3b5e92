// Measures frames of the HTML page in Chromium: first picture, and panning at four zoom levels.
//
//     node tests/benchmarks/page_frames.mjs [--write] [--speedscope FOLDER TRACE.json] NAME=PAGE.html ...
//
// For each page: milliseconds until the timeline is drawn, then frames per second and the 95th percentile of the time between
// frames while the view moves by a 120th of its width per frame, for `SECONDS`. The aim is `LEAST_FRAMES` and `MOST_MS` on two
// idle cores. Each line ends with the load average: on a busy machine, frames are those that other programs leave. CPU
// milliseconds per frame (of the page's main thread, and of all processes of the browser) depend less on it: 60 frames
// per second need at most 16 and 33.
// `--speedscope` does the same with speedscope (the npm package, unpacked in FOLDER) on a Chrome trace: it is panned by wheel
// events. `--write` writes the table to page_frames.txt. Exit status 1: a page missed the aim on an idle machine.
import { readFileSync, writeFileSync, mkdtempSync, rmSync, cpSync } from "node:fs";
import { cpus, loadavg, tmpdir } from "node:os";
import path from "node:path";
import { require } from "../explorer/load.mjs";

const { chromium } = require("playwright-core");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"];
const SHARES = [0.5, 0.15, 0.01, 0.001];
const SECONDS = 2;
const [LEAST_FRAMES, MOST_MS] = [55, 30];
const TABLE = new URL("page_frames.txt", import.meta.url);

/** Runs in the page: calls `move` in each frame for some seconds, and sums up the times between frames. */
const COUNT = `async (move, seconds) => {
  const times = [];
  let last = performance.now();
  const end = last + 1000 * seconds;
  await new Promise((done) => {
    const go = () => {
      const now = performance.now();
      times.push(now - last);
      last = now;
      if (now < end && move() !== false) requestAnimationFrame(go);
      else done();
    };
    requestAnimationFrame(go);
  });
  times.shift();
  times.sort((a, b) => a - b);
  const mean = times.reduce((sum, time) => sum + time, 0) / times.length;
  return { count: times.length, frames: 1000 / mean, p95: times[Math.floor(times.length * 0.95)] };
}`;

const panPage = `async ([share, seconds]) => {
  const { timeline, data: { head } } = explorer;
  const width = head.span * share;
  let at = (head.span - width) * 0.2;
  let step = width / 120;
  timeline.setView(at, at + width);
  await new Promise((done) => setTimeout(done, 900));
  return (${COUNT})(() => {
    if (at + step < 0 || at + width + step > head.span) step = -step;
    at += step;
    timeline.setView(at, at + width);
  }, seconds);
}`;

/** Zooms by ctrl-wheel about the middle until a share of the width is in view, then pans by wheel. */
const panSpeedscope = `async ([share, seconds]) => {
  const canvas = [...document.querySelectorAll("canvas")].sort((a, b) => b.clientHeight * b.clientWidth - a.clientHeight * a.clientWidth)[0];
  const box = canvas.getBoundingClientRect();
  const [clientX, clientY] = [box.left + box.width * 0.4, box.top + box.height / 2];
  const target = document.elementFromPoint(clientX, clientY);
  const turn = (options) => target.dispatchEvent(new WheelEvent("wheel", { bubbles: true, cancelable: true, clientX, clientY, ...options }));
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  for (let zoom = Math.log(1 / share) / 0.1; zoom > 0; zoom--) { turn({ deltaY: -10, ctrlKey: true }); await frame(); }
  await new Promise((done) => setTimeout(done, 900));
  let count = 0;
  return (${COUNT})(() => {
    turn({ deltaX: Math.floor(count++ / 60) % 2 ? -box.width / 120 : box.width / 120 });
  }, seconds);
}`;

const round = (value) => value.toFixed(1).padStart(6);

/** CPU milliseconds so far: of the page's main thread, and of all processes of the browser. */
async function readCpu(ofPage, ofBrowser) {
  const { metrics } = await ofPage.send("Performance.getMetrics");
  const { processInfo } = await ofBrowser.send("SystemInfo.getProcessInfo");
  return [1000 * metrics.find(({ name }) => name === "TaskDuration").value, 1000 * processInfo.reduce((sum, { cpuTime }) => sum + cpuTime, 0)];
}

async function measure(browser, name, address, pan, isReady) {
  const before = loadavg()[0];
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  await page.goto(address);
  await page.waitForFunction(isReady, null, { timeout: 120_000 });
  const picture = await page.evaluate("performance.now()");
  const [ofPage, ofBrowser] = [await page.context().newCDPSession(page), await browser.newBrowserCDPSession()];
  await ofPage.send("Performance.enable", { timeDomain: "threadTicks" });
  const cells = [];
  let isKept = true;
  for (const share of SHARES) {
    const begin = await readCpu(ofPage, ofBrowser);
    const { count, frames, p95 } = await page.evaluate(`(${pan})(${JSON.stringify([share, SECONDS])})`);
    const [main, all] = (await readCpu(ofPage, ofBrowser)).map((value, k) => (value - begin[k]) / count);
    isKept &&= frames >= LEAST_FRAMES && p95 <= MOST_MS;
    cells.push(`${round(frames)} /${round(p95)} /${round(main)} /${round(all)}`);
  }
  await page.close();
  const load = Math.max(before, loadavg()[0]);
  return { line: `${name.padEnd(22)} ${round(picture)}  ${cells.join("  ")}  ${load.toFixed(1).padStart(5)}`, isKept: isKept || load > cpus().length };
}

/** Copies speedscope beside a script that opens the trace, as its own command line does. */
function openSpeedscope(source, trace, folder) {
  cpSync(source, folder, { recursive: true });
  const text = readFileSync(trace).toString("base64");
  writeFileSync(path.join(folder, "profile.js"), `speedscope.loadFileFromBase64(${JSON.stringify(path.basename(trace))}, ${JSON.stringify(text)})`);
  return `file://${folder}/index.html#localProfilePath=${folder}/profile.js`;
}

const arguments_ = process.argv.slice(2);
const write = arguments_[0] === "--write" && arguments_.shift();
const peer = arguments_[0] === "--speedscope" ? arguments_.splice(0, 3) : null;
const lines = [
  `frames/s, p95 ms between frames, CPU ms/frame of the main thread and of the whole browser while panning, by share of the recording in view; ${SECONDS} s each; aim: ${LEAST_FRAMES} /${MOST_MS}`,
  `${"page".padEnd(22)} ${"drawn".padStart(6)}  ${SHARES.map((share) => `${String(100 * share)} %`.padStart(30)).join("  ")}   load`,
];
console.log(lines.join("\n"));
const folder = mkdtempSync(path.join(tmpdir(), "frames-"));
const start = (args) => chromium.launch({ executablePath: process.env.TRACEKIT_CHROMIUM ?? "/usr/bin/chromium", args });
const browser = await start(FLAGS);
let isKept = true;
const add = (result) => {
  lines.push(result.line);
  isKept &&= result.isKept;
  console.log(result.line);
};
for (const argument of arguments_) {
  const [name, file] = argument.split("=");
  add(await measure(browser, name, `file://${path.resolve(file)}`, panPage, () => window.explorer !== undefined));
}
await browser.close();
if (peer) {
  // It draws with WebGL, for which a machine without a GPU has a renderer in software.
  const other = await start([...FLAGS.filter((flag) => flag !== "--disable-gpu"), "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]);
  const result = await measure(other, "speedscope", openSpeedscope(peer[1], peer[2], folder), panSpeedscope, () => document.querySelectorAll("canvas").length > 1);
  add({ ...result, isKept: true });
  await other.close();
}
rmSync(folder, { recursive: true, force: true });
lines.push(`${new Date().toISOString().slice(0, 10)}, ${cpus().length} cores, Chromium without a GPU`);
console.log(lines.at(-1));
if (write) writeFileSync(TABLE, `${lines.join("\n")}\n`);
process.exitCode = Number(!isKept);
