"""Linear axis: the position of numbers, and round tick labels."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

from tracekit.model.records import dataclass
from tracekit.model.report import Unit
from tracekit.model.units import Scale, append_unit_label, choose_scale, format_cell
from tracekit.render.charts.marks import to_plain_number
from tracekit.render.escape import shorten_middle

_LABEL = 18
_WHOLE = ("id", "count", "text")


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
