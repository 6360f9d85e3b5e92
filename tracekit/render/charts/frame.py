"""What surrounds the marks of a picture: legend, axes, the tones of series, and tooltips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracekit.model.report import Chart
from tracekit.render.charts.axis import Axis
from tracekit.render.charts.marks import Mark
from tracekit.render.charts.text import FONT, breadth, fitted, number, text

WIDTH = 960
"""The width of every picture in its own units; the page scales it."""

TONES = 8
"""How many tones the style sheet has for series; more series begin again with the first."""

TOLD = 600
"""How many marks of a picture have a tooltip, the largest; of the others one shape is made."""

SHAPES = ("o", "s", "D", "^")
"""The points of series in turn, as matplotlib names them: circle, square, diamond, triangle."""

_NOTHING = frozenset(
    {"idle", "free", "other", "unattributed", "unknown", "in no stage", "none", "no change"}
)
_STRONG = frozenset({0, 1, 4, 6, 7})
_LEGEND = 16


@dataclass(frozen=True, slots=True)
class Drawing:
    """The elements of a picture and how high it is."""

    parts: tuple[str, ...]
    height: float


def tones(series: Sequence[str]) -> list[str]:
    """The class of each series: `s0` to `s7` in turn, `none` for what is the absence of the others."""
    found, number_ = [], 0
    for name in series:
        if name.lower() in _NOTHING:
            found.append("none")
        else:
            found.append(f"s{number_ % TONES}")
            number_ += 1
    return found


def on(tone: str) -> str:
    """The class of text that stands on this tone."""
    return "on" if tone != "none" and int(tone[1:]) in _STRONG else "off"


def legend(chart: Chart, of: Sequence[str]) -> tuple[list[str], float]:
    """The names of the series beside their tones, and where the plot may begin; nothing for one series."""
    if len(chart.series) < 2:
        return [], 4.0
    parts, x, y = [], 0.0, 14.0
    shape = "line" if chart.kind == "lines" else "mark"
    shape = "glyph" if chart.kind in ("intervals", "strips") else shape
    for at, name in enumerate(chart.series[:_LEGEND]):
        shown = fitted(name, 220)
        wide = 18 + breadth(shown) + 18
        if x and x + wide > WIDTH:
            x, y = 0.0, y + 20
        parts.append(_swatch(shape, at, of[at], x, y))
        parts.append(f'<text x="{number(x + 18)}" y="{number(y)}">{text(shown)}</text>\n')
        x += wide
    if len(chart.series) > _LEGEND:
        more = f"and {len(chart.series) - _LEGEND} more"
        parts.append(f'<text x="{number(x)}" y="{number(y)}">{more}</text>\n')
    return parts, y + 16


def _swatch(shape: str, series: int, tone: str, x: float, y: float) -> str:
    """A sample of the series' tone."""
    if shape == "glyph":
        return f'<path class="glyph {tone}" d="{glyph(series, x + 6, y - 4)}"/>'
    if shape == "line":
        return f'<path class="line {tone}" d="M{number(x)} {number(y - 4)}h13"/>'
    return (
        f'<rect class="{tone}" x="{number(x)}" y="{number(y - 10)}" width="12" height="12" rx="2"/>'
    )


def glyph(series: int, x: float, y: float, size: float = 5) -> str:
    """The point of a series as a path: circle, square, diamond or triangle, so that shape tells what tone does."""
    n = number
    at, half = series % len(SHAPES), size * 0.88
    if at == 0:
        return (
            f"M{n(x - size)} {n(y)}a{n(size)} {n(size)} 0 1 0 {n(2 * size)} 0"
            f"a{n(size)} {n(size)} 0 1 0 {n(-2 * size)} 0z"
        )
    if at == 1:
        return f"M{n(x - half)} {n(y - half)}h{n(2 * half)}v{n(2 * half)}h{n(-2 * half)}z"
    if at == 2:
        size *= 1.2
        return (
            f"M{n(x)} {n(y - size)}l{n(size)} {n(size)}l{n(-size)} {n(size)}l{n(-size)} {n(-size)}z"
        )
    return f"M{n(x)} {n(y - size)}l{n(size)} {n(1.8 * size)}h{n(-2 * size)}z"


def below(axis: Axis, left: float, width: float, top: float, bottom: float) -> list[str]:
    """The axis under a plot: a line up through it at every tick, the number below."""
    lines = "".join(
        f"M{number(left + at * width)} {number(top)}V{number(bottom)}" for at, _ in axis.ticks
    )
    parts = [f'<path class="grid" d="{lines}"/>\n'] if lines else []
    return parts + [
        _tick(left + at * width, bottom + FONT + 4, _anchor(left + at * width, label), label)
        for at, label in axis.ticks
    ]


def beside(axis: Axis, left: float, width: float, top: float, height: float) -> list[str]:
    """The axis left of a plot: a line across it at every tick, the number before it."""
    ys = [(top + height * (1 - at), label) for at, label in axis.ticks]
    lines = "".join(f"M{number(left)} {number(y)}h{number(width)}" for y, _ in ys)
    parts = [f'<path class="grid" d="{lines}"/>\n'] if lines else []
    return parts + [_tick(left - 8, y + 4, "end", label) for y, label in ys]


def _anchor(x: float, label: str) -> str:
    """Where the text under a tick hangs, so that it stays in the picture."""
    return "end" if x + breadth(label) / 2 > WIDTH else "middle"


def _tick(x: float, y: float, anchor: str, label: str) -> str:
    """The number of a tick."""
    return f'<text class="tick" x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">{text(label)}</text>\n'


def box(x: float, y: float, width: float, height: float, gap: float = 0.5) -> str:
    """A rectangle as a path, which many marks share; a gap parts it from the next, never too thin to see."""
    width = width - gap if width > 3 else max(width, 0.6)
    return f"M{number(x)} {number(y)}h{number(width)}v{number(height)}H{number(x)}z"


def shapes(boxes: Iterable[tuple[Mark, str, str, str]]) -> list[str]:
    """The marks' boxes from (mark, class, path, tooltip): the largest told, the others drawn as one.

    The tooltip is escaped already.
    """
    found = list(boxes)
    order = sorted(range(len(found)), key=lambda at: (-found[at][0].size, at))
    told = set(order[:TOLD])
    untold: dict[str, list[str]] = {}
    for at, (_, tone, path, _) in enumerate(found):
        if at not in told:
            untold.setdefault(tone, []).append(path)
    parts = [f'<path class="{tone}" d="{"".join(paths)}"/>\n' for tone, paths in untold.items()]
    for at in sorted(told):
        _, tone, path, tip = found[at]
        parts.append(f'<path class="{tone}" d="{path}"><title>{tip}</title></path>\n')
    return parts
