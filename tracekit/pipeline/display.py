"""Functions behind the methods of displayed values: `model.display` imports this module on first use."""

from __future__ import annotations

from tracekit.compare.reports.comparison_report import build_comparison_report
from tracekit.pipeline import compare
from tracekit.render.notebook import make_notebook_html, summarize_in_line
from tracekit.render.plots.images import draw_chart
from tracekit.render.tables import make_report_tables

__all__ = [
    "build_comparison_report",
    "compare",
    "draw_chart",
    "make_notebook_html",
    "make_report_tables",
    "summarize_in_line",
]
