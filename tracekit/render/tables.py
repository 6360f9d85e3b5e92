"""Tables of a report with raw values: the contents of the CSV and Parquet files, and the same as pandas frames."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.model.display import NamedFrames
from tracekit.model.errors import make_unknown_name_error
from tracekit.model.report import Cell, Heading, Report, Saving, Sheet, Unit
from tracekit.model.system.lazy_pandas import pd
from tracekit.render import phrases

_SUFFIXES: dict[Unit, str] = {
    "ns": "_ns",
    "bytes": "_bytes",
    "ratio": "_ratio",
    "count": "_count",
    "gb_per_s": "_gb_per_s",
}
_RESERVED = frozenset(["con", "prn", "aux", "nul", *(f"{d}{i}" for d in ("com", "lpt") for i in range(1, 10))])


def list_report_tables(report: Report) -> dict[str, Sheet]:
    """List every table of the report by a portable file name without suffix."""
    sheets: dict[str, Sheet] = {}
    names: set[str] = set()
    further = (("", _make_findings_table(report)), ("", _make_remarks_table(report)))
    for section, sheet in (*phrases.list_report_sheets(report), *further):
        name = sheet.name if section in ("", sheet.name) else f"{section}.{sheet.name}"
        sheets[make_unique_file_name(make_file_name(name), names)] = sheet
    return sheets


def name_columns_with_units(sheet: Sheet) -> list[str]:
    """Name the columns by heading and unit suffix, each unique."""
    lower_names: set[str] = set()
    names = []
    for heading in sheet.headings:
        suffix = _SUFFIXES.get(heading.unit, "")
        name = heading.name
        if f"_{name}" != suffix:
            name = name.removesuffix(suffix) + suffix
        names.append(make_unique_file_name(name, lower_names))
    return names


def make_file_name(name: str) -> str:
    """Make a name of letters, digits, `_`, `-` and inner dots; never hidden, reserved or a path."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip(".-")[:80] or "sheet"
    return f"_{safe}" if safe.split(".")[0].lower() in _RESERVED else safe


def make_unique_file_name(name: str, lower_names: set[str]) -> str:
    """Append a number to a name if `lower_names` has it, ignoring case, and add the result to them."""
    unique, number = name, 1
    while unique.lower() in lower_names:
        number += 1
        unique = f"{name}_{number}"
    lower_names.add(unique.lower())
    return unique


def _make_findings_table(report: Report) -> Sheet:
    """Make the table of findings, in their order."""
    headings = (
        Heading("rule", "rule"),
        Heading("severity", "severity"),
        Heading("alone", "saved alone", "ns", "Predicted; empty where the fix cannot be replayed."),
        Heading("after", "saved after the above", "ns"),
        Heading("last", "saved after all others", "ns"),
        Heading("step", "step then", "ns", "Predicted step with this fix and those above it."),
        Heading("cost", "cost", "ns", "Time per step that the finding is about."),
        Heading("cost", "of the step", "ratio"),
        Heading("claim", "claim"),
        Heading("advice", "advice"),
        Heading("where", "where"),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            finding.rule,
            finding.severity,
            *_list_saving_cells(finding.saving),
            finding.cost_ns,
            finding.cost_ratio,
            finding.claim,
            finding.advice,
            "; ".join(phrases.format_place(place, report.spans) for place in finding.places),
        )
        for finding in report.findings
    ]
    return Sheet("findings", "Findings", headings, tuple(rows))


def _list_saving_cells(saving: Saving | None) -> tuple[Cell, ...]:
    """List what a fix saves alone, after those above and after all others, and the step then."""
    if saving is None:
        return None, None, None, None
    return saving.alone_ns, saving.after_ns, saving.last_ns, saving.step_ns


def _make_remarks_table(report: Report) -> Sheet:
    """Make the table of remarks."""
    headings = (
        Heading("severity", "severity"),
        Heading("code", "code"),
        Heading("message", "message"),
        Heading("source", "source"),
        Heading("times", "times", "count"),
    )
    rows = tuple(
        (remark.severity, remark.code, remark.message, remark.source, remark.count) for remark in report.remarks
    )
    return Sheet("remarks", "Remarks", headings, rows)


class ReportTables(NamedFrames):
    """The tables of a report as frames, made on access; `UnknownNameError` lists the existing names."""

    def __init__(self, sheets: Mapping[str, Sheet]) -> None:
        """Wrap sheets by name."""
        self._sheets = dict(sheets)

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Make the frame of one table; `attrs` has its title, caption, and the units and docs of its columns."""
        if name not in self._sheets:
            raise make_unknown_name_error("no table", name, "in the report", self._sheets)
        return _make_sheet_frame(self._sheets[name])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the tables."""
        return iter(self._sheets)

    def __len__(self) -> int:
        """Count the tables."""
        return len(self._sheets)

    def __contains__(self, name: object) -> bool:
        """Check whether there is a table of this name."""
        return name in self._sheets


def make_report_tables(report: Report) -> ReportTables:
    """Make frames of the tables of a report, by the names of the files that `--export csv` writes."""
    return ReportTables(list_report_tables(report))


def _make_sheet_frame(sheet: Sheet) -> pd.DataFrame:
    """Convert a sheet to a frame: integers with gaps are `Int64`, unknown values are missing."""
    names = name_columns_with_units(sheet)
    columns, units, docs = {}, {}, {}
    for index, (name, heading) in enumerate(zip(names, sheet.headings, strict=True)):
        values: list[Any] = [row[index] for row in sheet.rows]
        columns[name] = pd.Series(values, dtype=_choose_pandas_dtype(values))
        units[name], docs[name] = heading.unit, heading.doc or heading.title
    frame = pd.DataFrame(columns)
    frame.attrs.update(title=sheet.title, caption=sheet.caption, omitted=sheet.omitted)
    frame.attrs.update(units=units, docs=docs)
    return frame


def _choose_pandas_dtype(values: list[object]) -> str:
    """Choose the pandas type that holds these values unchanged."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int} and all(abs(value) < 2**63 for value in values if isinstance(value, int)):
        return "Int64"
    if kinds and kinds <= {int, float}:
        return "Float64"
    return "str" if kinds == {str} else "object"
