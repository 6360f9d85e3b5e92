"""What surrounds the marks of a picture: legend, axes, the tones of series, and which marks are told of."""

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
"""How many tones the style sheet has for series; more series begin again with the first."""

TOLD = 600
"""How many marks of a picture have a tooltip, the largest; of the others one shape is made."""

_NOTHING = frozenset(
    {"idle", "free", "other", "unattributed", "unknown", "in no stage", "none", "no change"}
)
_STRONG = frozenset({"s0", "s1", "s4", "s6", "s7"})
_LEGEND = 16


def tones(series: Sequence[str]) -> list[str]:
    """The tone of each series: `s0` to `s7` in turn, `none` for what is the absence of the others."""
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
    """The role of text that stands on this tone."""
    return "on" if tone in _STRONG else "off"


def legend(series: Sequence[str], roles: Sequence[str], sample: str) -> tuple[list[Part], float]:
    """The names of the series beside samples of them, and where the plot may begin; nothing for one series."""
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
    """A sample of how a series is drawn."""
    if kind == "glyph":
        return Glyph(f"glyph {tone}", series, x + 6, y - 4)
    if kind == "line":
        return Stroke(f"line {tone}", across(x, y - 4, 13))
    return Swatch(tone, x, y - 10)


def axis_below(axis: Axis, left: float, width: float, top: float, bottom: float) -> list[Part]:
    """The axis under a plot: a line up through it at every tick, the number below."""
    lines: list[Step] = []
    labels: list[Part] = []
    for share, label in axis.ticks:
        x = left + share * width
        lines += down(x, top, bottom)
        anchor: Anchor = "end" if x + breadth(label) / 2 > WIDTH else "middle"
        labels.append(Words(x, bottom + FONT + 4, short(label), "tick", anchor))
    return [Stroke("grid", tuple(lines)), *labels]


def axis_beside(axis: Axis, left: float, width: float, top: float, height: float) -> list[Part]:
    """The axis left of a plot: a line across it at every tick, the number before it."""
    lines: list[Step] = []
    labels: list[Part] = []
    for share, label in axis.ticks:
        y = top + height * (1 - share)
        lines += across(left, y, width)
        labels.append(Words(left - 8, y + 4, short(label), "tick", "end"))
    return [Stroke("grid", tuple(lines)), *labels]


def box(x: float, y: float, width: float, height: float, gap: float = 0.5) -> Box:
    """The box of a mark; a gap parts it from the next, never too thin to see."""
    return Box(x, y, width - gap if width > 3 else max(width, 0.6), height)


@dataclass(frozen=True, slots=True)
class Bar:
    """The box of a mark, how much that weighs against the others, and what is told of it."""

    weight: Fraction
    role: str
    box: Box
    tip: str


def areas(bars: Sequence[Bar]) -> list[Part]:
    """The bars: the largest told of one by one, the others as one area of each role."""
    order = sorted(range(len(bars)), key=lambda index: (-bars[index].weight, index))
    untold: dict[str, list[Box]] = {}
    for index in sorted(order[TOLD:]):
        untold.setdefault(bars[index].role, []).append(bars[index].box)
    parts: list[Part] = [Area(role, tuple(boxes)) for role, boxes in untold.items()]
    for index in sorted(order[:TOLD]):
        bar = bars[index]
        parts.append(Area(bar.role, (bar.box,), bar.tip))
    return parts
