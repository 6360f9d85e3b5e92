// Writes page.js and page.css beside this folder, or into the folder given as the first argument.
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
// `npm run setup` installs packages here: a node_modules inside tracekit/ would be packaged.
const { build } = createRequire(path.resolve(here, "../../../../build/explorer/package.json"))("esbuild");
await build({
  absWorkingDir: here,
  entryPoints: ["page.ts", "page.css"],
  outdir: process.argv[2] ?? path.dirname(here),
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "esm",
  target: ["chrome110", "firefox115", "safari16.4"],
  legalComments: "none",
});
