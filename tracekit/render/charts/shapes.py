"""Laid-out chart: shapes and their positions in chart units, independent of the painter.

A role names the function of a part, not its look: `s0` to `s7` and `none` are tones of series, `l0` to `l8`
levels of cells; others are `unknown`, `within`, `grid`, `base`, `tick`, `value`, and `line` or `glyph` with
a tone. Text on a tone has role `on` (strong tone) or `off`. All text is printable and fits its place.
"""

from __future__ import annotations

from typing import Literal

from tracekit.model.records import dataclass

CHART_WIDTH = 960
"""Width of every chart in its own units; the painter scales it."""

Anchor = Literal["", "start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class ShapeBox:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class FilledArea:
    """Boxes with the same fill; `tip` is their tooltip."""

    role: str
    boxes: tuple[ShapeBox, ...]
    tip: str = ""


PenStep = tuple[Literal["M", "L", "l", "H", "h", "V", "v"], tuple[float, ...]]
"""A pen movement: M without drawing, L straight, H horizontal, V vertical; lower case is relative."""


@dataclass(frozen=True, slots=True)
class LineStroke:
    """Lines with the same style."""

    role: str
    steps: tuple[PenStep, ...]
    tip: str = ""


@dataclass(frozen=True, slots=True)
class SeriesGlyph:
    """Point of a series: a circle, square, diamond or triangle, so that shape repeats what tone shows."""

    role: str
    series: int
    x: float
    y: float
    size: float = 5
    tip: str = ""


@dataclass(frozen=True, slots=True)
class LineDot:
    """A small circle on a line."""

    role: str
    x: float
    y: float
    tip: str = ""


@dataclass(frozen=True, slots=True)
class PlacedText:
    """Text with its start, middle or end at a position; `tip` is the full text if it was cut."""

    x: float
    y: float
    text: str
    role: str = ""
    anchor: Anchor = ""
    tip: str = ""


@dataclass(frozen=True, slots=True)
class ToneSwatch:
    """A sample of a tone."""

    role: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class LegendKey:
    """Samples with their label."""

    samples: tuple[FilledArea | LineStroke | SeriesGlyph | ToneSwatch, ...]
    words: PlacedText


@dataclass(frozen=True, slots=True)
class ChartRow:
    """A row of the chart that a link can target, with its name if there is room."""

    id: str
    y: float
    height: float
    name: PlacedText | None


@dataclass(frozen=True, slots=True)
class ShapeGroup:
    """Parts that share the tooltip `tip`."""

    tip: str
    parts: tuple[LineStroke | SeriesGlyph, ...]


Part = FilledArea | LineStroke | SeriesGlyph | LineDot | PlacedText | LegendKey | ChartRow | ShapeGroup


@dataclass(frozen=True, slots=True)
class ChartLayout:
    """One chart: its parts in painting order, its title, description and caption."""

    id: str
    kind: str
    title: str
    sentence: str
    caption: str
    parts: tuple[Part, ...]
    height: float


@dataclass(frozen=True, slots=True)
class PlotDrawing:
    """Parts of a plot, and its height."""

    parts: tuple[Part, ...]
    height: float


def draw_right(x: float, y: float, width: float) -> tuple[PenStep, ...]:
    """Draw a line to the right."""
    return ("M", (x, y)), ("h", (width,))


def draw_down_to(x: float, top: float, bottom: float) -> tuple[PenStep, ...]:
    """Draw a line from the top to the bottom."""
    return ("M", (x, top)), ("V", (bottom,))


def draw_down_by(x: float, y: float, height: float) -> tuple[PenStep, ...]:
    """Draw a line down from a position."""
    return ("M", (x, y)), ("v", (height,))
