"""Registry of chart kinds, and the layout of a chart by its kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart, ChartKind
from tracekit.model.units import format_quantity
from tracekit.render.charts import changes, rows, xy
from tracekit.render.charts.frame import assign_tones, draw_legend
from tracekit.render.charts.marks import ChartKindLayout, Mark, Number, list_chart_marks
from tracekit.render.charts.shapes import ChartLayout, PlacedText, PlotDrawing
from tracekit.render.charts.text import fit_text, make_slug, shorten_for_tooltip

KINDS: dict[ChartKind, ChartKindLayout] = {kind.name: kind for kind in (*rows.KINDS, *xy.KINDS, *changes.KINDS)}

MOST_MARKS, MOST_ROWS = 2_000, 300
"""Limits of one chart: more would be invisible and slow to draw."""

_LISTED = 6


def lay_out_chart(chart: Chart, roles: Mapping[str, str] | None = None) -> ChartLayout:
    """Lay out a chart; TracekitError if a mark refers to a missing row or series.

    At most 2,000 marks of 300 rows are drawn, the largest (`bounded` counts the others). `roles` are the
    tones of series by name, so that a name has the same tone in all timelines of a page.
    """
    chart = limit_chart(chart)
    kind = KINDS[chart.kind]
    placed = list_placed_marks(chart)
    series = assign_tones(chart.series)
    if chart.kind == "gantt" and roles:
        series = list(map(roles.get, chart.series, series))
    keys, top = draw_legend(chart.series, series, kind.sample)
    if placed:
        drawing = kind.draw(chart, placed, series, top)
    else:
        drawing = PlotDrawing((PlacedText(0, top + 16, "nothing to draw"),), top + 24)
    return ChartLayout(
        make_slug(chart.id),
        chart.kind,
        chart.title or chart.id,
        _describe_chart(chart, len(placed)),
        _make_chart_caption(chart),
        (*keys, *drawing.parts),
        drawing.height,
    )


def assign_stage_tones(charts: Iterable[Chart]) -> dict[str, str]:
    """Assign a tone to every series of the timelines, by total size, to pass to `layout`."""
    sizes: dict[str, Fraction] = {}
    for chart in charts:
        if chart.kind == "gantt" and not find_chart_problem(chart):
            for mark in list_placed_marks(chart):
                name = chart.series[mark.series]
                sizes[name] = sizes.get(name, Fraction(0)) + mark.size
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return dict(zip(names, assign_tones(names), strict=True))


def list_placed_marks(chart: Chart) -> list[Mark]:
    """List the marks that can be placed, in the chart's order; TracekitError for a dangling reference."""
    wrong = find_chart_problem(chart)
    if wrong:
        raise TracekitError(f"chart {chart.id!r}: {wrong}")
    kind = KINDS[chart.kind]
    return [mark for mark in list_chart_marks(chart, kind) if kind.is_placed(mark)]


def find_chart_problem(chart: Chart) -> str:
    """Find an invalid mark, such as `marks[3] is of no row there is (8 are named)`; empty if there is none."""
    names = KINDS[chart.kind].fields
    sizes = {"row": len(chart.rows), "series": len(chart.series)}
    references = [(index, name) for index, name in enumerate(names) if name in sizes]
    for number, mark in enumerate(chart.marks):
        if len(mark) != len(names):
            return f"marks[{number}] has {len(mark)} numbers, not {len(names)}"
        for index, name in references:
            target = mark[index]
            if type(target) is not int or not 0 <= target < sizes[name]:
                return f"marks[{number}] is of no {name} there is ({sizes[name]} are named)"
    if {len(chart.roles), len(chart.ranks)} not in ({0}, {len(chart.rows)}):
        return "roles and ranks are not of all rows"
    return ""


def limit_chart(chart: Chart) -> Chart:
    """Limit the chart to 300 rows and its 2,000 largest marks; `omitted` counts the others."""
    if len(chart.rows) <= MOST_ROWS and len(chart.marks) <= MOST_MARKS:
        return chart
    kind = KINDS[chart.kind]
    raw = chart.marks
    if "row" in kind.fields:
        raw = tuple(mark for mark in raw if not _is_beyond_last_row(mark))
    if len(raw) > MOST_MARKS and not find_chart_problem(chart):
        sizes = [mark.size for mark in list_chart_marks(replace(chart, marks=raw), kind)]
        largest = sorted(range(len(raw)), key=lambda index: (-sizes[index], index))[:MOST_MARKS]
        raw = tuple(raw[index] for index in sorted(largest))
    omitted = chart.omitted + len(chart.marks) - len(raw)
    return replace(
        chart,
        rows=chart.rows[:MOST_ROWS],
        roles=chart.roles[:MOST_ROWS],
        ranks=chart.ranks[:MOST_ROWS],
        marks=raw,
        omitted=omitted,
    )


def _is_beyond_last_row(mark: Sequence[Number]) -> bool:
    """Check whether a mark is of a row that is not drawn; `problem` reports invalid rows."""
    return type(mark[0]) is int and mark[0] >= MOST_ROWS


def _make_chart_caption(chart: Chart) -> str:
    """Make the caption, with the number of marks left out."""
    texts = [chart.caption]
    if chart.omitted:
        texts.append(f"{format_quantity(chart.omitted, 'count')} marks left out")
    return ". ".join(text.rstrip(".") for text in texts if text)


def _describe_chart(chart: Chart, count: int) -> str:
    """Describe the chart in a sentence for screen readers."""
    parts = [f"{KINDS[chart.kind].sentence}: {format_quantity(count, 'count')} marks"]
    for names, word in ((chart.rows, "rows"), (chart.series, "series")):
        if names:
            parts.append(f"{format_quantity(len(names), 'count')} {word}, {_join_chart_names(names)}")
    return "; ".join(parts) + "."


def _join_chart_names(names: Sequence[str]) -> str:
    """Join the first names."""
    listed = ", ".join(shorten_for_tooltip(fit_text(name, 240)) for name in names[:_LISTED])
    if len(names) > _LISTED:
        listed += " …"
    return listed
