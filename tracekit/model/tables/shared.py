"""Measured tables that several questions fill, and those that are folded over the files of one process."""

from __future__ import annotations

from tracekit.model.tables.columns import DEVICE, KEYS, STAGE, STEP
from tracekit.model.tables.table import Column, Table

_STACK = Column("Int64", "Hash of the frames, the same in all files; <NA>: none was recorded.")

TABLES: tuple[Table, ...] = (
    Table(
        "quality",
        "one thing checked about one source",
        {
            **KEYS,
            "name": Column("category", "Subject of the count."),
            "count": Column("Int64", "How many."),
            "dur_ns": Column("Int64", "How much time they take, ns."),
            "size_bytes": Column("Int64", "How many bytes."),
        },
    ),
    Table(
        "metrics",
        "one number of one process, step and stage, for compare and gates",
        {
            **KEYS,
            "step": STEP,
            "stage": STAGE,
            "name": Column("category", "Metric id."),
            "value": Column("Float64", "Value in its unit."),
            "unit": Column("category", "ns, bytes, ratio, count, gb_per_s."),
            "better": Column("category", "lower | higher | neither.", ("lower", "higher", "neither")),
        },
    ),
    Table(
        "snapshot_windows",
        "one device in one memory snapshot: its history, and the memory in use at its end",
        {
            **KEYS,
            "device": DEVICE,
            "step": STEP,
            "begin_ns": Column("Int64", "First entry of the history, ns since the Unix epoch."),
            "end_ns": Column("Int64", "Last entry of the history."),
            "entry_count": Column("int64", "Entries of the history."),
            "live_bytes": Column("int64", "Requested bytes in use at the end."),
            "live_count": Column("int64", "Blocks in use at the end."),
            "omitted_stack_count": Column("int64", "Stacks beyond the cap, the smallest."),
            "omitted_block_count": Column("int64", "Blocks beyond the cap: their birth is unknown."),
            "window": Column(
                "Int64", "Place in the order of time among the snapshots of the process; <NA>: not known."
            ),
            "gap_ns": Column("Int64", "From the end of the previous one; negative if both cover the same time."),
        },
    ),
    Table(
        "survivors",
        "memory of one stack at one time, for stacks that keep growing",
        {
            **KEYS,
            "device": DEVICE,
            "basis": Column(
                "category",
                "snapshot: at the ends of snapshots | step: at the ends of steps within one.",
                ("snapshot", "step"),
            ),
            "window": Column("Int64", "Place of that time in order."),
            "step": STEP,
            "stack": _STACK,
            "site": Column("category", "Where the program asked for it: `file.py:12 function`."),
            "frames": Column("category", "The stack, innermost first, at most 12 frames and 1,000 characters."),
            "stage": Column(
                "category",
                "Stage that allocated most of the surviving bytes: a range as recorded, or a function of the stack; <NA>: unknown.",
            ),
            "live_bytes": Column("int64", "Requested bytes in use."),
            "live_count": Column("int64", "Blocks in use."),
            "born_bytes": Column("Int64", "The part allocated within the snapshot's history."),
            "born_count": Column("Int64", "Number of these blocks."),
            "cohort_count": Column("Int64", "Number of snapshots (steps) with live blocks; <NA>: unknown."),
        },
    ),
    Table(
        "survivor_blocks",
        "a block in use at the end of a snapshot, of the stacks to which the history adds; folded into survivors",
        {
            **KEYS,
            "device": DEVICE,
            "stack": _STACK,
            "address": Column("Int64", "Address, as in blocks."),
            "size_bytes": Column("int64", "As requested."),
            "born": Column("bool", "Whether it was allocated within the history."),
            "born_ns": Column("Int64", "When."),
        },
    ),
)
