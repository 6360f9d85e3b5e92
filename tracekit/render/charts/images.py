"""Chart images as PNG and SVG files, painted from the layouts by matplotlib.

The same chart gives the same bytes. Only `plots` needs matplotlib.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from functools import singledispatch
from importlib import import_module
from io import BytesIO
from itertools import chain, groupby
from typing import Any

from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart, Report
from tracekit.model.system.installed import install_command
from tracekit.model.text.labels import did_you_mean
from tracekit.render.charts import shapes
from tracekit.render.charts.kinds import assign_stage_tones, lay_out_chart
from tracekit.render.charts.shapes import CHART_WIDTH
from tracekit.render.charts.text import FONT, fit_text
from tracekit.render.tables import make_file_name, make_unique_file_name

FORMATS = ("png", "svg")

_COLORS = {
    "s0": "#1d6a86",
    "s1": "#bd5216",
    "s2": "#9bd3e8",
    "s3": "#f3c19c",
    "s4": "#5f656b",
    "s5": "#a2a5a7",
    "s6": "#0a2f42",
    "s7": "#6a2a05",
    "none": "#e6e6e1",
    "l0": "#f1f4f5",
    "l1": "#d9e7ec",
    "l2": "#bcd8e2",
    "l3": "#9bc6d6",
    "l4": "#78b1c6",
    "l5": "#5599b2",
    "l6": "#37809c",
    "l7": "#1d6a86",
    "l8": "#0f4a60",
    "unknown": "#ffffff",
    "within": "#efefec",
    "grid": "#d5d7d4",
    "base": "#5f656b",
    "tick": "#5f656b",
    "on": "#ffffff",
}
"""Tones of the page as printed."""

_DEEP = {"s2": "s4", "s3": "s7", "s4": "s6", "s5": "s0", "s6": "s1", "s7": "s4", "none": "s4"}
"""Stronger tones for lines and points in place of pale ones, as on the page."""

_DASHES = {"s2": (7, 3), "s3": (7, 3), "s4": (2, 3), "s5": (9, 3, 2, 3), "s6": (9, 3, 2, 3), "s7": (2, 3)}
"""Dash patterns that separate lines of series with the same tone, as on the page."""

_INK, _PAPER = "#1f2326", "#ffffff"
_EDGES = {_PAPER: _COLORS["base"]}
_SHAPES = ("o", "s", "D", "^")
_ANCHORS = {"": "left", "start": "left", "middle": "center", "end": "right"}

_WIDTH_IN, _DPI = 11.0, 120
_MARGIN, _TITLE, _CAPTION = 14.0, 32.0, 30.0
"""Room around, above and below the picture, in its own units."""
_POINT = _WIDTH_IN * 72 / (CHART_WIDTH + 2 * _MARGIN)
"""A unit of the picture in points, which matplotlib uses for lines and letters."""

_SETTINGS = {
    "svg.hashsalt": "tracekit",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a `$` in the name of a kernel is a `$`
    "text.color": _INK,
}


def paint_report_charts(report: Report) -> Iterator[tuple[str, bytes]]:
    """Paint every chart as (file name, bytes), as PNG and as SVG; TracekitError if matplotlib is missing.

    Names are `<section>-<chart id>` in characters that any file system accepts, each unique.
    """
    matplotlib = import_matplotlib()
    names: set[str] = set()
    roles = assign_stage_tones(chain.from_iterable(section.charts for section in report.sections))
    for section in report.sections:
        for chart in section.charts:
            name = make_unique_file_name(make_file_name(f"{section.id}-{chart.id}"), names)
            picture = lay_out_chart(chart, roles)
            for suffix in FORMATS:
                yield f"{name}.{suffix}", paint_layout(picture, suffix, matplotlib)


def import_matplotlib() -> Any:
    """Import matplotlib and its submodules used here; TracekitError if it is missing."""
    try:
        library = import_module("matplotlib")
        for name in ("collections", "figure", "style"):
            import_module(f"matplotlib.{name}")
    except ImportError:
        problem = "image files need matplotlib"
        raise TracekitError(problem, install_command("plots")) from None
    return library


def paint_layout(picture: shapes.ChartLayout, suffix: str, matplotlib: Any) -> bytes:
    """Paint the picture in one of `FORMATS`, independent of the user's matplotlib settings."""
    unsaid = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[suffix]
    # A figure that pyplot does not manage needs no display.
    with matplotlib.style.context(["default", _SETTINGS]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters missing from the font are drawn as boxes
        figure = matplotlib.figure.Figure(figsize=_get_figure_size(picture), dpi=_DPI)
        _draw_on_axes(figure.add_axes((0, 0, 1, 1)), picture, matplotlib)
        file = BytesIO()
        figure.savefig(file, format=suffix, metadata=unsaid)
    return file.getvalue()


def draw_chart(report: Report, chart: str, axes: Any = None) -> Any:
    """Draw one chart of the report on axes, by its id or its section's id; see `Report.figure` for `axes`."""
    own_charts: dict[str, Chart] = {}
    for section in report.sections:
        for one in section.charts:
            own_charts.setdefault(one.id, one)
    charts = dict(own_charts)
    for section in report.sections:
        for one in section.charts:
            charts.setdefault(section.id, one)
    chosen = charts.get(chart)
    if chosen is None:
        ids = list(charts)
        near = did_you_mean(chart, ids)
        raise TracekitError(f"no chart {chart!r} in the report{near}", f"there are: {', '.join(ids) or 'none'}")
    matplotlib = import_matplotlib()
    picture = lay_out_chart(chosen, assign_stage_tones(own_charts.values()))
    with matplotlib.style.context(_SETTINGS):
        if axes is None:
            pyplot = import_module("matplotlib.pyplot")
            axes = pyplot.figure(figsize=_get_figure_size(picture)).add_axes((0, 0, 1, 1))
        _draw_on_axes(axes, picture, matplotlib)
    return axes


def _get_figure_size(picture: shapes.ChartLayout) -> tuple[float, float]:
    """Compute the (width, height) of a figure for the picture, in inches."""
    height = _TITLE + picture.height + _CAPTION * bool(picture.caption) + 2 * _MARGIN
    return _WIDTH_IN, height * _POINT / 72


def _draw_on_axes(axes: Any, picture: shapes.ChartLayout, matplotlib: Any) -> None:
    """Draw the picture on the axes, and nothing else."""
    caption = _CAPTION * bool(picture.caption)
    axes.set_axis_off()
    axes.set_xlim(-_MARGIN, CHART_WIDTH + _MARGIN)
    axes.set_ylim(picture.height + caption + _MARGIN, -_TITLE - _MARGIN)
    _paint_picture(axes, picture, matplotlib)


def _paint_picture(axes: Any, picture: shapes.ChartLayout, matplotlib: Any) -> None:
    """Paint the picture on the axes, its title above and its caption below."""
    axes.text(0, -_TITLE / 2, fit_text(picture.title, 0.8 * CHART_WIDTH), fontsize=1.2 * FONT * _POINT)
    for shape, parts in groupby(_flatten_parts(picture.parts), type):
        if shape is shapes.FilledArea:
            _paint_areas(axes, parts, matplotlib)
            continue
        for part in parts:
            _paint_part(part, axes)
    caption = fit_text(picture.caption, CHART_WIDTH)
    axes.text(0, picture.height + FONT, caption, fontsize=FONT * _POINT, color=_COLORS["tick"])


def _flatten_parts(parts: Iterable[shapes.Part | shapes.ToneSwatch]) -> Iterator[shapes.Part | shapes.ToneSwatch]:
    """Flatten nested parts in order; areas that links lead to are not painted."""
    for part in parts:
        if isinstance(part, shapes.ShapeGroup):
            yield from part.parts
        elif isinstance(part, shapes.LegendKey):
            yield from _flatten_parts(part.samples)
            yield part.words
        elif not isinstance(part, shapes.ChartRow):
            yield part
        elif part.name is not None:
            yield part.name


def _paint_areas(axes: Any, areas: Iterable[Any], matplotlib: Any) -> None:
    """Paint areas on the axes."""
    corners, colors, edges = [], [], []
    for area in areas:
        for box in area.boxes:
            right, bottom = box.x + box.width, box.y + box.height
            corners.append(((box.x, box.y), (right, box.y), (right, bottom), (box.x, bottom)))
            colors.append(_COLORS[area.role])
            edges.append(_EDGES.get(colors[-1], "none"))
    axes.add_collection(
        matplotlib.collections.PolyCollection(corners, facecolors=colors, edgecolors=edges, linewidths=0.4, zorder=2),
        autolim=False,
    )


@singledispatch
def _paint_part(part: Any, axes: Any) -> None:  # noqa: ARG001 - of those who paint
    """Paint one part on the axes."""
    raise AssertionError(f"no part of a layout: {part!r}")


@_paint_part.register
def _paint_words(words: shapes.PlacedText, axes: Any) -> None:
    axes.text(
        words.x,
        words.y,
        words.text,
        color=_COLORS.get(words.role, _INK),
        fontsize=FONT * _POINT,
        horizontalalignment=_ANCHORS[words.anchor],
    )


@_paint_part.register
def _paint_stroke(stroke: shapes.LineStroke, axes: Any) -> None:
    *look, tone = stroke.role.split()
    width = 1.0 + bool(look)
    dashes: Any = "solid"
    if look == ["line"] and tone in _DASHES:
        dashes = 0, _DASHES[tone]
    for xs, ys in _trace_pen_lines(stroke.steps):
        axes.plot(xs, ys, color=_COLORS[_DEEP.get(tone, tone)], linewidth=width * _POINT, linestyle=dashes, zorder=2)


@_paint_part.register
def _paint_glyph(glyph: shapes.SeriesGlyph, axes: Any) -> None:
    tone = glyph.role.split()[-1]
    color = _COLORS[_DEEP.get(tone, tone)]
    axes.plot(
        [glyph.x],
        [glyph.y],
        _SHAPES[glyph.series % len(_SHAPES)],
        color=color,
        markersize=1.8 * glyph.size * _POINT,
        markerfacecolor=_PAPER if "hollow" in glyph.role.split() else color,
        zorder=3,
    )


@_paint_part.register
def _paint_dot(dot: shapes.LineDot, axes: Any) -> None:
    color = _COLORS[_DEEP.get(dot.role, dot.role)]
    axes.plot([dot.x], [dot.y], "o", color=color, markersize=6 * _POINT, zorder=3)


@_paint_part.register
def _paint_swatch(swatch: shapes.ToneSwatch, axes: Any) -> None:
    xs, ys = [swatch.x, swatch.x + 12], [swatch.y, swatch.y + 12]
    axes.fill_between(xs, ys[0], ys[1], color=_COLORS[swatch.role], linewidth=0, zorder=2)


def _trace_pen_lines(steps: Iterable[shapes.PenStep]) -> Iterator[tuple[list[float], list[float]]]:
    """Trace the (xs, ys) of every line that the pen draws without being lifted."""
    xs: list[float] = []
    ys: list[float] = []
    for letter, numbers in steps:
        if letter == "M":
            if xs:
                yield xs, ys
            xs, ys = [numbers[0]], [numbers[1]]
            continue
        x, y = _move_pen(xs[-1], ys[-1], letter, numbers)
        xs.append(x)
        ys.append(y)
    if xs:
        yield xs, ys


def _move_pen(x: float, y: float, letter: str, numbers: tuple[float, ...]) -> tuple[float, float]:
    """Compute where a step leads from a position."""
    if letter == "L":
        return numbers[0], numbers[1]
    if letter == "l":
        return x + numbers[0], y + numbers[1]
    if letter in "Hh":
        return numbers[0] + x * (letter == "h"), y
    return x, numbers[0] + y * (letter == "v")
