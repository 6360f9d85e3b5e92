"""Charts as images, laid out once (`kinds`), then painted as SVG (`svg`) or by matplotlib (`images`)."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.report import Chart
from tracekit.render.charts.kinds import assign_stage_tones, find_chart_problem, lay_out_chart, limit_chart
from tracekit.render.charts.rows import make_row_id
from tracekit.render.charts.svg import draw_svg

__all__ = ["assign_stage_tones", "draw_svg_chart", "find_chart_problem", "limit_chart", "make_row_id"]


def draw_svg_chart(chart: Chart, roles: Mapping[str, str] | None = None) -> str:
    """Draw the chart as an `<svg>` element; `roles` are as for `layout`."""
    return draw_svg(lay_out_chart(chart, roles))
