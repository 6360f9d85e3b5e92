"""The registry of tables. Each is declared as data; tables filled by one question are declared with that question.

Declared here: tables filled by readers, tables filled by several questions, and columns that several tables share.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.errors import SchemaError
from tracekit.model.tables import hangs, raw, shared, slots, snapshots
from tracekit.model.tables.columns import DEVICE_OP_KINDS as DEVICE_OP_KINDS
from tracekit.model.tables.columns import HOST_OP_KINDS as HOST_OP_KINDS
from tracekit.model.tables.columns import KEYS as KEYS
from tracekit.model.tables.table import Column as Column
from tracekit.model.tables.table import Table as Table
from tracekit.model.tables.table import concatenate_table_parts as concatenate_table_parts

RAW: tuple[Table, ...] = (*raw.TABLES, *snapshots.TABLES, *hangs.TABLES)

ASKED_COLUMNS = frozenset(name for table in RAW for name, column in table.columns.items() if column.nullable) - {
    "pid",
    "tid",
}
"""Nullable raw columns that questions may request; instead of pid and tid they use `thread`."""

ARGS = raw.ARGS

SHARED: tuple[Table, ...] = (*shared.TABLES, *slots.TABLES)
"""Measured tables that belong to no single question; `analyses.list_measured_tables` lists all."""

_BY_NAME = {table.name: table for table in (*RAW, *SHARED)}

TABLES: Mapping[str, Table] = _BY_NAME
"""All tables by name: those declared here, and those of loaded questions."""


def register_table(table: Table) -> None:
    """Register a measured table that is declared with the question that fills it.

    Raises `SchemaError` if another table has its name, or if it does not begin with the key columns.
    """
    namesake = TABLES.get(table.name, table)
    if (namesake.row, dict(namesake.columns)) != (table.row, dict(table.columns)):
        raise SchemaError(f"there is a table {table.name!r} already: choose another name")
    if list(table.columns)[: len(KEYS)] != list(KEYS):
        raise SchemaError(f"the columns of {table.name!r} have to begin with {{**KEYS, ...}}")
    _BY_NAME.setdefault(table.name, table)
