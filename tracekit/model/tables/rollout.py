"""The tables of rollout engines: their iterations, and when each generation began and ended."""

from __future__ import annotations

from tracekit.model.tables.columns import KEYS, OCCURRENCE, STEP, TS
from tracekit.model.tables.table import Column, Table

TABLES: tuple[Table, ...] = (
    Table(
        "iterations",
        "one iteration of a rollout engine (neighbours of one phase joined where there are very many)",
        {
            **KEYS,
            "step": STEP,
            "occurrence": OCCURRENCE,
            "ts_ns": TS,
            "dur_ns": Column("int64", "Σ wall time of the annotation on the host, ns."),
            "pace_ns": Column(
                "int64",
                "Σ time until the next iteration starts (of the last: until its work ends).",
            ),
            "count": Column("int64", "Iterations joined in this row."),
            "prefill": Column("bool", "Whether a prompt was being processed."),
            "prefill_requests": Column(
                "int64", "Requests whose prompt is being processed (mean where joined)."
            ),
            "prefill_tokens": Column("Int64", "Σ prompt tokens, where the annotation tells."),
            "decode_requests": Column(
                "int64", "Requests that generate: the running batch (mean where joined)."
            ),
            "decode_tokens": Column("Int64", "Σ generated tokens, where the annotation tells."),
            "busy_ns": Column(
                "Int64", "Σ GPU time of the work launched in it, overlaps counted once."
            ),
        },
    ),
    Table(
        "generations",
        "one generation of one rollout process: from its first iteration to the end of its last",
        {
            **KEYS,
            "step": STEP,
            "occurrence": OCCURRENCE,
            "ts_ns": TS,
            "dur_ns": Column("int64", "Until the last work ends, ns."),
            "basis": Column(
                "category",
                "What tells its end: iterations (annotations) | device (last GPU op) | host (last host op).",
                ("iterations", "device", "host"),
            ),
            "longest_pause_ns": Column("Int64", "Longest time between two iterations, ns."),
            "elsewhere_count": Column(
                "int64", "Iterations on other threads of the process: not in the tables."
            ),
        },
    ),
)
