"""The measured tables of waiting: when a process came to its collectives, and its own work between them."""

from __future__ import annotations

from tracekit.model.tables.columns import DEVICE, DUR, KEYS, STAGE, STEP, TS
from tracekit.model.tables.table import Column, Table

_SEGMENT = Column(
    "int64", "0, 1, 2 … between the starts of synchronising collectives of this device."
)

TABLES: tuple[Table, ...] = (
    Table(
        "arrivals",
        "one synchronising collective of one process: it ends the segment of the same number",
        {
            **KEYS,
            "device": DEVICE,
            "segment": _SEGMENT,
            "group": Column("category", "Process group, as in collectives."),
            "op": Column("category", "Operation, as in collectives."),
            "ordinal": Column("Int64", "As in collectives: group, op and ordinal name one row."),
            "ts_ns": TS,
            "dur_ns": DUR,
            "blocked_ns": Column(
                "int64",
                "Time in it during which the process could do nothing else; no instant counts twice.",
            ),
        },
    ),
    Table(
        "segments",
        "one segment in one stage: own and blocked time add up to the time of the segment in it",
        {
            **KEYS,
            "device": DEVICE,
            "segment": _SEGMENT,
            "step": STEP,
            "stage": STAGE,
            "own_ns": Column("int64", "Time not blocked in a collective, ns."),
            "blocked_ns": Column("int64", "Time blocked in collectives of any kind, ns."),
        },
    ),
)
