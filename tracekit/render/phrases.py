"""Parts of a report in words, shared by text, Markdown and HTML; printable, but not escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from math import isfinite

from tracekit.model.report import SEVERITIES, Finding, Metric, Place, Remark, Report, Saving, Section, Sheet, Verdict
from tracekit.model.text.kernel_labels import is_template_name, shorten_kernel_name
from tracekit.model.text.labels import choose_plural
from tracekit.model.units import (
    UNKNOWN,
    Scale,
    append_unit_label,
    choose_scale,
    format_cell,
    format_moment,
    format_quantity,
    format_signed,
    format_speedup,
    refine_scale,
)
from tracekit.render.escape import make_printable

_MORE_IN_SECTION = re.compile(r"rows; more in section [\w-]+")

SENTENCE = 600
"""Longest claim, advice or reason shown, in characters."""

FACT = 400
"""Longest fact of the first line, in characters."""

ALONE_TITLE, AFTER_TITLE = "alone", "after the above"
"""Titles of the savings of findings: the step with this fix only, and with this one and those above it."""

PREDICTION_NOTE = "Predicted by replaying the profiled steps, profiler overhead included; kernels keep their length"
"""Note under a list of findings with savings."""

UNPREDICTED = "not predicted"

MAX_PLAN_STEPS = 6
"""Most steps of a plan in one line; those between the first ones and the last are left out."""


def list_identity_facts(report: Report) -> list[str]:
    """List the facts of the first line; the title if there are none."""
    facts = [make_printable(fact, FACT) for fact in report.identity if fact]
    return facts or [make_printable(report.title, FACT) or UNKNOWN]


def get_metric_label(metric: Metric) -> str:
    """Get the label of a metric."""
    return make_printable(metric.label or metric.name, 80)


def format_metric_value(metric: Metric) -> str:
    """Format the number of a metric with its unit."""
    if metric.unit == "ratio":
        return format_quantity(metric.value, "ratio")
    if metric.unit == "factor" and metric.better == "higher" and metric.value:
        return format_speedup(metric.value)
    scale = _get_metric_scale(metric)
    return append_unit_label(format_cell(metric.value, scale), scale)


def format_metric_range(metric: Metric) -> str:
    """Format the bounds in the metric's unit as `1,795` dash `1,910`, `≥ 3` if only one is known, or empty.

    A metric that names its bounds puts that name first and the unit last: `steps 1,795` … `ms`. Otherwise the
    bounds could be taken for numbers of steps.
    """
    scale = _get_metric_scale(metric)
    low, high = (format_cell(bound, scale).removesuffix(" %") for bound in (metric.low, metric.high))
    if metric.high is None:
        return f"≥ {low}" if metric.low is not None else ""
    if metric.low is None:
        return f"≤ {high}"
    words = make_printable(metric.bounds, 40)
    span = f"{low}–{high}"
    full = f"{span} %" if metric.unit == "ratio" else append_unit_label(span, scale)
    return f"{words} {full}" if words else span


def format_metric(metric: Metric) -> str:
    """Format name, number and bounds: `Step 1,842 ms (1,795 to 1,910)`, with a dash for `to`."""
    bounds = format_metric_range(metric)
    phrase = f"{get_metric_label(metric)} {format_metric_value(metric)}"
    return f"{phrase} ({bounds})" if bounds else phrase


def format_place(place: Place, spans: Sequence[tuple[str, int, int]] = ()) -> str:
    """Format a place from general to specific: source, role, rank, device, step, stage, name, time.

    The time is an offset from the start of the run, as far as `spans` (of the report) has that run.
    """
    parts = [make_printable(place.source or "", 160), make_printable(place.role or "", 80)]
    ids = {"rank": place.rank, "device": place.device, "step": place.step}
    parts += [f"{name} {format_quantity(id_, 'id')}" for name, id_ in ids.items() if id_ is not None]
    name = place.name or ""
    if is_template_name(name):
        name = shorten_kernel_name(name)
    parts += [make_printable(place.stage or "", 80), make_printable(name, 160), _format_place_time(place, spans)]
    return " · ".join(part for part in parts if part) or "everywhere"


def describe_worst_instance(finding: Finding, report: Report) -> str:
    """Describe the worst instance of a finding with its cost; empty without one. A known rank stands for its source."""
    for instance in finding.instances[:1]:
        place = instance.place if instance.place.rank is None else replace(instance.place, source=None)
        cost = format_quantity(instance.cost, instance.unit)
        return f"{instance.which}: {cost}, {format_place(place, report.spans)}"
    return ""


def format_costs(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Format the time per step that each finding is about and its share of the step, with times in one unit."""
    scale = choose_scale((finding.cost_ns for finding in findings), "ns", figures=3)
    amounts = []
    for finding in findings:
        cell = format_cell(finding.cost_ns, refine_scale(finding.cost_ns, scale))
        amounts.append((append_unit_label(cell, scale), format_quantity(finding.cost_ratio, "ratio")))
    return amounts


def format_savings(findings: Sequence[Finding], report: Report) -> list[tuple[str, str]]:
    """Format what the fix of each finding saves alone, and the steps before and after it on top of those above.

    Both are empty for a finding that is not about time.
    """
    return [_format_saving(finding, report) for finding in findings]


def _format_saving(finding: Finding, report: Report) -> tuple[str, str]:
    saving = finding.saving
    if saving is None:
        return "", UNPREDICTED if _lacks_prediction(finding, report) else ""
    before = find_blocking_number(finding, report)
    after = format_steps([saving.before_ns, saving.step_ns]) if before is None else f"behind #{before}"
    return _format_saving_alone(saving), after


def _format_saving_alone(saving: Saving) -> str:
    """Format what a fix saves alone: nothing where it saves time only after the others, and seems to cost some alone.

    The counted steps may begin earlier with the fix, and end no earlier.
    """
    return (
        "nothing"
        if saving.alone_ns == 0 or saving.alone_ns < 0 < saving.after_ns
        else format_signed(-saving.alone_ns, "ns")
    )


def _lacks_prediction(finding: Finding, report: Report) -> bool:
    """Check whether a finding is about time, but its fix could not be replayed."""
    return bool(report.replays and finding.cost_ns) and finding.severity != "info"


def format_steps(steps_ns: Sequence[float]) -> str:
    """Format the lengths of steps that follow one another: `63.7 → 56.9 ms`."""
    scale = choose_scale(steps_ns, "ns", figures=3)
    return append_unit_label(" → ".join(format_cell(step_ns, scale) for step_ns in steps_ns), scale)


def find_blocking_number(finding: Finding, report: Report) -> int | None:
    """Find the number, in the report, of the finding whose fix leaves this one little to save."""
    saving = finding.saving
    if saving is None or saving.behind is None:
        return None
    for number, other in enumerate(report.findings, 1):
        if other.saving and (other.saving.number, other.saving.recorded_ns) == (saving.behind, saving.recorded_ns):
            return number
    return None


def describe_saving(finding: Finding, report: Report) -> str:
    """Describe what a fix saves: alone, on top of those above, and after all others; empty if that is unknown."""
    saving = finding.saving
    if saving is None:
        return UNPREDICTED if _lacks_prediction(finding, report) else ""
    alone, last = _format_saving_alone(saving), format_signed(-saving.last_ns, "ns")
    before = find_blocking_number(finding, report)
    after = f"step {format_steps([saving.before_ns, saving.step_ns])} after the above"
    return f"{after if before is None else f'behind #{before}'}, {alone} alone, {last} after all others"


def describe_plans(report: Report) -> list[str]:
    """Describe the plan of each run: the step with one fix after the other, or why nothing is predicted."""
    sentences = []
    for replay in report.replays:
        run = f" of {make_printable(replay.run, 80)}" if len(report.replays) > 1 and replay.run else ""
        if replay.refusal and any(finding.cost_ns for finding in report.findings):
            sentences.append(f"No {replay.unit}{run} is predicted: {replay.refusal}")
            continue
        savings = [f.saving for f in report.findings if f.saving and f.saving.recorded_ns == replay.recorded_ns]
        steps_ns = [saving.step_ns for saving in sorted(savings, key=lambda saving: saving.number)]
        if len(steps_ns) > 1 and replay.step_ns is not None and replay.recorded_ns:
            share = format_signed(replay.step_ns / replay.recorded_ns - 1, "ratio")
            fixes = "both fixes" if len(steps_ns) == 2 else f"all {len(steps_ns)} fixes"
            sentences.append(f"With {fixes}{run}: {_format_plan(replay.recorded_ns, steps_ns)} ({share})")
    return sentences


def _format_plan(recorded_ns: float, steps_ns: Sequence[float]) -> str:
    """Format the steps of a plan; of a long one the first ones and the last."""
    if len(steps_ns) <= MAX_PLAN_STEPS:
        return format_steps([recorded_ns, *steps_ns])
    first = format_steps([recorded_ns, *steps_ns[: MAX_PLAN_STEPS - 1], steps_ns[-1]])
    head, _, last = first.rpartition(" → ")
    return f"{head} → … → {last}"


def choose_first_findings(report: Report, limit: int) -> tuple[list[Finding], int]:
    """Choose the findings to show first, and count the others.

    Findings of high severity are always included: one about data or memory may not save time.
    """
    findings, limit = report.findings, max(limit, 0)
    first = [*findings[:limit]]
    first += (finding for finding in findings[limit:] if finding.severity == SEVERITIES[0])
    return first, len(findings) - len(first)


WORTH_PROVING = 0.01
"""Smallest share of the step for which an abstention is shown."""

MOST_UNPROVEN = 3
"""Most abstentions on the first screen, the most expensive."""


def list_unproven_claims(report: Report, shown_findings: Sequence[Finding]) -> list[str]:
    """List claims that rules could not prove, with the missing proof.

    Included are those with a large price, or one above the smallest saving of the shown findings.
    """
    least = min((f.cost_ns for f in shown_findings if f.cost_ns), default=None)
    sentences: list[str] = []
    for verdict in report.unproven:
        is_large = (verdict.price_ratio or 0.0) >= WORTH_PROVING
        if is_large or (least is not None and (verdict.price_ns or 0) > least):
            sentences.append(_format_unproven_claim(verdict))
    return sentences[:MOST_UNPROVEN]


def _format_unproven_claim(verdict: Verdict) -> str:
    """Format one abstention: its claim, its price unless the claim has it, and the missing data."""
    amount = format_quantity(verdict.price_ns, "ns")
    step_ns = _compute_priced_step(verdict)
    if step_ns is not None:
        amount += f" of {format_quantity(step_ns, 'ns')}"
    run = f"run {verdict.run}: " if verdict.run else ""
    needs = f"; {verdict.needs}" if verdict.needs else ""
    price = "" if amount in verdict.claim else f" ({amount})"
    return make_printable(f"{run}{verdict.claim}{price}{needs}", SENTENCE)


def _compute_priced_step(verdict: Verdict) -> int | None:
    """Compute the step time from the price of an abstention and its share; None if not finite."""
    if not verdict.price_ns or not verdict.price_ratio or verdict.price_ns >= 2**63:
        return None
    step_ns = verdict.price_ns / verdict.price_ratio
    return round(step_ns) if isfinite(step_ns) else None


def describe_no_findings(report: Report) -> str:
    """Explain a list without findings: none were found, or no rules were asked."""
    return "No findings" if report.asks_rules else "No rules were asked"


def format_claim(finding: Finding) -> str:
    """Format a claim; if no time shows its weight, the severity precedes it."""
    text = make_printable(finding.claim, SENTENCE)
    if finding.cost_ns is None and finding.severity != "info":
        return f"{finding.severity}: {text}"
    return text


def describe_rule_answers(section: Section) -> str:
    """Describe what the rules of a section found: `trainer-wait: found · rollouter-wait: clear`."""
    answers = {finding.rule: "found" for finding in section.findings}
    for verdict in section.verdicts:
        answers.setdefault(verdict.rule, verdict.answer)
    return " · ".join(f"{make_printable(rule, 80)}: {answer}" for rule, answer in answers.items()) or "no finding"


def list_unanswered(report: Report) -> list[str]:
    """List the gaps named by the report, and the sections without an answer, with reasons."""
    return [*_list_report_gaps(report), *_group_sections_by_reason(report, ("failed", "skipped"))]


def summarize_unanswered(report: Report) -> list[str]:
    """List gaps and failures by name, and count the questions that need more data."""
    gaps = [*_list_report_gaps(report), *_group_sections_by_reason(report, ("failed",))]
    skipped_count = sum(section.status == "skipped" for section in report.sections)
    if skipped_count:
        needs = choose_plural(skipped_count, "question needs", "questions need")
        gaps.append(f"{skipped_count} {needs} more than was recorded (-v)")
    return gaps


def _list_report_gaps(report: Report) -> list[str]:
    """List the gaps that the report itself names."""
    return [make_printable(item, SENTENCE) for item in report.unseen]


def _group_sections_by_reason(report: Report, statuses: Sequence[str]) -> list[str]:
    """Group the sections of these statuses by reason."""
    silent: dict[str, list[str]] = {}
    for section in report.sections:
        if section.status in statuses:
            reason = make_printable(section.reason, SENTENCE) or "no reason given"
            silent.setdefault(f"{section.status}: {reason}", []).append(make_printable(section.id, 80))
    return [f"{', '.join(ids)} ({why})" for why, ids in silent.items()]


def summarize_remarks(remarks: Sequence[Remark]) -> str:
    """Count the remarks of each kind, the most serious first; empty if all are harmless."""
    words = {"error": "error", "data_loss": "loss of data", "warning": "warning"}
    counts = dict.fromkeys(words, 0)
    for remark in remarks:
        if remark.severity in counts:
            counts[remark.severity] += remark.count
    return " · ".join(f"{format_quantity(counts[kind], 'count')} × {words[kind]}" for kind in words if counts[kind])


def format_remark(remark: Remark) -> str:
    """Format a remark with its count and source."""
    times = f" ({format_quantity(remark.count, 'count')} times)" if remark.count != 1 else ""
    source = f"{make_printable(remark.source, 160)}: " if remark.source else ""
    return f"{source}{make_printable(remark.message, SENTENCE)}{times}"


FIRST_RECORDINGS = 3
"""Most kinds of recordings on the first screen."""


def list_limiting_recordings(report: Report) -> list[tuple[str, str, str]]:
    """List recordings that limit the answer: the recording, the advice, and the command to run."""
    limiting = [recording for recording in report.recordings if recording.command]
    return [
        (
            make_printable(recording.sentence, SENTENCE),
            make_printable(recording.advice, SENTENCE),
            make_printable(recording.command, SENTENCE),
        )
        for recording in limiting[:FIRST_RECORDINGS]
    ]


def describe_missing_rows(shown_rows: int, more: int, omitted: int, where: str) -> str:
    """Describe the rows missing from a table and where to find them; empty if it is complete."""
    parts = []
    if more:
        total = format_quantity(shown_rows + more, "count")
        parts.append(f"{format_quantity(shown_rows, 'count')} of {total} rows shown; {where}")
    if omitted:
        parts.append(f"{format_quantity(omitted, 'count')} further rows are not in the report")
    return "; ".join(parts)


def describe_hidden_findings(shown: int, left: int, top: int, *, verbose: bool) -> str:
    """Describe the findings that the screen leaves out, and the option that shows them."""
    if verbose:
        return f"{left} more in the sections; --top for more"
    how = "all" if shown + left <= top else f"the first {top}"
    return f"{left} more in the sections; -v for {how}"


def add_verbose_hint(sheet: Sheet) -> Sheet:
    """Add the option that shows the section of a shortened table to its caption."""
    return replace(sheet, caption=_MORE_IN_SECTION.sub(r"\g<0> (-v)", sheet.caption, count=1))


def list_report_sheets(report: Report) -> list[tuple[str, Sheet]]:
    """List all sheets with the id of their section: the overview, those of sections, and the values."""
    sheets = [("", report.overview)]
    for section in report.sections:
        sheets += zip(repeat(section.id), section.sheets)
    sheets.append(("", report.values))
    return [(id_, sheet) for id_, sheet in sheets if sheet]


def _get_metric_scale(metric: Metric) -> Scale:
    """Get the scale that the number and its bounds share."""
    return choose_scale([metric.value, metric.low, metric.high], metric.unit, figures=3)


_LEAST_UNIX_NS = 10**17
"""Clock values from here on are times of day, which mean nothing to a reader of a trace."""


def _format_place_time(place: Place, spans: Sequence[tuple[str, int, int]]) -> str:
    """Format the time of a place: its start and duration."""
    start = _format_place_moment(place.start_ns, place.run, spans)
    if place.start_ns is None or place.end_ns is None:
        end = _format_place_moment(place.end_ns, place.run, spans)
        return f"at {start}" if start else f"until {end}" if end else ""
    duration = f"for {format_quantity(place.end_ns - place.start_ns, 'ns')}"
    return f"at {start} {duration}" if start else duration


def _format_place_moment(moment_ns: int | None, run: str | None, spans: Sequence[tuple[str, int, int]]) -> str:
    """Format a moment as an offset from the start of its run; empty if only the time of day is known."""
    if moment_ns is None:
        return ""
    for name, first_ns, last_ns in spans:
        if (name == run or len(spans) == 1) and _LEAST_UNIX_NS <= first_ns <= moment_ns <= last_ns:
            return f"+{format_moment(moment_ns - first_ns)}"
    return "" if moment_ns >= _LEAST_UNIX_NS else format_moment(moment_ns)
