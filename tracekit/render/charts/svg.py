"""SVG of a layout: colours by CSS class, text inside, no external resources.

The same layout gives the same bytes. Colours are the page's CSS variables, so dark mode and print reuse
the same picture. A legend, text in the marks and tooltips repeat the information in the colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from html import escape
from typing import Any

from tracekit.model.report import Chart
from tracekit.render.charts import shapes
from tracekit.render.charts.kinds import lay_out_chart
from tracekit.render.charts.shapes import CHART_WIDTH
from tracekit.render.charts.text import shorten_for_tooltip


def draw_svg_chart(chart: Chart, roles: Mapping[str, str] | None = None) -> str:
    """Draw the chart as an `<svg>` element; `roles` are as for `lay_out_chart`."""
    layout = lay_out_chart(chart, roles)
    name = f"chart-{layout.id}"
    opening = (
        f'<svg class="chart {layout.kind}" viewBox="0 0 {CHART_WIDTH} {layout.height:g}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg" aria-labelledby="{name}--title {name}--desc">\n'
        f'<title id="{name}--title">{escape(shorten_for_tooltip(layout.title))}</title>\n'
        f'<desc id="{name}--desc">{escape(layout.sentence)}</desc>\n'
    )
    parts = "\n".join((*(draw_svg_part(part) for part in layout.parts), "</svg>"))
    return f"{opening}{parts}\n"


def format_coordinate(value: float) -> str:
    """Format a coordinate to a tenth, without trailing zeros.

    >>> format_coordinate(12.04), format_coordinate(-0.01), format_coordinate(3.5)
    ('12', '0', '3.5')
    """
    # Adding zero turns a rounded -0.0 into 0.0.
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


@singledispatch
def draw_svg_part(part: Any) -> str:
    """Render one part of a layout as an element."""
    raise AssertionError(f"no part of a layout: {part!r}")


@draw_svg_part.register
def _render_area(area: shapes.FilledArea) -> str:
    return _render_path(area.role, "".join(_trace_box(box) for box in area.boxes), area.tip)


@draw_svg_part.register
def _render_stroke(stroke: shapes.LineStroke) -> str:
    steps = (letter + " ".join(format_coordinate(number) for number in numbers) for letter, numbers in stroke.steps)
    return _render_path(stroke.role, "".join(steps), stroke.tip)


@draw_svg_part.register
def _render_glyph(glyph: shapes.SeriesGlyph) -> str:
    return _render_path(glyph.role, _trace_glyph(glyph), glyph.tip)


@draw_svg_part.register
def _render_dot(dot: shapes.LineDot) -> str:
    return (
        f'<circle class="{dot.role}" cx="{format_coordinate(dot.x)}" cy="{format_coordinate(dot.y)}" r="3">'
        f"{_render_tooltip(dot.tip)}</circle>"
    )


@draw_svg_part.register
def _render_words(words: shapes.PlacedText) -> str:
    role = f' class="{words.role}"' if words.role else ""
    anchor = f' text-anchor="{words.anchor}"' if words.anchor else ""
    return (
        f'<text{role} x="{format_coordinate(words.x)}" y="{format_coordinate(words.y)}"{anchor}>'
        f"{escape(words.text)}{_render_tooltip(words.tip)}</text>"
    )


@draw_svg_part.register
def _render_swatch(swatch: shapes.ToneSwatch) -> str:
    x, y = format_coordinate(swatch.x), format_coordinate(swatch.y)
    return f'<rect class="{swatch.role}" x="{x}" y="{y}" width="12" height="12" rx="2"/>'


@draw_svg_part.register
def _render_key(key: shapes.LegendKey) -> str:
    return "".join(draw_svg_part(part) for part in (*key.samples, key.words))


@draw_svg_part.register
def _render_row(row: shapes.ChartRow) -> str:
    name = draw_svg_part(row.name) if row.name else ""
    return (
        f'<g class="row" id="{row.id}"><rect x="0" y="{format_coordinate(row.y)}" '
        f'width="{CHART_WIDTH}" height="{format_coordinate(row.height)}"/>{name}</g>'
    )


@draw_svg_part.register
def _render_group(group: shapes.ShapeGroup) -> str:
    return f"<g>{_render_tooltip(group.tip)}{''.join(draw_svg_part(part) for part in group.parts)}</g>"


def _render_path(role: str, data: str, tip: str) -> str:
    """Render a path, with a tooltip if there is one."""
    start = f'<path class="{role}" d="{data}"'
    return f"{start}>{_render_tooltip(tip)}</path>" if tip else f"{start}/>"


def _render_tooltip(tip: str) -> str:
    """Render a tooltip."""
    return f"<title>{escape(tip)}</title>" if tip else ""


def _trace_box(box: shapes.ShapeBox) -> str:
    """Trace a rectangle as a piece of a path that many share."""
    x, y, width, height = (format_coordinate(number) for number in (box.x, box.y, box.width, box.height))
    return f"M{x} {y}h{width}v{height}H{x}z"


def _trace_glyph(glyph: shapes.SeriesGlyph) -> str:
    """Trace the circle, square, diamond or triangle of a series as a path."""
    x, y, size = glyph.x, glyph.y, glyph.size
    shape = glyph.series % 4
    if shape == 0:
        radius, across = format_coordinate(size), format_coordinate(2 * size)
        arcs = f"a{radius} {radius} 0 1 0 {across} 0a{radius} {radius} 0 1 0 {format_coordinate(-2 * size)} 0z"
        return f"M{format_coordinate(x - size)} {format_coordinate(y)}{arcs}"
    if shape == 1:
        half = size * 0.88
        sides = f"h{format_coordinate(2 * half)}v{format_coordinate(2 * half)}h{format_coordinate(-2 * half)}z"
        return f"M{format_coordinate(x - half)} {format_coordinate(y - half)}{sides}"
    if shape == 2:
        to, back = format_coordinate(size * 1.2), format_coordinate(-size * 1.2)
        sides = f"l{to} {to}l{back} {to}l{back} {back}z"
        return f"M{format_coordinate(x)} {format_coordinate(y - size * 1.2)}{sides}"
    sides = f"l{format_coordinate(size)} {format_coordinate(1.8 * size)}h{format_coordinate(-2 * size)}z"
    return f"M{format_coordinate(x)} {format_coordinate(y - size)}{sides}"
