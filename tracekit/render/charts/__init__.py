"""Charts as pictures: one layout of each (`kinds`), painted as SVG on the page (`svg`) or by matplotlib (`images`)."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.report import Chart
from tracekit.render.charts.kinds import bounded, layout, problem, stage_tones
from tracekit.render.charts.rows import row_id
from tracekit.render.charts.svg import svg

__all__ = ["bounded", "draw", "problem", "row_id", "stage_tones"]


def draw(chart: Chart, roles: Mapping[str, str] | None = None) -> str:
    """The chart as an `<svg>` element; `roles` are as for `layout`."""
    return svg(layout(chart, roles))
