// Keyboard alone on the pages of every kind of input: each control is reached by Tab and named, and the journeys need no mouse.
// `TRACEKIT_THOUSAND=1` adds a run of 1,000 ranks.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, read, settle } from "./pages.mjs";
import { prepareWritten, readTable } from "./written.mjs";

const THOUSAND = process.env.TRACEKIT_THOUSAND ? ["thousand"] : [];
const SEVERAL = ["many", ...THOUSAND];
const WITH_TIMELINE = ["one", "two", ...SEVERAL, "verl", "nsys", "log", "comparison"];
prepareWritten(...WITH_TIMELINE, "snapshot");

/** What has the focus: its id, its role, its name for screen readers, and whether a ring or an outline shows it. */
const readFocus = (page) =>
  read(page, () => {
    const { activeElement: element } = document;
    if (!element || element === document.body) return null;
    const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(element);
    const label = element.getAttribute("aria-label") ?? element.labels?.[0]?.textContent ?? element.title;
    return { id: element.id, role: element.getAttribute("role") ?? element.tagName.toLowerCase(), name: (element.textContent || label || "").trim(), isShown: (outlineStyle !== "none" && outlineWidth !== "0px") || boxShadow !== "none" };
  });
/** Presses Tab until an element is reached, and returns the number of presses. */
async function reach(page, id, most = 80) {
  for (let presses = 1; presses <= most; presses++) {
    await page.keyboard.press("Tab");
    if ((await readFocus(page))?.id === id) return presses;
  }
  throw new assert.AssertionError({ message: `${id} is not reached by ${most} presses of Tab` });
}

for (const name of [...WITH_TIMELINE, "snapshot"])
  test(`${name}: Tab goes through named controls, with a ring, and leaves the page again`, () =>
    open(`${name}.html`, async (page) => {
      await settle(page);
      const found = [];
      for (let presses = 0; presses < 150; presses++) {
        await page.keyboard.press("Tab");
        const focus = await readFocus(page);
        if (!focus) break;
        assert.ok(focus.name, `${focus.role} ${focus.id} has no name`);
        assert.ok(focus.isShown, `${focus.role} ${focus.id} ${focus.name} shows no focus`);
        found.push(focus);
      }
      assert.ok(found.length >= 4 && found.length < 150, `${found.length} controls`);
      assert.equal(found.some(({ id }) => id === "timeline"), name !== "snapshot");
      assert.equal(found.filter(({ role }) => role === "tab").length, 1, "one tab is in the order, the others by arrows");
    }));

for (const name of [...WITH_TIMELINE, "snapshot"])
  test(`${name}: arrows open each tab`, () =>
    open(`${name}.html`, async (page) => {
      await settle(page);
      const tabs = await page.$$eval("[role=tab]", (all) => all.filter((tab) => tab.offsetParent).map(({ id }) => id));
      await page.focus("[role=tab][aria-selected=true]");
      for (let presses = 1; presses <= tabs.length; presses++) {
        const before = tabs.indexOf((await readFocus(page)).id);
        await page.keyboard.press("ArrowRight");
        await settle(page);
        const { id } = await readFocus(page);
        assert.equal(id, tabs[(before + 1) % tabs.length]);
        assert.equal(await page.getAttribute(`#${id}`, "aria-selected"), "true");
        assert.ok(await page.locator(`#${id.replace("tab", "panel")}`).isVisible());
      }
    }));

for (const name of SEVERAL)
  test(`${name}: the latest rank is named, in focus, and beside the others by keys alone`, () =>
    open(`${name}.html`, async (page) => {
      const late = new Map();
      for (const { late_rank: rank, each_ns: ns } of readTable(`${name}.json`, "stragglers", "waits")) late.set(rank, (late.get(rank) ?? 0) + ns);
      const [[rank]] = [...late].sort((a, b) => b[1] - a[1]);
      assert.match(await page.textContent("h1"), new RegExp(`\\brank\\s${rank}\\b`));
      assert.equal(await read(page, "explorer.data.head.rows[explorer.state.focus].rank"), rank);
      await reach(page, "tab-time");
      await page.keyboard.press("ArrowRight");
      await page.keyboard.press("ArrowRight");
      await settle(page);
      assert.match(await page.textContent("#panel-ranks tbody tr"), new RegExp(`^rank\\s${rank}(?!\\d)`));
    }));

for (const name of SEVERAL)
  test(`${name}: the longest and the median step of the three latest ranks are exact`, () =>
    open(`${name}.html`, async (page) => {
      const cells = await read(page, () => {
        const { rows, head } = explorer.data;
        const order = rows.map((_, row) => row).sort((a, b) => (head.rows[b].late ?? 0) - (head.rows[a].late ?? 0));
        return order.slice(0, 3).map((row) => {
          const steps = rows[row].steps.map(({ index, start, end }) => ({ index, length: end - start })).sort((a, b) => b.length - a.length);
          return [steps[0], steps[Math.floor(steps.length / 2)]].map(({ index }) => {
            const cell = rows[row].cells.find(({ step }) => step === index);
            return { tau: cell?.tau, all: cell?.boxes === cell?.kernels };
          });
        });
      });
      assert.deepEqual(cells, Array(3).fill(Array(2).fill({ tau: 0, all: true })));
    }));

for (const name of ["one", "two", ...SEVERAL, "nsys"])
  test(`${name}: g goes to the longest gap and / finds the largest kernel, with or without motion`, async () => {
    const views = [];
    for (const reducedMotion of ["reduce", "no-preference"])
      await open(
        `${name}.html`,
        async (page) => {
          const readView = () => read(page, "[explorer.state.t, explorer.state.e].map(Math.round)");
          await settle(page);
          await page.keyboard.press("g");
          const first = await readView();
          await page.waitForTimeout(600);
          const view = await readView();
          assert.equal(String(first) === String(view), reducedMotion === "reduce", "the view glides, or is there at once");
          assert.match(await page.textContent("#detail"), /idle .* after .*, before /);
          views.push(view);
          const { name: kernel, count } = readTable(`${name}.json`, "kernels", "kernels")[0];
          await page.keyboard.press("/");
          await page.keyboard.type(kernel.slice(0, 40));
          await page.keyboard.press("Enter");
          await page.waitForTimeout(600);
          const matches = (await page.textContent("#matches")).replace(/[,\s]/g, "");
          assert.ok(Number(/^(\d+)×/.exec(matches)?.[1]) >= count, `${matches}: ${count}`);
          assert.notDeepEqual(await readView(), view);
        },
        { reducedMotion },
      );
    assert.deepEqual(views[0], views[1]);
  });
