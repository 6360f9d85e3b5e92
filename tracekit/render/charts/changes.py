"""Charts of a change: ratios with intervals, single values of runs, and a waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tracekit.model.report import Chart
from tracekit.model.units import MINUS, format_quantity
from tracekit.render.charts.axis import LogAxis, make_axis, make_log_axis
from tracekit.render.charts.frame import WeightedBar, draw_axis_below, make_mark_box, merge_bars
from tracekit.render.charts.marks import ChartKindLayout, Mark, has_mark_start, list_mark_numbers, to_plain_number
from tracekit.render.charts.rows import AXIS, RowLayout, draw_row_names, frame_row_plot, lay_out_rows
from tracekit.render.charts.shapes import (
    FilledArea,
    LineStroke,
    Part,
    PenStep,
    PlacedText,
    PlotDrawing,
    SeriesGlyph,
    ShapeGroup,
    draw_down_by,
    draw_down_to,
)
from tracekit.render.charts.text import shorten_for_tooltip

_ROOMY = 14
_BESIDE = 170
_EXACT_FLOAT = 2**53


def draw_intervals_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw one point per ratio on a whisker for its interval, with an arrow if the interval exceeds the plot."""
    rows = lay_out_rows(chart, top, 24, _BESIDE)
    factors = make_log_axis(marks, chart.within)
    parts = draw_row_names(chart, rows)
    if chart.within > 0:
        parts.append(_draw_negligible_band(chart, rows, factors))
    parts += draw_axis_below(factors.linear(), rows.left, rows.width, rows.top, rows.bottom)
    parts.append(LineStroke("base", draw_down_to(_get_factor_x(rows, factors, Fraction(1)), rows.top, rows.bottom)))
    for mark in marks:
        assert mark.value is not None
        x, y = _get_factor_x(rows, factors, mark.value), rows.middle(mark.row)
        tone, words = tones[mark.series], format_factor_interval(mark)
        tip = f"{shorten_for_tooltip(chart.rows[mark.row])}: {shorten_for_tooltip(words)}, {shorten_for_tooltip(chart.series[mark.series])}"
        glyph = SeriesGlyph(f"glyph {tone}", mark.series, x, y, min(5.0, rows.pitch / 2.6))
        parts.append(ShapeGroup(tip, (*_draw_whisker(mark, factors, rows, tone), glyph)))
        if rows.pitch >= _ROOMY:
            parts.append(PlacedText(rows.left + rows.width + 10, y + 4, shorten_for_tooltip(words), "value", "start"))
    return PlotDrawing(tuple(parts), rows.bottom + AXIS)


def _get_factor_x(rows: RowLayout, factors: LogAxis, value: Fraction) -> float:
    """Get the horizontal position of a factor."""
    return rows.left + factors.project(value) * rows.width


def _draw_negligible_band(chart: Chart, rows: RowLayout, factors: LogAxis) -> FilledArea:
    """Draw the band of factors too close to 1 to matter."""
    share = 1 + Fraction(chart.within)
    low, high = _get_factor_x(rows, factors, 1 / share), _get_factor_x(rows, factors, share)
    area = make_mark_box(low, rows.top, high - low, rows.bottom - rows.top, 0)
    return FilledArea("within", (area,), f"within {shorten_for_tooltip(format_quantity(chart.within, 'ratio'))} of 1")


def format_factor_interval(mark: Mark) -> str:
    """Format a factor with its interval as `1.62× [1.43, 1.83]`."""
    assert mark.value is not None
    middle = _format_factor(mark.value)
    if mark.start is None or mark.end is None:
        return f"{middle}, no interval"
    low, high = (_format_factor(end).removesuffix("×") for end in mark.span)
    return f"{middle} [{low}, {high}]"


def _format_factor(value: Fraction) -> str:
    """Format a factor with its decimals, even if it is whole."""
    number = to_plain_number(value)
    return format_quantity(float(number) if abs(number) < _EXACT_FLOAT else number, "factor")


def _draw_whisker(mark: Mark, factors: LogAxis, rows: RowLayout, tone: str) -> tuple[LineStroke, ...]:
    """Draw an interval: a line with caps, or with arrows if it exceeds the plot; empty if it is outside."""
    if mark.start is None or mark.end is None or mark.end <= 0 or mark.start > mark.end:
        return ()
    low = factors.project(mark.start) if mark.start > 0 else -1.0
    high = factors.project(mark.end)
    if high < 0 or low > 1:
        return ()
    y = rows.middle(mark.row)
    left, right = (rows.left + share * rows.width for share in (max(low, 0.0), min(high, 1.0)))
    steps: list[PenStep] = [("M", (left, y)), ("H", (right,))]
    for x, goes_on, inwards in ((left, low < 0, 6), (right, high > 1, -6)):
        if goes_on:
            steps += [("M", (x + inwards, y - 4)), ("L", (x, y)), ("l", (inwards, 4))]
        else:
            steps += draw_down_by(x, y - 4, 8)
    return (LineStroke(f"whisker line {tone}", tuple(steps)),)


def draw_strips_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw one dot per value, hollow if it does not count, and a line at the mean of those that do."""
    rows = lay_out_rows(chart, top, 24, 24)
    values = make_axis(list_mark_numbers(marks)[0], chart.x_unit, wide=True)
    parts: list[Part] = []
    for row, mean in average_row_marks(marks).items():
        line = draw_down_by(rows.x(values, mean), rows.y(row) + 2, rows.pitch - 4)
        tip = f"{shorten_for_tooltip(chart.rows[row])}: mean {shorten_for_tooltip(_format_x_value(mean, chart))}"
        parts.append(LineStroke("base", line, tip))
    size = min(4.5, rows.pitch / 2.6)
    for mark in marks:
        role, note = "glyph", ""
        if not mark.value:
            role, note = "glyph hollow", ", left out"
        name = shorten_for_tooltip(chart.rows[mark.row]) + shorten_for_tooltip(_format_dot_number(mark))
        tip = f"{name}: {shorten_for_tooltip(_format_x_value(mark.place, chart))}{note}"
        x, y = rows.x(values, mark.place), rows.middle(mark.row)
        parts.append(SeriesGlyph(f"{role} {tones[mark.series]}", mark.series, x, y, size, tip))
    return frame_row_plot(chart, rows, values, parts)


def average_row_marks(marks: Sequence[Mark]) -> dict[int, Fraction]:
    """Average the values that count in each row that has any."""
    rows: dict[int, list[Fraction]] = {}
    for mark in marks:
        if mark.value and mark.start is not None:
            rows.setdefault(mark.row, []).append(mark.start)
    return {row: sum(values, Fraction(0)) / len(values) for row, values in rows.items()}


def draw_waterfall_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw bars that each start where the last one ended, with connecting lines and the change beside each."""
    rows = lay_out_rows(chart, top, 24, 96, names=330)
    ends = [end for mark in marks for end in mark.span if end]
    amounts = make_axis(ends, chart.x_unit, zero=True, wide=True)
    bars, words = [], []
    links: list[PenStep] = []
    for mark in marks:
        low, high = sorted(mark.span)
        x, end = (rows.left + max(amounts.project(place), 0.0) * rows.width for place in (low, high))
        y, value = rows.y(mark.row), shorten_for_tooltip(_format_bar_change(mark, chart))
        area = make_mark_box(x, y + rows.pitch * 0.14, end - x, rows.pitch * 0.72, 0)
        tip = f"{shorten_for_tooltip(chart.rows[mark.row])}: {value}"
        bars.append(WeightedBar(mark.size, tones[mark.series], area, tip))
        if rows.pitch >= _ROOMY:
            words.append(PlacedText(end + 6, y + rows.pitch / 2 + 4, value, "value", "start"))
        if mark.row + 1 < len(rows.names):
            link_x = rows.x(amounts, mark.span[1])
            links += draw_down_by(link_x, y + rows.pitch * 0.86, rows.pitch * 0.28)
    parts = merge_bars(bars)
    if links:
        parts.append(LineStroke("base", tuple(links)))
    return frame_row_plot(chart, rows, amounts, [*parts, *words])


KINDS = (
    ChartKindLayout(
        "intervals",
        ("row", "series", "start", "value", "end"),
        "Factors with their intervals, and a line at 1",
        draw_intervals_chart,
        "glyph",
        lambda mark: mark.value is not None and mark.value > 0,
    ),
    ChartKindLayout(
        "strips",
        ("row", "series", "start", "label", "value"),
        "Dots, one a value",
        draw_strips_chart,
        "glyph",
        has_mark_start,
    ),
    ChartKindLayout(
        "waterfall",
        ("row", "series", "start", "end"),
        "Bars that lead from one amount to another",
        draw_waterfall_chart,
        is_placed=lambda mark: mark.start is not None and mark.end is not None,
    ),
)


def _format_bar_change(mark: Mark, chart: Chart) -> str:
    """Format a change with its sign, or the amount if the bar starts at 0."""
    start, end = mark.span
    size = format_quantity(to_plain_number(mark.size), chart.x_unit)
    if not start:
        return format_quantity(to_plain_number(end), chart.x_unit)
    if start == end:
        return size
    return f"{MINUS if end < start else '+'}{size}"


def _format_dot_number(mark: Mark) -> str:
    """Format the number that names a dot, after its row."""
    return "" if mark.label is None else f" · {format_quantity(to_plain_number(mark.label), 'id')}"


def _format_x_value(value: Fraction, chart: Chart) -> str:
    """Format a value."""
    return format_quantity(to_plain_number(value), chart.x_unit, figures=4)
