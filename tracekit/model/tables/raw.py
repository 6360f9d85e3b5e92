"""Raw tables: what a source recorded, filled by readers."""

from __future__ import annotations

from tracekit.model.tables.columns import (
    CAT,
    CORRELATION,
    DEVICE,
    DEVICE_OP_KINDS,
    DUR,
    EXTERNAL,
    HOST_OP_KINDS,
    ID,
    NAME,
    PID,
    STEP,
    STREAM,
    THREAD,
    TID,
    TS,
)
from tracekit.model.tables.table import Column, Table

ARGS = Table(
    "args",
    "an argument recorded with a row of another raw table (read for SQL only)",
    {
        "id": Column("int32", "`id` of the row that it belongs to, in the same process."),
        "key": Column("category", "Name of the argument, as Kineto writes it (grid, Input Dims …)."),
        "value": Column("category", "Value as text; lists and objects as JSON."),
        "number": Column("Float64", "Value where it is a number."),
    },
)
"""Table of arguments; in Python, `Trace.arg` gets one argument at a time."""

THREAD_STATES = ("waiting", "ready", "unknown")
"""Reasons why a thread is off the CPU."""

_NAMED_INTERVAL = {"id": ID, "ts_ns": TS, "dur_ns": DUR, "name": NAME}

TABLES: tuple[Table, ...] = (
    Table(
        "host_ops",
        "an interval on a host thread",
        {
            **_NAMED_INTERVAL,
            "kind": Column(
                "category", "op | runtime call | range (annotation) | python | overhead | other.", HOST_OP_KINDS
            ),
            "cat": CAT,
            "pid": PID,
            "tid": TID,
            "thread": THREAD,
            "correlation": CORRELATION,
            "external_id": EXTERNAL,
        },
    ),
    Table(
        "open_ranges",
        "a range that was still open when the recording ended (no statistic counts it)",
        {
            "id": ID,
            "ts_ns": TS,
            "dur_ns": Column("int64", "From its start to the end of the recording, ns: a lower bound."),
            "name": NAME,
            "cat": CAT,
            "pid": PID,
            "tid": TID,
            "thread": THREAD,
        },
    ),
    Table(
        "device_ops",
        "a kernel, copy, fill or collective on a device",
        {
            **_NAMED_INTERVAL,
            "kind": Column("category", "kernel | memcpy | memset | collective (by name or metadata).", DEVICE_OP_KINDS),
            "device": DEVICE,
            "stream": STREAM,
            "correlation": CORRELATION,
            "external_id": EXTERNAL,
            "size_bytes": Column("Int64", "Bytes moved or set, where recorded."),
        },
    ),
    Table(
        "device_ranges",
        "an annotation projected on a device by the profiler",
        {
            **_NAMED_INTERVAL,
            "device": DEVICE,
            "stream": STREAM,
            "external_id": EXTERNAL,
        },
    ),
    Table(
        "syncs",
        "a synchronization record of a device",
        {
            **_NAMED_INTERVAL,
            "device": DEVICE,
            "stream": STREAM,
            "correlation": CORRELATION,
        },
    ),
    Table(
        "memory_ops",
        "an allocation or a free, as the profiler's allocator hook saw it",
        {
            "id": ID,
            "ts_ns": TS,
            "pid": PID,
            "tid": TID,
            "thread": THREAD,
            "device_type": Column(
                "Int64", "0 CPU, 1 CUDA, 6 HIP, 12 XPU, 20 private; 101 memory from the CUDA driver."
            ),
            "device": DEVICE,
            "size_bytes": Column("Int64", "Bytes allocated, negative when freed."),
            "allocated_bytes": Column("Int64", "Allocated in all after it."),
            "reserved_bytes": Column("Int64", "Reserved in all after it."),
        },
    ),
    Table(
        "counters",
        "one sample of a counter",
        {"id": ID, "ts_ns": TS, "name": NAME, "value": Column("Float64", "Value as recorded.")},
    ),
    Table(
        "flows",
        "one end of an arrow between two intervals (read on request)",
        {
            "id": ID,
            "ts_ns": TS,
            "cat": CAT,
            "phase": Column("category", "start | step | end.", ("start", "step", "end")),
            "flow": Column("Int64", "Joins the ends of one arrow."),
            "thread": THREAD,
        },
    ),
    Table("windows", "the span that a profiler reports as recorded", _NAMED_INTERVAL),
    Table(
        "python_calls",
        "a call of a Python function (read on request)",
        {**_NAMED_INTERVAL, "thread": THREAD},
    ),
    Table(
        "cpu_samples",
        "a sample of a thread's activity on a CPU (read on request)",
        {
            "id": ID,
            "ts_ns": Column("int64", "When it was taken, ns as in `host_ops`."),
            "thread": THREAD,
            "name": Column("category", "Innermost function, or the file it is in; <NA> where neither is known."),
            "path": Column("category", "The innermost functions, those that were called after their callers."),
        },
    ),
    Table(
        "thread_states",
        "an interval in which a thread was on no CPU (read on request)",
        {
            "id": ID,
            "ts_ns": TS,
            "dur_ns": DUR,
            "thread": THREAD,
            "state": Column(
                "category", "waiting: for something; ready: for a CPU; unknown: not recorded.", THREAD_STATES
            ),
        },
    ),
    Table(
        "threads",
        "a thread of the trace",
        {
            "thread": THREAD,
            "pid": PID,
            "tid": TID,
            "name": Column("category", "Thread name, where recorded."),
            "process_name": Column("category", "Process name, where recorded."),
        },
    ),
    Table(
        "log_values",
        "one number that a driver's log gives for one step",
        {
            "line": Column("int64", "Line of the log, from 1."),
            "ts_ns": Column("Int64", "When it was logged, ns since the Unix epoch; <NA> where the log has no times."),
            "part": Column("int64", "Part of the log, from 0; a restart begins a new one."),
            "step": STEP,
            "name": Column("category", "Name as logged, such as timing_s/gen."),
            "value": Column("Float64", "Value as logged; timers are in seconds."),
        },
    ),
    Table(
        "log_settings",
        "one setting of an RL run that findings name",
        {
            "key": Column("category", "Name of the setting, such as trainer.test_freq."),
            "value": Column("category", "Number, switch or word, as written; other values are not kept."),
            "origin": Column("category", "The log that printed it, or the file next to the log."),
        },
    ),
    Table(
        "engine_log",
        "one number that the log of a rollout engine or a machine gives for one moment",
        {
            "line": Column("int64", "Line of the log, from 1; of a scrape the line at which it begins."),
            "ts_ns": Column(
                "Int64",
                "When it was logged, ns since 1970 on the log's own clock (of a log without a year, since 1970 as in 2000).",
            ),
            "system": Column("category", "Writer of the log: vllm | sglang | nvidia-smi | nvidia-smi pmon | dcgm."),
            "engine": Column("category", "Engine or GPU: an index, ranks (DP0 TP0), a process, GPU 0."),
            "key": Column("category", "Quantity, such as running, kv_ratio or generation_tokens_per_s."),
            "kind": Column(
                "category",
                "level: then | count: since the last line | total: since the start | setting: configured.",
                ("level", "count", "total", "setting"),
            ),
            "value": Column("Float64", "Value; ratios are 0 to 1, sizes bytes, times seconds."),
        },
    ),
    Table(
        "engine_requests",
        "one request of a rollout engine, one tool call or one agent's run, by traces of requests or the engine's log",
        {
            "line": Column("int64", "Line of the file, from 1."),
            "kind": Column("category", "request | tool | agent.", ("request", "tool", "agent")),
            "trajectory": Column("Int64", "Number of the trace of spans that it belongs to, from 0; <NA> without one."),
            "step": STEP,
            "ts_ns": Column("Int64", "Arrival, ns since the Unix epoch."),
            "dur_ns": Column("Int64", "From arrival to the end, ns."),
            "queue_ns": Column("Int64", "Waiting in the engine's queue, ns."),
            "prefill_ns": Column("Int64", "Processing the prompt, until the first token, ns."),
            "decode_ns": Column("Int64", "Generating, ns, without the time preempted."),
            "forward_ns": Column("Int64", "Prefill and decode together, ns, where they are not recorded apart."),
            "preempted_ns": Column("Int64", "Preempted and not yet running again, ns."),
            "preemption_count": Column("Int64", "Preemptions."),
            "tool_ns": Column("Int64", "Tools, ns."),
            "prompt_tokens": Column("Int64", "Tokens of the prompt."),
            "response_tokens": Column("Int64", "Generated tokens."),
        },
    ),
    Table(
        "ray_rows",
        "one row of a Ray timeline: a task on a worker, a part of one, or a call of Ray by a worker or the driver",
        {
            "id": ID,
            "ts_ns": Column("int64", "Start, ns since the Unix epoch on the clock of the node."),
            "dur_ns": DUR,
            "kind": Column(
                "category",
                "task | arguments, execute, outputs: parts of a task | submit, get, wait, put: calls of Ray | other.",
                ("task", "arguments", "execute", "outputs", "submit", "get", "wait", "put", "other"),
            ),
            "name": Column(
                "category", "Function of the task, such as Worker.update_actor; of other rows the category."
            ),
            "actor": Column("category", "Name of the actor; only the row of its creation has it."),
            "node": Column("category", "Address of the node."),
            "worker": Column("category", "Worker or driver, with its id in Ray: worker:0cbb…."),
        },
    ),
)
