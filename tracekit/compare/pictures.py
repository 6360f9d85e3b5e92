"""A comparison in pictures: how sure each ratio is, the single steps, and where the change came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import fsum

from tracekit.compare.comparison import Change, Comparison
from tracekit.compare.origins import shortened
from tracekit.compare.report_attribution import heading, profiled_only
from tracekit.job.metric_kinds import STAGE_TIME, STEP_AND_STAGES, STEP_TIME
from tracekit.model.report import Chart, Unit

SHOWN = {
    "improvement": "faster",
    "regression": "slower",
    "inconclusive": "inconclusive",
    "no change": "no change",
}
"""The verdicts of times as the pictures call them; always all four, so that each has one tone and shape."""

_STEP = (STEP_TIME, None, None)
_MOST_PARTS = 12
_MOST_ROWS = 60
_MOST_DOTS = 2_000


def pictures(found: Comparison) -> tuple[Chart, ...]:
    """The charts that there is something to draw for; of sides that are not comparable only their steps."""
    charts = [steps(found)]
    if found.verdict != "not comparable":
        charts = [waterfall(found), *within(found), forest(found), *charts]
    return tuple(chart for chart in charts if chart is not None)


def forest(found: Comparison) -> Chart | None:
    """The ratio of the step and of every stage with its interval; None where there is none."""
    times = [c for c in found.changes if c.name in STEP_AND_STAGES and c.ratio is not None]
    times = [c for c in times if c.word in SHOWN]
    shown = times[:_MOST_ROWS]
    if not shown:
        return None
    words = list(SHOWN)
    marks = tuple(
        (row, words.index(change.word), change.low, change.ratio, change.high)
        for row, change in enumerate(shown)
    )
    return Chart(
        "ratios",
        f"How many times less {found.opt} takes than {found.base}",
        "intervals",
        marks,
        tuple(SHOWN.values()),
        tuple(names(shown)),
        "factor",
        "factor",
        f"Right of 1 {found.opt} takes less, left of it more. The line is the interval; shaded is what is too "
        "small to matter.",
        len(times) - len(shown),
        within=found.min_effect,
    )


def steps(found: Comparison) -> Chart | None:
    """Every step of every run of both sides; None where no step is known one by one."""
    if not found.steps:
        return None
    sides = (found.base, found.opt)
    runs = list(dict.fromkeys((one.side, one.run) for one in found.steps if one.side in sides))
    rows = {run: row for row, run in enumerate(runs)}
    marks = tuple(
        (rows[one.side, one.run], sides.index(one.side), one.value, one.step, int(one.counted))
        for one in found.steps
        if (one.side, one.run) in rows
    )
    hollow = " Hollow ones do not count." if any(not one.counted for one in found.steps) else ""
    return Chart(
        "steps",
        "Every step",
        "strips",
        marks[:_MOST_DOTS],
        sides,
        tuple(run if run.startswith(side) else f"{side} · {run}" for side, run in runs),
        "ns",
        "ns",
        f"A dot a step, a line at the mean of a run.{hollow}",
        max(len(marks) - _MOST_DOTS, 0),
    )


def waterfall(found: Comparison) -> Chart | None:
    """From the step before to the step after, part by part; None where a step or its parts are unknown.

    The parts are those of the attribution, which add up, or else the stages and what they leave.
    """
    origin = found.origin
    title = heading(found.headline)
    if origin is not None and not origin.missing and origin.ops:
        ends = (origin.base, origin.opt)
        parts = [
            (" · ".join(filter(None, (row.stage, row.what))), row.difference)
            for row in shortened(origin.ops, _MOST_PARTS)
        ]
        chart = fall(("waterfall", title, "step"), _sides(found), ends, parts)
        about = profiled_only(origin, found.headline)
        return replace(chart, caption=" ".join(filter(None, (about, chart.caption))))
    step = next((c for c in found.changes if (c.name, c.role, c.stage) == _STEP), None)
    if step is None or step.base is None or step.opt is None:
        return None
    parts = list(_stages(found, step))
    ends = (step.base, step.opt)
    return fall(("waterfall", title, "step"), _sides(found), ends, parts) if parts else None


def within(found: Comparison) -> Iterator[Chart]:
    """From each of the stages that changed most before to the same after, op by op."""
    for number, one in enumerate(found.origin.within if found.origin else (), 1):
        parts = [(row.what, row.difference) for row in one.rows if row.difference]
        title = f"{heading(found.headline)}: {one.stage}"
        name = (f"waterfall-{number}", title, one.stage)
        chart = fall(name, _sides(found), (one.base, one.opt), parts)
        yield replace(chart, caption=f"Mean over ranks. {chart.caption}")


def _sides(found: Comparison) -> tuple[str, str]:
    return found.base, found.opt


def fall(
    name: tuple[str, str, str],
    sides: tuple[str, str],
    ends: tuple[float, float],
    parts: Sequence[tuple[str, float]],
    unit: Unit = "ns",
) -> Chart:
    """The chart of (title, change) parts that lead from the first end to the second, all in `unit`.

    `name` is what the chart is called by, its title, and what changed.
    """
    chart, title, what = name
    rows, at = [f"{what}, {sides[0]}"], ends[0]
    marks: list[tuple[int | float, ...]] = [(0, 2, 0, at)]
    for row, (part, change) in enumerate(parts, 1):
        # The last one ends where the step does, whatever adding floats made of it.
        end = ends[1] if row == len(parts) else at + change
        marks.append((row, 0 if change < 0 else 1, at, end))
        rows.append(part)
        at = end
    marks.append((len(rows), 2, 0, ends[1]))
    rows.append(f"{what}, {sides[1]}")
    reached = [mark[3] for mark in marks]
    cut = " The axis does not begin at 0." if min(reached) * 3 > max(reached) * 2 else ""
    mean = " They are means: how sure each is, the table tells." if unit == "ns" else ""
    return Chart(
        chart,
        title,
        "waterfall",
        tuple(marks),
        ("takes less", "takes more", f"whole {what}"),
        tuple(rows),
        unit,
        unit,
        f"The parts add up to the change of {'the step' if what == 'step' else what}.{cut}{mean}",
    )


def _stages(found: Comparison, step: Change) -> Iterator[tuple[str, float]]:
    """(title, change in ns), the largest first; the last is what no stage accounts for.

    A stage that is in some steps only takes its part of the mean step.
    """
    total = (step.opt or 0.0) - (step.base or 0.0)
    stages = [c for c in found.changes if c.name == STAGE_TIME]
    named = [
        (
            name,
            (change.opt or 0.0) * change.opt_steps / max(step.opt_steps, 1)
            - (change.base or 0.0) * change.base_steps / max(step.base_steps, 1),
        )
        for name, change in zip(names(stages), stages, strict=True)
    ]
    named = sorted((one for one in named if one[1]), key=lambda one: (-abs(one[1]), one[0]))
    if not named:
        return
    few, others = named[:_MOST_PARTS], named[_MOST_PARTS:]
    yield from few
    if others:
        yield f"{len(others)} other stages", fsum(change for _, change in others)
    yield "rest of the step", total - fsum(change for _, change in named)


def names(changes: Sequence[Change]) -> Iterator[str]:
    """What each row is called: the stage, with its role where several are known."""
    for change in changes:
        yield f"{change.role} {change.title}" if change.role else change.title
