"""SVG of a layout: colours by CSS class, text inside, no external resources.

The same layout gives the same bytes. Colours are the page's CSS variables, so dark mode and print reuse
the same picture. A legend, text in the marks and tooltips repeat the information in the colours.
"""

from __future__ import annotations

from functools import singledispatch
from html import escape
from typing import Any

from tracekit.render.charts import shapes
from tracekit.render.charts.shapes import WIDTH
from tracekit.render.charts.text import short


def svg(layout: shapes.Layout) -> str:
    """Render a layout as an `<svg>` element."""
    name = f"chart-{layout.id}"
    opening = (
        f'<svg class="chart {layout.kind}" viewBox="0 0 {WIDTH} {layout.height:g}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg" aria-labelledby="{name}--title {name}--desc">\n'
        f'<title id="{name}--title">{escape(short(layout.title))}</title>\n'
        f'<desc id="{name}--desc">{escape(layout.sentence)}</desc>\n'
    )
    parts = "\n".join((*map(element, layout.parts), "</svg>"))
    return f"{opening}{parts}\n"


def number(value: float) -> str:
    """Format a coordinate to a tenth, without trailing zeros.

    >>> number(12.04), number(-0.01), number(3.5)
    ('12', '0', '3.5')
    """
    # Adding zero turns a rounded -0.0 into 0.0.
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


@singledispatch
def element(part: Any) -> str:
    """Render one part of a layout as an element."""
    raise AssertionError(f"no part of a layout: {part!r}")


@element.register
def _area(area: shapes.Area) -> str:
    return _path(area.role, "".join(map(_box, area.boxes)), area.tip)


@element.register
def _stroke(stroke: shapes.Stroke) -> str:
    steps = (letter + " ".join(map(number, numbers)) for letter, numbers in stroke.steps)
    return _path(stroke.role, "".join(steps), stroke.tip)


@element.register
def _glyph(glyph: shapes.Glyph) -> str:
    return _path(glyph.role, _glyph_path(glyph), glyph.tip)


@element.register
def _dot(dot: shapes.Dot) -> str:
    return (
        f'<circle class="{dot.role}" cx="{number(dot.x)}" cy="{number(dot.y)}" r="3">'
        f"{_title(dot.tip)}</circle>"
    )


@element.register
def _words(words: shapes.Words) -> str:
    role = f' class="{words.role}"' if words.role else ""
    anchor = f' text-anchor="{words.anchor}"' if words.anchor else ""
    return (
        f'<text{role} x="{number(words.x)}" y="{number(words.y)}"{anchor}>'
        f"{escape(words.text)}{_title(words.tip)}</text>"
    )


@element.register
def _swatch(swatch: shapes.Swatch) -> str:
    x, y = number(swatch.x), number(swatch.y)
    return f'<rect class="{swatch.role}" x="{x}" y="{y}" width="12" height="12" rx="2"/>'


@element.register
def _key(key: shapes.Key) -> str:
    return "".join(map(element, (*key.samples, key.words)))


@element.register
def _row(row: shapes.Row) -> str:
    name = element(row.name) if row.name else ""
    return (
        f'<g class="row" id="{row.id}"><rect x="0" y="{number(row.y)}" '
        f'width="{WIDTH}" height="{number(row.height)}"/>{name}</g>'
    )


@element.register
def _group(group: shapes.Group) -> str:
    return f"<g>{_title(group.tip)}{''.join(map(element, group.parts))}</g>"


def _path(role: str, data: str, tip: str) -> str:
    """Render a path, with a tooltip if there is one."""
    start = f'<path class="{role}" d="{data}"'
    return f"{start}>{_title(tip)}</path>" if tip else f"{start}/>"


def _title(tip: str) -> str:
    """Render a tooltip."""
    return f"<title>{escape(tip)}</title>" if tip else ""


def _box(box: shapes.Box) -> str:
    """Trace a rectangle as a piece of a path that many share."""
    x, y, width, height = map(number, (box.x, box.y, box.width, box.height))
    return f"M{x} {y}h{width}v{height}H{x}z"


def _glyph_path(glyph: shapes.Glyph) -> str:
    """Trace the circle, square, diamond or triangle of a series as a path."""
    x, y, size = glyph.x, glyph.y, glyph.size
    shape = glyph.series % 4
    if shape == 0:
        radius, across = number(size), number(2 * size)
        arcs = f"a{radius} {radius} 0 1 0 {across} 0a{radius} {radius} 0 1 0 {number(-2 * size)} 0z"
        return f"M{number(x - size)} {number(y)}{arcs}"
    if shape == 1:
        half = size * 0.88
        sides = f"h{number(2 * half)}v{number(2 * half)}h{number(-2 * half)}z"
        return f"M{number(x - half)} {number(y - half)}{sides}"
    if shape == 2:
        to, back = number(size * 1.2), number(-size * 1.2)
        sides = f"l{to} {to}l{back} {to}l{back} {back}z"
        return f"M{number(x)} {number(y - size * 1.2)}{sides}"
    sides = f"l{number(size)} {number(1.8 * size)}h{number(-2 * size)}z"
    return f"M{number(x)} {number(y - size)}{sides}"
