"""Formatting and parsing of quantities. All rounding happens here, so every output agrees.

Times are shown in ns, µs, ms or s (s from 10 s on, so a step of 1,842 ms keeps its digits), sizes in binary units
(B, KiB … TiB, as allocators report them), ratios as percentages, factors as 1.12×, rates in 1e9 bytes per second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from itertools import groupby
from math import isfinite
from typing import TypeGuard

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass

UNKNOWN = "—"
MINUS = "\N{MINUS SIGN}"

Value = int | float | str | bool | None

# Our own context: the process-wide one may round differently, and output must not depend on it.
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
_FOUR = Context(prec=4, rounding=ROUND_HALF_EVEN)
_TOO_LONG = Decimal(10) ** 15
_ONE = Decimal(1)
_RATIO_DECIMALS = 2
_MOST_REFINED = 2
"""Most decimals that a small value has beyond its column."""

# (lower limit, factor, label), largest first; a column takes the first one that its largest value reaches.
_LADDERS: dict[str, tuple[tuple[int, int, str], ...]] = {
    "ns": ((10_000_000_000, 1_000_000_000, "s"), (1_000_000, 1_000_000, "ms"), (1_000, 1_000, "µs"), (0, 1, "ns")),
    "bytes": (
        (1 << 40, 1 << 40, "TiB"),
        (1 << 30, 1 << 30, "GiB"),
        (1 << 20, 1 << 20, "MiB"),
        (1 << 10, 1 << 10, "KiB"),
        (0, 1, "B"),
    ),
}
_LABELS = {"ratio": "%", "factor": "×", "gb_per_s": "GB/s", "count": "", "": "", "id": "", "text": ""}

_TIME_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # the micro sign
    "μs": 1_000,  # the Greek letter
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_SIZE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_QUANTITY = re.compile(
    r"([-+\u2212]?)([0-9]{1,40}(?:,[0-9]{3}){0,12})(\.[0-9]{1,40})?(e[-+]?[0-9]{1,3})?\s?(\w*)",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Scale:
    """The display scale of a column: label, value of one unit, and number of decimals."""

    label: str
    factor: Decimal
    digits: int
    unit: str = ""


def choose_scale(values: Iterable[Value], unit: str, figures: int = 4) -> Scale:
    """Choose one scale for these values by the largest, which gets about `figures` significant figures.

    >>> choose_scale([1_021_400_000, 96_300_000, None], "ns")
    Scale(label='ms', factor=Decimal('1000000'), digits=1, unit='ns')
    """
    if unit not in _LADDERS and unit not in _LABELS:
        raise TracekitError(f"unknown unit {unit!r}", f"known: {', '.join([*_LADDERS, *_LABELS])}")
    numbers = [value for value in values if _is_finite_number(value)]
    largest = Decimal(max((abs(number) for number in numbers), default=0))
    factor, label = _ONE, _LABELS.get(unit, "")
    if unit == "ratio":
        factor = Decimal("0.01")
    for start, size, name in _LADDERS.get(unit, ()):
        if largest >= start:
            factor, label = Decimal(size), name
            break
    if unit == "id" or not largest:
        return Scale(label, factor, 0, unit)
    if factor == 1 and all(isinstance(value, int) for value in numbers):
        return Scale(label, factor, 0, unit)
    return Scale(label, factor, _count_decimals(_EXACT.divide(largest, factor), unit, figures), unit)


def refine_scale(value: Value, scale: Scale, figures: int = 2) -> Scale:
    """Refine the scale of a column for one small value, which keeps at least `figures` significant figures.

    A value that needs many more decimals keeps the scale, and is shown as `<0.1`. Percentages have at most the
    decimals that they have in a sentence: `<0.01 %`.

    >>> format_cell(4_400_000, refine_scale(4_400_000, choose_scale([161_000_000], "ns", 3)))
    '4.4'
    """
    if not _is_finite_number(value) or not value or scale.unit == "id" or scale.factor == 1:
        return scale
    scaled = _EXACT.divide(Decimal(value), scale.factor)
    digits = figures - 1 - scaled.adjusted()
    if scale.unit == "ratio":
        digits = min(digits, _RATIO_DECIMALS)
    is_small = scale.digits < digits <= scale.digits + _MOST_REFINED
    return Scale(scale.label, scale.factor, digits, scale.unit) if is_small else scale


def format_cell(value: Value, scale: Scale) -> str:
    """Format a value for a column of this scale; the heading carries the label, except for % and ×.

    >>> format_cell(498_700_000, choose_scale([1_021_400_000], "ns"))
    '498.7'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not _is_finite_number(value):
        return UNKNOWN
    if scale.unit == "id":
        name = f"{Decimal(value):f}" if isinstance(value, int) else repr(value + 0.0)
        return name.replace("-", MINUS)
    return _round_in_scale(Decimal(value), scale) + {"%": " %", "×": "×"}.get(scale.label, "")


def format_ranges(values: Iterable[int], limit: int = 6) -> str:
    """Format integers as a list of ranges with at most `limit` pieces: `0, 2–5`.

    >>> format_ranges([0, 2, 3, 4, 9, 10])
    '0, 2–4, 9, 10'
    >>> format_ranges([1, 3, 5], limit=2)
    '1, 3 …'
    """
    pieces: list[str] = []
    for _, run in groupby(enumerate(sorted(values)), lambda pair: pair[1] - pair[0]):
        block = [value for _, value in run]
        pieces += [f"{block[0]}–{block[-1]}"] if len(block) > 2 else [str(value) for value in block]
        if len(pieces) > limit:
            return ", ".join(pieces[:limit]) + " …"
    return ", ".join(pieces)


def format_quantity(value: Value, unit: str, figures: int = 3) -> str:
    """Format a value with its unit for a sentence; an unknown value is a dash, never 0.

    >>> format_quantity(1_842_000_000, "ns"), format_quantity(0.0334, "ratio"), format_quantity(None, "ns"), format_quantity(1e-9, "ratio")
    ('1,842 ms', '3.3 %', '—', '<0.01 %')
    >>> format_quantity(0.9963, "ratio"), format_quantity(0.99999, "ratio"), format_quantity(1.0, "ratio")
    ('99.6 %', '>99.9 %', '100 %')
    """
    scale = choose_scale([value], unit, figures)
    text = format_cell(value, scale)
    if unit == "ratio" and text == "100 %" and _is_finite_number(value) and value < 1:
        return f"{value:.1%}".replace("%", " %").replace("100.0 %", ">99.9 %")
    return append_unit_label(text, scale)


def format_signed(value: float, unit: str, figures: int = 3) -> str:
    """Format a change with its unit and sign; 0 has no sign.

    >>> format_signed(-2_000_000, "ns"), format_signed(1024, "bytes"), format_signed(0, "count")
    ('−2.00 ms', '+1.00 KiB', '0')
    """
    size = format_quantity(abs(value), unit, figures)
    if value < 0:
        return f"{MINUS}{size}"
    return f"+{size}" if value > 0 else size


def append_unit_label(text: str, scale: Scale) -> str:
    """Append the scale's label to a formatted number, unless the cell has it or the value is unknown."""
    if scale.label in ("", "%", "×") or not any(character.isdigit() for character in text):
        return text
    return f"{text} {scale.label}"


def format_speedup(ratio: float) -> str:
    """Format a before/after ratio as faster or slower; below 1 it is inverted: 1.10× slower, never 0.91× faster.

    >>> format_speedup(0.5), format_speedup(1.25), format_speedup(1.0)
    ('2.00× slower', '1.25× faster', '1.00× faster')
    """
    return (
        f"{format_quantity(1 / ratio, 'factor')} slower" if ratio < 1 else f"{format_quantity(ratio, 'factor')} faster"
    )


def format_moment(ns: int) -> str:
    """Format a timestamp in seconds with microseconds, which coarser rounding would lose.

    >>> format_moment(12_345_678_901)
    '12.345679 s'
    """
    return _round_in_scale(Decimal(ns), Scale("s", Decimal(10**9), 6, "ns")) + " s"


def parse_time(text: str) -> int:
    """Parse a time such as `3.5ms`, `1,842 ms`, `2 s` or `5min` to nanoseconds.

    >>> parse_time("3.5ms")
    3500000
    """
    return _parse_quantity(text, _TIME_UNITS, "time", "3.5ms, 250us or 2s")


def parse_size(text: str) -> int:
    """Parse a size such as `512MiB`, `1.5 GB` or `4096` (bytes) to bytes.

    >>> parse_size("1.5 GB")
    1500000000
    """
    return _parse_quantity(text, {**_SIZE_UNITS, "": 1}, "size", "512MiB, 1.5GB or 4096 (bytes)")


def _is_finite_number(value: Value) -> TypeGuard[int | float]:
    """Whether the value is a number that can be shown: not missing, boolean or infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or isfinite(value)


def _count_decimals(largest: Decimal, unit: str, figures: int) -> int:
    """Compute the decimals with which a column keeps `figures` figures, given its largest scaled value."""
    integer_digits = largest.adjusted() + 1
    if unit == "ratio":
        return min(max(figures - 1 - integer_digits, figures - 3, 0), figures - 1)
    # Without a smaller unit, small numbers need more decimals.
    decimals = figures + 8 if unit in ("", "gb_per_s") else figures - 1
    return min(max(figures - integer_digits, figures - 3, 0), decimals)


def _round_in_scale(exact: Decimal, scale: Scale) -> str:
    """Format a number in its scale: thousands separators, a true minus sign, and never 0 for a nonzero value."""
    scaled = _EXACT.divide(exact, scale.factor)
    sign = MINUS * (scaled < 0)
    if scaled.copy_abs() >= _TOO_LONG:
        return f"{sign}{_FOUR.create_decimal(scaled).copy_abs():.3e}".replace("e+", "e")
    step = _ONE.scaleb(-scale.digits, context=_EXACT)
    rounded = scaled.quantize(step, context=_EXACT)
    if rounded == 0:
        if exact == 0:
            return f"{rounded.copy_abs():f}"
        return f"{'>' if sign else '<'}{sign}{step:f}"
    return f"{sign}{rounded.copy_abs():,f}"


def _parse_quantity(text: str, units: dict[str, int], what: str, examples: str) -> int:
    """Parse a quantity to whole base units in exact decimal arithmetic."""
    match = _QUANTITY.fullmatch(text.strip().replace("µ", "u").replace("μ", "u"))
    if match is None or match[5] not in units:
        clipped = text[:40] + "…" * (len(text) > 40)
        raise TracekitError(f"not a {what}: {clipped!r}", f"write it like {examples}")
    number = Decimal(match[2].replace(",", "") + (match[3] or "") + (match[4] or ""))
    total = Context(prec=400).multiply(number, Decimal(units[match[5]]))
    quantity = int(total.to_integral_value(context=_EXACT))
    return -quantity if match[1] in ("-", MINUS) else quantity
