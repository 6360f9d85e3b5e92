"""SQL spelling of declared tables: column types, quoted names and string literals."""

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


def format_column_list(table: Table) -> str:
    """Format the column list of a CREATE TABLE statement."""
    return ", ".join(f"{quote_sql_name(name)} {TYPES[c.dtype]}" for name, c in table.columns.items())


def quote_sql_name(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Quote a string literal."""
    return "'" + text.replace("'", "''") + "'"
