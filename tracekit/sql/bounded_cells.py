"""Queries whose long cells DuckDB truncates, so that no Python object is made of text that nobody will see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit.sql.schema import quote_sql_name

_SHORT = frozenset(
    {
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT"),
        *("UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP", "UUID"),
        *("INTERVAL", "TIMESTAMP WITH TIME ZONE", "TIME WITH TIME ZONE", "TIMESTAMP_NS"),
        *("TIMESTAMP_MS", "TIMESTAMP_S"),
    }
)
"""Types whose values are always short; DECIMAL is handled separately."""


def limit_query_cells(statement: str, types: Sequence[str], rows: int, characters: int) -> str:
    """Wrap a query: limit it to `rows` and split every column whose values may be long into two columns.

    The first is the value if its text has at most `characters`, else null. The second is the start of a longer text, with
    its length and a hash.
    """
    names = [f"c{number}" for number in range(len(types))]
    columns: list[str] = []
    for name, kind in zip(names, types, strict=True):
        if is_short_type(kind):
            columns.append(name)
            continue
        text = f"CAST({name} AS VARCHAR)"
        is_long = f"length({text}) > {characters}"
        shown = f"left({text}, 250) || format('… ({{:,}} characters, {{}})', length({text}), left(md5({text}), 16))"
        columns += [f"CASE WHEN {is_long} THEN NULL ELSE {name} END", f"CASE WHEN {is_long} THEN {shown} END"]
    listed = ", ".join(map(quote_sql_name, names))
    # On its own lines, because the statement may end in a comment.
    return f"SELECT {', '.join(columns)} FROM (\n{statement}\n) AS bounded({listed}) LIMIT {rows}"


def merge_cell_columns(row: Sequence[Any], types: Sequence[str]) -> tuple[Any, ...]:
    """Merge a row of a bounded query: each cell is the value, or the start of its text."""
    cells = iter(row)
    values: list[Any] = []
    for kind in types:
        value = next(cells)
        beginning = None if is_short_type(kind) else next(cells)
        values.append(value if beginning is None else beginning)
    return tuple(values)


def is_short_type(kind: str) -> bool:
    """Whether all values of a type are short.

    >>> is_short_type("BIGINT"), is_short_type("DECIMAL(18,3)"), is_short_type("BIGINT[]"), is_short_type("VARCHAR")
    (True, True, False, False)
    """
    return kind in _SHORT or (kind.startswith("DECIMAL(") and kind.endswith(")"))
