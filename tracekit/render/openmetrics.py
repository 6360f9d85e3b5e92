"""Report as OpenMetrics text; GitLab's metrics report compares its numbers with the target branch.

GitLab compares them as text: each has three digits, so that noise does not show as a change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from math import isfinite

from tracekit.model.report import Cell, Metric, Report, Section, Sheet, Unit
from tracekit.render.escape import make_printable
from tracekit.render.options import RenderOptions

MAX_METRIC_ROWS = 200
"""Rows of the first table that are written; later ones are small."""

_LONGEST = 200
_DIGITS = 3
_BASE: Mapping[Unit, tuple[str, float]] = {
    "ns": ("seconds", 1e-9),
    "bytes": ("bytes", 1.0),
    "ratio": ("ratio", 1.0),
    "factor": ("ratio", 1.0),
    "gb_per_s": ("gigabytes_per_second", 1.0),
}
"""Unit suffix that OpenMetrics requires in a name, and its factor for ours; other numbers have none."""

GaugeSample = tuple[tuple[str, str], Mapping[str, str], float]
"""(name, unit) of a family, the labels, the value."""


def render_openmetrics(report: Report, _options: RenderOptions) -> str:
    """Render the figures of every question and the first table as gauges, ending with `# EOF`.

    The texts of the table are labels. Unknown numbers have no line; the first of two equal series wins.
    """
    units: dict[str, str] = {}
    families: dict[str, dict[str, float]] = {}
    for (name, unit), labels, value in _list_report_gauges(report):
        if units.setdefault(name, unit) == unit:
            families.setdefault(name, {}).setdefault(_format_labels(labels), value)
    out = []
    for name in sorted(families):
        out.append(f"# TYPE {name} gauge")
        if units[name]:
            out.append(f"# UNIT {name} {units[name]}")
        out += [f"{name}{labels} {_round_gauge(value)}" for labels, value in families[name].items()]
    return "\n".join([*out, "# EOF"]) + "\n"


def _list_report_gauges(report: Report) -> Iterator[GaugeSample]:
    """List all samples, question by question."""
    for section in (Section("report", "", metrics=report.headline), *report.sections):
        for metric in section.metrics:
            yield from _list_metric_gauges(section.id, metric)
    if report.overview is not None:
        yield from _list_sheet_gauges(report.overview)


def _list_metric_gauges(part: str, metric: Metric) -> Iterator[GaugeSample]:
    """List a figure, and the ends of its interval with the label `bound`."""
    low, high = {"bound": "low"}, {"bound": "high"}
    for value, labels in ((metric.value, {}), (metric.low, low), (metric.high, high)):
        number = _convert_to_base_unit(value, metric.unit)
        if number is not None:
            yield _name_family(f"{part}_{metric.name}", metric.unit), labels, number


def _list_sheet_gauges(sheet: Sheet) -> Iterator[GaugeSample]:
    """List the numbers of a table with the texts before them as labels; later texts vary with the numbers."""
    for row in sheet.rows[:MAX_METRIC_ROWS]:
        cells = list(zip(sheet.headings, row, strict=True))
        named = takewhile(lambda pair: pair[0].unit in ("text", "id"), cells)
        labels = {_make_metric_name(h.name): str(cell) for h, cell in named if cell is not None}
        for heading, cell in cells:
            value = _convert_to_base_unit(cell, heading.unit)
            if value is not None and heading.unit != "id":
                yield _name_family(f"{sheet.name}_{heading.name}", heading.unit), labels, value


def _convert_to_base_unit(value: Cell, unit: Unit) -> float | None:
    """Convert a number to the unit of its name; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value) * _BASE.get(unit, ("", 1.0))[1]
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _round_gauge(value: float) -> str:
    """Round a number to three digits, without an exponent at common magnitudes.

    >>> _round_gauge(1234567.0), _round_gauge(0.0012345), _round_gauge(1.797e308)
    ('1230000', '0.00123', '1.8e+308')
    """
    text = f"{value:.{_DIGITS}g}"
    return f"{float(text):.15g}" if isfinite(float(text)) else text


def _name_family(name: str, unit: Unit) -> tuple[str, str]:
    """Name a family with its unit as suffix, and get that unit."""
    base = _BASE.get(unit, ("", 1.0))[0]
    plain = _make_metric_name(f"tracekit_{name}".removesuffix("_ns").removesuffix(f"_{base}"))
    return "_".join(word for word in (plain, base) if word), base


def _make_metric_name(name: str) -> str:
    """Make a valid metric name of letters, digits and underscores."""
    text = re.sub(r"[^0-9A-Za-z_]", "_", name[:_LONGEST])
    return re.sub(r"^(?![A-Za-z_])", "_", text)


def _format_labels(labels: Mapping[str, str]) -> str:
    """Format labels in braces with escaped texts; empty without any."""
    if not labels:
        return ""
    parts = (f'{name}="{_escape_label(text)}"' for name, text in labels.items())
    return "{" + ",".join(parts) + "}"


def _escape_label(text: str) -> str:
    """Escape a label value: one line, with quotes and backslashes escaped."""
    return make_printable(text, _LONGEST).replace("\\", "\\\\").replace('"', '\\"')
