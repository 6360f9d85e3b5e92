"""A chart in plain numbers: what an image of it shows where, whatever draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tracekit.model.report import Chart
from tracekit.model.units import show
from tracekit.render.charts.text import fitted

COLORS = {
    "s0": "#1d6a86", "s1": "#bd5216", "s2": "#9bd3e8", "s3": "#f3c19c", "s4": "#5f656b",
    "s5": "#a2a5a7", "s6": "#0a2f42", "s7": "#6a2a05", "none": "#e6e6e1",
}  # fmt: skip
"""The tones of the page as it is printed."""

INK, GRID, UNKNOWN = "#1f2326", "#d5d7d4", "#ffffff"
_ROW_IN, _KEY_IN, _PLOT_IN, _MOST_IN = 0.3, 0.2, 3.0, 24.0
_NAME, _LEGEND = 260, 12


class Ticked(Protocol):
    """An axis, of which only the ticks count here."""

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """(where from 0 to 1, text)."""


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; `left` and `right` from 0 to 1, `top` and `bottom` in the picture's own units."""

    left: float
    right: float
    top: float
    bottom: float
    color: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, from 0 to 1 both ways, or in rows down; where it is interrupted there are two."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    color: str
    dotted: bool = True


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a shape as matplotlib names it; `filled` is False where it is an outline only."""

    x: float
    y: float
    color: str
    shape: str
    filled: bool = True


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart as it is drawn.

    `rows` are the names down the side; without them the picture has a scale there (`y_ticks`), 0 below
    and 1 above. `legend` are (words, colour), `words` (x, row, text) beside what they tell of.
    """

    title: str
    caption: str
    rows: tuple[str, ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, str], ...]
    dots: tuple[Dot, ...] = ()
    words: tuple[tuple[float, float, str], ...] = ()

    @property
    def height_in(self) -> float:
        """How high the plot itself is, in inches."""
        needed = _ROW_IN * len(self.rows) if self.rows else _PLOT_IN
        return min(max(needed, _KEY_IN * len(self.legend), 0.9), _MOST_IN)


def framed(
    chart: Chart,
    caption: str,
    boxes: Sequence[Box],
    lines: Sequence[Line],
    across: Ticked,
    up: Ticked | None = None,
    legend: Sequence[tuple[str, str]] = (),
) -> Picture:
    """The picture with names, ticks and legend."""
    left_out = f"{show(chart.omitted, 'count')} marks left out" if chart.omitted else ""
    below = ". ".join(w.rstrip(".") for w in (caption, left_out) if w)
    shown = list(legend[:_LEGEND])
    if len(legend) > _LEGEND:
        shown.append((f"and {len(legend) - _LEGEND} more", UNKNOWN))
    return Picture(
        fitted(chart.title or chart.id, 900),
        fitted(below, 900),
        tuple(fitted(name, _NAME) for name in chart.rows) if up is None else (),
        tuple(boxes),
        tuple(lines),
        across.ticks,
        () if up is None else up.ticks,
        tuple((fitted(name, 220), color) for name, color in shown),
    )


def key(chart: Chart, colors: Sequence[str]) -> list[tuple[str, str]]:
    """The series beside their colours, where there are several."""
    return list(zip(chart.series, colors, strict=True)) if len(chart.series) > 1 else []
