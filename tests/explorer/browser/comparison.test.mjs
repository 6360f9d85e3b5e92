// Drives a simulated comparison page in Chromium: the alignment, the sums, journeys with their number of actions, access.
import assert from "node:assert/strict";
import { test } from "node:test";
import { FASTER } from "../simulate.mjs";
import { load } from "../load.mjs";
import { listCut, open, prepare, read, settle, violations } from "./pages.mjs";

const { formatCount, formatTime } = await load("format");

prepare({ "comparison.html": { ranks: 2, steps: 4, comparison: true }, "hostile.html": { ranks: 2, steps: 2, comparison: true, hostile: `<img src=x onerror=alert(1)></script>{{code}}"'&` } });

/** Clicks on each sixth pixel of the timeline at `x`, and gives the texts of the line below by lane, from top to bottom. */
async function readLanes(page, x) {
  const { x: left, y: top, height } = await page.locator("#timeline").boundingBox();
  const lanes = [];
  for (let y = 31; y < height; y += 6) {
    await page.mouse.click(left + x, top + y);
    const lane = [await page.textContent("#detail"), await read(page, "explorer.state.mark")];
    if (lane[0] !== lanes.at(-1)?.[0]) lanes.push(lane);
  }
  return lanes;
}

const TABS = ["change", "kernels", "time", "tables"];

for (const colorScheme of ["light", "dark"])
  test(`axe finds nothing on any tab of a comparison, ${colorScheme}`, () =>
    open(
      "comparison.html",
      async (page) => {
        for (const tab of TABS) {
          await page.click(`#tab-${tab}`);
          await settle(page);
          assert.deepEqual(await violations(page), [], tab);
        }
        await page.click("#panel-tables summary");
        assert.match(await page.textContent("#panel-tables table"), /launches.*300/);
      },
      { colorScheme, bypassCSP: true },
    ));

test("verdict, gate, both strips, parts and kernels are above 900 px", () =>
  open("comparison.html", async (page) => {
    const bottom = (selector) => page.$$eval(selector, (all) => Math.max(...all.map((element) => element.getBoundingClientRect().bottom)));
    for (const selector of ["h1", ".badge", "#timeline", "#issues table", "#top tbody tr"]) assert.ok((await bottom(selector)) <= 900, selector);
    assert.deepEqual(await page.$$eval(".badge", (all) => all.map((badge) => [badge.textContent, badge.className])), [
      ["fail: exposed_comm>1%", "badge failed"],
      ["pass: step_time>3%", "badge"],
    ]);
    // The verdict and the gate are on one line.
    const [headline, gate] = await page.$$eval("h1, #gate", (all) => all.map((element) => element.getBoundingClientRect().toJSON()));
    assert.ok(gate.left >= headline.right && gate.top < headline.bottom && headline.top < gate.bottom, JSON.stringify([headline, gate]));
    assert.ok((await read(page, "document.documentElement.scrollHeight")) <= 2200);
  }));

test("the critical path is a lane of both strips, each piece at the time of its own side", () =>
  open("comparison.html", async (page) => {
    assert.equal((await readLanes(page, 700)).filter(([text]) => text.includes("critical path")).length, 0);
    await page.click("#critical");
    await settle(page);
    for (const aligned of [true, false]) {
      await read(page, "explorer.timeline.setView(explorer.timeline.getSpan() * 0.55, explorer.timeline.getSpan() * 0.55 + 8e6)");
      await settle(page);
      // The pieces at an x by the alignment, without the lanes' own code.
      const expected = await read(page, () => {
        const { data, state } = explorer;
        const [canvas, gutter] = [document.getElementById("timeline").clientWidth, 96];
        const { row, start, length, name } = data.critical;
        const find = (x) =>
          state.pair.map((own) => {
            const at = state.t + ((x - gutter) / (canvas - gutter)) * (state.e - state.t);
            const piece = state.alignment?.pieces.get(own).filter((one) => one.at <= at).at(-1);
            const time = piece ? piece.start + at - piece.at : at;
            const slack = (state.e - state.t) / canvas;
            const i = row.findIndex((other, k) => other === own && start[k] + slack < time && start[k] + length[k] - slack > time);
            return i < 0 ? null : { x, row: own, t0: start[i], t1: start[i] + length[i], name: data.short[name[i]] };
          });
        const all = Array.from({ length: canvas - gutter }, (_, i) => find(gutter + i));
        return all.slice(400).find(([base, opt]) => base && opt);
      });
      const lanes = (await readLanes(page, expected[0].x)).filter(([text]) => text.includes("critical path"));
      assert.deepEqual(lanes.map(([, mark]) => mark), expected.map(({ row, t0, t1 }) => ({ row, t0, t1 })));
      lanes.forEach(([text], side) => assert.ok(text.startsWith(`${["before", "after"][side]} · critical path · `) && text.includes(expected[side].name), text));
      if (aligned) await page.click("#aligned");
    }
    await settle(page);
    assert.match(new URL(page.url()).hash, /c=1/);
  }, { reducedMotion: "reduce" }));

test("the same stage of the same step begins at the same x; plain time is one action away", () =>
  open("comparison.html", async (page) => {
    const starts = () =>
      read(page, () => {
        const { data, state } = explorer;
        const place = (row, time) => {
          const pieces = state.alignment?.pieces.get(row);
          if (!pieces) return time;
          const piece = pieces.filter(({ start }) => start <= time).at(-1);
          return piece.at + time - piece.start;
        };
        return state.pair.map((row) => data.rows[row].ranges[0].map((range) => place(row, range.start)));
      });
    const [before, after] = await starts();
    assert.equal(before.length, 16);
    assert.deepEqual(before, after);
    await page.click("#aligned");
    const [plain, other] = await starts();
    assert.notDeepEqual(plain, other);
    assert.equal(await page.getAttribute("#aligned", "aria-pressed"), "false");
  }));

test("why the second side is faster: its stage is on the first screen, its kernel one action further", () =>
  open("comparison.html", async (page) => {
    // 0 actions: the headline and the largest bar.
    assert.match(await page.textContent("#issues tr.pick"), /gen.*−5\sms.*1\.53× \[1\.40, 1\.60\]/);
    // 1 action: the stage in both strips, and its parts.
    await page.click("#issues tr.pick");
    await settle(page);
    const { mark, longest, t, e } = await read(page, () => {
      const { data, state } = explorer;
      return { mark: state.mark, t: state.t, e: state.e, longest: data.rows[0].ranges[0].find((range) => data.names[range.name] === "gen" && data.rows[0].steps[range.step].counted) };
    });
    assert.deepEqual([mark.t0, mark.t1], [longest.start, longest.end]);
    assert.ok(e - t < 2 * (mark.t1 - mark.t0));
    assert.match(await page.textContent("#issues tr.pick"), /sm90_xmma_gemm.*−4\sms/);
    assert.match(await page.textContent("#top h2"), /gen in step \d · 2 GPUs · per step · exact/);
    // 2 actions: the kernel on the timeline; each side is counted.
    await page.click("#issues tr.pick");
    const found = await read(page, () => {
      const { sums, head, names } = explorer.data;
      const sides = head.comparison.sides.map((side) => ({ side, count: 0, ns: 0 }));
      for (let i = 0; i < sums.row.length; i++)
        if (names[sums.name[i]].startsWith("sm90_xmma_gemm")) {
          const side = sides[head.rows[sums.row[i]].side];
          side.count += sums.count[i];
          side.ns += sums.ns[i];
        }
      return sides;
    });
    assert.notEqual(found[0].ns, found[1].ns);
    assert.equal(await page.textContent("#matches"), `${found.map(({ side, count, ns }) => `${side} ${formatCount(count)} × · ${formatTime(ns)}`).join(" | ")} · Enter: next`);
  }));

test("bars, icicle and tables add up to the change of the step", () =>
  open("comparison.html", async (page) => {
    const parts = await read(page, "explorer.data.head.comparison.parts");
    const total = parts.reduce((sum, { difference }) => sum + difference, 0);
    assert.equal(total, -FASTER);
    const texts = await page.$$eval("#issues tbody tr", (rows) => rows.map((row) => row.cells[2].textContent));
    assert.deepEqual(texts, ["60\u00a0ms", "−5\u00a0ms", "+250\u00a0µs", "−250\u00a0µs", "55\u00a0ms"]);
    assert.match(await page.textContent("#panel-change .unseen li"), /change of the step · 5\sms less after, of parts that changed by 7\.5\sms/);
    const counted = await read(page, () => {
      const { sums, rows, head } = explorer.data;
      const totals = [0, 0];
      for (let i = 0; i < sums.row.length; i++) if (rows[sums.row[i]].steps[sums.step[i]].counted) totals[head.rows[sums.row[i]].side] += sums.ns[i];
      return totals.map((ns, side) => ns / rows[side].steps.filter(({ counted }) => counted).length);
    });
    const shown = await read(page, "explorer.change.list().reduce(([a, b], { base, opt }) => [a + base, b + opt], [0, 0])");
    shown.forEach((ns, side) => assert.ok(Math.abs(ns - counted[side]) < 1, `${ns} ${counted[side]}`));
  }));

test("a brush counts both sides between the same stages, clipped to its window", () =>
  open("comparison.html", async (page) => {
    await read(page, () => {
      const { timeline, state } = explorer;
      const [, second] = state.alignment.pieces.get(0);
      timeline.selectWindow(second.at, second.at + second.room);
    });
    await page.focus("#timeline");
    await read(page, "explorer.timeline.redraw()");
    const [shown, expected] = await read(page, async () => {
      const { data, state, timeline, change } = explorer;
      await Promise.all([data.loadRow(0), data.loadRow(1)]);
      await change.count();
      const window = state.pair.map((row) => [state.selection.t0, state.selection.t1].map((time) => state.selection.scope.toRow(row, time)));
      const sums = state.pair.map((row, side) => data.rows[row].cells.reduce((sum, { data: boxes }) => sum + boxes.start.reduce((part, start, k) => part + Math.max(0, Math.min(start + boxes.length[k], window[side][1]) - Math.max(start, window[side][0])), 0), 0));
      return [change.list().reduce(([a, b], { base, opt }) => [a + base, b + opt], [0, 0]), sums];
    });
    assert.ok(expected[0] > 0 && expected[1] > 0);
    assert.deepEqual(shown, expected);
  }));

test("keys step through the parts of the change, a link restores the view, Escape clears", () =>
  open("comparison.html", async (page) => {
    await page.focus("#timeline");
    await page.keyboard.press("n");
    await settle(page);
    assert.match(await page.textContent("#issues h2"), /change of gen came from/);
    await page.click("#tab-kernels");
    await settle(page);
    await page.waitForTimeout(300);
    const hash = new URL(page.url()).hash;
    const view = await read(page, "[Math.round(explorer.state.t), Math.round(explorer.state.e)]");
    await open(
      "comparison.html",
      async (other) => {
        assert.deepEqual(await read(other, "[Math.round(explorer.state.t), Math.round(explorer.state.e)]"), view);
        assert.match(await other.textContent("#top h2"), /gen in step/);
        assert.equal(await other.getAttribute("#tab-kernels", "aria-selected"), "true");
      },
      {},
      hash,
    );
    await page.focus("#timeline");
    await page.keyboard.press("Escape");
    await settle(page);
    assert.match(await page.textContent("#top h2"), /counted steps · 2 GPUs/);
  }, { reducedMotion: "reduce" }));

test("hostile names make no element", () =>
  open("hostile.html", async (page) => {
    for (const tab of TABS) {
      await page.click(`#tab-${tab}`);
      await settle(page);
    }
    await page.click("#issues tr.pick");
    assert.equal(await read(page, "document.querySelectorAll('img, svg, main script').length"), 0);
    assert.match(await page.textContent("#issues"), /<img src=x onerror=alert\(1\)><\/script>\{\{code\}\}/);
  }));

test("on a phone, no heading, cell or text is cut: tables wrap, or scroll in their own box", () =>
  open(
    "comparison.html",
    async (page) => {
      for (const tab of TABS) {
        await page.click(`#tab-${tab}`);
        await settle(page);
        for (const summary of await page.$$("#panel-tables:not([hidden]) summary")) await summary.click();
        assert.deepEqual(await listCut(page), [], tab);
      }
    },
    { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
  ));

test("a phone has no sideways scrolling; without scripts the parts of the change can be read", async () => {
  await open(
    "comparison.html",
    async (page) => {
      for (const tab of TABS) {
        await page.click(`#tab-${tab}`);
        await settle(page);
        assert.ok((await read(page, "document.documentElement.scrollWidth")) <= 390, tab);
      }
    },
    { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
  );
  await open(
    "comparison.html",
    async (page) => {
      const text = await page.textContent("body");
      for (const part of ["4 runs a side", "−4 ms", "a simulated caveat", "All tables"]) assert.ok(text.includes(part), part);
    },
    { javaScriptEnabled: false },
  );
});
