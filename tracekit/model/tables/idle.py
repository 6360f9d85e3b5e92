"""The tables of GPU idle time: by cause, gap by gap, at stage edges, after synchronising calls; launch queues."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.tables.columns import DEVICE, KEYS, STAGE, STEP, STREAM
from tracekit.model.tables.table import Column, Table

CAUSES = (
    "host_loader",
    "host_gc",
    "host_sync",
    "host_overhead",
    "host_op",
    "host_none",
    "host_silent",
    "sync",
    "kernel_wait",
    "other",
    "unknown",
    "after_last",
)
"""Why nothing ran. `host_*`: the next op was not launched yet, by what the host did meanwhile."""

CAUSE_TITLES: Mapping[str, tuple[str, str]] = {
    "host_loader": ("data loader", "The host was in the data loader; the next op was not launched yet."),
    "host_gc": ("garbage collection", "The host collected garbage; the next op was not launched yet."),
    "host_sync": ("synchronising call", "The host was in a call that waits for the device, or in a blocking copy."),
    "host_overhead": ("profiler", "The profiler or the driver's module loading held the host up."),
    "host_op": ("host op", "The host ran an op or a runtime call; the next op was not launched yet."),
    "host_none": ("host, not recorded", "Nothing of the host was recorded, but not for long: Python between ops."),
    "host_silent": ("host silent", "Nothing at all was recorded on any host thread for long: see rule host-silence."),
    "sync": ("stream wait", "The next op was launched; its stream had been told to wait for another."),
    "kernel_wait": ("start-up", "The next op was launched and began soon: see the threshold idle-causes."),
    "other": ("other", "The next op was launched, but began late for a reason that is not recorded."),
    "unknown": ("launch unknown", "Where the next op was launched is not recorded."),
    "after_last": ("after the last op", "No device op followed any more in this recording."),
}  # fmt: skip
"""What people read for each cause, and what it means."""

_CAUSE = Column("category", "Why nothing ran; see the rule pages.", CAUSES)
_WINDOW = Column("category", "capture | step | stage.", ("capture", "step", "stage"))
_HOST = Column("category", "Innermost host call or range halfway through the gap.")

TABLES: tuple[Table, ...] = (
    Table(
        "idle",
        "idle time of one device in the windows of one name, by cause: over causes it is gpu_time.idle_ns",
        {
            **KEYS,
            "device": DEVICE,
            "window": _WINDOW,
            "step": STEP,
            "stage": STAGE,
            "cause": _CAUSE,
            "gap_count": Column("int64", "Gaps in the window that have a part of that cause."),
            "idle_ns": Column("int64", "Time of those parts inside the window."),
        },
    ),
    Table(
        "idle_gaps",
        "one of the longest gaps of a source",
        {
            **KEYS,
            "device": DEVICE,
            "step": STEP,
            "stage": Column("category", "Outermost stage in which the gap begins."),
            "ts_ns": Column("int64", "Start of the gap."),
            "dur_ns": Column("int64", "Length of the gap."),
            "cause": Column("category", "Cause of its largest part.", CAUSES),
            "cause_ns": Column("int64", "That part."),
            "before": Column("category", "Device op that ended; <NA> before the first."),
            "after": Column("category", "Device op that begins; <NA> after the last."),
            "host": _HOST,
        },
    ),
    Table(
        "idle_histogram",
        "gaps between the first and the last op of a device, by length and cause",
        {
            **KEYS,
            "device": DEVICE,
            "cause": _CAUSE,
            "low_ns": Column("int64", "Gaps of at least this length and less than twice of it."),
            "gap_count": Column("int64", "Gaps whose largest part has that cause."),
            "idle_ns": Column("int64", "Time of that cause in all gaps of that length."),
        },
    ),
    Table(
        "stage_edges",
        "between a stage and the first device op of the next one in the same step",
        {
            **KEYS,
            "device": DEVICE,
            "step": STEP,
            "stage": Column("category", "Stage that ended, as recorded."),
            "next_stage": Column("category", "Stage that follows, as recorded."),
            "count": Column("int64", "How often in the step."),
            "edge_ns": Column("int64", "From the end of the stage to that op."),
            "idle_ns": Column("int64", "Of it, nothing ran on the device."),
            "explained_ns": Column(
                "int64",
                "Of the idle time: data loading, garbage collection, or a silent host "
                "inside the next stage.",
            ),
            "inside_ns": Column("Int64", "Of the rest: inside the next stage."),
            "after_sync_ns": Column("int64", "Of that: after a synchronising call returned."),
            "host_ns": Column("int64", "Of idle less explained: host calls or ops were recorded."),
        },
    ),
    Table(
        "sync_stalls",
        "synchronising calls of one kind in the windows of one name, and the idle time that follows them",
        {
            **KEYS,
            "device": DEVICE,
            "window": _WINDOW,
            "step": STEP,
            "stage": STAGE,
            "call": Column(
                "category",
                "Synchronising call, the last one in its op; <NA> for the kinds beyond the cap.",
            ),
            "op": Column("category", "Outermost op around it, where there is one."),
            "count": Column("int64", "How often; all calls of one innermost op are one."),
            "call_ns": Column("int64", "Σ duration of the calls."),
            "stall_count": Column(
                "int64", "Of these, how often the device was idle when a call returned."
            ),
            "idle_ns": Column(
                "int64",
                "Idle time from their return to the next device op, neither data loading nor silence.",
            ),
        },
    ),
    Table(
        "launch_delays",
        "from the end of launching calls to the start of their first device op",
        {
            **KEYS,
            "device": DEVICE,
            "stage": Column(
                "category", "Outermost stage of the launch; <NA> for all of the source."
            ),
            "count": Column("int64", "Launching calls."),
            "negative_count": Column("int64", "Those whose op began before the call returned."),
            "p50_ns": Column("Float64", "Median (linear interpolation); negative ones are kept."),
            "p95_ns": Column("Float64", "95th percentile (linear interpolation)."),
            "max_ns": Column("int64", "Longest."),
        },
    ),
    Table(
        "queues",
        "launched and unfinished ops of one stream, over the time from its first launch to its last end",
        {
            **KEYS,
            "device": DEVICE,
            "stream": STREAM,
            "count": Column("int64", "Ops whose launch is known."),
            "span_ns": Column("int64", "From the first launch to the last end."),
            "p50_count": Column("int64", "Depth that is not exceeded half of that time."),
            "p95_count": Column("int64", "Depth that is not exceeded 95 % of that time."),
            "max_count": Column("int64", "Greatest depth."),
            "full_ns": Column("int64", "Time with a depth of at least 1,024."),
        },
    ),
)
