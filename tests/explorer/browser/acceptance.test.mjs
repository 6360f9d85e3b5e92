// Opens the pages that tracekit writes for every kind of input: extent, elements, access, quiet, size.
// `TRACEKIT_THOUSAND=1` adds a run of 1,000 ranks, which takes some minutes to read.
import assert from "node:assert/strict";
import { test } from "node:test";
import { measureFile, open, read, settle, violations } from "./pages.mjs";
import { prepareWritten } from "./written.mjs";

const THOUSAND = process.env.TRACEKIT_THOUSAND ? ["thousand"] : [];
const RANKS = ["one", "two", "many", ...THOUSAND];
const OTHERS = ["verl", "nsys", "snapshot", "log", "comparison"];
/** The answer of a comparison is in `#issues table`. */
const ANSWERS = { comparison: ["h1", "#timeline", "#issues table", "#top tbody tr:nth-child(-n+8)"], snapshot: ["h1", ".issues > li:nth-child(-n+3)"], log: ["h1", "#timeline", ".issues > li:nth-child(-n+3)"] };
const ANSWER = ["h1", "#timeline", ".issues > li:nth-child(-n+3)", "#top tbody tr:nth-child(-n+8)"];
const MEGABYTES = { many: 3, thousand: 6 };
prepareWritten(...RANKS, ...OTHERS);

const list = (page) => page.$$eval("[role=tab]", (all) => all.filter((tab) => tab.offsetParent).map(({ id }) => id));

for (const name of [...RANKS, ...OTHERS]) {
  test(`${name}: the answer is above 900 px, the page short, with few elements and bytes`, (context) =>
    open(`${name}.html`, async (page) => {
      await settle(page);
      for (const selector of ANSWERS[name] ?? ANSWER) {
        const bottoms = await page.$$eval(selector, (all) => all.map((element) => element.getBoundingClientRect().bottom));
        assert.ok(bottoms.length && Math.max(...bottoms) <= 900, `${selector}: ${bottoms}`);
      }
      if (RANKS.includes(name)) {
        assert.equal(await page.locator(".issues > li").count(), 3);
        assert.ok((await page.locator("#top tbody tr").count()) >= 8);
      }
      const [height, elements, paint, loaded] = await read(page, () => [
        document.documentElement.scrollHeight,
        document.querySelectorAll("*").length,
        performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
        performance.getEntriesByType("navigation")[0].loadEventEnd,
      ]);
      const size = measureFile(`${name}.html`);
      context.diagnostic(`${height} px, ${elements} elements, ${size} bytes, first paint ${Math.round(paint)} ms, load event ${Math.round(loaded)} ms`);
      assert.ok(height <= 2200, `${height} px`);
      assert.ok(elements <= 1000, `${elements} elements`);
      assert.ok(size <= (MEGABYTES[name] ?? 3) * 1e6, `${size} bytes`);
    }));

  for (const colorScheme of ["light", "dark"])
    test(`${name}: axe finds nothing on any tab, ${colorScheme}`, () =>
      open(
        `${name}.html`,
        async (page) => {
          for (const tab of await list(page)) {
            await page.click(`#${tab}`);
            await settle(page);
            assert.deepEqual(await violations(page), [], tab);
          }
        },
        { colorScheme, bypassCSP: true },
      ));

  test(`${name}: 390 px have no sideways scrolling on any tab`, () =>
    open(
      `${name}.html`,
      async (page) => {
        for (const tab of await list(page)) {
          await page.click(`#${tab}`);
          await settle(page);
          const width = await read(page, "document.documentElement.scrollWidth");
          assert.ok(width <= 390, `${tab}: ${width} px`);
        }
      },
      { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
    ));
}

if (!THOUSAND.length) test("thousand", { skip: "reading 1,000 ranks takes minutes; set TRACEKIT_THOUSAND=1" });
