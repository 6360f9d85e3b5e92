"""Tables of a report with raw values: the contents of the CSV and Parquet files."""

from __future__ import annotations

import re
from operator import attrgetter

from tracekit.model.report import Cell, Heading, Report, Sheet, Unit
from tracekit.render import phrases

_SUFFIXES: dict[Unit, str] = {
    "ns": "_ns",
    "bytes": "_bytes",
    "ratio": "_ratio",
    "count": "_count",
    "gb_per_s": "_gb_per_s",
}
_RESERVED = frozenset(
    ["con", "prn", "aux", "nul", *(f"{d}{i}" for d in ("com", "lpt") for i in range(1, 10))]
)


def tables(report: Report) -> dict[str, Sheet]:
    """List every table of the report by a portable file name without suffix."""
    sheets: dict[str, Sheet] = {}
    names: set[str] = set()
    further = (("", _findings(report)), ("", _remarks(report)))
    for section, sheet in (*phrases.every_sheet(report), *further):
        name = sheet.name if section in ("", sheet.name) else f"{section}.{sheet.name}"
        sheets[unique_name(file_name(name), names)] = sheet
    return sheets


def column_names(sheet: Sheet) -> list[str]:
    """Name the columns by heading and unit suffix, each unique."""
    lower_names: set[str] = set()
    names = []
    for heading in sheet.headings:
        suffix = _SUFFIXES.get(heading.unit, "")
        name = heading.name
        if f"_{name}" != suffix:
            name = name.removesuffix(suffix) + suffix
        names.append(unique_name(name, lower_names))
    return names


def file_name(name: str) -> str:
    """Make a name of letters, digits, `_`, `-` and inner dots; never hidden, reserved or a path."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip(".-")[:80] or "sheet"
    return f"_{safe}" if safe.split(".")[0].lower() in _RESERVED else safe


def unique_name(name: str, lower_names: set[str]) -> str:
    """Append a number to a name if `lower_names` has it, ignoring case, and add the result to them."""
    unique, number = name, 1
    while unique.lower() in lower_names:
        number += 1
        unique = f"{name}_{number}"
    lower_names.add(unique.lower())
    return unique


def _findings(report: Report) -> Sheet:
    """Make the table of findings, in their order."""
    headings = (
        Heading("rule", "rule"),
        Heading("severity", "severity"),
        Heading("recoverable", "up to, per step", "ns"),
        Heading("recoverable", "of the step", "ratio"),
        Heading("confidence", "confidence", "ratio"),
        Heading("claim", "claim"),
        Heading("advice", "advice"),
        Heading("where", "where"),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            finding.rule,
            finding.severity,
            finding.recoverable_ns,
            finding.recoverable_ratio,
            finding.confidence,
            finding.claim,
            finding.advice,
            "; ".join(map(phrases.place_phrase, finding.places)),
        )
        for finding in report.findings
    ]
    return Sheet("findings", "Findings", headings, tuple(rows))


def _remarks(report: Report) -> Sheet:
    """Make the table of remarks."""
    headings = (
        Heading("severity", "severity"),
        Heading("code", "code"),
        Heading("message", "message"),
        Heading("source", "source"),
        Heading("times", "times", "count"),
    )
    rows = tuple(map(attrgetter("severity", "code", "message", "source", "count"), report.remarks))
    return Sheet("remarks", "Remarks", headings, rows)
