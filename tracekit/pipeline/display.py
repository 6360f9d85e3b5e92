"""Functions behind the methods of displayed values: `model.display` imports this module on first use."""

from __future__ import annotations

from tracekit.compare.report import report_comparison
from tracekit.pipeline import compare
from tracekit.render.charts.images import draw_chart
from tracekit.render.frames import make_frames
from tracekit.render.notebook import summarize, to_html

__all__ = ["compare", "draw_chart", "make_frames", "report_comparison", "summarize", "to_html"]
