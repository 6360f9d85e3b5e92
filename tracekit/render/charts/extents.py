"""Charts of parts of an amount: adjacent bars per row, and a tree of bars (icicle)."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.model.report import Chart
from tracekit.model.units import format_quantity
from tracekit.render.charts.axis import make_axis
from tracekit.render.charts.frame import WeightedBar, draw_axis_below, get_text_role, make_mark_box, merge_bars
from tracekit.render.charts.marks import ChartKindLayout, Mark, list_mark_numbers, to_plain_number
from tracekit.render.charts.rows import AXIS, RowLayout, frame_row_plot, lay_out_rows
from tracekit.render.charts.shapes import CHART_WIDTH, PlacedText, PlotDrawing, ShapeBox
from tracekit.render.charts.text import FONT, estimate_text_width, fit_text, shorten_for_tooltip

_LEAST, _MARGIN = 40, 20
"""Narrowest bar with text, and room for axis labels at the ends."""


def draw_extents_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw bars from one amount to another, one line per row; bars of a row do not overlap."""
    rows = lay_out_rows(chart, top, 18)
    amounts = make_axis(list_mark_numbers(marks)[0], chart.x_unit, zero=True)
    bars = []
    for mark in marks:
        x, end = rows.ends(amounts, mark)
        name = f"{chart.rows[mark.row]} · {chart.series[mark.series]}"
        bars.append(
            _make_extent_bar(chart, mark, tones, name, make_mark_box(x, rows.y(mark.row), end - x, rows.pitch - 1))
        )
    return frame_row_plot(chart, rows, amounts, merge_bars(bars))


def draw_icicle_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw a tree: the parts of each bar are below it, each with its name as far as it fits."""
    pitch = min(20, max(760 / len(chart.rows), 3))
    rows = RowLayout(_MARGIN, CHART_WIDTH - 2 * _MARGIN, top, pitch, chart.rows)
    amounts = make_axis(list_mark_numbers(marks)[0], chart.x_unit, zero=True)
    bars, words = [], []
    for mark in marks:
        x, end = rows.ends(amounts, mark)
        y, name = rows.y(mark.row), chart.series[mark.series]
        bars.append(_make_extent_bar(chart, mark, tones, name, make_mark_box(x, y, end - x, rows.pitch - 1)))
        text = fit_text(name, end - x - 8)
        is_roomy = end - x >= _LEAST and rows.pitch > FONT
        if is_roomy and estimate_text_width(text) + 8 <= end - x:
            words.append(PlacedText(x + 4, y + rows.pitch / 2 + 4, text, get_text_role(tones[mark.series]), "start"))
    grid = draw_axis_below(amounts, rows.left, rows.width, rows.top, rows.bottom)
    return PlotDrawing((*grid, *merge_bars(bars), *words), rows.bottom + AXIS)


def _make_extent_bar(chart: Chart, mark: Mark, tones: Sequence[str], name: str, area: ShapeBox) -> WeightedBar:
    """Make the bar of a mark, with its name and size in the tooltip."""
    size = format_quantity(to_plain_number(mark.size), chart.x_unit)
    return WeightedBar(mark.size, tones[mark.series], area, f"{shorten_for_tooltip(name)}: {shorten_for_tooltip(size)}")


_FIELDS = ("row", "series", "start", "end")
KINDS = (
    ChartKindLayout("extents", _FIELDS, "Parts of amounts as bars beside one another", draw_extents_chart),
    ChartKindLayout("icicle", _FIELDS, "A tree of bars, each above those that are parts of it", draw_icicle_chart, ""),
)
