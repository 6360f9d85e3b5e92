"""Marks of a chart by name, with exact numbers, and the definition of a chart kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain
from math import isfinite
from typing import Literal

from tracekit.model.records import dataclass
from tracekit.model.report import Chart, ChartKind
from tracekit.render.charts.shapes import PlotDrawing

Number = int | float | None

_MOST_BITS = 4_096
"""Largest integer in bits; larger ones are not measurements, and Python refuses to print them."""

_EXACT_FLOAT = 2**53


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark with exact numbers; None if its kind lacks the number, or it is unknown."""

    row: int
    series: int
    start: Fraction | None
    end: Fraction | None
    value: Fraction | None
    label: Fraction | None = None

    @property
    def size(self) -> Fraction:
        """Weight of the mark: its length, else its amount; 0 if unknown."""
        if self.start is not None and self.end is not None:
            return abs(self.end - self.start)
        return abs(self.value or Fraction(0))

    @property
    def span(self) -> tuple[Fraction, Fraction]:
        """Start and end; only for marks placed by both."""
        assert self.start is not None
        assert self.end is not None
        return self.start, self.end

    @property
    def place(self) -> Fraction:
        """Start; only for marks placed by it."""
        assert self.start is not None
        return self.start


def has_mark_start(mark: Mark) -> bool:
    """Check whether the start of the mark is known."""
    return mark.start is not None


def is_mark_interval(mark: Mark) -> bool:
    """Check whether both ends are known, and the end is not before the start."""
    return mark.start is not None and mark.end is not None and mark.start <= mark.end


@dataclass(frozen=True, slots=True)
class ChartKindLayout:
    """One kind of chart: the meaning of its marks' numbers in order, and its layout.

    `start` is also the x of a point. `sentence` describes the chart, `sample` is its legend sample (no legend
    if empty), and `is_placed` selects the marks that can be drawn.
    """

    name: ChartKind
    fields: tuple[str, ...]
    sentence: str
    draw: Callable[[Chart, Sequence[Mark], Sequence[str], float], PlotDrawing]
    sample: Literal["", "area", "line", "glyph"] = "area"
    is_placed: Callable[[Mark], bool] = is_mark_interval


def list_chart_marks(chart: Chart, kind: ChartKindLayout) -> list[Mark]:
    """List all marks of the chart, in its order."""
    return [_make_mark(raw, kind.fields) for raw in chart.marks]


def list_mark_numbers(marks: Sequence[Mark]) -> tuple[list[Fraction], list[Fraction]]:
    """List all positions and all known values of the marks."""
    ends = chain.from_iterable((mark.start, mark.end) for mark in marks)
    places = [place for place in ends if place is not None]
    return places, [mark.value for mark in marks if mark.value is not None]


def to_exact_fraction(value: Number) -> Fraction | None:
    """Convert a number exactly; None if it is unknown or not finite."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Fraction(value) if value.bit_length() <= _MOST_BITS else None
    return Fraction(value) if isinstance(value, float) and isfinite(value) else None


def to_plain_number(value: Fraction) -> int | float:
    """Convert a fraction for `units`: integers stay exact, and large numbers become integers."""
    is_integer = value.denominator == 1 or abs(value) >= _EXACT_FLOAT
    return round(value) if is_integer else float(value)


def _make_mark(raw: Sequence[Number], fields: Sequence[str]) -> Mark:
    """Make a mark from its numbers."""
    named = dict(zip(fields, raw, strict=True))
    start, end, value, label = (to_exact_fraction(named.get(name)) for name in ("start", "end", "value", "label"))
    row, series = (int(named.get(name) or 0) for name in ("row", "series"))
    return Mark(row, series, start, end, value, label)
