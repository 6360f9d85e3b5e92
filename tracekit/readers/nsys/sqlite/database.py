"""Queries on an export's database: integer columns, texts by id, small tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.readers.nsys.sqlite.blocks import EndlessRows, Ints, limit_row_count, read_column_blocks
from tracekit.readers.nsys.sqlite.connection import (
    ExportDatabase,
    count_possible_rows,
    has_table_columns,
    quote_identifier,
    record_table_damage,
)
from tracekit.readers.nsys.sqlite.expressions import MISSING

Bools = npt.NDArray[np.bool_]

TEXT_LIMIT = 4096
"""Most characters of a text that are read. No name is longer."""


@dataclass(frozen=True, slots=True)
class IntegerColumns:
    """Integer columns of equal length. `missing` marks NULL and non-integer values (stored as 0)."""

    values: dict[str, Ints]
    missing: dict[str, Bools | None]
    length: int


def read_integer_columns(
    db: ExportDatabase,
    table: str,
    columns: Sequence[str],
    *,
    where: str = "",
    parameters: Sequence[int | str] = (),
    order: Sequence[str] = (),
    expressions: Mapping[str, str] | None = None,
) -> IntegerColumns:
    """Read columns and SQL `expressions` (by name) of a table as integers. Absent columns are missing in all rows.

    Rows are sorted by the columns `order`, else in file order, which has no meaning.
    """
    names = (*columns, *(expressions or {}))
    parts = list(read_column_blocks(db, table, columns, where=where, parameters=parameters, expressions=expressions))
    values: dict[str, Ints] = {}
    for name in names:
        # Release each block once it is copied: the peak is the result and one column.
        values[name] = np.concatenate([np.empty(0, np.int64), *(part.pop(name) for part in parts)])
    length = len(next(iter(values.values()), ()))
    if order and length:
        row_order = np.lexsort([values[name] for name in reversed(order)])
        for name in names:
            values[name] = values[name][row_order]
    missing = {name: extract_missing(column) for name, column in values.items()}
    return IntegerColumns(values, missing, length)


def extract_missing(values: Ints) -> Bools | None:
    """Mark the `MISSING` values and set them to 0; None if there are none."""
    missing: Bools = values == MISSING
    if not missing.any():
        return None
    values[missing] = 0
    return missing


def read_texts_by_id(
    db: ExportDatabase, table: str, key: str, value: str, ids: Sequence[int] | Ints | None = None
) -> dict[int, str]:
    """Read the texts of a table by integer key (only these `ids`, if given), at most `TEXT_LIMIT` characters each."""
    if not has_table_columns(db, table, key, value):
        return {}
    k, v = quote_identifier(key), quote_identifier(value)
    sql = (
        f"SELECT {k}, substr({v}, 1, {TEXT_LIMIT}) FROM {quote_identifier(table)}"
        f" WHERE typeof({k}) = 'integer' AND typeof({v}) = 'text'"
    )
    blobs: dict[int, str] = {}
    if ids is None:
        _add_text_rows(db, table, sql, blobs)
        return blobs
    wanted = sorted({int(key) for key in ids})
    for first in range(0, len(wanted), 10_000):
        id_list = ",".join(str(number) for number in wanted[first : first + 10_000])
        _add_text_rows(db, table, f"{sql} AND {k} IN ({id_list})", blobs)
    return blobs


def read_small_table(
    db: ExportDatabase,
    table: str,
    columns: Sequence[str],
    where: str = "",
    parameters: Sequence[int | str] = (),
    limit: int = 100_000,
) -> list[tuple[Any, ...]]:
    """Read the rows of a small table with values as stored. None for an absent column; no rows for an absent table."""
    present = db.columns.get(table)
    if present is None:
        return []
    cells = ", ".join(_write_cell_sql(name) if name in present else "NULL" for name in columns)
    sql = f"SELECT {cells} FROM {quote_identifier(table)}"
    if where:
        sql += f" WHERE {where}"
    return query_up_to_damage(db, table, f"{sql} LIMIT {int(limit)}", parameters)


def _write_cell_sql(name: str) -> str:
    """Build SQL for a column's value. Cuts long texts and blobs."""
    q = quote_identifier(name)
    return f"CASE WHEN typeof({q}) IN ('text', 'blob') THEN substr({q}, 1, 65536) ELSE {q} END"


def query_up_to_damage(
    db: ExportDatabase, table: str, sql: str, parameters: Sequence[int | str] = ()
) -> list[tuple[Any, ...]]:
    """Run a query on one table. If the table is damaged, returns the rows before the damage."""
    rows_read: list[tuple[Any, ...]] = []
    try:
        rows_read.extend(db.connection.execute(sql, tuple(parameters)))
    except sqlite3.DatabaseError as error:
        record_table_damage(db, table, error, len(rows_read))
    return rows_read


def _add_text_rows(db: ExportDatabase, table: str, sql: str, into: dict[int, str]) -> None:
    """Add the (key, text) rows of a query. If the table is damaged, adds the rows before the damage."""
    try:
        for key, text in db.connection.execute(sql):
            into[key] = text
            limit_row_count(len(into), count_possible_rows(db))
    except (sqlite3.DatabaseError, EndlessRows) as error:
        record_table_damage(db, table, error, len(into))
