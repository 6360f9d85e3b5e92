"""Tables of a report as CSV (RFC 4180, UTF-8): raw values in the unit at the end of the column name."""

from __future__ import annotations

import csv
from io import StringIO
from math import isfinite

from tracekit.model.report import Cell, Report, Sheet
from tracekit.render.escape import printable
from tracekit.render.options import Options
from tracekit.render.tables import column_names, tables

# Characters that start a formula in spreadsheets; the last four are their full-width forms.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def render_csv(report: Report, _options: Options) -> dict[str, bytes]:
    """Render one CSV file per table, by file name."""
    return {f"{name}.csv": table_bytes(sheet) for name, sheet in tables(report).items()}


def table_bytes(sheet: Sheet) -> bytes:
    """Write one table with its header; unknown values are empty fields."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\r\n", quoting=csv.QUOTE_MINIMAL)
    writer.writerow(map(_text, column_names(sheet)))
    writer.writerows(map(_field, row) for row in sheet.rows)
    return out.getvalue().encode("utf-8")


def _field(value: Cell) -> str:
    """Format a value: numbers exactly, text so that no spreadsheet executes it."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    return float.__repr__(value) if isinstance(value, float) else repr(value)


def _text(text: str) -> str:
    """Make text a single line, with an apostrophe before a formula."""
    text = printable(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
