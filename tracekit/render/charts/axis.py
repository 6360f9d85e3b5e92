"""Axes: the position of numbers and round tick labels, linear or for factors, with twice and half as far from 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import log

from tracekit.model.records import dataclass
from tracekit.model.report import Unit
from tracekit.model.text.wrapping import shorten_middle
from tracekit.model.units import Scale, append_unit_label, choose_scale, format_cell, format_quantity
from tracekit.render.charts.marks import Mark, to_plain_number

_LABEL = 18
_WHOLE = ("id", "count", "text")

_ROOM = Fraction(2)
_MOST_TICKS = 9
_NARROW = 3


@dataclass(frozen=True, slots=True)
class LinearAxis:
    """A non-empty range of numbers with its ticks: (position from 0 to 1, text)."""

    low: Fraction
    high: Fraction
    ticks: tuple[tuple[float, str], ...]

    def project(self, value: Fraction) -> float:
        """Compute the position of a value, 0 at the low end and 1 at the high end."""
        return float((value - self.low) / (self.high - self.low))


def make_axis(
    values: Iterable[Fraction], unit: Unit, *, about: int = 6, zero: bool = False, wide: bool = False
) -> LinearAxis:
    """Make the axis that contains all values, with about `about` ticks.

    `zero` starts it at 0 unless that would hide differences: if the smallest value exceeds two thirds of the
    largest. `wide` rounds its ends to ticks.
    """
    numbers = list(values) or [Fraction(0)]
    low, high = _choose_axis_ends(min(numbers), max(numbers), zero=zero)
    scale = choose_scale([to_plain_number(low), to_plain_number(high)], unit)
    factor = Fraction(scale.factor)
    step = _round_up_tick_step((high - low) / factor / about)
    if unit in _WHOLE and all(number.denominator == 1 for number in numbers):
        step = max(step, Fraction(1))
    digits = _count_tick_decimals(step)
    step *= factor
    first, last = -(-low // step), high // step
    if wide:
        first, last = low // step, -(-high // step)
        low, high = first * step, last * step
    ends = LinearAxis(low, high, ())
    ticks = []
    for index in range(first, last + 1):
        value = index * step
        ticks.append((ends.project(value), _format_tick(value, scale, digits)))
    return LinearAxis(low, high, tuple(ticks))


def _choose_axis_ends(low: Fraction, high: Fraction, *, zero: bool) -> tuple[Fraction, Fraction]:
    """Choose the ends of an axis that contains both numbers, and 0 if `zero` is set; they are never equal."""
    if zero and (low * 3 <= high * 2 or low == high):
        low = min(low, Fraction(0))
    if zero and high < 0:
        high = Fraction(0)
    return low, high + (low == high)


def _round_up_tick_step(rough: Fraction) -> Fraction:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = Fraction(10) ** (len(str(int(rough))) - 1)
    while power > rough:
        power /= 10
    return next(power * times for times in (1, 2, 5, 10) if power * times >= rough)


def _count_tick_decimals(step: Fraction) -> int:
    """Count the decimals that separate two ticks; a step is 1, 2 or 5 times a power of ten."""
    digits = 0
    while step.denominator != 1 and digits < 12:
        step, digits = step * 10, digits + 1
    return digits


def _format_tick(value: Fraction, scale: Scale, digits: int) -> str:
    """Format a tick with its unit."""
    exactly = Scale(scale.label, Decimal(scale.factor), digits, scale.unit)
    return shorten_middle(append_unit_label(format_cell(to_plain_number(value), exactly), exactly), _LABEL)


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A range of factors that contains 1, with its ticks: (position from 0 to 1, text)."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def project(self, value: Fraction) -> float:
        """Compute the position of a factor, 0 at the low end and 1 at the high end; outside beyond them."""
        return (_log_of_fraction(value) - self.low) / (self.high - self.low)

    def linear(self) -> LinearAxis:
        """Convert to a linear axis for `draw_axis_below`, which only uses its ticks."""
        return LinearAxis(Fraction(0), Fraction(1), self.ticks)


def make_log_axis(marks: Sequence[Mark], within: float = 0.0) -> LogAxis:
    """Make the axis of all factors and intervals; intervals are cut at twice the range of the factors.

    One very wide interval would make all others too short to see.
    """
    band = 1 + Fraction(within) * 2
    factors, lows, highs = (_select_positive_numbers(marks, name) for name in ("value", "start", "end"))
    smallest, largest = min([*factors, 1 / band]), max([*factors, band])
    low = min(smallest, max(min([*lows, smallest]), smallest / _ROOM))
    high = max(largest, min(max([*highs, largest]), largest * _ROOM))
    if low == high:
        low, high = low / _ROOM, high * _ROOM
    ends = (_log_of_fraction(low), _log_of_fraction(high))
    pad = (ends[1] - ends[0]) * 0.03
    bare = LogAxis(ends[0] - pad, ends[1] + pad, ())
    ticks = _make_even_ticks(bare, low, high) if high < low * _NARROW else _make_decade_ticks(bare, low, high)
    return replace(bare, ticks=ticks)


def _select_positive_numbers(marks: Iterable[Mark], name: str) -> list[Fraction]:
    """Select the numbers of this name that a log axis can show."""
    numbers = [getattr(mark, name) for mark in marks]
    return [number for number in numbers if number is not None and number > 0]


def _make_even_ticks(bare: LogAxis, low: Fraction, high: Fraction) -> tuple[tuple[float, str], ...]:
    """Make ticks at equal steps, for a range narrow enough that they do not crowd at one end."""
    flat = make_axis([low, high], "factor", about=7)
    size = flat.high - flat.low
    ticks = []
    for share, text in flat.ticks:
        place = bare.project(flat.low + Fraction(share) * size)
        if place <= 1:
            ticks.append((place, text))
    return tuple(ticks)


def _make_decade_ticks(bare: LogAxis, low: Fraction, high: Fraction) -> tuple[tuple[float, str], ...]:
    """Make ticks at 1, 2 and 5 times powers of ten, or at every n-th power."""
    first, last = _get_power_of_ten(low), _get_power_of_ten(high) + 1
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
    return tuple((bare.project(value), _format_factor_tick(value, power)) for value, power in inside)


def _get_power_of_ten(value: Fraction) -> int:
    """Get the power of ten at or just below a value."""
    return len(str(value.numerator)) - len(str(value.denominator)) - 1


def _format_factor_tick(value: Fraction, power: int) -> str:
    """Format a factor with its decimals."""
    if not -6 < power < 12:
        return format_quantity(to_plain_number(value), "factor")
    return format_cell(to_plain_number(value), Scale("×", Decimal(1), max(-power, 0), "factor"))


def _log_of_fraction(value: Fraction) -> float:
    """Compute the natural logarithm, even of values beyond the range of floats."""
    return log(value.numerator) - log(value.denominator)
