"""What the tensors are for that fill memory, over time, as torch.profiler's memory timeline tells it."""

from __future__ import annotations

from tracekit.model.tables.columns import KEYS, TS
from tracekit.model.tables.table import Column, Table

CATEGORIES = (
    *("parameter", "optimizer_state", "input", "temporary"),
    *("activation", "gradient", "autograd_detail", "unknown"),
)
"""What torch guesses a tensor is for, in the order of its own numbers; unknown: it found nothing out."""

_CATEGORY = Column("category", " | ".join(CATEGORIES) + ", as torch guessed it.", CATEGORIES)

RAW: tuple[Table, ...] = (
    Table(
        "memory_categories",
        "by how much the tensors of one category grew or shrank at one time, on the one device of the file",
        {
            "ts_ns": Column(
                "Int64", "When, ns on the clock of ts_ns; <NA>: held before the recording began."
            ),
            "category": _CATEGORY,
            "change_bytes": Column("int64", "Bytes that came, negative: that went."),
            "level_bytes": Column("int64", "Bytes that the category holds after it."),
        },
    ),
)

TABLES: tuple[Table, ...] = (
    Table(
        "category_peaks",
        "what one memory timeline tells of all categories together",
        {
            **KEYS,
            "change_count": Column("int64", "Rows of memory_categories."),
            "begin_ns": Column("Int64", "First change, ns on the clock of ts_ns."),
            "end_ns": Column("Int64", "Last change."),
            "peak_bytes": Column("int64", "Most held at one time."),
            "peak_ts_ns": Column("Int64", "When first; <NA>: before the recording began."),
        },
    ),
    Table(
        "category_levels",
        "what one category of a memory timeline holds",
        {
            **KEYS,
            "category": _CATEGORY,
            "start_bytes": Column("int64", "Held before the recording began."),
            "peak_bytes": Column("int64", "Held when all categories together held most."),
            "end_bytes": Column("int64", "Held at the end."),
            "most_bytes": Column("int64", "Most of it alone held at one time."),
            "least_bytes": Column("int64", "Least of it; below 0 the timeline contradicts itself."),
        },
    ),
    Table(
        "category_curve",
        "what one category holds when, in one stretch of time, all hold most: at most 400 stretches a source",
        {
            **KEYS,
            "ts_ns": TS,
            "dur_ns": Column("int64", "Length of the stretch, ns."),
            "category": _CATEGORY,
            "level_bytes": Column("int64", "Held then."),
        },
    ),
)
