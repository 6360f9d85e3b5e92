"""Tables of a report as CSV (RFC 4180, UTF-8): raw values in the unit at the end of the column name."""

from __future__ import annotations

import csv
from io import StringIO
from math import isfinite

from tracekit.model.report import Cell, Report, Sheet
from tracekit.render.escape import make_printable
from tracekit.render.options import RenderOptions
from tracekit.render.tables import list_report_tables, name_columns_with_units

# Characters that start a formula in spreadsheets; the last four are their full-width forms.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def render_csv(report: Report, _options: RenderOptions) -> dict[str, bytes]:
    """Render one CSV file per table, by file name."""
    return {f"{name}.csv": write_csv_table(sheet) for name, sheet in list_report_tables(report).items()}


def write_csv_table(sheet: Sheet) -> bytes:
    """Write one table with its header; unknown values are empty fields."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\r\n", quoting=csv.QUOTE_MINIMAL)
    writer.writerow(_escape_csv_formula(name) for name in name_columns_with_units(sheet))
    writer.writerows((_format_csv_value(value) for value in row) for row in sheet.rows)
    return out.getvalue().encode("utf-8")


def _format_csv_value(value: Cell) -> str:
    """Format a value: numbers exactly, text so that no spreadsheet executes it."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _escape_csv_formula(value)
    return float.__repr__(value) if isinstance(value, float) else repr(value)


def _escape_csv_formula(text: str) -> str:
    """Make text a single line, with an apostrophe before a formula."""
    text = make_printable(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
