// Starts the browsers that open the pages: Chromium by its own protocol, an installed Firefox by WebDriver BiDi.
import { spawnSync } from "node:child_process";
import { require } from "../load.mjs";

const { chromium, firefox } = require("playwright-core");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"];
/** playwright-core sends it for each context and each page. Firefox ESR 153 does not know it and keeps the light colors. */
const UNKNOWN_TO_FIREFOX = "emulation.setMediaFeaturesOverride";

/** Starts Chromium: TRACEKIT_CHROMIUM, or /usr/bin/chromium. */
export const launchChromium = () => chromium.launch({ executablePath: process.env.TRACEKIT_CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });

/** Finds the program of Firefox: TRACEKIT_FIREFOX, or `firefox-esr` or `firefox` on the PATH; otherwise null. */
export function findFirefox() {
  if (process.env.TRACEKIT_FIREFOX) return process.env.TRACEKIT_FIREFOX;
  const { stdout } = spawnSync("sh", ["-c", "command -v firefox-esr || command -v firefox"], { encoding: "utf8" });
  return stdout.trim() || null;
}

/** Starts Firefox without a window and with an empty profile. */
export async function launchFirefox() {
  const browser = await firefox.launch({ channel: "moz-firefox", executablePath: findFirefox() });
  const session = Object.getPrototypeOf(browser._connection.toImpl(browser)._browserSession);
  const { send } = session;
  session.send = function (method, values) {
    return method === UNKNOWN_TO_FIREFOX ? Promise.resolve({}) : send.call(this, method, values);
  };
  return browser;
}
