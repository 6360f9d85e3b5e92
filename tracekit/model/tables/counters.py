"""The tables of sampled counters: their levels by stage, and how they went over time."""

from __future__ import annotations

from tracekit.model.tables.columns import KEYS, NAME, STAGE, STEP, TS
from tracekit.model.tables.table import Column, Table

TABLES: tuple[Table, ...] = (
    Table(
        "counter_levels",
        "one counter in the whole recording, in one step, or in all outermost stages of one name in a step",
        {
            **KEYS,
            "window": Column("category", "capture | step | stage.", ("capture", "step", "stage")),
            "step": STEP,
            "stage": STAGE,
            "name": NAME,
            "sample_count": Column("int64", "Samples taken in it."),
            "sum": Column("Float64", "Their sum, in the counter's own unit."),
            "max": Column("Float64", "The highest of them."),
            "zero_count": Column("int64", "Samples that are 0."),
        },
    ),
    Table(
        "counter_curve",
        "one counter in one stretch of time",
        {
            **KEYS,
            "name": NAME,
            "ts_ns": TS,
            "mean": Column("Float64", "Mean of the samples in it, in the counter's own unit."),
        },
    ),
)
