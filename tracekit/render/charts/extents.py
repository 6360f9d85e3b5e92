"""Charts of parts of an amount: adjacent bars per row, and a tree of bars (icicle)."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.model.report import Chart
from tracekit.model.units import show
from tracekit.render.charts.axis import axis
from tracekit.render.charts.frame import Bar, areas, axis_below, box, on
from tracekit.render.charts.marks import Kind, Mark, numbers, plain
from tracekit.render.charts.rows import AXIS, Rows, framed, rows_of
from tracekit.render.charts.shapes import WIDTH, Box, Drawing, Words
from tracekit.render.charts.text import FONT, breadth, fitted, short

_LEAST, _MARGIN = 40, 20
"""Narrowest bar with text, and room for axis labels at the ends."""


def extents(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> Drawing:
    """Draw bars from one amount to another, one line per row; bars of a row do not overlap."""
    rows = rows_of(chart, top, 18)
    amounts = axis(numbers(marks)[0], chart.x_unit, zero=True)
    bars = []
    for mark in marks:
        x, end = rows.ends(amounts, mark)
        name = f"{chart.rows[mark.row]} · {chart.series[mark.series]}"
        bars.append(
            _bar(chart, mark, tones, name, box(x, rows.y(mark.row), end - x, rows.pitch - 1))
        )
    return framed(chart, rows, amounts, areas(bars))


def icicle(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> Drawing:
    """Draw a tree: the parts of each bar are below it, each with its name as far as it fits."""
    pitch = min(20, max(760 / len(chart.rows), 3))
    rows = Rows(_MARGIN, WIDTH - 2 * _MARGIN, top, pitch, chart.rows)
    amounts = axis(numbers(marks)[0], chart.x_unit, zero=True)
    bars, words = [], []
    for mark in marks:
        x, end = rows.ends(amounts, mark)
        y, name = rows.y(mark.row), chart.series[mark.series]
        bars.append(_bar(chart, mark, tones, name, box(x, y, end - x, rows.pitch - 1)))
        text = fitted(name, end - x - 8)
        is_roomy = end - x >= _LEAST and rows.pitch > FONT
        if is_roomy and breadth(text) + 8 <= end - x:
            words.append(
                Words(x + 4, y + rows.pitch / 2 + 4, text, on(tones[mark.series]), "start")
            )
    grid = axis_below(amounts, rows.left, rows.width, rows.top, rows.bottom)
    return Drawing((*grid, *areas(bars), *words), rows.bottom + AXIS)


def _bar(chart: Chart, mark: Mark, tones: Sequence[str], name: str, area: Box) -> Bar:
    """Make the bar of a mark, with its name and size in the tooltip."""
    size = show(plain(mark.size), chart.x_unit)
    return Bar(mark.size, tones[mark.series], area, f"{short(name)}: {short(size)}")


_FIELDS = ("row", "series", "start", "end")
KINDS = (
    Kind("extents", _FIELDS, "Parts of amounts as bars beside one another", extents),
    Kind("icicle", _FIELDS, "A tree of bars, each above those that are parts of it", icicle, ""),
)
