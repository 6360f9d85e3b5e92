"""Queries on an export's database: integer columns, texts by id, small tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.readers.nsys.blocks import Endless, Ints, at_most, blocks
from tracekit.readers.nsys.connection import (
    Database,
    damage_notes,
    damaged,
    has,
    is_damage,
    most_rows,
    opened,
    quoted,
)
from tracekit.readers.nsys.expressions import MISSING

__all__ = ["MISSING", "Database", "Ints", "Numbers", "blocks", "damage_notes", "has", "integers"]
__all__ += ["opened", "quoted", "rows", "take_missing", "texts", "tolerant"]

Bools = npt.NDArray[np.bool_]

TEXT_LIMIT = 4096
"""Most characters of a text that are read. No name is longer."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Integer columns of equal length. `missing` marks NULL and non-integer values (stored as 0)."""

    values: dict[str, Ints]
    missing: dict[str, Bools | None]
    length: int


def integers(
    db: Database,
    table: str,
    columns: Sequence[str],
    *,
    where: str = "",
    parameters: Sequence[int | str] = (),
    order: Sequence[str] = (),
    expressions: Mapping[str, str] | None = None,
) -> Numbers:
    """Read columns and SQL `expressions` (by name) of a table as integers. Absent columns are missing in all rows.

    Rows are sorted by the columns `order`, else in file order, which has no meaning.
    """
    names = (*columns, *(expressions or {}))
    parts = list(
        blocks(db, table, columns, where=where, parameters=parameters, expressions=expressions)
    )
    values: dict[str, Ints] = {}
    for name in names:
        # Release each block once it is copied: the peak is the result and one column.
        values[name] = np.concatenate([np.empty(0, np.int64), *(part.pop(name) for part in parts)])
    length = len(next(iter(values.values()), ()))
    if order and length:
        row_order = np.lexsort([values[name] for name in reversed(order)])
        for name in names:
            values[name] = values[name][row_order]
    missing = {name: take_missing(column) for name, column in values.items()}
    return Numbers(values, missing, length)


def take_missing(values: Ints) -> Bools | None:
    """Mark the `MISSING` values and set them to 0; None if there are none."""
    missing: Bools = values == MISSING
    if not missing.any():
        return None
    values[missing] = 0
    return missing


def texts(
    db: Database, table: str, key: str, value: str, ids: Sequence[int] | Ints | None = None
) -> dict[int, str]:
    """Read the texts of a table by integer key (only these `ids`, if given), at most `TEXT_LIMIT` characters each."""
    if not has(db, table, key, value):
        return {}
    k, v = quoted(key), quoted(value)
    sql = (
        f"SELECT {k}, substr({v}, 1, {TEXT_LIMIT}) FROM {quoted(table)}"
        f" WHERE typeof({k}) = 'integer' AND typeof({v}) = 'text'"
    )
    blobs: dict[int, str] = {}
    if ids is None:
        _gather(db, table, sql, blobs)
        return blobs
    wanted = sorted(set(map(int, ids)))
    for first in range(0, len(wanted), 10_000):
        id_list = ",".join(map(str, wanted[first : first + 10_000]))
        _gather(db, table, f"{sql} AND {k} IN ({id_list})", blobs)
    return blobs


def rows(
    db: Database,
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
    cells = ", ".join(_cell(name) if name in present else "NULL" for name in columns)
    sql = f"SELECT {cells} FROM {quoted(table)}"
    if where:
        sql += f" WHERE {where}"
    return tolerant(db, table, f"{sql} LIMIT {int(limit)}", parameters)


def _cell(name: str) -> str:
    """Build SQL for a column's value. Cuts long texts and blobs."""
    q = quoted(name)
    return f"CASE WHEN typeof({q}) IN ('text', 'blob') THEN substr({q}, 1, 65536) ELSE {q} END"


def tolerant(
    db: Database, table: str, sql: str, parameters: Sequence[int | str] = ()
) -> list[tuple[Any, ...]]:
    """Run a query on one table. If the table is damaged, returns the rows before the damage."""
    rows_read: list[tuple[Any, ...]] = []
    try:
        rows_read.extend(db.connection.execute(sql, tuple(parameters)))
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        damaged(db, table, error, len(rows_read))
    return rows_read


def _gather(db: Database, table: str, sql: str, into: dict[int, str]) -> None:
    """Add the (key, text) rows of a query. If the table is damaged, adds the rows before the damage."""
    try:
        for key, text in db.connection.execute(sql):
            into[key] = text
            at_most(len(into), most_rows(db))
    except (sqlite3.DatabaseError, Endless) as error:
        if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
            raise
        damaged(db, table, error, len(into))
