"""Chart images as PNG and SVG files, or on the caller's axes, by matplotlib.

The same chart gives the same bytes. Only this module imports matplotlib before it draws.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from io import BytesIO
from typing import Any

from tracekit.model.errors import TracekitError
from tracekit.model.report import Chart, Report
from tracekit.model.system.installed import install_command
from tracekit.model.text.labels import did_you_mean
from tracekit.model.units import format_quantity
from tracekit.render.escape import make_printable
from tracekit.render.plots.axes import INK, POINTS, QUIET, WIDTH, shorten_chart_text
from tracekit.render.plots.colors import assign_series_colors, assign_stage_colors, list_report_charts
from tracekit.render.plots.kinds import DRAWINGS, FLAT
from tracekit.render.plots.marks import find_chart_problem, limit_chart, list_marks
from tracekit.render.tables import make_file_name, make_unique_file_name

FORMATS = ("png", "svg")

_DPI = 120
_ROW, _LEAST, _MOST = 0.27, 1.9, 12.0
"""Height of a row, least and greatest height of an image, in inches."""
_FLAT_HEIGHT = 3.2
_CAPTION = 160

_SETTINGS = {
    "svg.hashsalt": "tracekit",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a `$` in the name of a kernel is a `$`
    "text.color": INK,
}


def paint_report_charts(report: Report) -> Iterator[tuple[str, bytes]]:
    """Paint every chart as (file name, bytes), as PNG and as SVG; TracekitError if matplotlib is missing.

    Names are `<section>-<chart id>` in characters that any file system accepts, each unique.
    """
    matplotlib = import_matplotlib()
    names: set[str] = set()
    stages = assign_stage_colors(list_report_charts(report))
    for section in report.sections:
        for chart in section.charts:
            name = make_unique_file_name(make_file_name(f"{section.id}-{chart.id}"), names)
            for suffix in FORMATS:
                yield f"{name}.{suffix}", paint_chart(chart, stages, suffix, matplotlib)


def import_matplotlib() -> Any:
    """Import matplotlib and its submodules used here; TracekitError if it is missing."""
    try:
        library = import_module("matplotlib")
        for name in ("figure", "style"):
            import_module(f"matplotlib.{name}")
    except ImportError:
        problem = "image files need matplotlib"
        raise TracekitError(problem, install_command("plots")) from None
    return library


def paint_chart(chart: Chart, stages: Mapping[str, str], suffix: str, matplotlib: Any) -> bytes:
    """Paint a chart in one of `FORMATS`, independent of the user's matplotlib settings."""
    unsaid = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[suffix]
    with matplotlib.style.context(["default", _SETTINGS]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters missing from the font are drawn as boxes
        # A figure that pyplot does not manage needs no display.
        figure = matplotlib.figure.Figure(figsize=_get_figure_size(chart), dpi=_DPI, layout="constrained")
        _draw_on_axes(figure.add_subplot(), chart, stages)
        file = BytesIO()
        figure.savefig(file, format=suffix, metadata=unsaid)
    return file.getvalue()


def draw_chart(report: Report, chart: str, axes: Any = None) -> Any:
    """Draw one chart of the report on axes, by its id or its section's id; see `Report.figure` for `axes`."""
    charts: dict[str, Chart] = {}
    for one in list_report_charts(report):
        charts.setdefault(one.id, one)
    for section in report.sections:
        for one in section.charts:
            charts.setdefault(section.id, one)
    chosen = charts.get(chart)
    if chosen is None:
        ids = list(charts)
        near = did_you_mean(chart, ids)
        raise TracekitError(f"no chart {chart!r} in the report{near}", f"there are: {', '.join(ids) or 'none'}")
    matplotlib = import_matplotlib()
    with matplotlib.style.context(_SETTINGS):
        if axes is None:
            pyplot = import_module("matplotlib.pyplot")
            axes = pyplot.figure(figsize=_get_figure_size(chosen), layout="constrained").add_subplot()
        _draw_on_axes(axes, chosen, assign_stage_colors(list_report_charts(report)))
    return axes


def _get_figure_size(chart: Chart) -> tuple[float, float]:
    """Compute the (width, height) of a figure for a chart, in inches."""
    rows = _FLAT_HEIGHT if chart.kind in FLAT else _ROW * len(chart.rows)
    legend = 0.25 * -(-min(len(chart.series), 16) // 6) if len(chart.series) > 1 else 0
    return WIDTH, min(max(rows + 1.1 + legend, _LEAST), _MOST)


def _draw_on_axes(axes: Any, chart: Chart, stages: Mapping[str, str]) -> None:
    """Draw the chart on axes, its title above and its caption below; TracekitError if a mark is of no row or series."""
    wrong = find_chart_problem(chart)
    if wrong:
        raise TracekitError(f"chart {chart.id!r}: {wrong}")
    chart = limit_chart(chart)
    marks = list_marks(chart)
    axes.set_title(shorten_chart_text(chart.title or chart.id, 120), loc="left", fontsize=1.2 * POINTS)
    if marks:
        DRAWINGS[chart.kind](axes, chart, marks, assign_series_colors(chart.series, stages))
    else:
        axes.set_axis_off()
        axes.text(0, 0.5, "nothing to draw", fontsize=POINTS, color=QUIET)
    caption = _make_chart_caption(chart)
    if caption:
        axes.figure.supxlabel(make_printable(caption, _CAPTION), x=0.01, ha="left", fontsize=POINTS, color=QUIET)


def _make_chart_caption(chart: Chart) -> str:
    """Make the caption, with the number of marks left out."""
    texts = [chart.caption]
    if chart.omitted:
        texts.append(f"{format_quantity(chart.omitted, 'count')} marks left out")
    return ". ".join(text.rstrip(".") for text in texts if text)
