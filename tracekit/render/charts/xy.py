"""Charts with two axes: lines through points, and a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from typing import Literal

from tracekit.model.records import dataclass
from tracekit.model.report import Chart
from tracekit.model.units import format_quantity
from tracekit.render.charts.axis import LinearAxis, make_axis
from tracekit.render.charts.frame import WeightedBar, draw_axis_below, draw_axis_left, make_mark_box, merge_bars
from tracekit.render.charts.marks import ChartKindLayout, Mark, has_mark_start, list_mark_numbers, to_plain_number
from tracekit.render.charts.shapes import CHART_WIDTH, LineDot, LineStroke, Part, PenStep, PlotDrawing, draw_right
from tracekit.render.charts.text import estimate_text_width, shorten_for_tooltip

_HEIGHT = 220.0
_AXIS = 28
_DOTS = 300


@dataclass(frozen=True, slots=True)
class _XYPlot:
    """A plot between two axes that starts at `top`."""

    across: LinearAxis
    up: LinearAxis
    left: float
    width: float
    top: float

    def x(self, value: Fraction) -> float:
        """Get the horizontal position of a value."""
        return self.left + self.across.project(value) * self.width

    def y(self, value: Fraction) -> float:
        """Get the vertical position of a value."""
        return self.top + (1 - self.up.project(value)) * _HEIGHT

    def drawing(self, parts: Sequence[Part]) -> PlotDrawing:
        """Combine the parts with both axes."""
        bottom = self.top + _HEIGHT
        frame = (
            *draw_axis_left(self.up, self.left, self.width, self.top, _HEIGHT),
            LineStroke("base", draw_right(self.left, bottom, self.width)),
            *draw_axis_below(self.across, self.left, self.width, bottom, bottom + 4),
        )
        return PlotDrawing((*frame, *parts), bottom + _AXIS)


def _make_xy_plot(across: LinearAxis, up: LinearAxis, top: float) -> _XYPlot:
    """Make a plot between both axes, with room for the tick labels on its left."""
    left = max((estimate_text_width(label) for _, label in up.ticks), default=0) + 12
    return _XYPlot(across, up, left, CHART_WIDTH - left - 24, top)


def draw_lines_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw one line per series through its points in the order of x; an unknown y interrupts it."""
    places, values = list_mark_numbers(marks)
    up = make_axis(values, chart.unit, about=4, zero=True, wide=True)
    plot = _make_xy_plot(make_axis(places, chart.x_unit), up, top + 6)
    strokes: list[Part] = []
    dots: list[Part] = []
    for series, tone in enumerate(tones):
        points = [mark for mark in marks if mark.series == series]
        points.sort(key=lambda mark: (mark.start, mark.value is None))
        steps = _trace_line_points(plot, points)
        if steps:
            strokes.append(LineStroke(f"line {tone}", steps))
        if len(marks) <= _DOTS:
            dots += _draw_line_dots(plot, chart, points, tone)
    return plot.drawing([*strokes, *dots])


def _trace_line_points(plot: _XYPlot, points: Sequence[Mark]) -> tuple[PenStep, ...]:
    """Trace the line through the points, interrupted at unknown y."""
    steps: list[PenStep] = []
    letter: Literal["M", "L"] = "M"
    for mark in points:
        if mark.value is None:
            letter = "M"
        else:
            steps.append((letter, (plot.x(mark.place), plot.y(mark.value))))
            letter = "L"
    return tuple(steps)


def _draw_line_dots(plot: _XYPlot, chart: Chart, points: Sequence[Mark], tone: str) -> list[Part]:
    """Draw the points of a line with their numbers as tooltips."""
    dots: list[Part] = []
    for mark in points:
        if mark.value is None:
            continue
        value = _format_xy_number(mark.value, chart.unit)
        tip = f"{_name_mark_series(chart, mark)}{_format_xy_number(mark.place, chart.x_unit)}: {value}"
        dots.append(LineDot(tone, plot.x(mark.place), plot.y(mark.value), shorten_for_tooltip(tip)))
    return dots


def draw_histogram_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw bars over intervals; bars of one interval are stacked in the order of the series."""
    marks = sorted(marks, key=lambda mark: mark.series)
    tops: dict[tuple[Fraction, Fraction], Fraction] = {}
    stacks = []
    for mark in marks:
        start = tops.get(mark.span, Fraction(0))
        tops[mark.span] = start + (mark.value or 0)
        stacks.append((start, tops[mark.span]))
    up = make_axis(chain.from_iterable(stacks), chart.unit, about=4, zero=True, wide=True)
    plot = _make_xy_plot(make_axis(list_mark_numbers(marks)[0], chart.x_unit), up, top + 6)
    bars = []
    for mark, stack in zip(marks, stacks, strict=True):
        if not mark.value:
            continue
        x, end = (plot.x(place) for place in mark.span)
        high, low = sorted(plot.y(value) for value in stack)
        interval = " – ".join(_format_xy_number(place, chart.x_unit) for place in mark.span)
        tip = shorten_for_tooltip(
            f"{_name_mark_series(chart, mark)}{interval}: {_format_xy_number(mark.value, chart.unit)}"
        )
        bars.append(WeightedBar(mark.size, tones[mark.series], make_mark_box(x, high, end - x, low - high), tip))
    return plot.drawing(merge_bars(bars))


KINDS = (
    ChartKindLayout("lines", ("series", "start", "value"), "Lines", draw_lines_chart, "line", has_mark_start),
    ChartKindLayout(
        "histogram", ("series", "start", "end", "value"), "Bars of how often a value occurs", draw_histogram_chart
    ),
)


def _name_mark_series(chart: Chart, mark: Mark) -> str:
    """Name the series of a mark before its numbers, if there are several."""
    return f"{chart.series[mark.series]}, " if len(chart.series) > 1 else ""


def _format_xy_number(value: Fraction, unit: str) -> str:
    """Format a number of the chart."""
    return format_quantity(to_plain_number(value), unit, figures=4)
