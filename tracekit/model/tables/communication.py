"""The measured table of collectives: what stragglers, waits and bandwidths are judged from."""

from __future__ import annotations

from tracekit.model.tables.columns import DEVICE, DUR, KEYS, STEP, STREAM, TS
from tracekit.model.tables.table import Column, Table

TABLES: tuple[Table, ...] = (
    Table(
        "collectives",
        "one collective of one process, as its device ran it (as its host did, without a device)",
        {
            **KEYS,
            "step": STEP,
            "stage": Column(
                "category", "Outermost stage during which it was issued, as recorded; <NA> outside."
            ),
            "group": Column(
                "category",
                "Process group: its name and a hash of its members, as far as recorded; else (default).",
            ),
            "group_size": Column("Int64", "Ranks of the group."),
            "op": Column(
                "category",
                "all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send, recv, barrier, gather, scatter, other.",
            ),
            "dtype": Column("category", "Type of an element, as torch names it."),
            "seq": Column("Int64", "Sequence number within the group, as recorded."),
            "ordinal": Column("Int64", "0, 1, 2 … among those of this group and op in the source."),
            "size_bytes": Column(
                "Int64", "Size of the message: of the whole output for all_gather, else the input."
            ),
            "ts_ns": TS,
            "dur_ns": DUR,
            "device": DEVICE,
            "stream": STREAM,
            "exposed_ns": Column(
                "Int64", "Part of it during which no compute kernel ran; <NA> on the host."
            ),
            "issue_ns": Column("Int64", "Start of the host call that issued it."),
            "synchronising": Column(
                "bool", "Whether no rank can finish it before all have begun (op by op)."
            ),
        },
    ),
)
