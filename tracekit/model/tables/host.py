"""The measured tables about the host: its ops and launches, loading, optimizer steps, and what interrupts it."""

from __future__ import annotations

from tracekit.model.tables.columns import KEYS, NAME, STAGE, STEP
from tracekit.model.tables.table import Column, Table

PLACE = {
    "step": STEP,
    "occurrence": Column(
        "int32", "0 for the first step of that number in the source, 1 for the next …"
    ),
}

TABLES: tuple[Table, ...] = (
    Table(
        "host_counts",
        "what the host did in one step, or in all outermost stages of one name in a step",
        {
            **KEYS,
            "window": Column("category", "step | stage.", ("step", "stage")),
            **PLACE,
            "stage": STAGE,
            "wall_ns": Column("int64", "Σ wall time of the windows."),
            "leaf_count": Column("int64", "Ops without an op inside them, on any thread."),
            "leaf_ns": Column("int64", "Σ their duration."),
            "call_count": Column("int64", "Ops that no op encloses: what the program called."),
            "call_p50_ns": Column("Float64", "Their median duration."),
            "short_ns": Column(
                "int64",
                "Σ duration of calls of less than 10 µs outside Optimizer.step, on the step thread.",
            ),
            "launch_count": Column("int64", "Calls that launch device work; a graph is one."),
            "device_count": Column("Int64", "Devices of the source; <NA> where none was recorded."),
            "kernel_count": Column("Int64", "Compute kernels launched one by one (no graph)."),
            "kernel_ns": Column("Int64", "Σ their duration."),
            "kernel_p50_ns": Column("Float64", "Median of those launched outside Optimizer.step."),
            "graph_kernel_count": Column("Int64", "Device ops launched by graphs."),
            "launch_gap_ns": Column(
                "Int64", "Time devices wait for the launch of a single kernel, Σ over devices."
            ),
        },
    ),
    Table(
        "loader_waits",
        "the waits for one data loader in one step",
        {
            **KEYS,
            **PLACE,
            "name": NAME,
            "count": Column("int64", "Batches taken on the step thread."),
            "wait_ns": Column("int64", "Wall time of taking them."),
            "max_ns": Column("int64", "Longest of them."),
            "idle_ns": Column(
                "Int64", "Of wait_ns, while none of the process' devices ran anything."
            ),
        },
    ),
    Table(
        "optimizer_steps",
        "the Optimizer.step calls of one optimizer in one step",
        {
            **KEYS,
            **PLACE,
            "name": NAME,
            "count": Column("int64", "Calls of Optimizer.step."),
            "dur_ns": Column("int64", "Σ their wall time on the host."),
            "tensor_count": Column(
                "Int64",
                "Tensors updated: the call count that most op names share; <NA> if unclear.",
            ),
            "call_count": Column("int64", "Ops that Optimizer.step called itself."),
            "leaf_count": Column("int64", "Ops without an op inside them."),
            "leaf_ns": Column("int64", "Σ duration of those."),
            "kernel_count": Column("Int64", "Kernels launched in it; <NA> without a device."),
            "short_kernel_count": Column("Int64", "Those of less than 10 µs."),
            "kernel_ns": Column("Int64", "Σ duration of the kernels."),
            "idle_ns": Column(
                "Int64", "Idle between the first and the last kernel of a call, Σ over devices."
            ),
        },
    ),
    Table(
        "interruptions",
        "the calls of one name that compile code, load modules or ask the driver for memory, in one place",
        {
            **KEYS,
            "kind": Column("category", "compilation | allocator.", ("compilation", "allocator")),
            **PLACE,
            "stage": STAGE,
            "name": Column("category", "Name as recorded; `(others)` beyond a cap."),
            "count": Column("int64", "Calls, those within another of their kind not counted."),
            "dur_ns": Column(
                "int64", "Their time, overlaps counted once: adds up over names and places."
            ),
        },
    ),
)
