// Drives simulated pages in Chromium (TRACEKIT_CHROMIUM, or /usr/bin/chromium): journeys, access, quiet, extent.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, prepare, read, settle, violations } from "./pages.mjs";

const TABS = ["time", "kernels", "ranks", "memory"];
prepare({
  "two.html": { ranks: 2, steps: 4 },
  "many.html": { ranks: 64, steps: 3, kernels: 120 },
  "hostile.html": { ranks: 2, steps: 2, hostile: `<img src=x onerror=alert(1)></script>{{code}}"'&` },
  "memory.html": { ranks: 0, steps: 1 },
});

for (const [file, colorScheme] of [["two.html", "light"], ["many.html", "dark"]])
  test(`axe finds nothing on any tab of ${file}, ${colorScheme}`, () =>
    open(
      file,
      async (page) => {
        for (const tab of TABS) {
          await page.click(`#tab-${tab}`);
          await settle(page);
          assert.deepEqual(await violations(page), [], tab);
        }
        await page.click("#keys");
        assert.deepEqual(await violations(page), []);
      },
      { colorScheme, bypassCSP: true },
    ));

test("answer, strip, three issues and eight kernels are above 900 px; the page is short and small", async () => {
  for (const file of ["two.html", "many.html"])
    await open(file, async (page) => {
      const bottom = (selector) => page.$$eval(selector, (all) => Math.max(...all.map((element) => element.getBoundingClientRect().bottom)));
      assert.ok((await bottom("h1")) < 110);
      assert.ok((await bottom(".issues > li:nth-child(-n+3)")) <= 900);
      assert.ok((await bottom("#top tbody tr:nth-child(-n+8)")) <= 900);
      assert.ok((await read(page, "document.documentElement.scrollHeight")) <= 2200);
      assert.ok((await read(page, "document.querySelectorAll('*').length")) <= 1000);
    });
});

test("an issue jumps to its interval, n and p step through issues, worst and median differ", () =>
  open("many.html", async (page) => {
    await page.click(".issues .go");
    await settle(page);
    const { pins } = await read(page, "explorer.data.head.findings[0]");
    assert.deepEqual(await read(page, "explorer.state.mark"), { row: pins[0].row, t0: pins[0].t0, t1: pins[0].t1 });
    const [t, e] = await read(page, "[explorer.state.t, explorer.state.e]");
    assert.ok(t < pins[0].t0 && e > pins[0].t1 && (e - t) * 0.2 < pins[0].t1 - pins[0].t0);
    await page.click(".issues .link:has-text('median')");
    assert.equal(await read(page, "explorer.state.mark.t0"), pins[1].t0);
    await page.focus("#timeline");
    await page.keyboard.press("n");
    assert.match(await page.textContent("#detail"), /^2 · /);
    await page.keyboard.press("p");
    assert.match(await page.textContent("#detail"), /^1 · /);
  }));

test("g goes to the longest gap of the counted steps", () =>
  open("two.html", async (page) => {
    await page.keyboard.press("g");
    await settle(page);
    const { mark, longest } = await read(page, () => {
      const { gaps, rows, head } = explorer.data;
      let longest = 0;
      for (let i = 0; i < gaps.row.length; i++) {
        const steps = rows[gaps.row[i]].steps.filter((step) => head.counted.includes(step.number));
        if (steps.some((step) => step.start <= gaps.start[i] && step.end >= gaps.start[i] + gaps.length[i])) longest = Math.max(longest, gaps.length[i]);
      }
      return { mark: explorer.state.mark, longest };
    });
    assert.equal(mark.t1 - mark.t0, longest);
    assert.match(await page.textContent("#detail"), /^rank \d · idle .* after .*, before /);
  }));

test("a brush counts what is in it; whole steps come from exact sums; Escape clears", () =>
  open("two.html", async (page) => {
    const box = await page.locator("#timeline").boundingBox();
    await page.keyboard.down("Shift");
    await page.mouse.move(box.x + 400, box.y + 100);
    await page.mouse.down();
    await page.mouse.move(box.x + 600, box.y + 100, { steps: 5 });
    await page.mouse.up();
    await page.keyboard.up("Shift");
    await settle(page);
    const [counted, expected] = await read(page, () => {
      const { t0, t1 } = explorer.state.selection.scope;
      let sum = 0;
      for (const { data } of explorer.data.cells) for (let k = 0; k < data.start.length; k++) sum += Math.max(0, Math.min(data.start[k] + data.length[k], t1) - Math.max(data.start[k], t0));
      return [explorer.getCounts().work.reduce((total, { ns }) => total + ns, 0), sum];
    });
    assert.ok(expected > 0);
    assert.equal(counted, expected);
    assert.match(await page.textContent("#top h2"), /selected · 2 GPUs · exact/);
    await page.mouse.click(box.x + 500, box.y + 8);
    await settle(page);
    const number = await read(page, "[...explorer.state.selection.scope.numbers][0]");
    const [steps, sums] = await read(page, () => {
      const { sums, rows } = explorer.data;
      const [number] = explorer.state.selection.scope.numbers;
      return [explorer.getCounts().work.reduce((total, { ns }) => total + ns, 0), sums.ns.reduce((total, ns, i) => total + (rows[sums.row[i]].steps[sums.step[i]].number === number ? ns : 0), 0)];
    });
    assert.equal(steps, sums);
    assert.match(await page.textContent("#top h2"), new RegExp(`step ${number} · 2 GPUs · exact`));
    await page.focus("#timeline");
    await page.keyboard.press("Escape");
    await settle(page);
    assert.equal(await read(page, "explorer.state.selection"), null);
    assert.match(await page.textContent("#top h2"), /steps 2–4 · 2 GPUs/);
  }));

test("a kernel under the pointer shows its launch", () =>
  open("two.html", async (page) => {
    const { start, launch, row } = await read(page, () => {
      const { data, timeline, state } = explorer;
      state.focus = 0;
      const cell = data.rows[0].cells[1];
      return data.loadRow(0).then(() => {
        const [start, length] = [cell.data.start[20], cell.data.length[20]];
        timeline.setView(start - 3 * length, start + 3 * length);
        return { start, launch: start - cell.data.delay[20], row: 0 };
      });
    });
    await settle(page);
    const strip = page.locator("#timeline");
    const before = await strip.evaluate((canvas) => canvas.toDataURL());
    const box = await strip.boundingBox();
    const x = await read(page, `96 + ((${start} + 20 - explorer.state.t) / (explorer.state.e - explorer.state.t)) * (${box.width} - 96)`);
    await page.mouse.move(box.x + x + 2, box.y + 95);
    await settle(page);
    assert.match(await page.textContent("#tip"), new RegExp(`^rank ${row} · .* launched ${Math.round((start - launch) / 100) / 10}.*µs earlier`));
    assert.notEqual(await strip.evaluate((canvas) => canvas.toDataURL()), before);
  }));

test("a double click counts a stage of one step on all ranks", () =>
  open("two.html", async (page) => {
    const box = await page.locator("#timeline").boundingBox();
    await page.mouse.dblclick(box.x + 110, box.y + 55);
    await settle(page);
    assert.match(await page.textContent("#top h2"), /gen in step 1 · 2 GPUs · exact/);
    assert.equal(await read(page, "explorer.state.selection.scope.ranges.size"), 2);
  }));

test("a kernel is found by name, Enter goes to it, a link restores the view", () =>
  open("many.html", async (page) => {
    await page.keyboard.press("/");
    await page.keyboard.type("AllGather");
    assert.match(await page.textContent("#matches"), /× · .*s · Enter/);
    await page.keyboard.press("Enter");
    await settle(page);
    const mark = await read(page, "explorer.state.mark");
    const name = await read(page, () => {
      const { mark } = explorer.state;
      for (const { data } of explorer.data.rows[mark.row].cells) for (let k = 0; data && k < data.start.length; k++) if (data.start[k] === mark.t0) return explorer.data.names[data.name[k]];
      return null;
    });
    assert.match(name, /AllGather/);
    await page.click("#tab-kernels");
    await page.click("#critical");
    await page.waitForTimeout(400);
    const hash = new URL(page.url()).hash;
    const view = await read(page, "[Math.round(explorer.state.t), Math.round(explorer.state.e), explorer.state.focus]");
    await open("many.html", async (other) => {
      assert.deepEqual(await read(other, "[Math.round(explorer.state.t), Math.round(explorer.state.e), explorer.state.focus]"), view);
      assert.equal(await other.getAttribute("#critical", "aria-pressed"), "true");
      assert.equal(await other.getAttribute("#tab-kernels", "aria-selected"), "true");
    }, { reducedMotion: "reduce" }, hash);
    assert.equal(mark.row, view[2]);
  }, { reducedMotion: "reduce" }));

test("the straggler is first in Ranks, and a click in the heat map goes to its step", () =>
  open("many.html", async (page) => {
    await page.click("#tab-ranks");
    await settle(page);
    assert.match(await page.textContent("#panel-ranks .answer"), /^Rank 5 works/);
    assert.equal(await page.textContent("#panel-ranks tbody td"), "rank 5");
    const box = await page.locator("canvas.heat").boundingBox();
    await page.mouse.click(box.x + 150, box.y + 22);
    await settle(page);
    assert.equal(await read(page, "explorer.state.focus"), 5);
  }));

test("wheel zooms after a click or with Ctrl, keys zoom and pan, the overview moves the view", () =>
  open("two.html", async (page) => {
    const length = () => read(page, "explorer.state.e - explorer.state.t");
    const box = await page.locator("#timeline").boundingBox();
    const all = await length();
    await page.mouse.move(box.x + 500, box.y + 100);
    await page.mouse.wheel(0, -200);
    assert.equal(await length(), all);
    await page.mouse.wheel(0, 200);
    await page.mouse.click(box.x + 500, box.y + 100);
    await page.mouse.wheel(0, -200);
    await settle(page);
    const zoomed = await length();
    assert.ok(zoomed < all * 0.8);
    await page.keyboard.press("w");
    assert.ok((await length()) < zoomed * 0.8);
    const t = await read(page, "explorer.state.t");
    await page.keyboard.press("d");
    assert.ok((await read(page, "explorer.state.t")) > t);
    await read(page, "scrollTo(0, 0)");
    const strip = await page.locator("#overview").boundingBox();
    await page.mouse.click(strip.x + 700, strip.y + 10);
    const middle = await read(page, "(explorer.state.t + explorer.state.e) / 2 / explorer.data.head.span");
    assert.ok(Math.abs(middle - (700 - 96) / (strip.width - 96)) < 0.01, String(middle));
  }));

test("the theme switches in place, and every canvas is drawn again", () =>
  open("two.html", async (page) => {
    await read(page, "window.stays = 1");
    const pixel = () => page.$eval("#timeline", (canvas) => canvas.toDataURL());
    const before = await pixel();
    await page.click("#theme");
    await settle(page);
    assert.equal(await read(page, "document.documentElement.dataset.theme"), "dark");
    assert.equal(await read(page, "window.stays"), 1);
    assert.notEqual(await pixel(), before);
  }));

test("host threads, memory and icicles answer to keys", () =>
  open("two.html", async (page) => {
    const height = () => page.$eval("#timeline", (canvas) => canvas.clientHeight);
    const before = await height();
    await page.click("#host");
    await settle(page);
    assert.ok((await height()) > before);
    await page.click("#tab-memory");
    await page.waitForSelector("canvas.bands");
    const moment = () => page.textContent("#panel-memory > div:last-child .answer");
    const peak = await moment();
    assert.match(await page.textContent("#panel-memory .foot"), /72 allocations of at most 512\sB are merged by stack; the peak is exact\. 5 short ones/);
    await page.focus("canvas.bands");
    await page.keyboard.press("ArrowLeft");
    await settle(page);
    assert.notEqual(await moment(), peak);
    await page.click("button:has-text('go to the peak')");
    assert.equal(await moment(), peak);
    await page.focus("#panel-memory canvas.flame");
    await page.keyboard.press("ArrowDown");
    assert.match(await page.textContent("#panel-memory .line"), /train \(main\.py/);
    assert.match(await page.textContent("#panel-memory .unseen li"), /train \(main\.py/);
  }));

test("bands and the table at a moment are by call site or by holder", () =>
  open("two.html", async (page) => {
    await page.click("#tab-memory");
    await page.waitForSelector("canvas.bands");
    const answer = () => page.textContent("#panel-memory > div:last-child .answer");
    const first = await answer();
    await page.selectOption("#memory-by", "holder");
    await settle(page);
    const names = ["trainer state", "activations", "other in use"];
    const legend = await page.$$eval("#panel-memory .legend > *", (all) => all.map(({ textContent }) => textContent));
    assert.deepEqual(legend.slice(0, 3).sort(), [...names].sort());
    assert.equal(await page.inputValue("#memory-by"), "holder");
    assert.match(await page.textContent("#panel-memory .answer"), /Largest holder: (trainer state|activations|other in use), /);
    assert.equal(await answer(), first, "the same bytes in as many allocations");
    const holders = await page.$$eval("#panel-memory tbody tr", (all) => all.map(({ cells }) => cells[0].textContent));
    assert.ok(holders.length && holders.every((name) => names.includes(name)), holders);
    assert.match(await page.textContent("#panel-memory .foot"), /Serving engine, by the log: asleep from 0\sns\./);
    await page.selectOption("#memory-by", "site");
    await settle(page);
    assert.match(await page.textContent("#panel-memory .answer"), /Largest site: /);
  }));

test("a snapshot alone shows issues and memory", () =>
  open("memory.html", async (page) => {
    await page.waitForSelector("canvas.bands");
    assert.equal(await page.locator("#strip").isVisible(), false);
    assert.equal(await page.locator("#tab-time").isVisible(), false);
    assert.match(await page.textContent("#panel-memory .answer"), /in use at the peak/);
    await page.keyboard.press("w");
    await page.click("#theme");
    await settle(page);
  }));

test("hostile names make no element and run nothing", () =>
  open("hostile.html", async (page) => {
    for (const tab of TABS) {
      await page.click(`#tab-${tab}`);
      await settle(page);
    }
    await page.keyboard.press("g");
    assert.equal(await read(page, "document.querySelectorAll('img, svg, main script').length"), 0);
    assert.match(await page.textContent("#issues"), /<img src=x onerror=alert\(1\)><\/script>\{\{code\}\}/);
  }));

test("a phone has no sideways scrolling, and a pinch zooms", () =>
  open(
    "many.html",
    async (page) => {
      for (const tab of TABS) {
        await page.click(`#tab-${tab}`);
        await settle(page);
        assert.ok((await read(page, "document.documentElement.scrollWidth")) <= 390, tab);
      }
      const before = await read(page, "explorer.state.e - explorer.state.t");
      await read(page, () => {
        const canvas = document.getElementById("timeline");
        const box = canvas.getBoundingClientRect();
        canvas.setPointerCapture = () => undefined;
        const send = (type, id, x) => canvas.dispatchEvent(new PointerEvent(type, { pointerId: id, clientX: box.left + x, clientY: box.top + 100, pointerType: "touch", bubbles: true }));
        send("pointerdown", 1, 150);
        send("pointerdown", 2, 200);
        send("pointermove", 2, 300);
        send("pointerup", 2, 300);
        send("pointerup", 1, 150);
      });
      assert.ok((await read(page, "explorer.state.e - explorer.state.t")) < before * 0.5);
    },
    { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
  ));

test("print shows the strip in light colors at its own shape", () =>
  open(
    "two.html",
    async (page) => {
      await read(page, "window.dispatchEvent(new Event('beforeprint'))");
      await page.emulateMedia({ media: "print" });
      assert.equal(await read(page, "document.documentElement.dataset.theme"), "light");
      const box = await page.$eval("#timeline", ({ clientWidth, clientHeight, width, height }) => ({ shape: clientWidth / clientHeight, pixels: width / height, sharp: width / clientWidth }));
      assert.ok(Math.abs(box.shape / box.pixels - 1) < 0.02);
      assert.ok(box.sharp >= 2.9);
      await read(page, "window.dispatchEvent(new Event('afterprint'))");
      assert.equal(await read(page, "document.documentElement.dataset.theme"), "dark");
    },
    { colorScheme: "dark" },
  ));

test("without scripts, the answer, issues, kernels and all tables can be read", () =>
  open(
    "two.html",
    async (page) => {
      const text = await page.textContent("body");
      for (const part of ["a step takes 60 ms", "Rank 5 keeps", "All tables"]) assert.ok(text.includes(part), part);
      assert.equal(await page.locator("#strip").isVisible(), false);
    },
    { javaScriptEnabled: false },
  ));
