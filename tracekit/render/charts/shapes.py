"""A chart laid out: what stands where, in the units of the picture, for whatever paints it.

A role names what a part is, not how it looks: `s0` to `s7` and `none` are the tones of series, `l0` to `l8` the
levels of cells, and there are `unknown`, `within`, `grid`, `base`, `tick`, `value`; `line` and `glyph` with a tone.
Words on a tone are `on` a strong one or `off`. All text is printable, and short enough for its place.
"""

from __future__ import annotations

from typing import Literal

from tracekit.model.records import dataclass

WIDTH = 960
"""The width of every picture in its own units; the painter scales it."""

Anchor = Literal["", "start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Area:
    """Boxes filled alike; `tip` is what is told of them."""

    role: str
    boxes: tuple[Box, ...]
    tip: str = ""


Step = tuple[Literal["M", "L", "l", "H", "h", "V", "v"], tuple[float, ...]]
"""A movement of the pen: M without drawing, L straight on, H across, V up or down; small letters by a distance."""


@dataclass(frozen=True, slots=True)
class Stroke:
    """Lines drawn alike."""

    role: str
    steps: tuple[Step, ...]
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Glyph:
    """The point of a series: a circle, square, diamond or triangle, so that shape tells what tone does."""

    role: str
    series: int
    x: float
    y: float
    size: float = 5
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Dot:
    """A small circle on a line."""

    role: str
    x: float
    y: float
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """A text that begins, has its middle or ends at a place; `tip` is the same in full, where it was cut."""

    x: float
    y: float
    text: str
    role: str = ""
    anchor: Anchor = ""
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Swatch:
    """A sample of a tone."""

    role: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Key:
    """Samples, and the words that say what they mean."""

    samples: tuple[Area | Stroke | Glyph | Swatch, ...]
    words: Words


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the picture that a link can lead to, with its name where there is room."""

    id: str
    y: float
    height: float
    name: Words | None


@dataclass(frozen=True, slots=True)
class Group:
    """Parts that are one thing, of which `tip` tells."""

    tip: str
    parts: tuple[Stroke | Glyph, ...]


Part = Area | Stroke | Glyph | Dot | Words | Key | Row | Group


@dataclass(frozen=True, slots=True)
class Layout:
    """One picture: its parts, those painted last on top, and what is said of it."""

    id: str
    kind: str
    title: str
    sentence: str
    caption: str
    parts: tuple[Part, ...]
    height: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """The parts of a plot, and where it ends."""

    parts: tuple[Part, ...]
    height: float


def across(x: float, y: float, width: float) -> tuple[Step, ...]:
    """A line to the right."""
    return ("M", (x, y)), ("h", (width,))


def down(x: float, top: float, bottom: float) -> tuple[Step, ...]:
    """A line from the top to the bottom."""
    return ("M", (x, top)), ("V", (bottom,))


def downwards(x: float, y: float, height: float) -> tuple[Step, ...]:
    """A line down from a place."""
    return ("M", (x, y)), ("v", (height,))
