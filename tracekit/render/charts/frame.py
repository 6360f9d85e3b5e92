"""Frame of a chart: legend, axes, tones of series, and the marks that have tooltips."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tracekit.model.records import dataclass
from tracekit.render.charts.axis import Axis
from tracekit.render.charts.shapes import (
    WIDTH,
    Anchor,
    Area,
    Box,
    Glyph,
    Key,
    Part,
    Step,
    Stroke,
    Swatch,
    Words,
    across,
    down,
)
from tracekit.render.charts.text import FONT, breadth, fitted, short

TONES = 8
"""Number of series tones in the style sheet; further series reuse them from the first."""

TOLD = 600
"""Number of marks with a tooltip, the largest; the others are merged into one shape per role."""

_NOTHING = frozenset(
    {"idle", "free", "other", "unattributed", "unknown", "in no stage", "none", "no change"}
)
_STRONG = frozenset({"s0", "s1", "s4", "s6", "s7"})
_LEGEND = 16


def tones(series: Sequence[str]) -> list[str]:
    """Assign a tone to each series: `s0` to `s7` in turn, `none` for the absence of the others."""
    roles: list[str] = []
    number = 0
    for name in series:
        if name.lower() in _NOTHING:
            roles.append("none")
        else:
            roles.append(f"s{number % TONES}")
            number += 1
    return roles


def on(tone: str) -> str:
    """Get the role of text on this tone."""
    return "on" if tone in _STRONG else "off"


def legend(series: Sequence[str], roles: Sequence[str], sample: str) -> tuple[list[Part], float]:
    """Draw the names of the series with samples, and get where the plot may start; empty for one series."""
    keys: list[Part] = []
    if len(series) < 2 or not sample:
        return keys, 4.0
    x, y = 0.0, 14.0
    for number, name in enumerate(series[:_LEGEND]):
        text = fitted(name, 220)
        width = 18 + breadth(text) + 18
        if x and x + width > WIDTH:
            x, y = 0.0, y + 20
        keys.append(Key((_sample(sample, number, roles[number], x, y),), Words(x + 18, y, text)))
        x += width
    if len(series) > _LEGEND:
        keys.append(Words(x, y, f"and {len(series) - _LEGEND} more"))
    return keys, y + 16


def _sample(kind: str, series: int, tone: str, x: float, y: float) -> Glyph | Stroke | Swatch:
    """Draw a sample of a series."""
    if kind == "glyph":
        return Glyph(f"glyph {tone}", series, x + 6, y - 4)
    if kind == "line":
        return Stroke(f"line {tone}", across(x, y - 4, 13))
    return Swatch(tone, x, y - 10)


def axis_below(axis: Axis, left: float, width: float, top: float, bottom: float) -> list[Part]:
    """Draw the axis under a plot: a line through the plot at every tick, the number below it."""
    lines: list[Step] = []
    labels: list[Part] = []
    for share, label in axis.ticks:
        x = left + share * width
        lines += down(x, top, bottom)
        anchor: Anchor = "end" if x + breadth(label) / 2 > WIDTH else "middle"
        labels.append(Words(x, bottom + FONT + 4, short(label), "tick", anchor))
    return [Stroke("grid", tuple(lines)), *labels]


def axis_beside(axis: Axis, left: float, width: float, top: float, height: float) -> list[Part]:
    """Draw the axis left of a plot: a line across the plot at every tick, the number before it."""
    lines: list[Step] = []
    labels: list[Part] = []
    for share, label in axis.ticks:
        y = top + height * (1 - share)
        lines += across(left, y, width)
        labels.append(Words(left - 8, y + 4, short(label), "tick", "end"))
    return [Stroke("grid", tuple(lines)), *labels]


def box(x: float, y: float, width: float, height: float, gap: float = 0.5) -> Box:
    """Make the box of a mark, with a gap to the next one; never too thin to see."""
    return Box(x, y, width - gap if width > 3 else max(width, 0.6), height)


@dataclass(frozen=True, slots=True)
class Bar:
    """Box of a mark, its weight against the others, and its tooltip."""

    weight: Fraction
    role: str
    box: Box
    tip: str


def areas(bars: Sequence[Bar]) -> list[Part]:
    """Convert bars to areas: the largest one by one with tooltips, the others merged by role."""
    order = sorted(range(len(bars)), key=lambda index: (-bars[index].weight, index))
    untold: dict[str, list[Box]] = {}
    for index in sorted(order[TOLD:]):
        untold.setdefault(bars[index].role, []).append(bars[index].box)
    parts: list[Part] = [Area(role, tuple(boxes)) for role, boxes in untold.items()]
    for index in sorted(order[:TOLD]):
        bar = bars[index]
        parts.append(Area(bar.role, (bar.box,), bar.tip))
    return parts
