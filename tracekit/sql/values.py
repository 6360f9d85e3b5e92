"""DuckDB values as JSON-compatible values: numbers, texts, booleans, lists and objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tracekit.model.report import Cell


def make_json_value(value: Any) -> Any:
    """Convert a value to types that JSON supports.

    >>> make_json_value(Decimal("2.50")), make_json_value([Decimal("3"), b"x"])
    (2.5, [3, 'x'])
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        is_whole = value == value.to_integral_value()
        return int(value) if is_whole else float(value)
    if isinstance(value, Mapping):
        return {str(key): make_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_json_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def make_sql_cell(value: Any) -> Cell:
    """Convert a value to a table cell; lists and objects become JSON text."""
    plain = make_json_value(value)
    if isinstance(plain, list | dict):
        return json.dumps(plain, ensure_ascii=False)
    of_sheet: Cell = plain
    return of_sheet
