"""Charts of a comparison: the interval of each ratio, the single steps, and the attribution of the change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import fsum

from tracekit.compare.comparison import Change, Comparison
from tracekit.compare.reports.attribution_tables import explain_profiled_parts, title_attribution
from tracekit.compare.wall_time.attribution_rows import Attribution, shorten_attribution_rows
from tracekit.model.metrics import STAGE_TIME, STEP_AND_STAGES, STEP_TIME
from tracekit.model.report import Chart, Unit
from tracekit.model.text.labels import join_phrase

CHART_VERDICTS = {
    "improvement": "faster",
    "regression": "slower",
    "inconclusive": "inconclusive",
    "no change": "no change",
}
"""Verdicts of times as charts name them.

All four are always listed, so each keeps its tone and shape.
"""

_STEP = (STEP_TIME, None, None)
_MOST_PARTS = 12
_MOST_ROWS = 60
_MOST_DOTS = 2_000


def build_comparison_charts(comparison: Comparison) -> tuple[Chart, ...]:
    """Build the charts that have data; for sides that are not comparable only their steps."""
    charts = [build_steps_chart(comparison)]
    if comparison.verdict != "not comparable":
        charts = [
            build_waterfall_chart(comparison),
            *build_stage_charts(comparison),
            build_ratio_chart(comparison),
            *charts,
        ]
    return tuple(chart for chart in charts if chart)


def build_ratio_chart(comparison: Comparison) -> Chart | None:
    """Build the chart of the ratio of the step and every stage with intervals; None if there is none."""
    times = [
        change
        for change in comparison.changes
        if change.name in STEP_AND_STAGES and change.ratio is not None and change.word in CHART_VERDICTS
    ]
    if not times:
        return None
    words = list(CHART_VERDICTS)
    marks = []
    for row, change in enumerate(times[:_MOST_ROWS]):
        marks.append((row, words.index(change.word), change.low, change.ratio, change.high))
    base, opt = comparison.base, comparison.opt
    return Chart(
        "ratios",
        f"How many times less {opt} takes than {base}",
        "intervals",
        tuple(marks),
        tuple(CHART_VERDICTS.values()),
        tuple(name_changes(times[:_MOST_ROWS])),
        "factor",
        "factor",
        f"Right of 1, {opt} is faster; left of 1, slower. The line is the confidence interval; changes in the shaded band "
        "are too small to matter.",
        len(times) - len(marks),
        within=comparison.min_effect,
    )


def build_steps_chart(comparison: Comparison) -> Chart | None:
    """Build the chart of every step of every run of both sides; None without single steps."""
    if not comparison.steps:
        return None
    sides = (comparison.base, comparison.opt)
    rows: dict[tuple[str, str], int] = {}
    marks = []
    for step in comparison.steps:
        if step.side in sides:
            row = rows.setdefault((step.side, step.run), len(rows))
            marks.append((row, sides.index(step.side), step.value, step.step, int(step.counted)))
    # Thinned evenly: the first ones alone would leave the second side without dots.
    count = min(len(marks), _MOST_DOTS)
    drawn = tuple(marks[place * len(marks) // count] for place in range(count))
    caption = "One dot per step; the line is the mean of the run."
    if not all(step.counted for step in comparison.steps):
        caption += " Hollow dots are excluded steps."
    return Chart(
        "steps",
        "Every step",
        "strips",
        drawn,
        sides,
        tuple(run if run.startswith(side) else f"{side} · {run}" for side, run in rows),
        "ns",
        "ns",
        caption,
        len(marks) - len(drawn),
    )


def build_waterfall_chart(comparison: Comparison) -> Chart | None:
    """Build the waterfall from the step before to the step after; None if a step or its parts are unknown.

    The parts are those of the attribution, which add up, or else the stages and the unexplained rest.
    """
    origin = comparison.origin
    if origin is not None and not origin.missing and origin.ops:
        return _build_attribution_waterfall(comparison, origin)
    for change in comparison.changes:
        if (change.name, change.role, change.stage) == _STEP:
            return _build_stage_waterfall(comparison, change)
    return None


def _build_attribution_waterfall(comparison: Comparison, origin: Attribution) -> Chart:
    """Build the waterfall of the step by the ops of its attribution."""
    parts = []
    for row in shorten_attribution_rows(origin.ops, _MOST_PARTS):
        parts.append((" · ".join(part for part in (row.stage, row.what) if part), row.difference))
    name = ("waterfall", title_attribution(comparison.headline), "step")
    chart = make_waterfall(name, _get_side_names(comparison), (origin.base, origin.opt), parts)
    profiled = explain_profiled_parts(origin, comparison.headline)
    return replace(chart, caption=" ".join(part for part in (profiled, chart.caption) if part))


def _build_stage_waterfall(comparison: Comparison, step: Change) -> Chart | None:
    """Build the waterfall of the step by its stages; None if the step or its stages are unknown."""
    if step.base is None or step.opt is None:
        return None
    parts = list(_list_stage_parts(comparison, step))
    if not parts:
        return None
    name = ("waterfall", title_attribution(comparison.headline), "step")
    return make_waterfall(name, _get_side_names(comparison), (step.base, step.opt), parts)


def build_stage_charts(comparison: Comparison) -> Iterator[Chart]:
    """Build a waterfall by op for each of the stages that changed most."""
    if comparison.origin is None:
        return
    for number, stage in enumerate(comparison.origin.within, 1):
        parts = [(row.what, row.difference) for row in stage.rows if row.difference]
        title = f"{title_attribution(comparison.headline)}: {stage.stage}"
        name = (f"waterfall-{number}", title, stage.stage)
        chart = make_waterfall(name, _get_side_names(comparison), (stage.base, stage.opt), parts)
        yield replace(chart, caption=f"Mean over ranks. {chart.caption}")


def _get_side_names(comparison: Comparison) -> tuple[str, str]:
    return comparison.base, comparison.opt


def make_waterfall(
    name: tuple[str, str, str],
    sides: tuple[str, str],
    ends: tuple[float, float],
    parts: Sequence[tuple[str, float]],
    unit: Unit = "ns",
) -> Chart:
    """Make a waterfall of (title, change) parts that lead from the first end to the second, all in `unit`.

    `name` is the chart's id, its title, and what changed.
    """
    chart, title, what = name
    rows, level = [f"{what}, {sides[0]}"], ends[0]
    levels = [*ends]
    marks: list[tuple[int | float, ...]] = [(0, 2, 0, level)]
    for row, (part, change) in enumerate(parts, 1):
        # Let the last part end exactly where the step does: float sums drift.
        end = ends[1] if row == len(parts) else level + change
        marks.append((row, int(change >= 0), level, end))
        rows.append(part)
        levels.append(end)
        level = end
    marks.append((len(rows), 2, 0, ends[1]))
    rows.append(f"{what}, {sides[1]}")
    changed = "the step" if what == "step" else what
    caption = f"The parts add up to the change of {changed}."
    if min(levels) * 3 > max(levels) * 2:
        caption += " The axis does not begin at 0."
    if unit == "ns":
        caption += " They are means; the table has their confidence intervals."
    return Chart(
        chart,
        title,
        "waterfall",
        tuple(marks),
        ("takes less", "takes more", f"whole {what}"),
        tuple(rows),
        unit,
        unit,
        caption,
    )


def _list_stage_parts(comparison: Comparison, step: Change) -> Iterator[tuple[str, float]]:
    """List (title, change in ns), the largest first; the last is the time outside any stage."""
    stages = [change for change in comparison.changes if change.name == STAGE_TIME]
    parts = []
    for name, stage in zip(name_changes(stages), stages, strict=True):
        change = _scale_to_mean_step(stage, step)
        if change:
            parts.append((name, change))
    if not parts:
        return
    parts.sort(key=lambda part: (-abs(part[1]), part[0]))
    yield from parts[:_MOST_PARTS]
    smaller = parts[_MOST_PARTS:]
    if smaller:
        yield f"{len(smaller)} other stages", fsum(part[1] for part in smaller)
    total = (step.opt or 0.0) - (step.base or 0.0)
    yield "rest of the step", total - fsum(part[1] for part in parts)


def _scale_to_mean_step(stage: Change, step: Change) -> float:
    """Scale the change of a stage to the mean step, for stages that occur in some steps only."""
    before = (stage.base or 0.0) * stage.base_steps / max(step.base_steps, 1)
    after = (stage.opt or 0.0) * stage.opt_steps / max(step.opt_steps, 1)
    return after - before


def name_changes(changes: Sequence[Change]) -> Iterator[str]:
    """Name each row by its stage, with its role if known."""
    for change in changes:
        yield join_phrase(change.role, change.title)
