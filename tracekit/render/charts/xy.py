"""Charts with two axes: lines through points, and a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from typing import Literal

from tracekit.model.records import dataclass
from tracekit.model.report import Chart
from tracekit.model.units import show
from tracekit.render.charts.axis import Axis, axis
from tracekit.render.charts.frame import Bar, areas, axis_below, axis_beside, box
from tracekit.render.charts.marks import Kind, Mark, is_started, numbers, plain
from tracekit.render.charts.shapes import WIDTH, Dot, Drawing, Part, Step, Stroke, across
from tracekit.render.charts.text import breadth, short

_HEIGHT = 220.0
_AXIS = 28
_DOTS = 300


@dataclass(frozen=True, slots=True)
class _Plot:
    """A plot between two axes that starts at `top`."""

    across: Axis
    up: Axis
    left: float
    width: float
    top: float

    def x(self, value: Fraction) -> float:
        """Get the horizontal position of a value."""
        return self.left + self.across.at(value) * self.width

    def y(self, value: Fraction) -> float:
        """Get the vertical position of a value."""
        return self.top + (1 - self.up.at(value)) * _HEIGHT

    def drawing(self, parts: Sequence[Part]) -> Drawing:
        """Combine the parts with both axes."""
        bottom = self.top + _HEIGHT
        frame = (
            *axis_beside(self.up, self.left, self.width, self.top, _HEIGHT),
            Stroke("base", across(self.left, bottom, self.width)),
            *axis_below(self.across, self.left, self.width, bottom, bottom + 4),
        )
        return Drawing((*frame, *parts), bottom + _AXIS)


def _plot(across: Axis, up: Axis, top: float) -> _Plot:
    """Make a plot between both axes, with room for the tick labels on its left."""
    left = max((breadth(label) for _, label in up.ticks), default=0) + 12
    return _Plot(across, up, left, WIDTH - left - 24, top)


def lines(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> Drawing:
    """Draw one line per series through its points in the order of x; an unknown y interrupts it."""
    places, values = numbers(marks)
    up = axis(values, chart.unit, about=4, zero=True, wide=True)
    plot = _plot(axis(places, chart.x_unit), up, top + 6)
    strokes: list[Part] = []
    dots: list[Part] = []
    for series, tone in enumerate(tones):
        points = [mark for mark in marks if mark.series == series]
        points.sort(key=lambda mark: (mark.start, mark.value is None))
        steps = _steps(plot, points)
        if steps:
            strokes.append(Stroke(f"line {tone}", steps))
        if len(marks) <= _DOTS:
            dots += _dots(plot, chart, points, tone)
    return plot.drawing([*strokes, *dots])


def _steps(plot: _Plot, points: Sequence[Mark]) -> tuple[Step, ...]:
    """Trace the line through the points, interrupted at unknown y."""
    steps: list[Step] = []
    letter: Literal["M", "L"] = "M"
    for mark in points:
        if mark.value is None:
            letter = "M"
        else:
            steps.append((letter, (plot.x(mark.place), plot.y(mark.value))))
            letter = "L"
    return tuple(steps)


def _dots(plot: _Plot, chart: Chart, points: Sequence[Mark], tone: str) -> list[Part]:
    """Draw the points of a line with their numbers as tooltips."""
    dots: list[Part] = []
    for mark in points:
        if mark.value is None:
            continue
        value = _words(mark.value, chart.unit)
        tip = f"{_prefix(chart, mark)}{_words(mark.place, chart.x_unit)}: {value}"
        dots.append(Dot(tone, plot.x(mark.place), plot.y(mark.value), short(tip)))
    return dots


def histogram(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> Drawing:
    """Draw bars over intervals; bars of one interval are stacked in the order of the series."""
    marks = sorted(marks, key=lambda mark: mark.series)
    tops: dict[tuple[Fraction, Fraction], Fraction] = {}
    stacks = []
    for mark in marks:
        start = tops.get(mark.span, Fraction(0))
        tops[mark.span] = start + (mark.value or 0)
        stacks.append((start, tops[mark.span]))
    up = axis(chain.from_iterable(stacks), chart.unit, about=4, zero=True, wide=True)
    plot = _plot(axis(numbers(marks)[0], chart.x_unit), up, top + 6)
    bars = []
    for mark, stack in zip(marks, stacks, strict=True):
        if not mark.value:
            continue
        x, end = map(plot.x, mark.span)
        high, low = sorted(map(plot.y, stack))
        interval = " – ".join(_words(place, chart.x_unit) for place in mark.span)
        tip = short(f"{_prefix(chart, mark)}{interval}: {_words(mark.value, chart.unit)}")
        bars.append(Bar(mark.size, tones[mark.series], box(x, high, end - x, low - high), tip))
    return plot.drawing(areas(bars))


KINDS = (
    Kind("lines", ("series", "start", "value"), "Lines", lines, "line", is_started),
    Kind(
        "histogram",
        ("series", "start", "end", "value"),
        "Bars of how often a value occurs",
        histogram,
    ),
)


def _prefix(chart: Chart, mark: Mark) -> str:
    """Name the series of a mark before its numbers, if there are several."""
    return f"{chart.series[mark.series]}, " if len(chart.series) > 1 else ""


def _words(value: Fraction, unit: str) -> str:
    """Format a number of the chart."""
    return show(plain(value), unit, figures=4)
