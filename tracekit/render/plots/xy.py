"""Charts with two axes: lines through points, and a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit.model.report import Chart
from tracekit.render.plots.axes import (
    POINTS,
    QUIET,
    Amounts,
    choose_axis_start,
    scale_amounts,
    set_log_scale,
    show_grid,
    show_legend,
)
from tracekit.render.plots.marks import Mark, is_known

_DOTS = 300
_DASHES = ("solid", (0, (7, 3)), (0, (2, 3)), (0, (9, 3, 2, 3)))
_COLORS = 11


def draw_lines(axes: Any, chart: Chart, marks: Sequence[Mark], colors: Sequence[str]) -> None:
    """Draw one line per series through its points in the order of x; an unknown y interrupts it."""
    across, up = _scale_both(chart, [mark.start for mark in marks], [mark.value for mark in marks])
    drawn = []
    for series, color in enumerate(colors):
        points = sorted((mark for mark in marks if mark.series == series), key=lambda mark: mark.start)
        xs = [across.divide(mark.start) for mark in points]
        ys = [up.divide(mark.value) for mark in points]
        marker = "o" if len(marks) <= _DOTS else ""
        dash = _DASHES[series // _COLORS % len(_DASHES)]
        drawn += axes.plot(xs, ys, color=color, linewidth=1.6, linestyle=dash, marker=marker, markersize=3)
    if not set_log_scale(axes, [mark.value for mark in marks], "y"):
        known = [up.divide(mark.value) for mark in marks if is_known(mark.value)]
        bottom, top = choose_axis_start(known), max([0.0, *known])
        axes.set_ylim(bottom, top + (top - bottom) * 0.06 or 1.0)
    _finish_plot(axes, across, up)
    show_legend(axes, chart.series, drawn.__getitem__)


def draw_histogram(axes: Any, chart: Chart, marks: Sequence[Mark], colors: Sequence[str]) -> None:
    """Draw bars over intervals; bars of one interval are stacked in the order of the series."""
    from matplotlib.patches import Patch

    tops: dict[tuple[float, float], float] = {}
    placed = []
    for mark in sorted(marks, key=lambda mark: mark.series):
        start = tops.get((mark.start, mark.end), 0.0)
        tops[mark.start, mark.end] = start + (mark.value if is_known(mark.value) else 0.0)
        placed.append((mark, start))
    across, up = _scale_both(chart, [mark.end for mark in marks], list(tops.values()))
    for mark, start in placed:
        left, width = across.divide(mark.start), across.divide(mark.end - mark.start)
        axes.bar(left, up.divide(mark.value), width * 0.98, up.divide(start), align="edge", color=colors[mark.series])
    positive = [place for mark in marks for place in (mark.start, mark.end) if place > 0]
    if set_log_scale(axes, positive, "x"):
        axes.set_xlim(across.divide(min(positive)) / 2, across.divide(max(positive)) * 1.1)
    _finish_plot(axes, across, up)
    show_legend(axes, chart.series, lambda number: Patch(facecolor=colors[number]))


def _scale_both(chart: Chart, xs: Sequence[float], ys: Sequence[float]) -> tuple[Amounts, Amounts]:
    """Choose the units of both axes."""
    return scale_amounts(xs, chart.x_unit), scale_amounts(ys, chart.unit)


def _finish_plot(axes: Any, across: Amounts, up: Amounts) -> None:
    """Show both axes with their units."""
    show_grid(axes, "y")
    axes.set_xlabel(across.label, fontsize=POINTS, color=QUIET, loc="right")
    axes.set_ylabel(up.label, fontsize=POINTS, color=QUIET, loc="top", rotation=0)
