"""Rows of an SQL query in every format: unscaled, with column names as queried."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import BytesIO
from math import isfinite
from types import NoneType
from typing import Any

from tracekit.model.report import Cell, Heading, Sheet, Unit
from tracekit.model.text.wrapping import format_columns
from tracekit.render.csv import write_csv_table
from tracekit.render.escape import make_printable
from tracekit.render.grid import make_grid
from tracekit.render.parquet import import_pyarrow, make_arrow_table
from tracekit.render.tables import name_columns_with_units

_COUNTED = ("_ns", "_bytes", "count", "_rows")


def make_query_sheet(names: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Sheet:
    """Convert rows to a sheet; name suffixes set the units."""
    headings = []
    for index, name in enumerate(names):
        headings.append(Heading(name, name, _choose_query_unit(name, (row[index] for row in rows))))
    return Sheet("rows", "", tuple(headings), tuple(rows))


def format_query_rows(sheet: Sheet, width: int | None = None) -> str:
    """Format the rows in columns under their names; text wraps or is shortened if the page is narrow."""
    table = make_grid(sheet)
    titles = [make_printable(heading.name) for heading in sheet.headings]  # PIVOT makes them from profile contents
    right = {place for place, column in enumerate(table.columns) if column.numeric}
    return "".join(f"{line}\n" for line in format_columns(titles, table.rows, right, width))


def write_query_csv(sheet: Sheet) -> bytes:
    """Write the rows as CSV."""
    return write_csv_table(_clear_units(sheet))


def write_query_parquet(sheet: Sheet) -> bytes:
    """Write the rows as a Parquet file with the narrowest types for all values."""
    pa, pq = import_pyarrow()
    out = BytesIO()
    pq.write_table(make_arrow_table(_clear_units(sheet), pa), out, compression="zstd")
    return out.getvalue()


def write_query_json(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    """Write the rows as a JSON list of objects; unknown and non-finite values are null."""
    sheet = _clear_units(make_query_sheet(names, ()))
    unique = name_columns_with_units(sheet)
    objects = []
    for row in rows:
        values = {name: _replace_non_finite(value) for name, value in zip(unique, row, strict=True)}
        objects.append(json.dumps(values, ensure_ascii=True, allow_nan=False))
    lines = ",\n".join(objects)
    return f"[\n{lines}\n]\n"


def _replace_non_finite(value: Any) -> Any:
    """Replace non-finite numbers by None, also in lists and dicts."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, list):
        return [_replace_non_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    return value


def _choose_query_unit(name: str, values: Iterable[Cell]) -> Unit:
    """Choose the display of a column: ids without separators, ratios in per cent."""
    kinds = {type(value) for value in values} - {NoneType}
    if not kinds <= {int, float, bool}:
        return "text"
    if name.endswith("_ratio"):
        return "ratio"
    is_counted = name.endswith(_COUNTED) and not name.endswith("ts_ns")
    if float in kinds or is_counted:
        return ""
    return "id"


def _clear_units(sheet: Sheet) -> Sheet:
    """Clear the units: names get no suffix."""
    headings = tuple(replace(heading, unit="") for heading in sheet.headings)
    return replace(sheet, headings=headings)
