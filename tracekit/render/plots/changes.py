"""Charts of a change: ratios with intervals, single values of runs, and a waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit.model.report import Chart
from tracekit.model.units import MINUS, format_quantity
from tracekit.render.plots.axes import (
    GRID,
    POINTS,
    QUIET,
    Amounts,
    choose_axis_start,
    format_amount,
    scale_amounts,
    show_grid,
    show_legend,
    show_row_names,
)
from tracekit.render.plots.marks import Mark, is_known
from tracekit.render.plots.rows import THICK

SHAPES = ("o", "s", "D", "^")
"""Shapes of series, in addition to colors."""

_WIDEST = 64.0
"""Largest factor that the axis of ratios reaches; intervals beyond end at its edge."""


def draw_intervals(axes: Any, chart: Chart, marks: Sequence[Mark], colors: Sequence[str]) -> None:
    """Draw one point per ratio on a line for its interval, on a logarithmic axis with a line at 1."""
    import matplotlib.ticker

    axes.set_xscale("log")
    if chart.within > 0:
        axes.axvspan(1 / (1 + chart.within), 1 + chart.within, color="#efefec", zorder=0)
    axes.axvline(1, color=QUIET, linewidth=1)
    reach = 1.1
    for mark in marks:
        color = colors[mark.series]
        low, high = (_hold(end) for end in (mark.start, mark.end))
        if is_known(low) and is_known(high):
            axes.plot([low, high], [mark.row, mark.row], color=color, linewidth=1.6, marker="|", markersize=6)
        middle = _hold(mark.value)
        axes.plot([middle], [mark.row], SHAPES[mark.series % len(SHAPES)], color=color, markersize=5)
        words = format_factor_interval(mark)
        axes.annotate(words, (1.01, mark.row), xycoords=("axes fraction", "data"), va="center", fontsize=POINTS)
        reach = max(reach, *(max(end, 1 / end) for end in (low, middle, high) if is_known(end)))
    axes.set_xlim(1 / reach / 1.05, reach * 1.05)
    axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator(list_factor_ticks(reach)))
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}×")
    show_grid(axes)
    show_row_names(axes, chart)
    _show_shape_legend(axes, chart, colors)


def _hold(factor: float) -> float:
    """Clip a factor to the axis; NaN stays NaN."""
    return min(max(factor, 1 / _WIDEST), _WIDEST) if is_known(factor) else factor


def list_factor_ticks(reach: float) -> list[float]:
    """List about seven factors around 1 for the ticks of the axis, up to `reach` and down to its inverse.

    >>> list_factor_ticks(1.3)
    [0.8, 0.9, 1.0, 1.1, 1.25]
    """
    near = (1.02, 1.05, 1.1) if reach < 1.12 else (1.1, 1.25, 1.5) if reach < 1.6 else (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    ticks = [tick for tick in near if tick <= reach]
    below = [round(1 / tick, 2 if reach >= 1.12 else 3) for tick in reversed(ticks)]
    return [round(tick, 1) if reach >= 1.12 and reach < 1.6 else tick for tick in below] + [1.0] + ticks


def format_factor_interval(mark: Mark) -> str:
    """Format a factor with its interval as `1.62× [1.43, 1.83]`."""
    middle = format_quantity(mark.value, "factor")
    if not is_known(mark.start) or not is_known(mark.end):
        return f"{middle}, no interval"
    low, high = (format_quantity(end, "factor").removesuffix("×") for end in (mark.start, mark.end))
    return f"{middle} [{low}, {high}]"


def draw_strips(axes: Any, chart: Chart, marks: Sequence[Mark], colors: Sequence[str]) -> None:
    """Draw one dot per value, hollow if it does not count, and a line at the mean of those that do."""
    values = scale_amounts((mark.start for mark in marks), chart.x_unit)
    for row, mean in average_row_marks(marks).items():
        place = values.divide(mean)
        axes.plot([place, place], [row - THICK / 2, row + THICK / 2], color=QUIET, linewidth=1.2)
    for mark in marks:
        color, shape = colors[mark.series], SHAPES[mark.series % len(SHAPES)]
        face = color if is_known(mark.value) and mark.value else "#ffffff"
        axes.plot(
            [values.divide(mark.start)], [mark.row], shape, color=color, markerfacecolor=face, markersize=5, alpha=0.8
        )
    _finish_changes(axes, chart, values)
    _show_shape_legend(axes, chart, colors)


def average_row_marks(marks: Sequence[Mark]) -> dict[int, float]:
    """Average the values that count in each row that has any."""
    rows: dict[int, list[float]] = {}
    for mark in marks:
        if is_known(mark.value) and mark.value:
            rows.setdefault(mark.row, []).append(mark.start)
    return {row: sum(values) / len(values) for row, values in rows.items()}


def draw_waterfall(axes: Any, chart: Chart, marks: Sequence[Mark], colors: Sequence[str]) -> None:
    """Draw bars that each start where the last one ended, with connecting lines and the change next to each."""
    from matplotlib.patches import Patch

    amounts = scale_amounts((end for mark in marks for end in (mark.start, mark.end)), chart.x_unit)
    for mark in marks:
        low, high = sorted((amounts.divide(mark.start), amounts.divide(mark.end)))
        axes.barh(mark.row, high - low, THICK, low, color=colors[mark.series])
        words = _format_bar_change(mark, chart)
        axes.annotate(words, (high, mark.row), (4, 0), textcoords="offset points", va="center", fontsize=POINTS)
        if mark.row + 1 < len(chart.rows):
            place = amounts.divide(mark.end)
            axes.plot([place, place], [mark.row + THICK / 2, mark.row + 1 - THICK / 2], color=QUIET, linewidth=0.8)
    _finish_changes(axes, chart, amounts)
    axes.set_xlim(
        left=choose_axis_start(amounts.divide(end) for mark in marks for end in (mark.start, mark.end) if end)
    )
    show_legend(axes, chart.series, lambda number: Patch(facecolor=colors[number]))


def _finish_changes(axes: Any, chart: Chart, amounts: Amounts) -> None:
    """Show the names of the rows, and the axis with its unit."""
    show_grid(axes)
    show_row_names(axes, chart)
    axes.set_xlabel(amounts.label, fontsize=POINTS, color=QUIET, loc="right")
    axes.margins(x=0.08)
    axes.spines["bottom"].set_color(GRID)


def _show_shape_legend(axes: Any, chart: Chart, colors: Sequence[str]) -> None:
    """Show the shapes and colors of the series."""
    from matplotlib.lines import Line2D

    show_legend(
        axes,
        chart.series,
        lambda number: Line2D([], [], color=colors[number], marker=SHAPES[number % len(SHAPES)], linestyle=""),
    )


def _format_bar_change(mark: Mark, chart: Chart) -> str:
    """Format a change with its sign, or the amount if the bar starts at 0."""
    if not mark.start:
        return format_amount(mark.end, chart.x_unit)
    size = format_amount(mark.size, chart.x_unit)
    return size if mark.start == mark.end else f"{MINUS if mark.end < mark.start else '+'}{size}"
