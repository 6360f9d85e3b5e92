"""A comparison as a report, so that every output shows it: the answer, the changes, and what to be careful about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tracekit.compare import report_attribution as attribution_sheets
from tracekit.compare import report_memory as memory_sheets
from tracekit.compare.amdahl import factor
from tracekit.compare.comparison import Change, Comparison
from tracekit.compare.differences import short
from tracekit.compare.first_screen import FIRST_CAUTIONS, barred, basis, cautions
from tracekit.compare.gate_sheet import gate_section, gate_word
from tracekit.compare.pictures import pictures
from tracekit.compare.stage_columns import with_stage_columns
from tracekit.job.metric_kinds import (
    LAUNCH_CADENCE,
    RANGE_CADENCE,
    STEP_AND_STAGES,
    STEP_TIME,
    UNPROFILED,
    WINDOW,
    devices_caption,
)
from tracekit.model.report import Cell, Heading, Metric, Report, Section, Sheet
from tracekit.model.units import MINUS, show

FIRST_TABLE = (*STEP_AND_STAGES, WINDOW, RANGE_CADENCE, LAUNCH_CADENCE)
"""Metrics of the first table: the step and its stages, or what recurs in recordings without step marks."""

WORDS = {
    "improvement": "faster",
    "regression": "slower",
    "no change": "no change",
    "inconclusive": "inconclusive",
    "not comparable": "not comparable",
}


def as_report(found: Comparison) -> Report:
    """The comparison in the form that renderers take."""
    return Report(
        title=f"{found.base} · {found.opt}",
        tool_version=found.tool_version,
        identity=(
            f"{found.base} → {found.opt}",
            *(["SIMULATED DATA"] if found.simulated else []),
            *found.reading,
        ),
        answer=" · ".join(filter(None, (answer(found), gate_word(found.gates)))),
        headline=() if found.verdict == "not comparable" else tuple(_figures(found)),
        overview=barred(_overview(found)),
        sections=tuple(
            section
            for section in (gate_section(found.gates), *_sections(found))
            if section.sheets or section.caveats or section.charts
        ),
        basis=tuple(_basis(found)),
        cautions=cautions(found),
    )


def answer(found: Comparison) -> str:
    """The first sentence: the word, the ratio with its interval, and both steps.

    A ratio below 1 is told the other way round: 1.10× slower, never 0.91× faster.
    """
    step = found.headline
    if found.memory is not None and step.unit == "bytes":
        return memory_sheets.sentence(found.memory, found.verdict)
    times = f"{short(step.title)} {show(step.base, 'ns')} → {show(step.opt, 'ns')}"
    delta = "" if step.difference is None else f" ({signed(step.difference)})"
    if found.verdict == "not comparable" or step.ratio is None:
        return f"{WORDS.get(found.verdict, found.verdict)} · {times}{delta}"
    much = factor(step.ratio, step.low, step.high)
    if found.sessions_apart and found.verdict in ("improvement", "regression", "no change"):
        delta += " · if nothing else changed in between"
    if found.verdict in ("improvement", "regression"):
        return f"{much} · {times}{delta}"
    return f"{WORDS.get(found.verdict, found.verdict)}: {much} · {times}{delta}"


def signed(ns: float) -> str:
    """A difference of times with its sign: + is slower."""
    text = show(abs(ns), "ns")
    return f"{MINUS}{text}" if ns < 0 else f"+{text}" if ns > 0 else text


def _stages(name: str, found: Comparison) -> Sheet:
    """The step and its stages, in how many steps each is, and what each alone makes of the step."""
    rows = _of(found.changes, *FIRST_TABLE)
    title = "Step and stages" if found.headline.name in (STEP_TIME, UNPROFILED) else "What recurs"
    return with_stage_columns(_changes(name, title, rows), rows)


def _basis(found: Comparison) -> Iterable[str]:
    """What the answer rests on; beside one that is of time stands what became of memory."""
    if found.headline.unit != "bytes":
        yield from basis(found)
    if found.memory is not None:
        yield from memory_sheets.basis(found.memory, found.headline)


def _overview(found: Comparison) -> Sheet:
    """What stands on the first screen: where the change came from, else the stages, else the levels of memory."""
    if found.memory is not None and found.headline.unit == "bytes":
        return memory_sheets.overview(found.memory)
    return attribution_sheets.overview(found.origin, found.headline) or _stages("overview", found)


def _figures(found: Comparison) -> Iterable[Metric]:
    """The numbers beside the answer."""
    step = found.headline
    if found.memory is not None and step.unit == "bytes":
        yield from memory_sheets.figures(found.memory)
        return
    yield Metric("grand_ratio", step.grand_ratio, "factor", "higher", label="by means")
    yield Metric("median_ratio", step.median_ratio, "factor", "higher", label="by medians")


def _of(changes: Iterable[Change], *names: str) -> list[Change]:
    return [change for change in changes if change.name in names]


def _sections(found: Comparison) -> Iterable[Section]:
    """What stands below the first screen."""
    rest = [c for c in found.changes if c.name not in FIRST_TABLE]
    whole = [c for c in rest if c.stage is None]
    parts = [c for c in rest if c.stage is not None]
    yield Section(
        "comparison",
        "What changed, and how surely",
        sheets=tuple(
            s
            for s in (_differences(found), _outlook(found), _overhead(found), _dropped(found))
            if s is not None
        ),
        caveats=found.warnings[FIRST_CAUTIONS:],
        charts=pictures(found),
    )
    yield from attribution_sheets.sections(found.origin, _stages("stages", found), found.headline)
    yield from memory_sheets.section(found)
    yield Section("metrics", "Other metrics of a step", sheets=tuple(_by_kind("metrics", whole)))
    yield Section(
        "stage-metrics", "The same by stage", sheets=tuple(_by_kind("stage-metrics", parts))
    )


def _by_kind(name: str, changes: list[Change]) -> Iterable[Sheet]:
    """One sheet for times, and one for every other unit."""
    units = ("ns", "count", "bytes")
    groups = (
        ("times", "Times", [c for c in changes if c.unit == "ns"]),
        ("rates", "Rates", [c for c in changes if c.unit not in units]),
        ("counts", "Counts", [c for c in changes if c.unit == "count"]),
        ("bytes", "Bytes", [c for c in changes if c.unit == "bytes"]),
    )
    for suffix, title, rows in groups:
        if rows:
            sheet = _changes(f"{name}-{suffix}", title, rows)
            devices = devices_caption(change.name for change in rows)
            yield replace(sheet, caption=" ".join(filter(None, (sheet.caption, devices))))


def _changes(name: str, title: str, changes: list[Change]) -> Sheet:
    """Changes as a table: both means, the difference, the ratio with its interval, the word."""
    unit = changes[0].unit if changes else "ns"
    staged = any(c.stage is not None and c.name not in FIRST_TABLE for c in changes)
    roles = any(c.role for c in changes)
    headings = [
        *([Heading("role", "role")] if roles else []),
        *([Heading("stage", "stage")] if staged else []),
        Heading("title", "metric" if name not in ("overview", "stages") else "stage"),
        Heading("base", "before", unit, "Mean over runs."),
        Heading("opt", "after", unit, "Mean over runs."),
        Heading("difference", "change", unit, "After less before."),
        Heading("ratio", "before/after", "factor", _ratio_doc(changes).capitalize()),
        Heading("low", "from", "factor", "Lower end of the interval."),
        Heading("high", "to", "factor", "Upper end of the interval."),
        Heading("word", "verdict"),
    ]
    rows = [tuple(_cell(change, heading.name) for heading in headings) for change in changes]
    return Sheet(name, title, tuple(headings), tuple(rows), caption=f"Ratio: {_ratio_doc(changes)}")


def _ratio_doc(changes: Iterable[Change]) -> str:
    """What the ratio is, and which side of 1 is better where all rows agree on that."""
    better = {change.better for change in changes}
    if better == {"lower"}:
        return "before over after; above 1 there is less after, which is better."
    if better == {"higher"}:
        return "before over after; below 1 there is more after, which is better."
    return "before over after."


def _cell(change: Change, name: str) -> Cell:
    value: Cell = getattr(change, name)
    return value


def _differences(found: Comparison) -> Sheet | None:
    if not found.differences:
        return None
    headings = (
        Heading("name", "differs"), Heading("base", "before"), Heading("opt", "after"),
        Heading("blocking", "blocks"), Heading("meaning", "meaning"),
    )  # fmt: skip
    rows = tuple((d.name, d.base, d.opt, d.blocking, d.meaning) for d in found.differences)
    return Sheet("differences", "What else differs", headings, rows)


def _outlook(found: Comparison) -> Sheet | None:
    if not found.outlook:
        return None
    headings = (
        Heading("runs", "runs"),
        Heading("change", "true change", "ratio", "Of the step, for the worse."),
        Heading("regression", "slower", "ratio"),
        Heading("no_change", "no change", "ratio"),
        Heading("improvement", "faster", "ratio"),
        Heading("inconclusive", "inconclusive", "ratio"),
        Heading(
            "at_least",
            "slower, at least",
            "ratio",
            "With the largest spread that these runs leave possible (in 80 % of cases).",
        ),
    )
    rows = tuple(tuple(getattr(one, heading.name) for heading in headings) for one in found.outlook)
    caption = "How often comparisons of such runs end in each verdict, by the spread that was seen."
    return Sheet("outlook", "How probable each verdict is", headings, rows, caption=caption)


def _overhead(found: Comparison) -> Sheet | None:
    if not found.overhead:
        return None
    headings = (
        Heading("side", "side"),
        Heading("profiled", "profiled step", "ns"),
        Heading("unprofiled", "un-profiled step", "ns"),
        Heading("ratio", "profiled / un-profiled", "factor", "What the profiler adds to a step."),
    )
    rows = tuple((o.side, o.profiled, o.unprofiled, o.ratio) for o in found.overhead)
    return Sheet("overhead", "What the profiler adds", headings, rows)


def _dropped(found: Comparison) -> Sheet | None:
    if not found.dropped:
        return None
    headings = (
        Heading("side", "side"),
        Heading("run", "run"),
        Heading("step", "step", "id"),
        Heading("reason", "left out because it is"),
    )
    rows = tuple((d.side, d.run, d.step, d.reason) for d in found.dropped)
    return Sheet("left-out", "Steps that do not count", headings, rows)
