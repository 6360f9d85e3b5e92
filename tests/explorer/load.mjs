// Bundles a component of the page in memory and imports it, to test its pure parts without a browser.
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

export const WEB = fileURLToPath(new URL("../../tracekit/render/explorer/web/", import.meta.url));
/** Where `npm run setup` installs the pinned packages. */
export const PACKAGES = fileURLToPath(new URL("../../build/explorer/", import.meta.url));
export const require = createRequire(`${PACKAGES}package.json`);

export async function load(...components) {
  const { build } = require("esbuild");
  const contents = components.map((name) => `export * from "./${name}.ts";`).join("\n");
  const { outputFiles } = await build({ stdin: { contents, resolveDir: WEB, loader: "ts" }, bundle: true, format: "esm", write: false, define: { COMPARISON: "true", LOGS: "false", MEMORY: "true" } });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
}
