"""The tables: every one declared as data. A new one is an entry of a file here, a new file one line in `MEASURED`."""

from __future__ import annotations

from collections.abc import Mapping

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

TABLES: Mapping[str, Table] = {table.name: table for table in (*RAW, *MEASURED)}
