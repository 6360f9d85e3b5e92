"""Strip of the stages of a step for notebooks: plain HTML without scripts, with all names escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from tracekit.model.report import Chart, Report
from tracekit.model.units import format_quantity
from tracekit.render.plots.axes import shorten_chart_text
from tracekit.render.plots.colors import (
    assign_series_colors,
    assign_stage_colors,
    choose_text_color,
    list_report_charts,
)
from tracekit.render.plots.marks import find_chart_problem, limit_chart, list_marks

MOST_ROWS = 8
"""Ranks of a strip; the others are counted below it."""

_NARROWEST = 8.0
"""Narrowest bar with its name in it, in percent of the strip."""


def make_strip_html(report: Report) -> str:
    """Make the strip of the report's first timeline; empty without one."""
    charts = list_report_charts(report)
    chart = next((one for one in charts if one.kind == "gantt" and one.marks and not find_chart_problem(one)), None)
    if chart is None:
        return ""
    more = len(chart.rows) - MOST_ROWS
    note = f"<small>and {more:,} more</small>" if more > 0 else ""
    rows = "".join(_make_rows(chart, assign_series_colors(chart.series, assign_stage_colors(charts))))
    return (
        f'<div style="max-width:60em"><small>{escape(shorten_chart_text(chart.title, 120))}</small>{rows}{note}</div>'
    )


def _make_rows(chart: Chart, colors: list[str]) -> Iterator[str]:
    """Make the rows of a strip: the name of each, and its bars on one time axis."""
    marks = list_marks(limit_chart(chart))
    begin = min((mark.start for mark in marks), default=0.0)
    length = max((mark.end for mark in marks), default=0.0) - begin or 1.0
    for row, name in enumerate(chart.rows[:MOST_ROWS]):
        bars = []
        for mark in marks:
            if mark.row != row:
                continue
            left, width = 100 * (mark.start - begin) / length, 100 * mark.size / length
            stage, color = shorten_chart_text(chart.series[mark.series]), colors[mark.series]
            tip = f"{stage}: {format_quantity(int(mark.size), chart.x_unit)}"
            style = (
                f"position:absolute;left:{left:.3f}%;width:{width:.3f}%;height:100%;overflow:hidden;white-space:nowrap"
            )
            look = f"background:{color};color:{choose_text_color(color)};font-size:75%;text-align:center"
            words = escape(stage) if width >= _NARROWEST else ""
            bars.append(f'<span title="{escape(tip)}" style="{style};{look}">{words}</span>')
        line = f'<div style="position:relative;flex:1;height:1.4em">{"".join(bars)}</div>'
        label = f'<small style="width:9em;overflow:hidden">{escape(shorten_chart_text(name))}</small>'
        yield f'<div style="display:flex;margin:2px 0">{label}{line}</div>'
