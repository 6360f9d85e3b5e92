"""Pictures of parts of an amount: one bar of each row beside the next, and a tree of them (icicle)."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.model.report import Chart
from tracekit.model.units import show
from tracekit.render.charts.axis import Axis, axis
from tracekit.render.charts.frame import WIDTH, Drawing, below, box, on, shapes
from tracekit.render.charts.marks import Mark, numbers, plain
from tracekit.render.charts.rows import AXIS, Rows, row_names, rows_of, word
from tracekit.render.charts.text import FONT, breadth, fitted, text

_LEAST, _MARGIN = 40, 20
"""Bars narrower than the first hold no words; the second is room for the numbers of an axis at its ends."""


def extents(chart: Chart, found: Sequence[Mark], of: Sequence[str], top: float) -> Drawing:
    """Bars from one amount to another, one line a row; nothing of a row overlaps."""
    return _drawn(chart, found, of, rows_of(chart, top, 18), words=False)


def icicle(chart: Chart, found: Sequence[Mark], of: Sequence[str], top: float) -> Drawing:
    """A tree: below each bar those that are parts of it, each with its name as far as it fits."""
    pitch = min(20, max(760 / max(len(chart.rows), 1), 3))
    rows = Rows(_MARGIN, WIDTH - 2 * _MARGIN, top, pitch, chart.rows)
    return _drawn(chart, found, of, rows, words=True)


def _drawn(
    chart: Chart, found: Sequence[Mark], of: Sequence[str], rows: Rows, *, words: bool
) -> Drawing:
    """The bars on one axis from zero, and the words in them or the names before them."""
    across = extents_axis(chart, found)
    boxes, told = [], []
    for mark in found:
        assert mark.start is not None
        assert mark.end is not None
        x, end = rows.x(across, mark.start), rows.x(across, mark.end)
        y = rows.top + mark.row * rows.pitch
        name, tone = chart.series[mark.series], of[mark.series]
        size = show(plain(mark.size), chart.x_unit)
        where = name if words else f"{chart.rows[mark.row]} · {name}"
        tip = f"{text(where)}: {text(size)}"
        boxes.append((mark, tone, box(x, y, end - x, rows.pitch - 1), tip))
        if words and end - x >= _LEAST and rows.pitch > FONT:
            shown = fitted(name, end - x - 8)
            if breadth(shown) + 8 <= end - x:
                told.append(word(x + 4, y + rows.pitch / 2 + 4, "start", on(tone), shown))
    names = [] if words else row_names(chart, rows)
    parts = [*names, *below(across, rows.left, rows.width, rows.top, rows.bottom)]
    return Drawing((*parts, *shapes(boxes), *told), rows.bottom + AXIS)


def extents_axis(chart: Chart, found: Sequence[Mark]) -> Axis:
    """The axis of the amounts, from zero."""
    return axis(numbers(found)[0], chart.x_unit, zero=True)
