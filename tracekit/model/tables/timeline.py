"""The table of what happened when: GPUs busy by equal pieces of a capture."""

from __future__ import annotations

from tracekit.model.tables.columns import DEVICE, KEYS, TS
from tracekit.model.tables.table import Column, Table

TABLES: tuple[Table, ...] = (
    Table(
        "busy_bins",
        "an equal piece of one capture on one device",
        {
            **KEYS,
            "device": DEVICE,
            "ts_ns": TS,
            "window_ns": Column("int64", "Length of the piece; the last one may be shorter."),
            "busy_ns": Column("int64", "Any device op running in it."),
        },
    ),
)
