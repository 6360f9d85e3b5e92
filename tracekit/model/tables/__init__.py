"""The tables: every one declared as data. A new one is an entry of a file here, a new file one line in `MEASURED`."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.errors import SchemaError
from tracekit.model.tables import (
    communication,
    counters,
    host,
    idle,
    leaks,
    measured,
    memory,
    memory_categories,
    operators,
    raw,
    rl,
    rollout,
    slots,
    snapshot_levels,
    snapshots,
    timeline,
    waits,
)
from tracekit.model.tables.columns import DEVICE_OP_KINDS as DEVICE_OP_KINDS
from tracekit.model.tables.columns import HOST_OP_KINDS as HOST_OP_KINDS
from tracekit.model.tables.columns import KEYS as KEYS
from tracekit.model.tables.table import Column as Column
from tracekit.model.tables.table import Table as Table
from tracekit.model.tables.table import coded as coded
from tracekit.model.tables.table import concat as concat

RAW: tuple[Table, ...] = (
    *raw.TABLES,
    *rl.RAW,
    *snapshots.TABLES,
    *leaks.RAW,
    *memory_categories.RAW,
)

MEASURED: tuple[Table, ...] = (
    *measured.TABLES,
    *communication.TABLES,
    *rl.TABLES,
    *timeline.TABLES,
    *waits.TABLES,
    *memory.TABLES,
    *counters.TABLES,
    *rollout.TABLES,
    *operators.TABLES,
    *host.TABLES,
    *idle.TABLES,
    *slots.TABLES,
    *snapshot_levels.TABLES,
    *leaks.TABLES,
    *memory_categories.TABLES,
)

_BY_NAME = {table.name: table for table in (*RAW, *MEASURED)}
_SHARED = frozenset(_BY_NAME)

TABLES: Mapping[str, Table] = _BY_NAME
"""All tables by name: those declared here, and those of the questions that have been loaded."""


def declare(table: Table) -> None:
    """Nothing; a measured table that stands with the question that fills it is known from now on.

    Raises `SchemaError` where it has the name of a table declared here, or does not begin with the keys.
    """
    if table.name in _SHARED:
        raise SchemaError(f"there is a table {table.name!r} already: call it otherwise")
    if list(table.columns)[: len(KEYS)] != list(KEYS):
        raise SchemaError(f"the columns of {table.name!r} have to begin with {{**KEYS, ...}}")
    _BY_NAME[table.name] = table


def measured_tables() -> tuple[Table, ...]:
    """The measured tables, those of the questions that have been loaded last."""
    own = (table for name, table in _BY_NAME.items() if name not in _SHARED)
    return (*MEASURED, *own)
