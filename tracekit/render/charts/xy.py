"""Pictures with two axes: lines through points, and a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tracekit.model.report import Chart
from tracekit.model.units import show
from tracekit.render.charts.axis import Axis, axis
from tracekit.render.charts.frame import WIDTH, Drawing, below, beside, box, shapes
from tracekit.render.charts.marks import Mark, numbers, plain
from tracekit.render.charts.text import breadth, number, text

_HEIGHT = 220.0
_AXIS = 28
_DOTS = 300


def lines(chart: Chart, found: Sequence[Mark], of: Sequence[str], top: float) -> Drawing:
    """One line a series through its points in the order of x; an unknown y interrupts it."""
    places, values = numbers(found)
    y = axis(values, chart.unit, about=4, zero=True, wide=True)
    x = axis(places, chart.x_unit)
    left = _left(y)
    top += 6
    width = WIDTH - left - 24
    paths, dots = [], []
    for at in range(len(chart.series)):
        points = sorted(
            (m for m in found if m.series == at), key=lambda m: (m.start, m.value is None)
        )
        path, pen = "", "M"
        for mark in points:
            assert mark.start is not None
            if mark.value is None:
                pen = "M"
                continue
            across, up = left + x.at(mark.start) * width, top + (1 - y.at(mark.value)) * _HEIGHT
            path += f"{pen}{number(across)} {number(up)}"
            pen = "L"
            if len(found) <= _DOTS:
                dots.append(_dot(chart, mark, of[at], across, up))
        if path:
            paths.append(f'<path class="line {of[at]}" d="{path}"/>\n')
    frame = _frame(x, y, left, width, top)
    return Drawing((*frame, *paths, *dots), top + _HEIGHT + _AXIS)


def histogram(chart: Chart, found: Sequence[Mark], of: Sequence[str], top: float) -> Drawing:
    """Bars over their intervals, those of one interval stacked in the order of the series."""
    found = sorted(found, key=lambda mark: mark.series)
    reached: dict[tuple[Fraction | None, Fraction | None], Fraction] = {}
    spans = []
    for mark in found:
        start = reached.get((mark.start, mark.end), Fraction(0))
        reached[mark.start, mark.end] = start + (mark.value or 0)
        spans.append((start, start + (mark.value or 0)))
    places, _ = numbers(found)
    y = axis([end for span in spans for end in span], chart.unit, about=4, zero=True, wide=True)
    x = axis(places, chart.x_unit)
    left = _left(y)
    top += 6
    width = WIDTH - left - 24
    boxes = []
    for mark, span in zip(found, spans, strict=True):
        assert mark.start is not None
        assert mark.end is not None
        if not mark.value:
            continue
        across, end = (left + x.at(at) * width for at in (mark.start, mark.end))
        low, high = sorted(top + (1 - y.at(at)) * _HEIGHT for at in span)
        between = f"{_shown(mark.start, chart.x_unit)} – {_shown(mark.end, chart.x_unit)}"
        name = f"{chart.series[mark.series]}, " if len(chart.series) > 1 else ""
        tip = text(f"{name}{between}: {_shown(mark.value, chart.unit)}")
        boxes.append((mark, of[mark.series], box(across, low, end - across, high - low), tip))
    frame = _frame(x, y, left, width, top)
    return Drawing((*frame, *shapes(boxes)), top + _HEIGHT + _AXIS)


def _left(y: Axis) -> float:
    """How much room the numbers beside the plot take."""
    return max((breadth(label) for _, label in y.ticks), default=0) + 12


def _frame(x: Axis, y: Axis, left: float, width: float, top: float) -> list[str]:
    """Both axes."""
    bottom = top + _HEIGHT
    base = f'<path class="base" d="M{number(left)} {number(bottom)}h{number(width)}"/>\n'
    return [*beside(y, left, width, top, _HEIGHT), base, *below(x, left, width, bottom, bottom + 4)]


def _dot(chart: Chart, mark: Mark, tone: str, x: float, y: float) -> str:
    """A point of a line with its numbers as tooltip."""
    assert mark.start is not None
    assert mark.value is not None
    name = f"{chart.series[mark.series]}, " if len(chart.series) > 1 else ""
    tip = f"{name}{_shown(mark.start, chart.x_unit)}: {_shown(mark.value, chart.unit)}"
    return (
        f'<circle class="{tone}" cx="{number(x)}" cy="{number(y)}" r="3">'
        f"<title>{text(tip)}</title></circle>\n"
    )


def _shown(value: Fraction, unit: str) -> str:
    """A number of the picture as words."""
    return show(plain(value), unit, figures=4)
