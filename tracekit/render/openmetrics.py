"""A report as OpenMetrics text, whose numbers GitLab's metrics report puts beside those of the target branch.

It compares them as texts: three digits of each, so that noise does not read as a change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from math import isfinite

from tracekit.model.report import Cell, Metric, Report, Section, Sheet, Unit
from tracekit.render.escape import printable
from tracekit.render.options import Options

MOST_ROWS = 200
"""Rows of the first table that are written; what is beyond is small."""

_LONGEST = 200
_DIGITS = 3
_BASE: Mapping[Unit, tuple[str, float]] = {
    "ns": ("seconds", 1e-9),
    "bytes": ("bytes", 1.0),
    "ratio": ("ratio", 1.0),
    "factor": ("ratio", 1.0),
    "gb_per_s": ("gigabytes_per_second", 1.0),
}
"""The unit that OpenMetrics wants at the end of a name, and what one of ours is in it; others are bare numbers."""

Sample = tuple[tuple[str, str], Mapping[str, str], float]
"""(name, unit) of a family, the labels, the value."""


def render_openmetrics(report: Report, _options: Options) -> str:
    """The figures of every question as gauges, and the first table with its texts as labels; ends with `# EOF`.

    A number that is not known has no line; of two lines for the same thing the first stands.
    """
    units: dict[str, str] = {}
    families: dict[str, dict[str, float]] = {}
    for (name, unit), labels, value in _samples(report):
        if units.setdefault(name, unit) == unit:
            families.setdefault(name, {}).setdefault(_labels(labels), value)
    out = []
    for name in sorted(families):
        out.append(f"# TYPE {name} gauge")
        if units[name]:
            out.append(f"# UNIT {name} {units[name]}")
        out += [f"{name}{labels} {_rounded(value)}" for labels, value in families[name].items()]
    return "\n".join([*out, "# EOF"]) + "\n"


def _samples(report: Report) -> Iterator[Sample]:
    """Everything that is written, question by question."""
    for section in (Section("report", "", metrics=report.headline), *report.sections):
        for metric in section.metrics:
            yield from _of_metric(section.id, metric)
    if report.overview is not None:
        yield from _of_sheet(report.overview)


def _of_metric(part: str, metric: Metric) -> Iterator[Sample]:
    """A figure, and the ends of its interval with the label `bound`."""
    low, high = {"bound": "low"}, {"bound": "high"}
    for value, labels in ((metric.value, {}), (metric.low, low), (metric.high, high)):
        number = _in_base(value, metric.unit)
        if number is not None:
            yield _named(f"{part}_{metric.name}", metric.unit), labels, number


def _of_sheet(sheet: Sheet) -> Iterator[Sample]:
    """The numbers of a table, with the texts that stand before them as labels: those after them vary as they do."""
    for row in sheet.rows[:MOST_ROWS]:
        cells = list(zip(sheet.headings, row, strict=True))
        named = takewhile(lambda pair: pair[0].unit in ("text", "id"), cells)
        labels = {_plain(h.name): str(cell) for h, cell in named if cell is not None}
        for heading, cell in cells:
            value = _in_base(cell, heading.unit)
            if value is not None and heading.unit != "id":
                yield _named(f"{sheet.name}_{heading.name}", heading.unit), labels, value


def _in_base(value: Cell, unit: Unit) -> float | None:
    """The number in the unit of its name; None for what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value) * _BASE.get(unit, ("", 1.0))[1]
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _rounded(value: float) -> str:
    """The number to three digits, without an exponent where it is of a size that people write out.

    >>> _rounded(1234567.0), _rounded(0.0012345), _rounded(1.797e308)
    ('1230000', '0.00123', '1.8e+308')
    """
    text = f"{value:.{_DIGITS}g}"
    return f"{float(text):.15g}" if isfinite(float(text)) else text


def _named(name: str, unit: Unit) -> tuple[str, str]:
    """(the name of a family, which ends in its unit, that unit)."""
    base = _BASE.get(unit, ("", 1.0))[0]
    plain = _plain(f"tracekit_{name}".removesuffix("_ns").removesuffix(f"_{base}"))
    return "_".join(filter(None, (plain, base))), base


def _plain(name: str) -> str:
    """The name of letters, digits and underscores, with which it begins or a letter."""
    text = re.sub(r"[^0-9A-Za-z_]", "_", name[:_LONGEST])
    return re.sub(r"^(?![A-Za-z_])", "_", text)


def _labels(labels: Mapping[str, str]) -> str:
    """Labels in braces, their texts escaped; nothing without any."""
    if not labels:
        return ""
    parts = (f'{name}="{_text(text)}"' for name, text in labels.items())
    return "{" + ",".join(parts) + "}"


def _text(text: str) -> str:
    """A text on one line, in which a quote or a backslash ends nothing."""
    return printable(text, _LONGEST).replace("\\", "\\\\").replace('"', '\\"')
