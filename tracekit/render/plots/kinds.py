"""Registry of how each kind of chart is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracekit.model.report import Chart, ChartKind
from tracekit.render.plots import changes, rows, xy
from tracekit.render.plots.marks import Mark

DRAWINGS: Mapping[ChartKind, Callable[[Any, Chart, Sequence[Mark], Sequence[str]], None]] = {
    "gantt": rows.draw_gantt,
    "bars": rows.draw_bars,
    "heatmap": rows.draw_heatmap,
    "matrix": rows.draw_matrix,
    "lines": xy.draw_lines,
    "histogram": xy.draw_histogram,
    "intervals": changes.draw_intervals,
    "strips": changes.draw_strips,
    "waterfall": changes.draw_waterfall,
    "extents": rows.draw_extents,
    "icicle": rows.draw_icicle,
}
"""Each draws the marks of a chart on axes in the colors of its series."""

FLAT = frozenset({"lines", "histogram"})
"""Kinds whose height does not depend on rows."""
