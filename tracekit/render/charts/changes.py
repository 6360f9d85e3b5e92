"""Charts of a change: ratios with intervals, single values of runs, and a waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from operator import attrgetter

from tracekit.model.report import Chart
from tracekit.model.units import MINUS, show
from tracekit.render.charts.axis import axis
from tracekit.render.charts.frame import Bar, areas, axis_below, box
from tracekit.render.charts.log import LogAxis, log_axis
from tracekit.render.charts.marks import Kind, Mark, is_started, numbers, plain
from tracekit.render.charts.rows import AXIS, Rows, framed, row_names, rows_of
from tracekit.render.charts.shapes import (
    Area,
    Drawing,
    Glyph,
    Group,
    Part,
    Step,
    Stroke,
    Words,
    down,
    downwards,
)
from tracekit.render.charts.text import short

_ROOMY = 14
_BESIDE = 170
_EXACT_FLOAT = 2**53


def intervals(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> Drawing:
    """Draw one point per ratio on a whisker for its interval, with an arrow if the interval exceeds the plot."""
    rows = rows_of(chart, top, 24, _BESIDE)
    factors = log_axis(marks, chart.within)
    parts = row_names(chart, rows)
    if chart.within > 0:
        parts.append(_band(chart, rows, factors))
    parts += axis_below(factors.linear(), rows.left, rows.width, rows.top, rows.bottom)
    parts.append(Stroke("base", down(_x(rows, factors, Fraction(1)), rows.top, rows.bottom)))
    for mark in marks:
        assert mark.value is not None
        x, y = _x(rows, factors, mark.value), rows.middle(mark.row)
        tone, words = tones[mark.series], factor_words(mark)
        tip = f"{short(chart.rows[mark.row])}: {short(words)}, {short(chart.series[mark.series])}"
        glyph = Glyph(f"glyph {tone}", mark.series, x, y, min(5.0, rows.pitch / 2.6))
        parts.append(Group(tip, (*_whisker(mark, factors, rows, tone), glyph)))
        if rows.pitch >= _ROOMY:
            parts.append(Words(rows.left + rows.width + 10, y + 4, short(words), "value", "start"))
    return Drawing(tuple(parts), rows.bottom + AXIS)


def _x(rows: Rows, factors: LogAxis, value: Fraction) -> float:
    """Get the horizontal position of a factor."""
    return rows.left + factors.at(value) * rows.width


def _band(chart: Chart, rows: Rows, factors: LogAxis) -> Area:
    """Draw the band of factors too close to 1 to matter."""
    share = 1 + Fraction(chart.within)
    low, high = _x(rows, factors, 1 / share), _x(rows, factors, share)
    area = box(low, rows.top, high - low, rows.bottom - rows.top, 0)
    return Area("within", (area,), f"within {short(show(chart.within, 'ratio'))} of 1")


def factor_words(mark: Mark) -> str:
    """Format a factor with its interval as `1.62× [1.43, 1.83]`."""
    assert mark.value is not None
    middle = _factor(mark.value)
    if mark.start is None or mark.end is None:
        return f"{middle}, no interval"
    low, high = (_factor(end).removesuffix("×") for end in mark.span)
    return f"{middle} [{low}, {high}]"


def _factor(value: Fraction) -> str:
    """Format a factor with its decimals, even if it is whole."""
    number = plain(value)
    return show(float(number) if abs(number) < _EXACT_FLOAT else number, "factor")


def _whisker(mark: Mark, factors: LogAxis, rows: Rows, tone: str) -> tuple[Stroke, ...]:
    """Draw an interval as a line with caps, or with arrows if it exceeds the plot; empty if it is outside."""
    if mark.start is None or mark.end is None or mark.end <= 0 or mark.start > mark.end:
        return ()
    low = factors.at(mark.start) if mark.start > 0 else -1.0
    high = factors.at(mark.end)
    if high < 0 or low > 1:
        return ()
    y = rows.middle(mark.row)
    left, right = (rows.left + share * rows.width for share in (max(low, 0.0), min(high, 1.0)))
    steps: list[Step] = [("M", (left, y)), ("H", (right,))]
    for x, goes_on, inwards in ((left, low < 0, 6), (right, high > 1, -6)):
        if goes_on:
            steps += [("M", (x + inwards, y - 4)), ("L", (x, y)), ("l", (inwards, 4))]
        else:
            steps += downwards(x, y - 4, 8)
    return (Stroke(f"whisker line {tone}", tuple(steps)),)


def strips(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> Drawing:
    """Draw one dot per value, hollow if it does not count, and a line at the mean of those that do."""
    rows = rows_of(chart, top, 24, 24)
    values = axis(numbers(marks)[0], chart.x_unit, wide=True)
    parts: list[Part] = []
    for row, mean in means(marks).items():
        line = downwards(rows.x(values, mean), rows.y(row) + 2, rows.pitch - 4)
        tip = f"{short(chart.rows[row])}: mean {short(_value(mean, chart))}"
        parts.append(Stroke("base", line, tip))
    size = min(4.5, rows.pitch / 2.6)
    for mark in marks:
        role, note = "glyph", ""
        if not mark.value:
            role, note = "glyph hollow", ", does not count"
        name = short(chart.rows[mark.row]) + short(_number(mark))
        tip = f"{name}: {short(_value(mark.place, chart))}{note}"
        x, y = rows.x(values, mark.place), rows.middle(mark.row)
        parts.append(Glyph(f"{role} {tones[mark.series]}", mark.series, x, y, size, tip))
    return framed(chart, rows, values, parts)


def means(marks: Sequence[Mark]) -> dict[int, Fraction]:
    """Average the values that count in each row that has any."""
    rows: dict[int, list[Fraction]] = {}
    for mark in marks:
        if mark.value and mark.start is not None:
            rows.setdefault(mark.row, []).append(mark.start)
    return {row: sum(values, Fraction(0)) / len(values) for row, values in rows.items()}


def waterfall(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> Drawing:
    """Draw bars that each start where the last one ended, with connecting lines and the change beside each."""
    rows = rows_of(chart, top, 24, 96, names=330)
    ends = filter(None, chain.from_iterable(map(attrgetter("span"), marks)))
    amounts = axis(ends, chart.x_unit, zero=True, wide=True)
    bars, words = [], []
    links: list[Step] = []
    for mark in marks:
        low, high = sorted(mark.span)
        x, end = (rows.left + max(amounts.at(place), 0.0) * rows.width for place in (low, high))
        y, value = rows.y(mark.row), short(_change(mark, chart))
        area = box(x, y + rows.pitch * 0.14, end - x, rows.pitch * 0.72, 0)
        tip = f"{short(chart.rows[mark.row])}: {value}"
        bars.append(Bar(mark.size, tones[mark.series], area, tip))
        if rows.pitch >= _ROOMY:
            words.append(Words(end + 6, y + rows.pitch / 2 + 4, value, "value", "start"))
        if mark.row + 1 < len(rows.names):
            link_x = rows.x(amounts, mark.span[1])
            links += downwards(link_x, y + rows.pitch * 0.86, rows.pitch * 0.28)
    parts = areas(bars)
    if links:
        parts.append(Stroke("base", tuple(links)))
    return framed(chart, rows, amounts, [*parts, *words])


KINDS = (
    Kind(
        "intervals",
        ("row", "series", "start", "value", "end"),
        "Factors with their intervals, and a line at 1",
        intervals,
        "glyph",
        lambda mark: mark.value is not None and mark.value > 0,
    ),
    Kind(
        "strips",
        ("row", "series", "start", "label", "value"),
        "Dots, one a value",
        strips,
        "glyph",
        is_started,
    ),
    Kind(
        "waterfall",
        ("row", "series", "start", "end"),
        "Bars that lead from one amount to another",
        waterfall,
        is_placed=lambda mark: mark.start is not None and mark.end is not None,
    ),
)


def _change(mark: Mark, chart: Chart) -> str:
    """Format a change with its sign, or the amount if the bar starts at 0."""
    start, end = mark.span
    size = show(plain(mark.size), chart.x_unit)
    if not start:
        return show(plain(end), chart.x_unit)
    if start == end:
        return size
    return f"{MINUS if end < start else '+'}{size}"


def _number(mark: Mark) -> str:
    """Format the number that names a dot, after its row."""
    return "" if mark.label is None else f" · {show(plain(mark.label), 'id')}"


def _value(value: Fraction, chart: Chart) -> str:
    """Format a value."""
    return show(plain(value), chart.x_unit, figures=4)
