import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { assignStages, getStageColor, getTextColor, shade, soften, isStage } = await load("theme");
const NAMES = ["gen", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "reward", "weight_sync", "validate", "save", "zz"];

test("twelve stages have twelve colors, in order of appearance", () => {
  assignStages([...NAMES, "gen", "ref"]);
  const colors = NAMES.map((name) => getStageColor(name));
  assert.equal(new Set(colors).size, 12);
  const renamed = NAMES.map((name) => `${name} of another run`);
  assignStages(renamed);
  assert.deepEqual(renamed.map((name) => getStageColor(name)), colors);
  assert.equal(isStage("gen"), false);
});

test("later stages and time outside stages have other colors", () => {
  const many = Array.from({ length: 36 }, (_, i) => `stage ${i}`);
  assignStages(many);
  const colors = new Set(many.map((name) => getStageColor(name)));
  assert.equal(colors.size, 36);
  assert.ok(!colors.has(getStageColor("outside any stage")));
});

test("text is black on light colors and white on dark ones", () => {
  assert.equal(getTextColor("#f0e442"), "#0d1114");
  assert.equal(getTextColor("#0072b2"), "#ffffff");
  assert.equal(soften("#0072b2", 0.5), "rgb(0 114 178 / 0.5)");
  assert.equal(shade("#000000", 1), "rgb(41,41,41)");
});
