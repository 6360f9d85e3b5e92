"""The pictures of parts of an amount in plain numbers, as `svg_extents` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracekit.model.report import Chart
from tracekit.render.charts.extents import extents_axis
from tracekit.render.charts.marks import Mark
from tracekit.render.charts.plots_picture import COLORS, Box, Picture, framed, key
from tracekit.render.charts.text import fitted

_TAIL = 0.0000005
_PALE = tuple(COLORS[tone] for tone in ("s2", "s3", "s5"))
"""Words can be read on these."""

_WIDE, _PLOT = 0.06, 900.0
"""The least part of the width that holds words, and about how wide the whole is, as text is measured."""


def extents(chart: Chart, found: Sequence[Mark], colors: Sequence[str]) -> Picture:
    """Bars from one amount to another, one line a row."""
    across = extents_axis(chart, found)
    boxes = []
    for mark in found:
        assert mark.start is not None
        assert mark.end is not None
        left, right = across.at(mark.start), across.at(mark.end)
        color = colors[mark.series]
        boxes.append(Box(left, max(right, left + _TAIL), mark.row + 0.04, mark.row + 0.96, color))
    return framed(chart, chart.caption, boxes, (), across, None, key(chart, colors))


def icicle(chart: Chart, found: Sequence[Mark], _colors: Sequence[str]) -> Picture:
    """A tree of bars with the names of the wide ones in them; they would be too many for a legend."""
    pale = [_PALE[at % len(_PALE)] for at in range(len(chart.series))]
    drawn = extents(chart, found, pale)
    words = [
        (box.left, mark.row + 0.5, fitted(chart.series[mark.series], (box.right - box.left) * _PLOT - 12))
        for mark, box in zip(found, drawn.boxes, strict=True)
        if box.right - box.left >= _WIDE
    ]  # fmt: skip
    return replace(drawn, legend=(), words=tuple(words))
