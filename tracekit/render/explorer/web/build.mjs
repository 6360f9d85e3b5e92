// Writes page.js and page.css beside this folder, or into the folder given as the first argument.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";
import path from "node:path";

const here = path.dirname(fileURLToPath(import.meta.url));
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
