// Top issues: claims with predicted savings; one is open, with its advice and its intervals.
import type { Finding } from "./data";
import { formatShare, formatTime } from "./format";
import type { Page } from "./scope";
import { find } from "./shell";
import { make, makeButton } from "./tables";

const FIRST_ISSUES = 3;

export function makeIssues(page: Page, chooseRows: (run: string, role: string) => void) {
  const { data, head, state, timeline } = page;
  let issue = -1;
  let allIssues = false;

  function openIssue(finding: number, pin = 0): void {
    issue = finding;
    const { number, claim, pins } = head.findings[finding];
    const place = pins[pin];
    if (place) {
      if (!state.rows.includes(place.row)) {
        chooseRows("", "");
        void page.refresh();
      }
      timeline.jump(place.row, place.t0, place.t1);
      timeline.say(`${number} · ${claim} · ${data.nameRow(place.row)}, ${formatTime(place.t1 - place.t0, 4)}`);
    }
    drawIssues();
  }
  function describeSaving({ saving }: Finding): string {
    if (!saving) return "";
    const alone = saving.alone > 0 ? `saves ${formatTime(saving.alone)} of the step alone` : "saves nothing alone";
    if (saving.behind !== null) return `Predicted: ${alone}; little more once #${saving.behind} is fixed.`;
    const steps = `${formatTime(saving.before)} → ${formatTime(saving.step)}`;
    return saving.before === head.plan?.recorded ? `Predicted: a step of ${steps}.` : `Predicted: ${alone}; ${steps} after the fixes above.`;
  }
  function makeIssue(finding: Finding, i: number): HTMLLIElement {
    const item = make("li");
    const open = i === issue;
    const button = makeButton("", () => openIssue(i), `go${open ? " on" : ""}`);
    button.setAttribute("aria-expanded", String(open));
    button.append(make("span", "pin", String(finding.number)), make("span", "claim", finding.claim));
    const gain = finding.saving ? finding.saving.alone : null;
    if (gain !== null) button.append(make("span", "gain", gain > 0 ? `−${formatTime(gain)}` : "–"));
    item.append(button);
    if (open || (issue < 0 && i === 0 && head.rows.length <= 2)) item.append(make("p", "try", finding.advice));
    if (!open) return item;
    const facts = [describeSaving(finding), ...finding.caveats.map((caveat) => `Note: ${caveat}`)].filter(Boolean);
    if (facts.length) item.append(make("p", "try quiet", facts.join(" ")));
    if (finding.pins.length > 1) {
      const go = make("p", "try");
      go.append(...finding.pins.map((pin, k) => makeButton(`${pin.name}${head.rows.length > 1 ? `, ${data.nameRow(pin.row)}` : ""}: ${formatTime(pin.t1 - pin.t0)}`, () => openIssue(i, k), "link")));
      item.append(go);
    }
    return item;
  }
  function describePlan(): string {
    if (!head.plan || head.plan.steps.length < 2) return "";
    const { recorded, steps } = head.plan;
    const last = steps[steps.length - 1];
    const path = [recorded, ...(steps.length > 5 ? steps.slice(0, 4) : steps)].map((ns) => formatTime(ns));
    if (steps.length > 5) path.push("…", formatTime(last));
    return `With ${steps.length === 2 ? "both" : `all ${steps.length}`} fixes, the replayed step takes ${path.join(" → ")} (−${formatShare(1 - last / recorded)}), predicted by replay.`;
  }
  function drawIssues(): void {
    const list = make("ol", "issues");
    const limit = allIssues ? Infinity : FIRST_ISSUES;
    head.findings.forEach((finding, i) => {
      if (i < limit || i === issue) list.append(makeIssue(finding, i));
    });
    const title = make("h2", "", "Top issues ");
    title.id = "issues-title";
    if (head.findings.some((finding) => finding.saving)) title.append(make("span", "quiet", "predicted saving per step, each fix alone"));
    const box = find("issues");
    box.replaceChildren(title, list);
    if (!head.findings.length) list.replaceWith(make("p", "quiet", "No issue was found."));
    const foot = make("p", "foot quiet");
    const more = head.findings.length - FIRST_ISSUES;
    if (more > 0 && !allIssues)
      foot.append(
        makeButton(`${more} more`, () => {
          allIssues = true;
          drawIssues();
        }),
      );
    foot.append(describePlan());
    box.append(foot);
  }
  function openNext(by: number): void {
    const pinned = head.findings.map((_, i) => i).filter((i) => head.findings[i].pins.length);
    if (pinned.length) openIssue(pinned[(pinned.indexOf(issue) + (issue < 0 && by < 0 ? 0 : by) + pinned.length) % pinned.length]);
  }
  return { openIssue, drawIssues, openNext };
}
