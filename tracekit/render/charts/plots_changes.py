"""The pictures of a change in plain numbers: intervals, strips and a waterfall, as `svg_changes` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from tracekit.model.report import Chart
from tracekit.render.charts.axis import axis
from tracekit.render.charts.changes import (
    change_words,
    factor_words,
    means,
    waterfall_axis,
    whisker_ends,
)
from tracekit.render.charts.frame import SHAPES
from tracekit.render.charts.log import log_axis
from tracekit.render.charts.marks import Mark, numbers
from tracekit.render.charts.plots_picture import (
    COLORS,
    GRID,
    INK,
    Box,
    Dot,
    Line,
    Picture,
    framed,
    key,
)

_TAIL = 0.0005
_DEEP = {COLORS[a]: COLORS[b] for a, b in (("s2", "s4"), ("s3", "s7"), ("none", "s4"))}
"""A point needs a tone that stands out: of the pale ones another is taken, as on the page."""


def intervals(chart: Chart, found: Sequence[Mark], colors: Sequence[str]) -> Picture:
    """A point a factor on the line of its interval, arrows where that goes on, a line at 1."""
    across = log_axis(found, chart.within)
    rows = len(chart.rows)
    boxes, lines, dots, words = [], [], [], []
    if chart.within > 0:
        share = 1 + Fraction(chart.within)
        boxes.append(Box(across.at(1 / share), across.at(share), 0, rows, COLORS["none"]))
    one = across.at(Fraction(1))
    lines.append(Line((one, one), (0, rows), INK, dotted=False))
    colors = [_DEEP.get(color, color) for color in colors]
    for mark in found:
        assert mark.value is not None
        y, color = mark.row + 0.5, colors[mark.series]
        ends = whisker_ends(mark, across)
        if ends is not None:
            low, high, below, above = ends
            lines.append(Line((low, high), (y, y), color, dotted=False))
            dots += [Dot(low, y, color, "<" if below else "|")]
            dots += [Dot(high, y, color, ">" if above else "|")]
        dots.append(Dot(across.at(mark.value), y, color, SHAPES[mark.series % len(SHAPES)]))
        words.append((1.0, y, factor_words(mark)))
    legend = key(chart, colors)
    drawn = framed(chart, chart.caption, boxes, lines, across, None, legend)
    return replace(drawn, dots=tuple(dots), words=tuple(words))


def strips(chart: Chart, found: Sequence[Mark], colors: Sequence[str]) -> Picture:
    """A point a value, an outline where it does not count, and a line at the mean of those that do."""
    across = axis(numbers(found)[0], chart.x_unit, wide=True)
    lines = [
        Line((at, at), (row + 0.1, row + 0.9), INK, dotted=False)
        for row, mean in means(found).items()
        for at in [across.at(mean)]
    ]
    colors = [_DEEP.get(color, color) for color in colors]
    dots = tuple(
        Dot(
            across.at(mark.start),
            mark.row + 0.5,
            colors[mark.series],
            SHAPES[mark.series % len(SHAPES)],
            bool(mark.value),
        )
        for mark in found
        if mark.start is not None
    )
    drawn = framed(chart, chart.caption, (), lines, across, None, key(chart, colors))
    return replace(drawn, dots=dots)


def waterfall(chart: Chart, found: Sequence[Mark], colors: Sequence[str]) -> Picture:
    """Bars from where the last one ended, with thin lines between them and the change beside each."""
    across = waterfall_axis(chart, found)
    boxes, lines, words = [], [], []
    for mark in found:
        assert mark.start is not None
        assert mark.end is not None
        left, right = (max(at, 0.0) for at in sorted(map(across.at, (mark.start, mark.end))))
        right = max(right, left + _TAIL)
        boxes.append(Box(left, right, mark.row + 0.14, mark.row + 0.86, colors[mark.series]))
        words.append((right, mark.row + 0.5, change_words(mark, chart)))
        if mark.row + 1 < len(chart.rows):
            at = across.at(mark.end)
            lines.append(Line((at, at), (mark.row + 0.86, mark.row + 1.14), GRID, dotted=False))
    drawn = framed(chart, chart.caption, boxes, lines, across, None, key(chart, colors))
    return replace(drawn, words=tuple(words))
