"""The tables: every one declared as data, those that one question fills in the file of that question.

What readers fill, what several questions fill, and the columns that several tables have stand here.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.errors import SchemaError
from tracekit.model.tables import raw, shared, slots, snapshots
from tracekit.model.tables.columns import DEVICE_OP_KINDS as DEVICE_OP_KINDS
from tracekit.model.tables.columns import HOST_OP_KINDS as HOST_OP_KINDS
from tracekit.model.tables.columns import KEYS as KEYS
from tracekit.model.tables.table import Column as Column
from tracekit.model.tables.table import Table as Table
from tracekit.model.tables.table import coded as coded
from tracekit.model.tables.table import concat as concat

RAW: tuple[Table, ...] = (*raw.TABLES, *snapshots.TABLES)

ASKED_COLUMNS = frozenset(
    name for table in RAW for name, column in table.columns.items() if column.nullable
) - {"pid", "tid"}
"""The columns of them that rows may lack and that questions read: in place of pid and tid they read `thread`."""

ARGS = raw.ARGS

SHARED: tuple[Table, ...] = (*shared.TABLES, *slots.TABLES)
"""The measured tables that are of no question alone; `analyses.measured_tables` gives all."""

_BY_NAME = {table.name: table for table in (*RAW, *SHARED)}

TABLES: Mapping[str, Table] = _BY_NAME
"""The tables by name: those declared here, and those of the questions that have been loaded."""


def declare(table: Table) -> None:
    """Nothing; a measured table that stands with the question that fills it is known from now on.

    Raises `SchemaError` where another table has its name, or it does not begin with the keys.
    """
    namesake = TABLES.get(table.name, table)
    if (namesake.row, dict(namesake.columns)) != (table.row, dict(table.columns)):
        raise SchemaError(f"there is a table {table.name!r} already: call it otherwise")
    if list(table.columns)[: len(KEYS)] != list(KEYS):
        raise SchemaError(f"the columns of {table.name!r} have to begin with {{**KEYS, ...}}")
    _BY_NAME.setdefault(table.name, table)
