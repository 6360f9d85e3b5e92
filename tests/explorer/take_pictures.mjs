// Takes the pictures of the page in docs/: `node take_pictures.mjs [FOLDER]`, after `make demo` and `make page`.
// In the dark picture, the first issue was clicked. Each picture carries the answer of its page as a text chunk, so a test notices when the example says something else.
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { crc32, deflateSync, inflateSync } from "node:zlib";
import { require } from "./load.mjs";

const { chromium } = require("playwright-core");
const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const PYTHON = process.env.TRACEKIT_PYTHON ?? [`${ROOT}.venv/bin/python`].find(existsSync) ?? "python3";
const EXAMPLE = "examples/simulated_gpu";
const MOST_BYTES = 150_000;
const VIEWS = {
  light: { viewport: { width: 1280, height: 900 }, colorScheme: "light" },
  dark: { viewport: { width: 1280, height: 900 }, colorScheme: "dark" },
  phone: { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
  print: { viewport: { width: 1000, height: 1400 } },
};

/** A chunk of a PNG file. */
function makeChunk(kind, content) {
  const body = Buffer.concat([Buffer.from(kind), content]);
  const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(content.length);
  sum.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, sum]);
}
/** Reads the pixels of a PNG file of 8 bits a channel, as Chromium writes it. */
function readPixels(png) {
  const [width, height, channels, parts] = [png.readUInt32BE(16), png.readUInt32BE(20), png[25] === 6 ? 4 : 3, []];
  for (let at = 8; at < png.length; at += png.readUInt32BE(at) + 12) if (png.toString("latin1", at + 4, at + 8) === "IDAT") parts.push(png.subarray(at + 8, at + 8 + png.readUInt32BE(at)));
  const lines = inflateSync(Buffer.concat(parts));
  const size = width * channels;
  const bytes = new Uint8Array(size * height);
  for (let y = 0; y < height; y++) {
    const filter = lines[y * (size + 1)];
    for (let x = 0; x < size; x++) {
      const at = y * size + x;
      const left = x < channels ? 0 : bytes[at - channels];
      const up = y ? bytes[at - size] : 0;
      const corner = x < channels || !y ? 0 : bytes[at - size - channels];
      const [toLeft, toUp, toCorner] = [up - corner, left - corner, left + up - 2 * corner].map(Math.abs);
      const paeth = toLeft <= toUp && toLeft <= toCorner ? left : toUp <= toCorner ? up : corner;
      bytes[at] = lines[y * (size + 1) + 1 + x] + [0, left, up, (left + up) >> 1, paeth][filter];
    }
  }
  const colors = new Uint32Array(width * height);
  for (let i = 0; i < colors.length; i++) colors[i] = (bytes[i * channels] << 16) | (bytes[i * channels + 1] << 8) | bytes[i * channels + 2];
  return { width, height, colors };
}
/** Writes a picture with its 256 most frequent colors, the others as the nearest of these, and a text. */
function writePicture({ width, height, colors }, key, text) {
  const counts = new Map();
  for (const color of colors) counts.set(color, (counts.get(color) ?? 0) + 1);
  const palette = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 256).map(([color]) => [color >> 16, (color >> 8) & 255, color & 255]);
  const nearest = new Map();
  for (const color of counts.keys()) {
    const distances = palette.map(([r, g, b]) => (r - (color >> 16)) ** 2 + (g - ((color >> 8) & 255)) ** 2 + (b - (color & 255)) ** 2);
    nearest.set(color, distances.indexOf(Math.min(...distances)));
  }
  const lines = Buffer.alloc((width + 1) * height);
  colors.forEach((color, i) => (lines[i + Math.floor(i / width) + 1] = nearest.get(color)));
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width);
  header.writeUInt32BE(height, 4);
  header.set([8, 3, 0, 0, 0], 8);
  const note = Buffer.concat([Buffer.from(`${key}\0\0\0\0\0`, "latin1"), Buffer.from(text, "utf8")]);
  return Buffer.concat([
    Buffer.from("\x89PNG\r\n\x1a\n", "latin1"),
    makeChunk("IHDR", header),
    makeChunk("iTXt", note),
    makeChunk("PLTE", Buffer.from(palette.flat())),
    makeChunk("IDAT", deflateSync(lines, { level: 9, memLevel: 9 })),
    makeChunk("IEND", Buffer.alloc(0)),
  ]);
}

const folder = path.resolve(process.argv[2] ?? path.join(ROOT, "docs/pictures"));
const work = mkdtempSync(path.join(tmpdir(), "pictures-"));
const file = path.join(work, "report.html");
execFileSync(PYTHON, ["-m", "tracekit", "analyze", EXAMPLE, "-q", "-o", file], { cwd: ROOT, stdio: "inherit" });
const browser = await chromium.launch({ executablePath: process.env.TRACEKIT_CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
for (const [name, options] of Object.entries(VIEWS)) {
  const page = await browser.newPage({ reducedMotion: "reduce", ...options });
  await page.goto(`file://${file}`);
  await page.waitForFunction(() => window.explorer);
  if (name === "dark") await page.click(".issues .go");
  if (name === "print") {
    await page.evaluate(() => window.dispatchEvent(new Event("beforeprint")));
    await page.emulateMedia({ media: "print" });
  }
  await page.waitForTimeout(800);
  await page.evaluate(() => scrollTo(0, 0));
  const answer = (await page.textContent("h1")).replaceAll("\u00a0", " ");
  const target = path.join(folder, `page-${name}.png`);
  writeFileSync(target, writePicture(readPixels(await page.screenshot()), "Description", answer));
  const { size } = statSync(target);
  console.log(`${path.relative(ROOT, target)} ${size} bytes`);
  if (size > MOST_BYTES) throw new Error(`${target} has more than ${MOST_BYTES} bytes`);
  await page.close();
}
await browser.close();
rmSync(work, { recursive: true });
