"""The change of a comparison as values of the page's head: its parts, stages and gate, and all tables as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tracekit.model.report import Cell, Chart, Report, Sheet
from tracekit.render.escape import make_printable
from tracekit.render.explorer.report_values import describe_sheet, get_sheet_columns

NAME_LIMIT = 300
"""Characters of a name of a part."""

_PATH_SEPARATOR, _KERNEL_SEPARATOR = " > ", " · "


def describe_page_change(report: Report, names: Sequence[str]) -> dict[str, Any]:
    """Describe the change of the step by its parts, which add up to it, and all tables of the report as text.

    Values of a part: its stage, the path of names down to the kernel, both times (None if unknown), and their difference
    with its confidence interval, per step. `ends` are the amounts before and after from which and to which the parts
    lead, in `unit`: the time of a step in ns, or memory in bytes.
    """
    chart = _find_waterfall(report)
    return {
        "sides": [make_printable(name, 80) for name in names],
        "unit": chart.unit if chart else "ns",
        "ends": [chart.marks[0][3], chart.marks[-1][3]] if chart else None,
        "parts": list(_list_leaf_parts(report)) or list(_list_waterfall_parts(chart)),
        "stages": list(_list_stage_intervals(report)),
        "overview": describe_sheet("", report.overview) if report.overview else None,
        "missing": [make_printable(section.reason, 400) for section in report.sections if section.status == "skipped"],
        "sheets": [describe_sheet(title, sheet) for title, sheet in _list_sheets(report)],
    }


def _find_waterfall(report: Report) -> Chart | None:
    """Find the chart that leads from the step before to the step after; without one, that of memory."""
    charts = [chart for section in report.sections for chart in section.charts if chart.kind == "waterfall"]
    steps = [chart for chart in charts if chart.id == "waterfall"]
    memory = [chart for chart in charts if chart.unit == "bytes"]
    return next(iter([*steps, *memory]), None)


def _list_leaf_parts(report: Report) -> Iterator[dict[str, Any]]:
    """List the parts of the change by op path and kernel."""
    columns = get_sheet_columns(report, "attribution", "by-kernel")
    names = ("what", "base", "opt", "difference", "low", "high")
    if not columns:
        return
    stages = columns.get("stage", [""] * len(columns["what"]))
    for stage, *cells in zip(stages, *(columns[name] for name in names), strict=True):
        what, base, opt, difference, low, high = cells
        path = _split_path(str(what))
        yield _make_part(str(stage or ""), path, base, opt, difference, low, high)


def _split_path(what: str) -> list[str]:
    """Split the title of a part into the names of its ops, outermost first, and its kernel."""
    ops, _, kernel = what.partition(_KERNEL_SEPARATOR)
    return [*ops.split(_PATH_SEPARATOR), *([kernel] if kernel else [])]


def _make_part(stage: str, path: Sequence[str], *values: Cell) -> dict[str, Any]:
    """Make one part of the change; values are both times, the difference and its interval."""
    names = ("base", "opt", "difference", "low", "high")
    texts = {
        "stage": make_printable(stage, NAME_LIMIT),
        "path": [make_printable(name, NAME_LIMIT) for name in path],
    }
    return texts | dict(zip(names, values, strict=True))


def _list_waterfall_parts(chart: Chart | None) -> Iterator[dict[str, Any]]:
    """List the bars of the waterfall as parts, by stage or by allocation site, for a change without parts by kernel."""
    if chart is None:
        return
    for name, (_, _, start, end) in zip(chart.rows[1:-1], chart.marks[1:-1], strict=True):
        stage, path = ("", [name]) if chart.unit == "bytes" else (name, [])
        yield _make_part(stage, path, None, None, (end or 0) - (start or 0), None, None)


def _list_stage_intervals(report: Report) -> Iterator[dict[str, Any]]:
    """List the step and its stages as the report compares them: both means, and the ratio with its interval."""
    columns = get_sheet_columns(report, "stages", "stages")
    names = ("title", "base", "opt", "difference", "ratio", "low", "high", "word")
    if not all(name in columns for name in names):
        return
    roles = columns.get("role", [None] * len(columns["title"]))
    for role, title, *values in zip(roles, *(columns[name] for name in names), strict=True):
        label = f"{role} {title}" if role else str(title)
        texts = {"title": make_printable(label, NAME_LIMIT), "stage": make_printable(str(title), NAME_LIMIT)}
        yield texts | dict(zip(names[1:], values, strict=True))


def _list_sheets(report: Report) -> Iterator[tuple[str, Sheet]]:
    """List the tables of the report that the page does not show in another form, with the titles of their sections."""
    shown = {"by-kernel"}
    for section in report.sections:
        for sheet in section.sheets:
            if sheet.name not in shown:
                yield section.title, sheet
