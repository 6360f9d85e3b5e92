"""Every chart of a report as image files, PNG and SVG, drawn by matplotlib.

`picture` is the chart in plain numbers: what is drawn where, between 0 and 1 across and, in rows or
between 0 and 1, down. Only `plots` needs matplotlib; the same chart gives the same bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from importlib import import_module
from io import BytesIO
from typing import Any

from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart, Report
from tracekit.model.units import show
from tracekit.render.charts import bounded, stage_tones
from tracekit.render.charts.axis import Axis, axis
from tracekit.render.charts.frame import SHAPES, tones
from tracekit.render.charts.marks import Mark, marks, numbers, plain
from tracekit.render.charts.plots_changes import intervals, strips, waterfall
from tracekit.render.charts.plots_extents import extents, icicle
from tracekit.render.charts.plots_picture import (
    COLORS,
    GRID,
    INK,
    UNKNOWN,
    Box,
    Line,
    Picture,
    framed,
    key,
)
from tracekit.render.charts.rows import LEVELS, lanes_of, stacked
from tracekit.render.tables import file_name, unique_name

FORMATS = ("png", "svg")

_SHADES = ("#f1f4f5", "#d9e7ec", "#bcd8e2", "#9bc6d6", "#78b1c6", "#5599b2", "#37809c", "#1d6a86",
           "#0f4a60")  # fmt: skip
_WIDTH_IN = 11.0
_DPI = 120
_TAIL = 0.5
"""Smallest length of a box, in thousandths of the width: what is shorter would not be seen."""


def plots(report: Report) -> Iterator[tuple[str, bytes]]:
    """(file name, bytes) of every chart, as PNG and as SVG; TracekitError where matplotlib is missing.

    Names are `<section>-<chart id>` in letters that any file system takes, each once.
    """
    matplotlib = matplotlib_or_refuse()
    taken: set[str] = set()
    charts = [(s.id, chart) for s in report.sections for chart in s.charts]
    given = stage_tones(chart for _, chart in charts)
    for section, chart in charts:
        name = unique_name(file_name(f"{section}-{chart.id}"), taken)
        drawn = picture(chart, given if chart.kind == "gantt" else None)
        for suffix in FORMATS:
            yield f"{name}.{suffix}", _painted(drawn, suffix, matplotlib)


# What is drawn where


def picture(chart: Chart, given: Mapping[str, str] | None = None) -> Picture:
    """The chart as boxes and lines; `given` are tones of series by name, as for `svg.draw`."""
    chart = bounded(chart)
    found = marks(chart)
    colors = [
        COLORS[(given or {}).get(name, tone)]
        for name, tone in zip(chart.series, tones(chart.series), strict=True)
    ]
    draw = {
        "gantt": _gantt,
        "bars": _bars,
        "heatmap": _heatmap,
        "lines": _lines,
        "histogram": _histogram,
        "intervals": intervals,
        "strips": strips,
        "waterfall": waterfall,
        "extents": extents,
        "icicle": icicle,
    }[chart.kind]
    if not found:
        return framed(chart, "nothing to draw", (), (), axis([], chart.x_unit))
    return draw(chart, found, colors)


def _gantt(chart: Chart, found: Sequence[Mark], colors: Sequence[str]) -> Picture:
    """Bars on one time axis, those that overlap in a row below one another."""
    lanes = lanes_of(found)
    most = max(lanes) + 1
    across = axis(numbers(found)[0], chart.x_unit)
    boxes = [
        _box(across, mark, mark.row + 0.1 + 0.8 * lane / most, 0.8 / most, colors[mark.series])
        for mark, lane in zip(found, lanes, strict=True)
    ]
    return framed(chart, chart.caption, boxes, (), across, None, key(chart, colors))


def _bars(chart: Chart, found: Sequence[Mark], colors: Sequence[str]) -> Picture:
    """Stacked amounts."""
    ends = stacked(found)
    across = axis([end for pair in ends if pair for end in pair], chart.unit, zero=True)
    boxes = [
        Box(
            across.at(min(pair)),
            across.at(max(pair)),
            mark.row + 0.15,
            mark.row + 0.85,
            colors[mark.series],
        )
        for mark, pair in zip(found, ends, strict=True)
        if pair and mark.value
    ]
    return framed(chart, chart.caption, boxes, (), across, None, key(chart, colors))


def _heatmap(chart: Chart, found: Sequence[Mark], _colors: Sequence[str]) -> Picture:
    """Cells, the darker the larger; those of unknown value stay white."""
    places, values = numbers(found)
    across = axis(places, chart.x_unit)
    low, high = min(values, default=Fraction(0)), max(values, default=Fraction(0))
    low = min(low, Fraction(0))
    if chart.unit == "ratio" and high <= 1:
        high = Fraction(1)
    boxes = [
        _box(across, mark, mark.row + 0.02, 0.96, _shade(mark.value, low, high)) for mark in found
    ]
    legend = [
        (show(plain(low), chart.unit), _SHADES[0]),
        (show(plain(high), chart.unit), _SHADES[-1]),
    ]
    if len(values) < len(found):
        legend.append(("unknown", UNKNOWN))
    return framed(chart, chart.caption, boxes, (), across, None, legend)


def _shade(value: Fraction | None, low: Fraction, high: Fraction) -> str:
    """The colour of a cell."""
    if value is None:
        return UNKNOWN
    level = 0 if low == high else min(int((value - low) / (high - low) * LEVELS), LEVELS - 1)
    return _SHADES[level]


def _lines(chart: Chart, found: Sequence[Mark], colors: Sequence[str]) -> Picture:
    """A line a series in the order of x, interrupted where y is unknown."""
    places, values = numbers(found)
    up = axis(values, chart.unit, about=4, zero=True, wide=True)
    across = axis(places, chart.x_unit)
    drawn = []
    for at, color in enumerate(colors):
        points = sorted(
            (mark for mark in found if mark.series == at),
            key=lambda mark: (mark.start, mark.value is None),
        )
        for piece in _pieces(points):
            x = tuple(across.at(mark.start) for mark in piece if mark.start is not None)
            y = tuple(up.at(mark.value) for mark in piece if mark.value is not None)
            drawn.append(Line(x, y, color))
    return framed(chart, chart.caption, (), drawn, across, up, key(chart, colors))


def _pieces(points: Sequence[Mark]) -> Iterator[list[Mark]]:
    """The points between those whose y is unknown."""
    piece: list[Mark] = []
    for mark in points:
        if mark.value is not None:
            piece.append(mark)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _histogram(chart: Chart, found: Sequence[Mark], colors: Sequence[str]) -> Picture:
    """Bars over their intervals, those of one interval stacked in the order of the series."""
    found = sorted(found, key=lambda mark: mark.series)
    reached: dict[tuple[Fraction | None, Fraction | None], Fraction] = {}
    spans = []
    for mark in found:
        start = reached.get((mark.start, mark.end), Fraction(0))
        reached[mark.start, mark.end] = start + (mark.value or 0)
        spans.append((start, start + (mark.value or 0)))
    up = axis([end for span in spans for end in span], chart.unit, about=4, zero=True, wide=True)
    across = axis(numbers(found)[0], chart.x_unit)
    boxes = []
    for mark, span in zip(found, spans, strict=True):
        if mark.value and mark.start is not None and mark.end is not None:
            low, high = sorted(map(up.at, span))
            left, right = across.at(mark.start), across.at(mark.end)
            boxes.append(Box(left, right, high, low, colors[mark.series]))
    return framed(chart, chart.caption, boxes, (), across, up, key(chart, colors))


def _box(across: Axis, mark: Mark, top: float, height: float, color: str) -> Box:
    """The box of an interval."""
    assert mark.start is not None
    assert mark.end is not None
    left, right = across.at(mark.start), across.at(mark.end)
    return Box(left, max(right, left + _TAIL / 1000), top, top + height, color)


# Drawing it


def matplotlib_or_refuse() -> Any:
    """The library, with all of it that is used here imported; TracekitError where it is missing."""
    try:
        found = import_module("matplotlib")
        for name in ("collections", "figure", "lines", "patches", "style"):
            import_module(f"matplotlib.{name}")
    except ImportError:
        problem = "image files need matplotlib"
        raise TracekitError(problem, "pip install 'tracekit[plots]'") from None
    return found


_SETTINGS = {
    "svg.hashsalt": "tracekit",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a `$` in the name of a kernel is a `$`
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def _painted(drawn: Picture, suffix: str, matplotlib: Any) -> bytes:
    """The picture in one of `FORMATS`, whatever the user's own settings of matplotlib are."""
    unsaid = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[suffix]
    # A figure of its own, unknown to pyplot, is drawn without a window on any machine.
    with matplotlib.style.context(["default", _SETTINGS]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters that the font has not are drawn as boxes
        figure = matplotlib.figure.Figure(
            figsize=(_WIDTH_IN, drawn.height_in + 1.5), dpi=_DPI, layout="constrained"
        )
        _paint(figure.add_subplot(), drawn, matplotlib)
        out = BytesIO()
        figure.savefig(out, format=suffix, metadata=unsaid)
    return out.getvalue()


def _paint(axes: Any, drawn: Picture, matplotlib: Any) -> None:
    """Nothing; afterwards the axes show the picture."""
    axes.set_title(drawn.title, loc="left", fontsize=11)
    axes.set_xlabel(drawn.caption, loc="left")
    axes.set_xlim(0, 1)
    axes.set_xticks([at for at, _ in drawn.x_ticks], [label for _, label in drawn.x_ticks])
    if drawn.rows:
        axes.set_ylim(len(drawn.rows), 0)
        axes.set_yticks([at + 0.5 for at in range(len(drawn.rows))], list(drawn.rows))
        axes.tick_params(axis="y", length=0)
    else:
        axes.set_ylim(0, 1)
        axes.set_yticks([at for at, _ in drawn.y_ticks], [label for _, label in drawn.y_ticks])
    axes.grid(visible=True, axis="x" if drawn.rows else "both", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    if drawn.boxes:
        corners = [
            ((b.left, b.top), (b.right, b.top), (b.right, b.bottom), (b.left, b.bottom))
            for b in drawn.boxes
        ]
        colors = [box.color for box in drawn.boxes]
        edges = [GRID if color == UNKNOWN else color for color in colors]
        filled = matplotlib.collections.PolyCollection(
            corners, facecolors=colors, edgecolors=edges, linewidths=0.3
        )
        axes.add_collection(filled, autolim=False)
    for line in drawn.lines:
        point = "." if line.dotted else ""
        axes.plot(line.x, line.y, color=line.color, linewidth=1.5, marker=point, markersize=4)
    for dot in drawn.dots:
        fill = dot.color if dot.filled else UNKNOWN
        axes.plot(
            [dot.x], [dot.y], dot.shape, markersize=6, color=dot.color, markerfacecolor=fill,
            clip_on=False,
        )  # fmt: skip
    for x, y, words in drawn.words:
        axes.annotate(
            words, (x, y), (6, 0), textcoords="offset points", va="center", annotation_clip=False
        )
    if drawn.legend:
        _key_beside(axes, drawn, matplotlib)


def _key_beside(axes: Any, drawn: Picture, matplotlib: Any) -> None:
    """Nothing; afterwards the colours are named, below the plot where words stand beside it."""
    handles = [
        matplotlib.patches.Patch(facecolor=color, edgecolor=GRID, label=words)
        for words, color in drawn.legend
    ]
    if drawn.dots:
        handles = [
            matplotlib.lines.Line2D(
                [], [], color=color, label=words, linestyle="", marker=SHAPES[at % len(SHAPES)]
            )
            for at, (words, color) in enumerate(drawn.legend)
        ]
    if drawn.words:
        axes.figure.legend(
            handles=handles, loc="outside lower left", frameon=False, ncols=len(handles)
        )
    else:
        axes.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            frameon=False,
            borderaxespad=0.3,
        )
