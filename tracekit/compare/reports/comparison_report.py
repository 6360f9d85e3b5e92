"""Report of a comparison for all renderers: the answer, the changes, and the caveats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from tracekit.compare.amdahl import (
    ASSUMES,
    describe_largest_stage_effect,
    format_speedup_with_interval,
    is_of_steps_alone,
)
from tracekit.compare.comparison import Change, Comparison, LengthComparison
from tracekit.compare.differences import shorten_difference_name
from tracekit.compare.gates.gate_sheet import build_gate_section, describe_gate_result
from tracekit.compare.reports import attribution_tables as attribution_sheets
from tracekit.compare.reports import memory_tables as memory_sheets
from tracekit.compare.reports.charts import build_comparison_charts
from tracekit.compare.reports.ray_tables import make_ray_sheet
from tracekit.compare.work_units import name_samples
from tracekit.job.report.tables import parse_headings, select_filled_sheets
from tracekit.model.inputs.timeline import Timeline, TimelineSide
from tracekit.model.metrics import (
    ENGINE_METRICS,
    LAUNCH_CADENCE,
    RANGE_CADENCE,
    RAY_METRICS,
    RAY_SPAN,
    STAGE_TIME,
    STEP_AND_STAGES,
    STEP_TIME,
    UNPROFILED,
    UNPROFILED_STAGE,
    WINDOW,
    make_devices_caption,
)
from tracekit.model.report import Cell, Heading, Metric, Report, Section, Sheet, Unit
from tracekit.model.tables.slots import PAGE_CAUSES
from tracekit.model.units import format_quantity, format_signed, format_speedup

FIRST_TABLE_METRICS = (*STEP_AND_STAGES, WINDOW, RANGE_CADENCE, LAUNCH_CADENCE)
"""Metrics of the first table: the step and its stages, or recurring units without step marks."""

WORDS = {
    "improvement": "faster",
    "regression": "slower",
    "no change": "no change",
    "inconclusive": "inconclusive",
    "not comparable": "not comparable",
}

_ENGINE_WORDS = {"improvement": "better", "regression": "worse"}

_STEP_OF = {STAGE_TIME: STEP_TIME, UNPROFILED_STAGE: UNPROFILED}

_STEP_ALONE = parse_headings("""
    step_ratio | step from this alone | factor | Before over after, if only this stage changed.
    step_low | CI low | factor | Lower end of the confidence interval.
    step_high | CI high | factor | Upper end of the confidence interval.
""")

FIRST_CAUTIONS = 6
"""Number of caveats on the first screen, the most serious; the details list the others."""

LEAST_SHOWN_CHANCE = 0.005
"""Below this chance of detection at every change, the chances are not shown on the first screen."""

_BAR = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


def build_comparison_report(comparison: Comparison) -> Report:
    """Convert a comparison to a report, which every renderer accepts."""
    identity = [f"{comparison.base} → {comparison.opt}"]
    if comparison.simulated:
        identity.append("SIMULATED DATA")
    words = [part for part in (describe_comparison(comparison), describe_gate_result(comparison.gates)) if part]
    sections = (build_gate_section(comparison.gates), *_build_comparison_sections(comparison))
    return Report(
        title=f"{comparison.base} · {comparison.opt}",
        tool_version=comparison.tool_version,
        identity=(*identity, *comparison.reading),
        answer=" · ".join(words),
        headline=tuple(_list_comparison_figures(comparison)),
        overview=_make_comparison_overview(comparison),
        sections=tuple(section for section in sections if section.sheets or section.caveats or section.charts),
        basis=tuple(_describe_report_basis(comparison)),
        cautions=comparison.warnings[:FIRST_CAUTIONS],
        timeline=Timeline((), sides=tuple(_list_timeline_sides(comparison)), causes=PAGE_CAUSES),
    )


def _list_timeline_sides(comparison: Comparison) -> Iterator[TimelineSide]:
    """List both sides of the page: their processes and critical paths, if the comparison has them, and the steps that it excludes."""
    sides = comparison.timeline.sides if comparison.timeline else (TimelineSide(""), TimelineSide(""))
    for name, side in zip((comparison.base, comparison.opt), sides, strict=True):
        dropped = [(step.run, step.step) for step in comparison.dropped if step.side == name]
        excluded = tuple((run, number) for run, number in dropped if number is not None)
        yield TimelineSide(name, side.processes, excluded, side.critical)


def describe_comparison(comparison: Comparison) -> str:
    """Describe the result: the verdict, the ratio with its interval, and both steps.

    Ratios below 1 are inverted: 1.10× slower, never 0.91× faster.
    """
    step, verdict = comparison.headline, comparison.verdict
    if comparison.memory is not None and step.unit == "bytes":
        return memory_sheets.describe_memory_change(comparison.memory, verdict)
    word = WORDS.get(verdict, verdict)
    if verdict == "inconclusive" and step.reason:
        word += f" ({step.reason})"
    if step.name in ENGINE_METRICS:
        return _describe_engine_change(step, word)
    times = (
        f"{shorten_difference_name(step.title)} {format_quantity(step.base, 'ns')} → {format_quantity(step.opt, 'ns')}"
    )
    if step.difference is not None:
        times += f" ({format_signed(step.difference, 'ns')})"
    if verdict == "not comparable" or step.ratio is None:
        return f"{word} · {times}"
    if comparison.sessions_apart and verdict in ("improvement", "regression", "no change"):
        times += " · if nothing else changed in between"
    if is_of_steps_alone(step):
        return f"{word}: {format_speedup(step.ratio)} between these two runs · {times}"
    size = format_speedup_with_interval(step.ratio, step.low, step.high)
    if verdict in ("improvement", "regression"):
        return f"{size} · {times}"
    return f"{word}: {size} · {times}"


def _describe_engine_change(step: Change, word: str) -> str:
    """Describe the change of the engines' throughput with its interval."""
    times = f"{step.title} {format_quantity(step.base, '')} → {format_quantity(step.opt, '')}"
    if step.ratio is None or step.word == "not comparable":
        return f"{word} · {times}"
    ends = [None if end is None else format_signed(1 / end - 1, "ratio") for end in (step.high, step.low)]
    interval = f" [{ends[0]}, {ends[1]}]" if None not in ends else ""
    scope = " between these two runs" if is_of_steps_alone(step) else ""
    return f"{word}: {format_signed(1 / step.ratio - 1, 'ratio')}{interval}{scope} · {times}"


def _describe_report_basis(comparison: Comparison) -> Iterator[str]:
    """Describe the basis of the answer, followed by the change in memory."""
    if comparison.headline.unit != "bytes":
        yield from describe_comparison_basis(comparison)
    if comparison.memory is not None:
        yield from memory_sheets.describe_memory_basis(comparison.memory, comparison.headline)


def _make_comparison_overview(comparison: Comparison) -> Sheet:
    """Make the first table: the attribution, else the stages, else the levels of memory."""
    step = comparison.headline
    if comparison.memory is not None and step.unit == "bytes":
        return add_change_bars(memory_sheets.make_memory_levels_sheet("overview", comparison.memory))
    if comparison.lengths is not None and step.name == UNPROFILED:
        return add_change_bars(_make_lengths_sheet("overview", comparison.lengths))
    if step.name in ENGINE_METRICS:
        return _make_engines_sheet("overview", comparison)
    if step.name == RAY_SPAN:
        return make_ray_sheet("overview", comparison)
    sheet = attribution_sheets.make_attribution_overview(comparison.origin, step)
    return add_change_bars(sheet or _make_stages_sheet("overview", comparison))


def _make_lengths_sheet(name: str, lengths: LengthComparison) -> Sheet:
    """Make the table of two logs: raw change, per token, and at equal length."""
    headings = parse_headings("""
        stage | stage
        base | before | ns | Mean of the steady steps.
        opt | after | ns
        raw | raw | ratio | Change of the mean.
        per_token | per token | ratio | Change of time per token: biased when answers lengthen, because a step has a fixed part.
        change | equal length | ratio | Change at the mean length of both, by regression; — with too few steps for an interval.
        word | verdict
        low | CI low | ratio | By run if a side has several; otherwise within the two runs.
        high | CI high | ratio
        note | note
    """)
    rows = [
        (
            change.stage or "(step)",
            change.base,
            change.opt,
            change.raw,
            change.per_token,
            change.change,
            WORDS.get(change.word, change.word),
            change.low,
            change.high,
            change.note,
        )
        for change in lengths.changes
    ]
    caption = "Changes: above 0 is longer. The verdict is that at equal length, within these two runs."
    title = "Two logs at equal length"
    if lengths.by_run:
        caption, title = (
            "Changes: above 0 is longer. The verdict is that at equal length, by run.",
            "Logs at equal length",
        )
    return Sheet(name, title, headings, tuple(rows), caption=caption)


def _make_engines_sheet(name: str, comparison: Comparison) -> Sheet:
    """Make the table of engines by their logs; the interval is that of the difference, since counts may be zero."""
    headings = parse_headings("""
        title | engines
        base | before | | Mean over the windows with requests, of all engines of a run together.
        opt | after
        difference | change
        difference_low | CI low
        difference_high | CI high
        word | verdict
    """)
    rows: list[tuple[Cell, ...]] = []
    for change in sorted(comparison.changes, key=lambda change: [*ENGINE_METRICS, change.name].index(change.name)):
        if change.name in ENGINE_METRICS:
            is_share = change.unit == "ratio"
            numbers = (
                *(change.base, change.opt, change.difference),
                *(change.difference_low, change.difference_high),
            )
            cells = (_scale_number(number, 100.0 if is_share else 1.0) for number in numbers)
            rows.append(
                (
                    f"{change.title}, %" if is_share else change.title,
                    *cells,
                    _ENGINE_WORDS.get(change.word, change.word),
                )
            )
    caption = "After minus before. Mean over the windows with requests, of all engines of a run together."
    return Sheet(name, "Rollout engines", headings, tuple(rows), caption=caption)


def _scale_number(value: float | None, factor: float) -> float | None:
    """Scale a known number."""
    return None if value is None else value * factor


def _make_logs_sheet(comparison: Comparison) -> Sheet:
    """Make the table of the logs; empty if each side has one."""
    headings = parse_headings("""
        side | side
        run | log
        steps | steps | count | Steps that count: without warm-up, validation and checkpoint.
        tokens | tokens/step | count
        step | step | ns | Mean, as logged.
        at_equal_length | at equal length | ns | At the mean length of all logs.
        trainer | trainer
        gpus | GPUs | count
    """)
    return _make_attribute_sheet("logs", "Logs", headings, comparison.logs)


def _list_comparison_figures(comparison: Comparison) -> Iterator[Metric]:
    """List the numbers next to the answer; empty without a verdict."""
    step = comparison.headline
    if comparison.verdict == "not comparable":
        return
    if comparison.memory is not None and step.unit == "bytes":
        yield from memory_sheets.list_memory_figures(comparison.memory)
        return
    if step.name in (*ENGINE_METRICS, RAY_SPAN):
        return
    yield Metric("grand_ratio", step.grand_ratio, "factor", "higher", label="mean ratio")
    yield Metric("median_ratio", step.median_ratio, "factor", "higher", label="median ratio")


def _build_comparison_sections(comparison: Comparison) -> Iterator[Section]:
    """Build the sections below the first screen."""
    engines = _make_engines_sheet("engines", comparison)
    headline = comparison.headline.name
    sheets = (
        *(() if headline in ENGINE_METRICS else (engines,)),
        *(() if headline == RAY_SPAN else (make_ray_sheet("ray", comparison),)),
        _make_logs_sheet(comparison),
        _make_differences_sheet(comparison),
        _make_outlook_sheet(comparison),
        _make_overhead_sheet(comparison),
        _make_excluded_steps_sheet(comparison),
    )
    yield Section(
        "comparison",
        "Verdict in detail",
        sheets=select_filled_sheets(*sheets),
        caveats=comparison.warnings[FIRST_CAUTIONS:],
        charts=build_comparison_charts(comparison),
    )
    stages = _make_stages_sheet("stages", comparison)
    yield from attribution_sheets.build_attribution_sections(comparison.origin, stages, comparison.headline)
    yield from _build_critical_section(comparison)
    yield from memory_sheets.build_memory_section(comparison)
    of_step: list[Change] = []
    of_stages: list[Change] = []
    for change in comparison.changes:
        if change.name not in (*FIRST_TABLE_METRICS, *ENGINE_METRICS, *RAY_METRICS):
            (of_step if change.stage is None else of_stages).append(change)
    yield Section("metrics", "Other metrics of a step", sheets=tuple(_split_changes_by_unit("metrics", of_step)))
    yield Section(
        "stage-metrics", "Other metrics by stage", sheets=tuple(_split_changes_by_unit("stage-metrics", of_stages))
    )


_CRITICAL = parse_headings("""
    kind | kind
    name | row or op
    base | before | ns | Time on the critical path per counted step, mean over runs.
    opt | after | ns | The same after the change.
    difference | change | ns | After minus before. The rows add up to the change of the path.
""")


def _build_critical_section(comparison: Comparison) -> Iterator[Section]:
    """Build the table of the critical path by kind; nothing without graphs."""
    change = comparison.critical
    if change is None:
        return
    paths, shares = (
        f"{format_quantity(before, unit)} → {format_quantity(after, unit)}"
        for before, after, unit in (
            (change.base, change.opt, "ns"),
            (change.base_unexplained, change.opt_unexplained, "ratio"),
        )
    )
    caption = f"The path takes {paths} per step. Unexplained: {shares} of the path."
    kinds = tuple((part.kind, part.base, part.opt, part.difference) for part in change.kinds)
    ops = tuple((part.kind, part.name, part.base, part.opt, part.difference) for part in change.ops)
    sheets = (
        Sheet("critical-kinds", "Critical path by kind", (_CRITICAL[0], *_CRITICAL[2:]), kinds, caption=caption),
        Sheet("critical-ops", "Critical path by row or op", _CRITICAL, ops),
    )
    yield Section("critical-path", f"Critical path: {comparison.base} → {comparison.opt}", sheets=sheets)


def _make_stages_sheet(name: str, comparison: Comparison) -> Sheet:
    """Make the table of the step and its stages, with their number of steps and their effect on the step."""
    rows = [change for change in comparison.changes if change.name in FIRST_TABLE_METRICS]
    marked = comparison.headline.name in (STEP_TIME, UNPROFILED)
    sheet = _make_changes_sheet(name, "Step and stages" if marked else "What recurs", rows)
    in_steps = [_describe_stage_occurrence(change, rows) for change in rows]
    if any(in_steps):
        heading = Heading("steps", "in steps", doc="Number of counted steps with this stage.")
        meaning = "Times of a stage are means over the steps that contain it."
        sheet = _append_sheet_columns(sheet, (heading,), list(zip(in_steps, strict=True)), meaning)
    if any(change.step_ratio is not None for change in rows):
        ratios = [(row.step_ratio, row.step_low, row.step_high) for row in rows]
        sheet = _append_sheet_columns(sheet, _STEP_ALONE, ratios, ASSUMES)
    return sheet


def _append_sheet_columns(
    sheet: Sheet, headings: tuple[Heading, ...], columns: Sequence[tuple[Cell, ...]], meaning: str
) -> Sheet:
    """Append columns and their explanation to a table."""
    rows = [(*row, *cells) for row, cells in zip(sheet.rows, columns, strict=True)]
    caption = " ".join(part for part in (sheet.caption, meaning) if part)
    return replace(sheet, headings=(*sheet.headings, *headings), rows=tuple(rows), caption=caption)


def _describe_stage_occurrence(change: Change, changes: Sequence[Change]) -> str:
    """Describe a stage that some steps lack: `3 of 6 before, 6 of 6 after`; empty for all others."""
    step_name = _STEP_OF.get(change.name)
    step = next((other for other in changes if other.name == step_name), None)
    if step is None:
        return ""
    texts, lacking = [], False
    for steps, total, when in (
        (change.base_steps, step.base_steps, "before"),
        (change.opt_steps, step.opt_steps, "after"),
    ):
        if steps:
            texts.append(f"{steps:,} of {total:,} {when}")
            lacking = lacking or steps < total
    if not lacking:
        return ""
    return ", ".join(texts)


def _split_changes_by_unit(name: str, changes: Sequence[Change]) -> Iterator[Sheet]:
    """Make one table for times, and one for every other unit."""
    titles: dict[Unit, str] = {"ns": "Times", "": "Rates", "count": "Counts", "bytes": "Bytes"}
    groups: dict[str, list[Change]] = {title: [] for title in titles.values()}
    for change in changes:
        groups[titles.get(change.unit, "Rates")].append(change)
    for title, rows in groups.items():
        if rows:
            sheet = _make_changes_sheet(f"{name}-{title.lower()}", title, rows)
            devices = make_devices_caption(row.name for row in rows)
            yield replace(sheet, caption=" ".join(part for part in (sheet.caption, devices) if part))


def _make_changes_sheet(name: str, title: str, changes: Sequence[Change]) -> Sheet:
    """Make a table of changes: both means, the difference, the ratio with its interval, the verdict."""
    unit = changes[0].unit if changes else "ns"
    ratio_doc = _explain_ratio(changes)
    headings = [
        Heading("title", "stage" if name in ("overview", "stages") else "metric"),
        Heading("base", "before", unit, "Mean over runs."),
        Heading("opt", "after", unit, "Mean over runs."),
        Heading("difference", "change", unit, "After minus before."),
        Heading("ratio", "before/after", "factor", ratio_doc.capitalize()),
        Heading("low", "CI low", "factor", "Lower end of the confidence interval."),
        Heading("high", "CI high", "factor", "Upper end of the confidence interval."),
        Heading("word", "verdict"),
    ]
    if any(change.stage is not None and change.name not in FIRST_TABLE_METRICS for change in changes):
        headings.insert(0, Heading("stage", "stage"))
    if any(change.role for change in changes):
        headings.insert(0, Heading("role", "role"))
    return _make_attribute_sheet(name, title, headings, changes, caption=f"Ratio: {ratio_doc}")


def _explain_ratio(changes: Iterable[Change]) -> str:
    """Explain the ratio, and which side of 1 is better if all rows agree."""
    better = {change.better for change in changes}
    if better == {"lower"}:
        return "before over after; above 1 is better (less after)."
    if better == {"higher"}:
        return "before over after; below 1 is better (more after)."
    return "before over after."


def _make_attribute_sheet(
    name: str, title: str, headings: Sequence[Heading], rows: Iterable[object], caption: str = ""
) -> Sheet:
    """Make a table with one row per object; the headings name the attributes."""
    cells = map(attrgetter(*(heading.name for heading in headings)), rows)
    return Sheet(name, title, tuple(headings), tuple(cells), caption=caption)


def _make_differences_sheet(comparison: Comparison) -> Sheet:
    headings = (
        Heading("name", "differs"),
        Heading("base", "before"),
        Heading("opt", "after"),
        Heading("blocking", "blocks"),
        Heading("meaning", "meaning"),
    )
    return _make_attribute_sheet("differences", "Other differences", headings, comparison.differences)


def _make_outlook_sheet(comparison: Comparison) -> Sheet:
    headings = parse_headings("""
        runs | runs
        change | true change | ratio | Slowdown of the step.
        regression | slower | ratio
        no_change | no change | ratio
        improvement | faster | ratio
        inconclusive | inconclusive | ratio
        at_least | slower, from | ratio | 10th percentile over the noise that these runs allow.
        at_most | slower, to | ratio | 90th percentile.
    """)
    caption = "Probability of each verdict for runs like these, averaged over the run-to-run noise that they allow."
    title = "Probability of each verdict"
    return _make_attribute_sheet("outlook", title, headings, comparison.outlook, caption)


def _make_overhead_sheet(comparison: Comparison) -> Sheet:
    headings = (
        Heading("side", "side"),
        Heading("profiled", "profiled step", "ns"),
        Heading("unprofiled", "un-profiled step", "ns"),
        Heading("ratio", "profiled / un-profiled", "factor", "Profiler overhead of a step."),
    )
    return _make_attribute_sheet("overhead", "Profiler overhead", headings, comparison.overhead)


def _make_excluded_steps_sheet(comparison: Comparison) -> Sheet:
    headings = (
        Heading("side", "side"),
        Heading("run", "run"),
        Heading("step", "step", "id"),
        Heading("reason", "reason"),
    )
    return _make_attribute_sheet("left-out", "Excluded steps", headings, comparison.dropped)


def describe_comparison_basis(comparison: Comparison) -> tuple[str, ...]:
    """Describe the basis of the answer: sample sizes, the detectable change, and which data would show more.

    The stage with the largest effect on the step is listed between them.
    """
    step = comparison.headline
    seen, from_stage = "", list[str]()
    if comparison.verdict != "not comparable":
        seen = _describe_detectable_change(step)
        attributed = "profiled step" if step.name == UNPROFILED else "step"
        from_stage += describe_largest_stage_effect(comparison.changes, attributed)
    counts = ", ".join(part for part in (step.label, _format_sample_counts(step)) if part)
    lines = [" · ".join(part for part in (counts, seen) if part), *_describe_detection_chances(comparison), *from_stage]
    if comparison.needed:
        lines.append(comparison.needed)
    return tuple(lines)


def _describe_detectable_change(step: Change) -> str:
    """Describe the smallest change that these runs could have detected; empty if there is no interval."""
    if step.low is None:
        return ""
    if step.detectable is None or step.detectable > 1:
        return ""
    return f"could have detected a change of ≥ {format_quantity(step.detectable, 'ratio')}"


def _describe_detection_chances(comparison: Comparison) -> Iterator[str]:
    """Describe in one line how often such runs detect a slower step; empty if they never do."""
    parts, is_possible = [], False
    for row in comparison.outlook:
        if row.runs == comparison.outlook[0].runs and row.change > 0:
            span = ""
            if row.at_most is not None:
                span = f" ({_format_probability(row.at_least).removesuffix('%')}–{_format_probability(row.at_most)})"
            parts.append(f"{_format_probability(row.regression)}{span} at +{row.change:.0%}")
            is_possible |= row.regression >= LEAST_SHOWN_CHANCE
    if is_possible:
        yield f"probability to detect a slowdown: {', '.join(parts)}".replace("%", " %")


def _format_probability(share: float) -> str:
    """Format a probability in whole percent; 0 % and 100 % only if exact."""
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _format_sample_counts(step: Change) -> str:
    """Format the sample sizes: `3 v 3 runs × 5 steps`, or the steps per side if runs differ in length."""
    if not (step.base_runs and step.base_steps and step.opt_runs and step.opt_steps):
        return ""
    runs = f"{step.base_runs} v {step.opt_runs} runs"
    a_run = divmod(step.base_steps, step.base_runs)
    if a_run == divmod(step.opt_steps, step.opt_runs) and a_run[1] == 0:
        return f"{runs} × {a_run[0]:,} {name_samples(step.name, a_run[0])}"
    return f"{runs}, {step.base_steps:,} v {step.opt_steps:,} {name_samples(step.name)}"


def add_change_bars(sheet: Sheet) -> Sheet:
    """Add a bar to every change, scaled to the largest; full blocks take less time, hatched ones more."""
    names = [heading.name for heading in sheet.headings]
    if "difference" not in names or not sheet.rows:
        return sheet
    column = names.index("difference")
    cells = [row[column] for row in sheet.rows]
    changes = [float(cell) if isinstance(cell, int | float) else 0.0 for cell in cells]
    largest_change = max(abs(change) for change in changes)
    heading = Heading("bar", "size", doc="Change relative to the largest: █ less time, ▒ more.")
    rows = [(*row, _draw_change_bar(change, largest_change)) for row, change in zip(sheet.rows, changes, strict=True)]
    return replace(sheet, headings=(*sheet.headings, heading), rows=tuple(rows))


def _draw_change_bar(change: float, largest_change: float) -> str:
    """Draw a bar to an eighth of a character; for a regression to a whole one."""
    if not change or not largest_change:
        return ""
    eighths = max(round(abs(change) / largest_change * _BAR * 8), 1)
    if change > 0:
        return "▒" * max(round(eighths / 8), 1)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()
