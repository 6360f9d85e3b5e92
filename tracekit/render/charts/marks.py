"""The marks of a chart by name: what they refer to, how many are drawn, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite

from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart, ChartKind

FIELDS: dict[ChartKind, tuple[str, ...]] = {
    "gantt": ("row", "series", "start", "end"),
    "bars": ("row", "series", "value"),
    "heatmap": ("row", "start", "end", "value"),
    "lines": ("series", "start", "value"),
    "histogram": ("series", "start", "end", "value"),
    "intervals": ("row", "series", "start", "value", "end"),
    "strips": ("row", "series", "start", "label", "value"),
    "waterfall": ("row", "series", "start", "end"),
    "extents": ("row", "series", "start", "end"),
    "icicle": ("row", "series", "start", "end"),
}
"""What the numbers of a mark are, in their order; `start` is also the x of a point."""

MOST_MARKS, MOST_ROWS = 2_000, 300
"""How many a picture holds: more would be neither seen nor drawn in time."""

Number = int | float | None

_MOST_BITS = 4_096
"""Beyond this a whole number is no measurement, and Python will not write it out."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark with exact numbers: None where its kind has no such number, or it is unknown."""

    row: int
    series: int
    start: Fraction | None
    end: Fraction | None
    value: Fraction | None
    label: Fraction | None = None

    @property
    def size(self) -> Fraction:
        """What the mark weighs against others: its length, else its amount; unknown weighs nothing."""
        if self.start is not None and self.end is not None:
            return abs(self.end - self.start)
        return abs(self.value) if self.value is not None else Fraction(0)


def marks(chart: Chart) -> list[Mark]:
    """The marks that can be placed, in the chart's order; TracekitError where one refers to nothing."""
    wrong = problem(chart)
    if wrong:
        raise TracekitError(f"chart {chart.id!r}: {wrong}")
    return [
        mark
        for mark in (_mark(raw, chart.kind) for raw in chart.marks)
        if _placed(mark, chart.kind)
    ]


def problem(chart: Chart) -> str:
    """What is wrong with the chart's marks as `marks[3] is of row 9 of 8`, or nothing."""
    names = FIELDS[chart.kind]
    sizes = {"row": len(chart.rows), "series": len(chart.series)}
    references = [(at, name) for at, name in enumerate(names) if name in sizes]
    for number, mark in enumerate(chart.marks):
        if len(mark) != len(names):
            return f"marks[{number}] has {len(mark)} numbers, not {len(names)}"
        for at, name in references:
            to = mark[at]
            if type(to) is not int or not 0 <= to < sizes[name]:
                return f"marks[{number}] is of no {name} there is ({sizes[name]} are named)"
    return ""


def bounded(chart: Chart) -> Chart:
    """The chart with at most 300 rows and 2,000 marks, the largest; `omitted` counts what went."""
    if len(chart.rows) <= MOST_ROWS and len(chart.marks) <= MOST_MARKS:
        return chart
    kept = list(chart.marks)
    if "row" in FIELDS[chart.kind]:
        kept = [mark for mark in kept if not (type(mark[0]) is int and mark[0] >= MOST_ROWS)]
    if len(kept) > MOST_MARKS and not problem(chart):
        sizes = [_mark(mark, chart.kind).size for mark in kept]
        largest = sorted(range(len(kept)), key=lambda at: (-sizes[at], at))[:MOST_MARKS]
        kept = [kept[at] for at in sorted(largest)]
    gone = len(chart.marks) - len(kept)
    return replace(
        chart, rows=chart.rows[:MOST_ROWS], marks=tuple(kept), omitted=chart.omitted + gone
    )


def numbers(found: Sequence[Mark]) -> tuple[list[Fraction], list[Fraction]]:
    """All positions and all known values of the marks."""
    places = [at for mark in found for at in (mark.start, mark.end) if at is not None]
    return places, [mark.value for mark in found if mark.value is not None]


def exact(value: Number) -> Fraction | None:
    """The number as it is; None for what is unknown or not finite."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return Fraction(value) if value.bit_length() <= _MOST_BITS else None
    return Fraction(value) if isfinite(value) else None


def plain(value: Fraction) -> int | float:
    """The number as `units` shows it: whole ones stay exact, and large ones have no fraction as floats."""
    return round(value) if value.denominator == 1 or abs(value) >= 2**53 else float(value)


def _mark(raw: Sequence[Number], kind: ChartKind) -> Mark:
    """The numbers of one mark by name."""
    found = dict(zip(FIELDS[kind], raw, strict=True))
    start, end, value, label = (
        exact(found.get(name)) for name in ("start", "end", "value", "label")
    )
    row, series = (int(found.get(name) or 0) for name in ("row", "series"))
    return Mark(row, series, start, end, value, label)


def _placed(mark: Mark, kind: ChartKind) -> bool:
    """Whether its place is known; an interval that ends before it starts has none."""
    names = FIELDS[kind]
    if kind == "intervals":
        return mark.value is not None and mark.value > 0
    if "start" in names and mark.start is None:
        return False
    if kind == "waterfall":
        return mark.end is not None
    if "end" in names:
        return mark.start is not None and mark.end is not None and mark.start <= mark.end
    return True
