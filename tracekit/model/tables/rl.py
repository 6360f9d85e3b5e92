"""The tables of an RL step: what a driver logged, what was moved in which stage, micro-batches, busy spans."""

from __future__ import annotations

from tracekit.model.tables.columns import DEVICE, KEYS, NAME, OCCURRENCE, STEP, TS
from tracekit.model.tables.table import Column, Table

RAW: tuple[Table, ...] = (
    Table(
        "log_values",
        "one number that a driver's log gives for one step",
        {
            "line": Column("int64", "Line of the log, from 1."),
            "logged_ns": Column(
                "Int64", "When it was logged, ns since the Unix epoch, where the line says."
            ),
            "step": STEP,
            "name": Column("category", "Name as logged, such as timing_s/gen."),
            "value": Column("Float64", "Value as logged; timers are in seconds."),
        },
    ),
)

TABLES: tuple[Table, ...] = (
    Table(
        "logged",
        "one timer, token count, throughput or load that a driver's log gives for one step",
        {
            **KEYS,
            "step": STEP,
            "name": NAME,
            "value": Column("Float64", "Value as logged."),
            "dur_ns": Column("Int64", "The value of a timer, ns; <NA> for what is no timer."),
        },
    ),
    Table(
        "transfers",
        "the copies of one direction and memory kind on one device in one stage of one step",
        {
            **KEYS,
            "device": DEVICE,
            "step": STEP,
            "stage": Column("category", "Outermost stage around it, as recorded; <NA> outside."),
            "direction": Column("category", "HtoD, DtoH, DtoD or PtoP."),
            "memory": Column("category", "Pinned, pageable … as recorded."),
            "count": Column("int64", "Copies that start in it."),
            "size_bytes": Column("int64", "Their bytes, as far as recorded."),
            "busy_ns": Column("int64", "Time in it during which any of them runs, ns."),
            "exposed_ns": Column("int64", "The same while neither kernels nor collectives run."),
            "max_gb_per_s": Column(
                "Float64", "Fastest copy of this kind and at least 1 MiB in the whole source."
            ),
        },
    ),
    Table(
        "micro_batches",
        "one micro- or mini-batch of a stage",
        {
            **KEYS,
            "step": STEP,
            "stage": Column("category", "Outermost stage around it, as recorded."),
            "occurrence": OCCURRENCE,
            "kind": Column("category", "micro | mini.", ("micro", "mini")),
            "ts_ns": TS,
            "dur_ns": Column("int64", "Wall time on the host, ns."),
            "own_ns": Column(
                "Int64", "Kernels launched in it, collectives left out, as a union; <NA> without."
            ),
        },
    ),
    Table(
        "busy_spans",
        "a span in which a device does something; close spans are joined to bound their number",
        {
            **KEYS,
            "device": DEVICE,
            "ts_ns": TS,
            "dur_ns": Column("int64", "Length, ns."),
            "closed_ns": Column("int64", "Of it idle: gaps that were closed."),
        },
    ),
)
