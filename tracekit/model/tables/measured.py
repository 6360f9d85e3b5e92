"""The tables that every report measures: captures, quality, steps, GPU time, kernels, operators, copies, metrics."""

from __future__ import annotations

from tracekit.model.tables.columns import (
    DEVICE,
    DEVICE_OP_KINDS,
    HOST_OP_KINDS,
    KEYS,
    NAME,
    OCCURRENCE,
    STAGE,
    STEP,
    TS,
    WORK,
)
from tracekit.model.tables.table import Column, Table

TABLES: tuple[Table, ...] = (
    Table(
        "captures",
        "one process in one source",
        {
            **KEYS,
            "world_size": Column("Int64", "Ranks in the job, where recorded."),
            "ts_ns": TS,
            "dur_ns": Column("int64", "From the first start to the last end of anything, ns."),
            "absolute_time": Column("bool", "Whether ts_ns counts from the Unix epoch."),
            "row_count": Column("int64", "Elements read."),
            "host_op_count": Column("int64", "Rows of host_ops but Python functions."),
            "device_op_count": Column("int64", "Rows of device_ops."),
            "device_name": Column("category", "GPU model, where recorded."),
            "backend": Column("category", "Communication backend, where recorded."),
        },
    ),
    Table(
        "quality",
        "one thing checked about one source",
        {
            **KEYS,
            "name": Column("category", "What was counted."),
            "count": Column("Int64", "How many."),
            "dur_ns": Column("Int64", "How much time they take, ns."),
            "size_bytes": Column("Int64", "How many bytes."),
        },
    ),
    Table(
        "gpu_time",
        "one device in one window, by time: the parts and idle add up to window_ns exactly",
        {
            **KEYS,
            "device": DEVICE,
            "window": Column("category", "capture | step | stage.", ("capture", "step", "stage")),
            "step": STEP,
            "stage": STAGE,
            "occurrence": OCCURRENCE,
            "ts_ns": TS,
            "window_ns": Column("int64", "Length of the window, ns."),
            "compute_ns": Column("int64", "Compute kernels running."),
            "exposed_comm_ns": Column("int64", "Collectives running, no compute."),
            "exposed_memcpy_ns": Column(
                "int64", "Copies running, neither compute nor collectives."
            ),
            "exposed_memset_ns": Column("int64", "Fills running, nothing else."),
            "idle_ns": Column("int64", "Nothing running."),
            "comm_ns": Column("int64", "Collectives running, hidden or not."),
            "overlap_ns": Column("int64", "Collectives and compute both running."),
            "op_count": Column("int64", "Device ops that touch the window."),
        },
    ),
    Table(
        "steps",
        "one step in one source",
        {
            **KEYS,
            "step": STEP,
            "occurrence": OCCURRENCE,
            "origin": Column(
                "category",
                "profiler (ProfilerStep) | range (the program's own `step n`) | file (the source is the step) "
                "| stage (it is one stage of it).",
                ("profiler", "range", "file", "stage"),
            ),
            "ts_ns": TS,
            "dur_ns": Column("int64", "Wall time on the host, ns."),
            **WORK,
        },
    ),
    Table(
        "stages",
        "one annotated range on the step thread",
        {
            **KEYS,
            "step": STEP,
            "stage": STAGE,
            "parent": Column("category", "Enclosing range, where there is one."),
            "occurrence": OCCURRENCE,
            "ts_ns": TS,
            "dur_ns": Column("int64", "Wall time on the host, ns."),
            **WORK,
        },
    ),
    Table(
        "recurrences",
        "one kernel or range coming again, in a source without step marks",
        {
            **KEYS,
            "kind": Column(
                "category", "launch (a kernel) | range (annotated).", ("launch", "range")
            ),
            "name": Column("category", "Name as recorded; of ranges with # for numbers."),
            "device": DEVICE,
            "position": Column("int64", "Which in order, from 0."),
            "ts_ns": TS,
            "dur_ns": Column("int64", "From its start to the start of what follows, ns."),
            "count": Column("int64", "Recurrences in that time: beyond 200 rows several are one."),
        },
    ),
    Table(
        "launches",
        "device ops by how they were traced back to the host",
        {
            **KEYS,
            "link": Column(
                "category",
                "correlation | external_id | unlinked.",
                ("correlation", "external_id", "unlinked"),
            ),
            "call": Column("category", "Launching call."),
            "placed": Column(
                "category",
                "How the stage is known: by launch | annotation (on the device) | time (when it ran) | "
                "before (launched before the recording began: of no stage).",
                ("launch", "annotation", "time", "before"),
            ),
            "stage": STAGE,
            "count": Column("int64", "Device ops."),
            "dur_ns": Column("int64", "Σ duration, ns."),
        },
    ),
    Table(
        "kernels",
        "one kernel (copy, fill, collective) name on one device",
        {
            **KEYS,
            "device": DEVICE,
            "kind": Column("category", "As in device_ops.", DEVICE_OP_KINDS),
            "name": NAME,
            "count": Column("int64", "Launches."),
            "total_ns": Column("int64", "Σ duration."),
            "mean_ns": Column("Float64", "Mean duration."),
            "std_ns": Column("Float64", "Sample standard deviation; <NA> for one launch."),
            "min_ns": Column("int64", "Shortest."),
            "p50_ns": Column("Float64", "Median (linear interpolation)."),
            "p95_ns": Column("Float64", "95th percentile (linear interpolation)."),
            "max_ns": Column("int64", "Longest."),
        },
    ),
    Table(
        "operators",
        "one host op name in one source",
        {
            **KEYS,
            "kind": Column("category", "As in host_ops.", HOST_OP_KINDS),
            "name": NAME,
            "count": Column("int64", "Calls."),
            "total_ns": Column(
                "int64",
                "Wall time on its threads; a call within a call of the same name counts once.",
            ),
            "self_ns": Column("int64", "Wall time less that of direct children."),
            "device_ns": Column("Int64", "Σ duration of the device ops it launched itself."),
            "device_busy_ns": Column("Int64", "The same as a union per device, Σ over devices."),
            "launch_count": Column("Int64", "Device ops it launched itself."),
            "allocated_bytes": Column("Int64", "Bytes allocated while it was the innermost op."),
            "freed_bytes": Column("Int64", "Bytes freed while it was the innermost op."),
        },
    ),
    Table(
        "copies",
        "copies and fills of one direction and memory kind on one device",
        {
            **KEYS,
            "device": DEVICE,
            "direction": Column(
                "category", "HtoD, DtoH, DtoD, PtoP, HtoH, memset, or as recorded."
            ),
            "memory": Column("category", "Pageable, Pinned, Device … as recorded."),
            "count": Column("int64", "Copies."),
            "dur_ns": Column("int64", "Σ duration."),
            "size_bytes": Column("Int64", "Bytes of those whose size is recorded."),
            "rated_bytes": Column("Int64", "Bytes of those with both bytes and time recorded."),
            "rated_ns": Column("Int64", "Time of the same."),
            "gb_per_s": Column("Float64", "rated_bytes / rated_ns; 1e9 bytes."),
            "max_gb_per_s": Column("Float64", "Fastest single copy."),
            "excluded_count": Column("int64", "Copies without bytes or time: not in the rates."),
            "small_count": Column("int64", "Copies of at most 64,000 bytes."),
            "small_ns": Column("int64", "Their time."),
            "small_bytes": Column("int64", "Their bytes."),
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
            "better": Column(
                "category", "lower | higher | neither.", ("lower", "higher", "neither")
            ),
        },
    ),
)
