"""Parts of a report as words, the same in text, Markdown and HTML; safe to show, not yet escaped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from math import isfinite
from operator import attrgetter

from tracekit.model.kernel_labels import is_template, short_kernel
from tracekit.model.labels import plural
from tracekit.model.report import (
    SEVERITIES,
    Finding,
    Metric,
    Place,
    Remark,
    Report,
    Sheet,
    Verdict,
)
from tracekit.model.units import (
    UNKNOWN,
    Scale,
    cell,
    column_unit,
    moment,
    show,
    speedup,
    with_label,
)
from tracekit.render.escape import printable

SENTENCE = 600
"""Characters of a claim, an advice or a reason that are shown."""


def identity(report: Report) -> list[str]:
    """The facts of the first line; where there are none, the title."""
    facts = [printable(fact, 200) for fact in report.identity if fact]
    return facts or [printable(report.title, 200) or UNKNOWN]


def metric_label(metric: Metric) -> str:
    """What the number is called."""
    return printable(metric.label or metric.name, 80)


def metric_value(metric: Metric) -> str:
    """The number with its unit."""
    if metric.unit == "ratio":
        return show(metric.value, "ratio")
    if metric.unit == "factor" and metric.better == "higher" and metric.value:
        return speedup(metric.value)
    scale = _metric_scale(metric)
    return with_label(cell(metric.value, scale), scale)


def metric_range(metric: Metric) -> str:
    """The bounds of the number in its unit as `1,795` dash `1,910`, `≥ 3` where one is known, or nothing.

    What they are comes first, where the metric says it, and then the unit, lest they are taken for numbers of steps:
    `steps 1,795` … `ms`.
    """
    scale = _metric_scale(metric)
    low, high = (cell(bound, scale).removesuffix(" %") for bound in (metric.low, metric.high))
    if metric.high is None:
        return f"≥ {low}" if metric.low is not None else ""
    if metric.low is None:
        return f"≤ {high}"
    words = printable(metric.bounds, 40)
    span = f"{low}–{high}"
    full = f"{span} %" if metric.unit == "ratio" else with_label(span, scale)
    return f"{words} {full}" if words else span


def metric_phrase(metric: Metric) -> str:
    """Name, number and bounds: `Step 1,842 ms (1,795 to 1,910)`, with a dash for `to`."""
    bounds = metric_range(metric)
    phrase = f"{metric_label(metric)} {metric_value(metric)}"
    return f"{phrase} ({bounds})" if bounds else phrase


def place_phrase(place: Place) -> str:
    """Where to look, the widest first: source, role, rank, device, step, stage, name, time."""
    parts = [printable(place.source or "", 160), printable(place.role or "", 80)]
    ids = {"rank": place.rank, "device": place.device, "step": place.step}
    parts += [f"{name} {show(id_, 'id')}" for name, id_ in ids.items() if id_ is not None]
    name = place.name or ""
    if is_template(name):
        name = short_kernel(name)
    parts += [printable(place.stage or "", 80), printable(name, 160), _when(place)]
    return " · ".join(filter(None, parts)) or "everywhere"


def recoverable(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """For each finding the time and the share of a step it may give back, times in one unit."""
    scale = column_unit(map(attrgetter("recoverable_ns"), findings), "ns", figures=3)
    amounts = []
    for finding in findings:
        time = with_label(cell(finding.recoverable_ns, scale), scale)
        amounts.append((time, show(finding.recoverable_ratio, "ratio")))
    return amounts


def first_findings(report: Report, limit: int) -> tuple[list[Finding], int]:
    """What is worth showing first and how many are left out.

    A finding of high severity is always among them: one about data or memory may give no time back.
    """
    findings, limit = report.findings, max(limit, 0)
    first = [*findings[:limit]]
    first += (finding for finding in findings[limit:] if finding.severity == SEVERITIES[0])
    return first, len(findings) - len(first)


WORTH_PROVING = 0.01
"""An abstention about this share of the step is shown."""

MOST_UNPROVEN = 3
"""Most abstentions on the first screen, the most expensive."""


def unproven(report: Report, shown: Sequence[Finding]) -> list[str]:
    """What rules almost found and what would prove it: the most expensive, where worth it beside the shown findings."""
    least = min((f.recoverable_ns for f in shown if f.recoverable_ns), default=None)
    sentences: list[str] = []
    for verdict in report.unproven:
        is_large = (verdict.price_ratio or 0.0) >= WORTH_PROVING
        if is_large or (least is not None and (verdict.price_ns or 0) > least):
            sentences.append(_unproven(verdict))
    return sentences[:MOST_UNPROVEN]


def _unproven(verdict: Verdict) -> str:
    """One abstention: its claim, its price and what it needs."""
    amount = show(verdict.price_ns, "ns")
    step_ns = _step_of(verdict)
    if step_ns is not None:
        amount += f" of {show(step_ns, 'ns')}"
    run = f"run {verdict.run}: " if verdict.run else ""
    needs = f"; {verdict.needs}" if verdict.needs else ""
    return printable(f"{run}{verdict.claim} ({amount}){needs}", SENTENCE)


def _step_of(verdict: Verdict) -> int | None:
    """The step that the price of an abstention is a share of, where that is a number."""
    if not verdict.price_ns or not verdict.price_ratio or verdict.price_ns >= 2**63:
        return None
    step_ns = verdict.price_ns / verdict.price_ratio
    return round(step_ns) if isfinite(step_ns) else None


def no_findings(report: Report) -> str:
    """What is said where nothing is worth fixing: none was found, or no rule was there to find any."""
    return "No findings" if report.asks_rules else "No rules were asked"


def claim(finding: Finding) -> str:
    """The claim; where no time says how grave it is, the severity does."""
    text = printable(finding.claim, SENTENCE)
    if finding.recoverable_ns is None and finding.severity != "info":
        return f"{finding.severity}: {text}"
    return text


def not_analysed(report: Report) -> list[str]:
    """What was not analysed and why: what the report lists, and the sections without an answer."""
    return [*_unseen(report), *_silent(report, ("failed", "skipped"))]


def not_analysed_in_short(report: Report) -> list[str]:
    """The same in a line: what is missing or failed by name, how many questions need more than was recorded."""
    gaps = [*_unseen(report), *_silent(report, ("failed",))]
    skipped_count = sum(section.status == "skipped" for section in report.sections)
    if skipped_count:
        needs = plural(skipped_count, "question needs", "questions need")
        gaps.append(f"{skipped_count} {needs} more than was recorded (-v)")
    return gaps


def _unseen(report: Report) -> list[str]:
    """What the report itself says that it did not see."""
    return [printable(item, SENTENCE) for item in report.unseen]


def _silent(report: Report, statuses: Sequence[str]) -> list[str]:
    """The sections of these statuses, those of one reason together."""
    silent: dict[str, list[str]] = {}
    for section in report.sections:
        if section.status in statuses:
            reason = printable(section.reason, SENTENCE) or "no reason given"
            silent.setdefault(f"{section.status}: {reason}", []).append(printable(section.id, 80))
    return [f"{', '.join(ids)} ({why})" for why, ids in silent.items()]


def remarks_summary(remarks: Sequence[Remark]) -> str:
    """How many remarks there are of each kind, the gravest first; nothing when all are harmless."""
    words = {"error": "error", "data_loss": "loss of data", "warning": "warning"}
    counts = dict.fromkeys(words, 0)
    for remark in remarks:
        if remark.severity in counts:
            counts[remark.severity] += remark.count
    return " · ".join(
        f"{show(counts[kind], 'count')} × {words[kind]}" for kind in filter(counts.get, words)
    )


def remark_phrase(remark: Remark) -> str:
    """The remark, how often it was made, and of which source."""
    times = f" ({show(remark.count, 'count')} times)" if remark.count != 1 else ""
    source = f"{printable(remark.source, 160)}: " if remark.source else ""
    return f"{source}{printable(remark.message, SENTENCE)}{times}"


FIRST_RECORDINGS = 3
"""Most kinds of recordings on the first screen."""


def recordings(report: Report) -> list[tuple[str, str, str]]:
    """Kinds of recordings that limit the answer: what was recorded, what to do, and the command to type."""
    limiting = [recording for recording in report.recordings if recording.command]
    return [
        (
            printable(recording.sentence, SENTENCE),
            printable(recording.advice, SENTENCE),
            printable(recording.command, SENTENCE),
        )
        for recording in limiting[:FIRST_RECORDINGS]
    ]


def rows_left(shown: int, more: int, omitted: int, where: str) -> str:
    """The line under a table of which rows are missing and who has them, or nothing."""
    parts = []
    if more:
        total = show(shown + more, "count")
        parts.append(f"{show(shown, 'count')} of {total} rows shown; {where}")
    if omitted:
        parts.append(f"{show(omitted, 'count')} further rows are not in the report")
    return "; ".join(parts)


def every_sheet(report: Report) -> list[tuple[str, Sheet]]:
    """All sheets with the id of their section: the overview, the sections', and the values."""
    sheets = [("", report.overview)]
    for section in report.sections:
        sheets += zip(repeat(section.id), section.sheets)
    sheets.append(("", report.values))
    return [(id_, sheet) for id_, sheet in sheets if sheet]


def _metric_scale(metric: Metric) -> Scale:
    """The scale that the number and its bounds share."""
    return column_unit([metric.value, metric.low, metric.high], metric.unit, figures=3)


def _when(place: Place) -> str:
    """The time of a place: its start, and how long it lasts."""
    if place.start_ns is None:
        return "" if place.end_ns is None else f"until {moment(place.end_ns)}"
    if place.end_ns is None:
        return f"at {moment(place.start_ns)}"
    return f"at {moment(place.start_ns)} for {show(place.end_ns - place.start_ns, 'ns')}"
