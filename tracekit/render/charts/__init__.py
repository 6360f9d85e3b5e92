"""A chart as one SVG picture: colours by class, words in it, nothing it loads.

The same chart gives the same bytes. Colours are the page's variables, so that dark mode and print need no
second picture; what colour says is also said by a legend, by text in the marks, and by tooltips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from tracekit.model.report import Chart, ChartKind
from tracekit.model.units import show
from tracekit.render.charts.changes import intervals, strips, waterfall
from tracekit.render.charts.extents import extents, icicle
from tracekit.render.charts.frame import WIDTH, Drawing, legend, tones
from tracekit.render.charts.marks import Mark, bounded, marks, problem
from tracekit.render.charts.rows import bars, gantt, heatmap, row_id
from tracekit.render.charts.text import fitted, slug, text
from tracekit.render.charts.xy import histogram, lines

__all__ = ["bounded", "draw", "row_id", "stage_tones"]

_KINDS: dict[ChartKind, Callable[[Chart, Sequence[Mark], Sequence[str], float], Drawing]] = {
    "gantt": gantt,
    "bars": bars,
    "heatmap": heatmap,
    "lines": lines,
    "histogram": histogram,
    "intervals": intervals,
    "strips": strips,
    "waterfall": waterfall,
    "extents": extents,
    "icicle": icicle,
}
_KEYED = ("gantt", "bars", "lines", "histogram", "intervals", "strips", "waterfall", "extents")


def draw(chart: Chart, given: Mapping[str, str] | None = None) -> str:
    """The chart as an `<svg>` element; TracekitError where a mark refers to a row or series not there.

    At most 2,000 marks of 300 rows are drawn, the largest (`svg_marks.bounded` tells how many went).
    `given` are the tones of series by name, so that a name has one tone in all pictures of a page.
    """
    chart = bounded(chart)
    found = marks(chart)
    of = [
        (given or {}).get(name, tone)
        for name, tone in zip(chart.series, tones(chart.series), strict=True)
    ]
    parts, top = legend(chart, of) if chart.kind in _KEYED else ([], 4.0)
    if found:
        drawing = _KINDS[chart.kind](chart, found, of, top)
    else:
        drawing = Drawing((f'<text x="0" y="{top + 16:g}">nothing to draw</text>',), top + 24)
    name = f"chart-{slug(chart.id)}"
    opening = (
        f'<svg class="chart {chart.kind}" viewBox="0 0 {WIDTH} {drawing.height:g}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg" aria-labelledby="{name}--title {name}--desc">\n'
    )
    title = f'<title id="{name}--title">{text(chart.title or chart.id)}</title>\n'
    desc = f'<desc id="{name}--desc">{_described(chart, found)}</desc>\n'
    return "".join((opening, title, desc, *parts, *drawing.parts, "</svg>\n"))


def stage_tones(charts: Iterable[Chart]) -> dict[str, str]:
    """The tone of every series of the time lines, what fills them most first, to give to `draw`."""
    sizes: dict[str, Fraction] = {}
    for chart in charts:
        if chart.kind == "gantt" and not problem(chart):
            for mark in marks(chart):
                name = chart.series[mark.series]
                sizes[name] = sizes.get(name, Fraction(0)) + mark.size
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return dict(zip(names, tones(names), strict=True))


def _described(chart: Chart, found: Sequence[Mark]) -> str:
    """The picture in a sentence, for who cannot see it."""
    what = {
        "gantt": "Bars on one time axis",
        "bars": "Bars of amounts",
        "heatmap": "Coloured cells",
        "lines": "Lines",
        "histogram": "Bars of how often a value occurs",
        "intervals": "Factors with their intervals, and a line at 1",
        "strips": "Dots, one a value",
        "waterfall": "Bars that lead from one amount to another",
        "extents": "Parts of amounts as bars beside one another",
        "icicle": "A tree of bars, each above those that are parts of it",
    }[chart.kind]
    parts = [f"{what}: {show(len(found), 'count')} marks"]
    if chart.rows:
        parts.append(f"{show(len(chart.rows), 'count')} rows, {_listed(chart.rows)}")
    if chart.series:
        parts.append(f"{show(len(chart.series), 'count')} series, {_listed(chart.series)}")
    return "; ".join(parts) + "."


def _listed(names: Sequence[str]) -> str:
    """The first names."""
    shown = ", ".join(text(fitted(name, 240)) for name in names[:6])
    return f"{shown} …" if len(names) > 6 else shown
