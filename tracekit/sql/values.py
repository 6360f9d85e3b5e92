"""What DuckDB gives as plain values: numbers, texts, truth values, lists and objects of these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tracekit.model.report import Cell


def plain_value(value: Any) -> Any:
    """The value with nothing in it that JSON lacks.

    >>> plain_value(Decimal("2.50")), plain_value([Decimal("3"), b"x"])
    (2.5, [3, 'x'])
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        is_whole = value == value.to_integral_value()
        return int(value) if is_whole else float(value)
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain_value, value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def cell(value: Any) -> Cell:
    """The value as a cell of a sheet: lists and objects as their JSON."""
    plain = plain_value(value)
    if isinstance(plain, list | dict):
        return json.dumps(plain, ensure_ascii=False)
    of_sheet: Cell = plain
    return of_sheet
