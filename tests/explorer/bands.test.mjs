import assert from "node:assert/strict";
import { test } from "node:test";
import { makeRandom } from "./blocks.mjs";
import { load } from "./load.mjs";

const { buildStaircase, listLive, chooseSite } = await load("bands");

test("the staircase agrees with a replay of every moment", () => {
  const random = makeRandom(5);
  for (let turn = 0; turn < 60; turn++) {
    const n = 1 + Math.floor(random() * 40);
    const draw = (most) => Array.from({ length: n }, () => 1 + Math.floor(random() * most));
    const pieces = { start: draw(100).sort((a, b) => a - b), life: draw(60), size: draw(1000), path: draw(3), site: draw(15).map((i) => `site ${i}`) };
    const span = 120;
    const stairs = buildStaircase(pieces, span);
    const bands = stairs.names.length;
    let peak = 0;
    stairs.times.forEach((time, k) => {
      const held = new Map();
      for (let i = 0; i < n; i++) if (pieces.start[i] <= time && pieces.start[i] + pieces.life[i] > time) held.set(pieces.site[i], (held.get(pieces.site[i]) ?? 0) + pieces.size[i]);
      const all = [...held.values()].reduce((sum, size) => sum + size, 0);
      peak = Math.max(peak, all);
      assert.equal(stairs.total[k], all);
      let named = 0;
      stairs.names.slice(0, -1).forEach((name, band) => {
        assert.equal(stairs.state[k * bands + band], held.get(name) ?? 0);
        named += held.get(name) ?? 0;
      });
      assert.equal(stairs.state[k * bands + bands - 1], all - named);
      assert.deepEqual(listLive(pieces, time).reduce((sum, i) => sum + pieces.size[i], 0), all);
    });
    assert.equal(stairs.peak, peak);
    assert.equal(stairs.total[stairs.times.indexOf(stairs.peakTime)], peak);
    assert.ok(bands <= 12);
  }
});

test("memory that is freed and allocated at one moment counts once", () => {
  const { peak, total } = buildStaircase({ start: [0, 10], life: [10, 100], size: [8, 8], path: [0, 0], site: ["a", "b"] }, 50);
  assert.equal(peak, 8);
  assert.deepEqual([...total], [8, 8]);
});

test("the site is the innermost frame outside libraries", () => {
  assert.equal(chooseSite(["train.py:3 main", "model.py:9 forward", "torch/nn/modules/linear.py:4 forward", "aten::mm"]), "model.py:9 forward");
  assert.equal(chooseSite(["torch/optim/adam.py:7 step", "aten::add"]), "aten::add");
  assert.equal(chooseSite([]), "no stack recorded");
});
