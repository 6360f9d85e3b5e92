"""Declared tables in the words of SQL: types, and names and texts in quotes."""

from __future__ import annotations

from tracekit.model.tables.table import Dtype, Table

TYPES: dict[Dtype, str] = {
    "int32": "INTEGER",
    "int64": "BIGINT",
    "Int64": "BIGINT",
    "Float64": "DOUBLE",
    "bool": "BOOLEAN",
    "category": "VARCHAR",
}


def declared(table: Table) -> str:
    """The columns of a table with their types."""
    return ", ".join(f"{quoted(name)} {TYPES[c.dtype]}" for name, c in table.columns.items())


def quoted(name: str) -> str:
    """A name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL quotes it."""
    return "'" + text.replace("'", "''") + "'"
