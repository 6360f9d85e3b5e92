import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { buildTree } = await load("flame");

test("a tree conserves the weight of its paths", () => {
  const root = buildTree([[["a", "b"], 3], [["a"], 4], [["c"], 5], [["a", "b"], 1], [[], 2]], "all");
  assert.equal(root.value, 15);
  const a = root.children.get("a");
  assert.deepEqual([a.value, a.children.get("b").value, root.children.get("c").value], [8, 4, 5]);
  assert.deepEqual([a.depth, a.children.get("b").depth, a.parent], [1, 2, root]);
});
