"""Columns that several tables share, and the key columns at the start of every measured row."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.tables.table import Column

ID = Column("int32", "Row of the element in the file; joins `Trace.arg`.")
TS = Column("int64", "Start, ns since the Unix epoch (since the file's own zero, if `meta` records that).")
DUR = Column("int64", "Duration, ns; half-open [ts_ns, ts_ns + dur_ns).")
NAME = Column("category", "Name as recorded.")
CAT = Column("category", "Category as recorded.")
PID = Column("Int64", "Process id as recorded.")
TID = Column("Int64", "Thread id as recorded.")
THREAD = Column("int32", "Thread within this trace; joins `threads`.")
DEVICE = Column("Int64", "GPU ordinal as recorded.")
STREAM = Column("Int64", "Stream id.")
CORRELATION = Column("Int64", "Joins the launching call and the work it launched.")
EXTERNAL = Column("Int64", "Joins an op and the calls made on its behalf.")

HOST_OP_KINDS = ("op", "runtime", "range", "python", "overhead", "other")
DEVICE_OP_KINDS = ("kernel", "memcpy", "memset", "collective")

KEYS: Mapping[str, Column] = {
    "run": Column("category", "Run the source belongs to."),
    "tool": Column("category", "Profiler that recorded it: torch | nsys | torch_memory | log."),
    "role": Column("category", "Role of the process, as recorded."),
    "rank": Column("Int64", "Global rank of the process."),
    "host": Column("category", "Host of the process."),
    "pid": Column("Int64", "Process id."),
    "replica": Column("Int64", "Rollout or reward replica."),
    "scope": Column("category", "Part of a step that the source covers, as recorded."),
    "part": Column("category", "Piece of a step or stage: a mini-batch window, a repeated capture."),
    "source": Column("category", "File, relative to the directory given."),
}
"""Key columns of every measured row: process = (run, host, pid); role and rank are labels."""

STEP = Column("Int64", "Step number as the run counted it.")
STAGE = Column("category", "Stage name as recorded.")
OCCURRENCE = Column("int32", "0 for the first of that name and step in the source, 1 for the next …")
WORK = {
    "launch_count": Column(
        "Int64",
        "Device ops launched inside it; without a recorded launch, annotated or begun inside it; "
        "<NA> where no device was recorded.",
    ),
    "work_ns": Column("Int64", "Σ duration of these device ops; not a wall time."),
    "work_busy_ns": Column("Int64", "The same as a union per device, Σ over devices; may exceed the wall."),
}

SELF_LAUNCHES = {
    "device_ns": Column("Int64", "Σ duration of the device ops it launched itself."),
    "device_busy_ns": Column("Int64", "The same as a union per device, Σ over devices."),
    "launch_count": Column("Int64", "Device ops it launched itself."),
}
"""Device work launched by an op itself, without ops nested in it."""

PLACE = {
    "step": STEP,
    "occurrence": Column("int32", "0 for the first step of that number in the source, 1 for the next …"),
}
WINDOW = Column("category", "capture | step | stage.", ("capture", "step", "stage"))
SHAPE_COUNT = Column("int64", "Distinct shapes in this row: 1, more for the pooled rest.")
CALL_COUNT = Column("int64", "Calls.")
LONGEST = {
    "longest_ts_ns": Column("int64", "Start of the longest one."),
    "longest_ns": Column("int64", "Its duration."),
}
EXTREMES = {
    "longest_ts_ns": Column("Int64", "Start of the longest one; <NA> where unused."),
    "longest_ns": Column("Int64", "Its duration."),
    "median_ts_ns": Column("Int64", "Start of the one in the middle by duration."),
    "median_ns": Column("Int64", "Its duration."),
}
CLASS_WORK = {
    "device": DEVICE,
    "count": Column("int64", "Device ops; on the host, spans."),
    "busy_ns": Column("int64", "Union of their time; on the host, per thread."),
    "top": Column("category", "Name with most time in it."),
    "capability": Column("Int64", "Compute capability × 10 as recorded: 80 is 8.0."),
    **EXTREMES,
}
