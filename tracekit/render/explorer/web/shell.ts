// The frame of every page: its elements, tools, tabs, keys, theme and print.
import { isDark, redrawAll, setPrinting, setTheme } from "./theme";
import { make, makeButton } from "./tables";

export const find = <T extends HTMLElement = HTMLElement>(id: string): T => document.getElementById(id) as T;
export const capitalize = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

export type Parts = (HTMLElement | string)[];
export interface Tab {
  id: string;
  title: string;
  build: () => Parts | Promise<Parts>;
}

const KEYS: [string, string][] = [
  ["w s", "zoom in, out"],
  ["a d ← →", "pan"],
  ["↑ ↓", "previous, next row"],
  ["n p", "next, previous issue, or part of a change"],
  ["g", "longest idle gap of the selection"],
  ["f", "fit the marked or selected part"],
  ["Home", "whole run"],
  ["shift-drag, or drag on the axis", "select: tables and graphs count the selection; at step or stage edges it counts them whole"],
  ["click on a step, double click on a stage", "count this step or stage"],
  ["Esc", "clear"],
  ["/", "find; Enter goes to the next match, Shift-Enter to the one before"],
  ["ctrl-wheel, or wheel after a click", "zoom"],
];

function readTheme(): string | null {
  try {
    return localStorage.getItem("tracekit-theme");
  } catch {
    return null;
  }
}
function keepTheme(): void {
  try {
    localStorage.setItem("tracekit-theme", isDark() ? "dark" : "light");
  } catch {
    // Without storage, the choice lasts for this visit.
  }
}

function withId<T extends HTMLElement>(element: T, id: string): T {
  element.id = id;
  return element;
}
function makeTool(id: string, text: string, title: string, act: () => void): HTMLElement {
  const button = withId(makeButton(text, act), id);
  button.title = title;
  return button;
}

function showKeys(): void {
  const dialog = find<HTMLDialogElement>("help");
  const table = make("table");
  for (const [key, text] of KEYS) {
    const row = table.insertRow();
    row.insertCell().append(make("kbd", "", key));
    row.insertCell().textContent = text;
  }
  dialog.replaceChildren(make("h2", "", "Keys"), table, makeButton("close", () => dialog.close()));
  dialog.showModal();
}

/** Builds the elements of a page with scripts, and chooses its theme. */
export function buildShell(): void {
  document.documentElement.classList.add("js");
  setTheme(readTheme());
  const answer = document.querySelector("h1")!;
  answer.textContent = answer.textContent!.replace(/(\d) (?=%|[mµn]?s\b)/g, "$1\u00a0");
  const bar = withId(make("div", "bar"), "bar");
  bar.append(withId(make("div", "legend"), "legend"), withId(make("div", "controls"), "controls"));
  const overview = withId(make("canvas"), "overview");
  overview.setAttribute("aria-hidden", "true");
  const canvas = withId(make("canvas"), "timeline");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "Timeline. w and s zoom, a and d pan, up and down choose the row, n and p step through issues, g goes to the longest idle gap.");
  const detail = withId(make("p", "quiet"), "detail");
  detail.setAttribute("aria-live", "polite");
  find("strip").replaceChildren(bar, overview, canvas, detail);
  for (const id of ["tools", "strip", "more"]) find(id).hidden = false;
}

/** Connects tools, theme, print and the keys that work everywhere. */
export function connectShell(refresh: () => void, copyLink: () => void): void {
  const changeTheme = (theme: string | null): void => {
    setTheme(theme);
    redrawAll();
    refresh();
  };
  find("tools").replaceChildren(
    makeTool("theme", "light / dark", "Switch between light and dark", () => {
      changeTheme(isDark() ? "light" : "dark");
      keepTheme();
    }),
    makeTool("copy", "copy link", "Copy a link to this view", copyLink),
    makeTool("keys", "keys", "List the keys (?)", showKeys),
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => readTheme() ?? changeTheme(null));
  let dark = false;
  const print = (on: boolean): void => {
    setPrinting(on);
    if (on) dark = isDark();
    if (dark) changeTheme(on ? "light" : "dark");
    else redrawAll();
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select")) return;
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("find")?.focus();
    } else if (event.key === "?") showKeys();
    else if (target === document.body ? /^(?:[wasdnpgf]|Home|Escape)$/.test(event.key) : /^[wasdnpgf]$/.test(event.key) && !target.matches("canvas")) {
      find("timeline").focus({ preventScroll: true });
      find("timeline").dispatchEvent(new KeyboardEvent("keydown", { key: event.key }));
    }
  });
}

/** Builds the tabs; a tab is built when it is first shown, and again after a change. */
export function makeTabs(tabs: Tab[], chosen: () => void) {
  const shown = new Set<string>();
  let current = tabs[0].id;
  let ready = false;
  const show = (id: string): void => {
    current = id;
    for (const tab of tabs) {
      const button = find(`tab-${tab.id}`);
      button.setAttribute("aria-selected", String(tab.id === id));
      button.tabIndex = tab.id === id ? 0 : -1;
      find(`panel-${tab.id}`).hidden = tab.id !== id;
    }
    if (shown.has(id) || !ready) return;
    shown.add(id);
    void Promise.resolve(tabs.find((tab) => tab.id === id)!.build()).then((parts) => find(`panel-${id}`).replaceChildren(...parts));
  };
  const list = make("div");
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", "Details");
  const panels = tabs.map(({ id, title }, i) => {
    const button = withId(
      makeButton(title, () => {
        show(id);
        chosen();
      }),
      `tab-${id}`,
    );
    button.setAttribute("role", "tab");
    button.setAttribute("aria-controls", `panel-${id}`);
    button.onkeydown = (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const next = tabs[(i + by + tabs.length) % tabs.length].id;
      show(next);
      find(`tab-${next}`).focus();
    };
    list.append(button);
    const panel = withId(make("div"), `panel-${id}`);
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", button.id);
    panel.hidden = true;
    return panel;
  });
  const bar = make("div", "tabs");
  bar.append(list, withId(make("span", "quiet"), "scope"));
  find("more").replaceChildren(bar, ...panels);
  return {
    show,
    getCurrent: () => current,
    has: (id: string) => tabs.some((tab) => tab.id === id),
    /** Builds the shown tab again, and the others when they are shown. */
    refresh: (): void => {
      ready = true;
      shown.clear();
      show(current);
    },
    rebuild: (id: string): void => {
      shown.delete(id);
      show(id);
    },
  };
}

export function makeChooser(id: string, label: string, choices: [value: string, text: string][], act: (value: string) => void): HTMLSelectElement {
  const chooser = withId(make("select"), id);
  chooser.setAttribute("aria-label", label);
  for (const [value, text] of choices) {
    const option = make("option", "", text);
    option.value = value;
    chooser.append(option);
  }
  chooser.onchange = () => act(chooser.value);
  return chooser;
}

/** A button that stays pressed. */
export function makeSwitch(id: string, text: string, title: string, pressed: boolean, act: (on: boolean) => void): HTMLButtonElement {
  const button = withId(
    makeButton(text, () => {
      const on = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(on));
      act(on);
    }),
    id,
  );
  button.title = title;
  button.setAttribute("aria-pressed", String(pressed));
  return button;
}
