"""Charts as images, laid out once (`kinds`), then painted as SVG (`svg`) or by matplotlib (`images`)."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.report import Chart
from tracekit.render.charts.kinds import bounded, layout, problem, stage_tones
from tracekit.render.charts.rows import row_id
from tracekit.render.charts.svg import svg

__all__ = ["bounded", "draw", "problem", "row_id", "stage_tones"]


def draw(chart: Chart, roles: Mapping[str, str] | None = None) -> str:
    """Draw the chart as an `<svg>` element; `roles` are as for `layout`."""
    return svg(layout(chart, roles))
