"""Charts of rows: a timeline (gantt), amounts (bars), cells (heatmap, matrix), or parts of an amount (extents, icicle)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit.model.report import Chart
from tracekit.render.plots.axes import (
    NAME_LENGTH,
    POINTS,
    Amounts,
    fits_into_plot,
    format_amount,
    scale_amounts,
    shorten_chart_text,
    show_grid,
    show_legend,
    show_row_names,
)
from tracekit.render.plots.colors import choose_text_color
from tracekit.render.plots.marks import Mark, is_known

THICK = 0.76
"""Height of a bar, as a share of its row."""

_LANES = 4
_CELLS = "Blues"
_UNKNOWN = "#ffffff"


def draw_gantt(axes: Any, chart: Chart, marks: Sequence[Mark], colors: Sequence[str]) -> None:
    """Draw bars on one time axis, one row each; overlapping bars of a row are drawn in lanes."""
    lanes = assign_lanes(marks)
    count = max(lanes) + 1
    times = scale_amounts((mark.end for mark in marks), chart.x_unit)
    low, high = min(mark.start for mark in marks), max(mark.end for mark in marks)
    for mark, lane in zip(marks, lanes, strict=True):
        height = THICK / count
        top = mark.row - THICK / 2 + lane * height
        _draw_box(axes, times, mark, top, height * 0.94, colors[mark.series])
        if count == 1:
            _write_in_box(axes, times, mark, mark.row, chart.series[mark.series], colors[mark.series], high - low)
    _finish_rows(axes, chart, times)
    _show_color_legend(axes, chart, colors)


def draw_extents(axes: Any, chart: Chart, marks: Sequence[Mark], colors: Sequence[str]) -> None:
    """Draw parts of an amount side by side, one row each."""
    amounts = scale_amounts((mark.end for mark in marks), chart.x_unit)
    for mark in marks:
        _draw_box(axes, amounts, mark, mark.row - THICK / 2, THICK, colors[mark.series])
    _finish_rows(axes, chart, amounts)
    axes.set_xlim(left=0)
    _show_color_legend(axes, chart, colors)


def draw_icicle(axes: Any, chart: Chart, marks: Sequence[Mark], colors: Sequence[str]) -> None:
    """Draw a tree: the parts of each bar are below it, each with its name where it fits."""
    amounts = scale_amounts((mark.end for mark in marks), chart.x_unit)
    whole = max(mark.end for mark in marks)
    for mark in marks:
        color = colors[mark.series]
        _draw_box(axes, amounts, mark, mark.row - 0.46, 0.92, color)
        _write_in_box(axes, amounts, mark, mark.row, chart.series[mark.series], color, whole)
    _finish_rows(axes, chart, amounts)
    axes.set_yticks([])
    axes.set_xlim(left=0)


def draw_bars(axes: Any, chart: Chart, marks: Sequence[Mark], colors: Sequence[str]) -> None:
    """Draw amounts as stacked bars, one per row; negative ones are stacked to the left of zero."""
    ends = stack_marks(marks)
    amounts = scale_amounts((end for pair in ends for end in pair), chart.unit)
    whole = max((abs(end) for pair in ends for end in pair if is_known(end)), default=0.0)
    is_single = len(chart.series) == 1
    for mark, (start, end) in zip(marks, ends, strict=True):
        words = format_amount(mark.value, chart.unit) if is_known(mark.value) else "unknown"
        placed = mark._replace(start=start, end=end)
        if is_known(mark.value):
            _draw_box(axes, amounts, placed, mark.row - THICK / 2, THICK, colors[mark.series])
        if is_single or not is_known(mark.value):
            place = amounts.divide(max(start, end)) if is_known(mark.value) else 0.0
            axes.annotate(words, (place, mark.row), (4, 0), textcoords="offset points", va="center", fontsize=POINTS)
        else:
            _write_in_box(axes, amounts, placed, mark.row, words, colors[mark.series], whole)
    _finish_rows(axes, chart, amounts)
    axes.axvline(0, color="#5f656b", linewidth=0.8)
    _show_color_legend(axes, chart, colors)


def draw_heatmap(axes: Any, chart: Chart, marks: Sequence[Mark], _colors: Sequence[str]) -> None:
    """Draw cells by row and interval, darker for larger values; unknown ones are outlined."""
    from matplotlib.collections import PolyCollection

    times = scale_amounts((mark.end for mark in marks), chart.x_unit)
    values = scale_amounts((mark.value for mark in marks), chart.unit)
    corners = []
    for mark in marks:
        left, right, top = times.divide(mark.start), times.divide(mark.end), mark.row - 0.46
        corners.append(((left, top), (right, top), (right, top + 0.92), (left, top + 0.92)))
    cells = PolyCollection(corners, cmap=_CELLS, edgecolors="none")
    _color_cells(axes, cells, chart, values, [mark.value for mark in marks])
    axes.add_collection(cells)
    axes.autoscale_view()
    _finish_rows(axes, chart, times)


def draw_matrix(axes: Any, chart: Chart, marks: Sequence[Mark], _colors: Sequence[str]) -> None:
    """Draw cells by row and series, darker for larger values, with column names; unknown ones stay white."""
    import numpy as np

    values = scale_amounts((mark.value for mark in marks), chart.unit)
    table = np.full((len(chart.rows), len(chart.series)), np.nan)
    for mark in marks:
        table[mark.row, mark.series] = values.divide(mark.value)
    cells = axes.pcolormesh(np.ma.masked_invalid(table), cmap=_CELLS, edgecolors=_UNKNOWN, linewidth=0.5)
    _color_cells(axes, cells, chart, values, [mark.value for mark in marks], table.ravel())
    columns = [shorten_chart_text(name, max(NAME_LENGTH // len(chart.series), 8)) for name in chart.series]
    axes.set_xticks([number + 0.5 for number in range(len(columns))], columns)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    show_grid(axes)
    axes.grid(visible=False)
    interval = -(-len(chart.rows) // 60)
    places = range(0, len(chart.rows), interval)
    axes.set_yticks([place + 0.5 for place in places], [shorten_chart_text(chart.rows[place]) for place in places])
    axes.set_ylim(len(chart.rows), 0)


def assign_lanes(marks: Sequence[Mark]) -> list[int]:
    """Assign each mark to the first lane of its row that is free at its start; at most four lanes."""
    lanes = [0] * len(marks)
    row_ends: dict[int, list[float]] = {}
    for index in sorted(range(len(marks)), key=lambda index: (marks[index].start, -marks[index].size)):
        mark = marks[index]
        ends = row_ends.setdefault(mark.row, [])
        free = (lane for lane, lane_end in enumerate(ends) if lane_end <= mark.start)
        lane = min(next(free, len(ends)), _LANES - 1)
        if lane == len(ends):
            ends.append(mark.end)
        ends[lane] = max(ends[lane], mark.end)
        lanes[index] = lane
    return lanes


def stack_marks(marks: Sequence[Mark]) -> list[tuple[float, float]]:
    """Compute the start and end of each stacked amount; NaN if it is unknown."""
    tops: dict[tuple[int, bool], float] = {}
    ends = []
    for mark in marks:
        side = (mark.row, mark.value < 0)
        start = tops.get(side, 0.0)
        ends.append((start, start + mark.value))
        if is_known(mark.value):
            tops[side] = start + mark.value
    return ends


def _draw_box(axes: Any, amounts: Amounts, mark: Mark, top: float, height: float, color: str) -> None:
    """Draw the bar of a mark, with a thin light edge that separates neighbors."""
    left, right = sorted((amounts.divide(mark.start), amounts.divide(mark.end)))
    axes.broken_barh([(left, right - left)], (top, height), facecolors=color, edgecolors=color, linewidth=0.2)


def _write_in_box(axes: Any, amounts: Amounts, mark: Mark, y: float, name: str, color: str, length: float) -> None:
    """Write text into a bar where it fits."""
    text, share = shorten_chart_text(name), (abs(mark.end - mark.start) / length if length else 0.0)
    if fits_into_plot(text, share):
        middle = amounts.divide((mark.start + mark.end) / 2)
        axes.text(
            middle, y, text, ha="center", va="center", fontsize=POINTS, color=choose_text_color(color), clip_on=True
        )


def _finish_rows(axes: Any, chart: Chart, amounts: Amounts) -> None:
    """Show the names of the rows, the axis below and its unit."""
    show_grid(axes)
    show_row_names(axes, chart)
    axes.set_xlabel(amounts.label, fontsize=POINTS, color="#5f656b", loc="right")
    axes.margins(x=0.02)


def _show_color_legend(axes: Any, chart: Chart, colors: Sequence[str]) -> None:
    """Show the colors of the series."""
    from matplotlib.patches import Patch

    show_legend(axes, chart.series, lambda number: Patch(facecolor=colors[number]))


def _color_cells(axes: Any, cells: Any, chart: Chart, values: Amounts, raw: Sequence[float], table: Any = None) -> None:
    """Color cells by value from 0 on, ratios up to 1, with a scale next to the plot."""
    import numpy as np

    scaled = np.array([values.divide(value) for value in raw]) if table is None else np.asarray(table)
    known = scaled[np.isfinite(scaled)]
    low, high = min(known.min(initial=0.0), 0.0), known.max(initial=0.0)
    if chart.unit == "ratio" and high <= values.divide(1):
        high = values.divide(1)
    cells.set_array(np.ma.masked_invalid(scaled))
    cells.set_clim(low, high if high > low else low + 1)
    bar = axes.figure.colorbar(cells, ax=axes, fraction=0.03, pad=0.01)
    bar.ax.tick_params(labelsize=POINTS)
    bar.ax.set_title(values.label, fontsize=POINTS)
    bar.outline.set_visible(False)
