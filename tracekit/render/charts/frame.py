"""Frame of a chart: legend, axes, tones of series, and the marks that have tooltips."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tracekit.model.records import dataclass
from tracekit.render.charts.axis import LinearAxis
from tracekit.render.charts.shapes import (
    CHART_WIDTH,
    Anchor,
    FilledArea,
    LegendKey,
    LineStroke,
    Part,
    PenStep,
    PlacedText,
    SeriesGlyph,
    ShapeBox,
    ToneSwatch,
    draw_down_to,
    draw_right,
)
from tracekit.render.charts.text import FONT, estimate_text_width, fit_text, shorten_for_tooltip

TONES = 8
"""Number of series tones in the style sheet; further series reuse them from the first."""

MAX_TOOLTIPS = 600
"""Number of marks with a tooltip, the largest; the others are merged into one shape per role."""

_NOTHING = frozenset({"idle", "free", "other", "unattributed", "unknown", "outside any stage", "none", "no change"})
_STRONG = frozenset({"s0", "s1", "s4", "s6", "s7"})
_LEGEND = 16


def assign_tones(series: Sequence[str]) -> list[str]:
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


def get_text_role(tone: str) -> str:
    """Get the role of text on this tone."""
    return "on" if tone in _STRONG else "off"


def draw_legend(series: Sequence[str], roles: Sequence[str], sample: str) -> tuple[list[Part], float]:
    """Draw the names of the series with samples, and get where the plot may start; empty for one series."""
    keys: list[Part] = []
    if len(series) < 2 or not sample:
        return keys, 4.0
    x, y = 0.0, 14.0
    for number, name in enumerate(series[:_LEGEND]):
        text = fit_text(name, 220)
        width = 18 + estimate_text_width(text) + 18
        if x and x + width > CHART_WIDTH:
            x, y = 0.0, y + 20
        keys.append(LegendKey((_draw_legend_sample(sample, number, roles[number], x, y),), PlacedText(x + 18, y, text)))
        x += width
    if len(series) > _LEGEND:
        keys.append(PlacedText(x, y, f"and {len(series) - _LEGEND} more"))
    return keys, y + 16


def _draw_legend_sample(kind: str, series: int, tone: str, x: float, y: float) -> SeriesGlyph | LineStroke | ToneSwatch:
    """Draw a sample of a series."""
    if kind == "glyph":
        return SeriesGlyph(f"glyph {tone}", series, x + 6, y - 4)
    if kind == "line":
        return LineStroke(f"line {tone}", draw_right(x, y - 4, 13))
    return ToneSwatch(tone, x, y - 10)


def draw_axis_below(axis: LinearAxis, left: float, width: float, top: float, bottom: float) -> list[Part]:
    """Draw the axis under a plot: a line through the plot at every tick, the number below it."""
    lines: list[PenStep] = []
    labels: list[Part] = []
    for share, label in axis.ticks:
        x = left + share * width
        lines += draw_down_to(x, top, bottom)
        anchor: Anchor = "end" if x + estimate_text_width(label) / 2 > CHART_WIDTH else "middle"
        labels.append(PlacedText(x, bottom + FONT + 4, shorten_for_tooltip(label), "tick", anchor))
    return [LineStroke("grid", tuple(lines)), *labels]


def draw_axis_left(axis: LinearAxis, left: float, width: float, top: float, height: float) -> list[Part]:
    """Draw the axis left of a plot: a line across the plot at every tick, the number before it."""
    lines: list[PenStep] = []
    labels: list[Part] = []
    for share, label in axis.ticks:
        y = top + height * (1 - share)
        lines += draw_right(left, y, width)
        labels.append(PlacedText(left - 8, y + 4, shorten_for_tooltip(label), "tick", "end"))
    return [LineStroke("grid", tuple(lines)), *labels]


def make_mark_box(x: float, y: float, width: float, height: float, gap: float = 0.5) -> ShapeBox:
    """Make the box of a mark, with a gap to the next one; never too thin to see."""
    return ShapeBox(x, y, width - gap if width > 3 else max(width, 0.6), height)


@dataclass(frozen=True, slots=True)
class WeightedBar:
    """Box of a mark, its weight against the others, and its tooltip."""

    weight: Fraction
    role: str
    box: ShapeBox
    tip: str


def merge_bars(bars: Sequence[WeightedBar]) -> list[Part]:
    """Convert bars to areas: the largest one by one with tooltips, the others merged by role."""
    order = sorted(range(len(bars)), key=lambda index: (-bars[index].weight, index))
    untold: dict[str, list[ShapeBox]] = {}
    for index in sorted(order[MAX_TOOLTIPS:]):
        untold.setdefault(bars[index].role, []).append(bars[index].box)
    parts: list[Part] = [FilledArea(role, tuple(boxes)) for role, boxes in untold.items()]
    for index in sorted(order[:MAX_TOOLTIPS]):
        bar = bars[index]
        parts.append(FilledArea(bar.role, (bar.box,), bar.tip))
    return parts
