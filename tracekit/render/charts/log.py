"""Log axis of factors: twice and half as much are equally far from 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import log
from operator import attrgetter

from tracekit.model.records import dataclass
from tracekit.model.units import Scale, cell, show
from tracekit.render.charts.axis import Axis, axis
from tracekit.render.charts.marks import Mark, plain

_ROOM = Fraction(2)
_MOST_TICKS = 9
_NARROW = 3


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A range of factors that contains 1, with its ticks: (position from 0 to 1, text)."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: Fraction) -> float:
        """Compute the position of a factor, 0 at the low end and 1 at the high end; outside beyond them."""
        return (_log(value) - self.low) / (self.high - self.low)

    def linear(self) -> Axis:
        """Convert to a linear axis for `axis_below`, which only uses its ticks."""
        return Axis(Fraction(0), Fraction(1), self.ticks)


def log_axis(marks: Sequence[Mark], within: float = 0.0) -> LogAxis:
    """Make the axis of all factors and intervals; intervals are cut at twice the range of the factors.

    One very wide interval would make all others too short to see.
    """
    band = 1 + Fraction(within) * 2
    factors, lows, highs = (_positive(marks, name) for name in ("value", "start", "end"))
    smallest, largest = min([*factors, 1 / band]), max([*factors, band])
    low = min(smallest, max(min([*lows, smallest]), smallest / _ROOM))
    high = max(largest, min(max([*highs, largest]), largest * _ROOM))
    if low == high:
        low, high = low / _ROOM, high * _ROOM
    ends = (_log(low), _log(high))
    pad = (ends[1] - ends[0]) * 0.03
    bare = LogAxis(ends[0] - pad, ends[1] + pad, ())
    ticks = _near(bare, low, high) if high < low * _NARROW else _far(bare, low, high)
    return replace(bare, ticks=ticks)


def _positive(marks: Iterable[Mark], name: str) -> list[Fraction]:
    """Select the numbers of this name that a log axis can show."""
    numbers = map(attrgetter(name), marks)
    return [number for number in numbers if number is not None and number > 0]


def _near(bare: LogAxis, low: Fraction, high: Fraction) -> tuple[tuple[float, str], ...]:
    """Make ticks at equal steps, for a range narrow enough that they do not crowd at one end."""
    flat = axis([low, high], "factor", about=7)
    size = flat.high - flat.low
    ticks = []
    for share, text in flat.ticks:
        place = bare.at(flat.low + Fraction(share) * size)
        if place <= 1:
            ticks.append((place, text))
    return tuple(ticks)


def _far(bare: LogAxis, low: Fraction, high: Fraction) -> tuple[tuple[float, str], ...]:
    """Make ticks at 1, 2 and 5 times powers of ten, or at every n-th power."""
    first, last = _power(low), _power(high) + 1
    powers, multiples = range(first, last + 1), [1, 2, 5]
    if len(powers) > _MOST_TICKS:
        step = -(-(last - first) // _MOST_TICKS)
        powers, multiples = range(-(-first // step) * step, last + 1, step), [1]
    inside = []
    for power, times in product(powers, multiples):
        value = times * Fraction(10) ** power
        if low <= value <= high:
            inside.append((value, power))
    if len(inside) > _MOST_TICKS:
        tens = [(value, power) for value, power in inside if value == Fraction(10) ** power]
        inside = tens or inside
    return tuple((bare.at(value), _words(value, power)) for value, power in inside)


def _power(value: Fraction) -> int:
    """Get the power of ten at or just below a value."""
    return len(str(value.numerator)) - len(str(value.denominator)) - 1


def _words(value: Fraction, power: int) -> str:
    """Format a factor with its decimals."""
    if not -6 < power < 12:
        return show(plain(value), "factor")
    return cell(plain(value), Scale("×", Decimal(1), max(-power, 0), "factor"))


def _log(value: Fraction) -> float:
    """Compute the natural logarithm, even of values beyond the range of floats."""
    return log(value.numerator) - log(value.denominator)
