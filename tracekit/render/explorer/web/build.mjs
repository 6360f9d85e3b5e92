// Writes the programs and page.css beside this folder, or into the folder given as the first argument.
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
// `npm run setup` installs packages here: a node_modules inside tracekit/ would be packaged.
const { build } = createRequire(path.resolve(here, "../../../../build/explorer/package.json"))("esbuild");
const options = {
  absWorkingDir: here,
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "esm",
  target: ["chrome110", "firefox115", "safari16.4"],
  legalComments: "none",
};
const folder = process.argv[2] ?? path.dirname(here);
// One program per kind of page (kind.d.ts): what only other kinds need is left out.
const PROGRAMS = { page: [], memory: ["MEMORY"], log: ["LOGS"], comparison: ["COMPARISON"], log_comparison: ["COMPARISON", "LOGS"] };
for (const [name, kinds] of Object.entries(PROGRAMS)) {
  const define = Object.fromEntries(["COMPARISON", "LOGS", "MEMORY"].map((kind) => [kind, String(kinds.includes(kind))]));
  await build({ ...options, entryPoints: ["page.ts"], outfile: path.join(folder, `${name}.js`), define });
}
await build({ ...options, entryPoints: ["page.css"], outdir: folder });
