"""The tables: every one declared as data, with the type, the unit and the meaning of each column.

A unit is the suffix of a column's name: `_ns`, `_bytes`, `_ratio` (0 to 1), `_gb_per_s` (1e9 bytes), `_count`.
`Int64` and `Float64` (capitals) and open categories may hold `<NA>`; no number stands for "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from tracekit.errors import SchemaError

Dtype = Literal["int32", "int64", "Int64", "Float64", "bool", "category"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its pandas dtype, one line of meaning, and the closed set of its values, if closed."""

    dtype: Dtype
    doc: str
    values: tuple[str, ...] = ()

    @property
    def nullable(self) -> bool:
        """Whether a row may lack this value."""
        return self.dtype in ("Int64", "Float64") or (self.dtype == "category" and not self.values)


@dataclass(frozen=True, slots=True)
class Table:
    """A named set of columns, and what one row of it is."""

    name: str
    row: str
    columns: Mapping[str, Column]

    def frame(
        self, data: Mapping[str, Any] | None = None, length: int | None = None
    ) -> pd.DataFrame:
        """A frame made of equally long arrays: columns cast and put in order, rows as given.

        Nullable columns that are not given are all `<NA>`; no data at all gives the empty table.
        Raises `SchemaError` for other missing columns, unknown ones, and values that do not fit.
        """
        data = data or {}
        if length is None:
            length = len(next(iter(data.values()))) if data else 0
        missing = {n for n, c in self.columns.items() if n not in data and not c.nullable}
        unknown = data.keys() - self.columns.keys()
        if unknown or (missing and data):
            problem = f"{self.name}: missing {sorted(missing)}, unknown {sorted(unknown)}"
            raise SchemaError(problem)
        try:
            cast = {n: _cast(c, data.get(n), length) for n, c in self.columns.items()}
            return pd.DataFrame(cast, copy=False)
        except (TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"{self.name}: {error}") from error

    def check(self, frame: pd.DataFrame) -> None:
        """Raise `SchemaError` unless `frame` has exactly these columns, in this order, of these types."""
        want = [(name, column.dtype) for name, column in self.columns.items()]
        have = [(str(name), str(dtype)) for name, dtype in frame.dtypes.items()]
        if want != have:
            odd = sorted(set(want) ^ set(have))
            raise SchemaError(f"{self.name}: columns differ from the schema: {odd or 'order'}")


def _cast(column: Column, given: Any, length: int) -> Any:
    """One column as an array of its declared dtype."""
    if column.dtype == "category":
        return _categorical(column, given, length)
    if given is None:
        return pd.array([pd.NA] * length if column.nullable else [], dtype=column.dtype)
    if (
        isinstance(given, np.ndarray | pd.api.extensions.ExtensionArray)
        and given.dtype == column.dtype
    ):
        return given
    cast: Any = pd.array(given, dtype=column.dtype)
    # numpy casts to these without a word whatever is lost.
    if not column.nullable and not (np.asarray(cast) == np.asarray(given)).all():
        raise ValueError(f"values that are no {column.dtype}")
    return cast


def _categorical(column: Column, given: Any, length: int) -> Any:
    """A categorical: of the closed set when there is one (other values are an error), else of what is there."""
    if given is None:
        codes = np.full(length, -1, np.int8)
        return pd.Categorical.from_codes(codes, categories=_text(column.values))
    values = given.array if isinstance(given, pd.Series) else given
    if not column.values:
        return values if isinstance(values, pd.Categorical) else _open_categorical(values)
    found = values if isinstance(values, pd.Categorical) else pd.Categorical(values)
    if found.categories.tolist() == list(column.values) and not (found.codes < 0).any():
        return found
    place = {value: code for code, value in enumerate(column.values)}
    codes = np.array([*(place.get(c, -1) for c in found.categories), -1], np.int8)[found.codes]
    if (codes == -1).any():
        odd = sorted({str(v) for v, code in zip(found, codes, strict=True) if code == -1})
        raise ValueError(f"{odd[:5]} not in {column.values}")
    return pd.Categorical.from_codes(codes, categories=_text(column.values))


def _open_categorical(values: Any) -> Any:
    """A categorical whose categories are text, in sorted order."""
    found = pd.Categorical(values)
    return pd.Categorical.from_codes(found.codes, categories=_text(found.categories))


def _text(values: Any) -> pd.Index[str]:
    """An index of text, also when it is empty (pandas would otherwise guess its type from the values)."""
    return pd.Index([str(value) for value in values], dtype="str")


def coded(codes: Any, like: pd.Series[Any]) -> Any:
    """A categorical of these codes, with the categories of `like`; code -1 is missing."""
    dtype: Any = like.dtype
    return pd.Categorical.from_codes(codes, dtype=dtype)


def concat(table: Table, frames: list[pd.DataFrame]) -> pd.DataFrame:
    """The rows of several frames of one table, in order; categories are united, not lost."""
    if not frames:
        return table.frame()
    if len(frames) == 1:
        return frames[0]
    columns: dict[str, Any] = {}
    for name, column in table.columns.items():
        parts = [frame[name] for frame in frames]
        if column.dtype == "category" and not column.values:
            columns[name] = pd.api.types.union_categoricals([part.array for part in parts])
        else:
            columns[name] = pd.concat(parts, ignore_index=True).array
    return table.frame(columns)


_ID = Column("int32", "Row of the element in the file; joins `Trace.arg`.")
_TS = Column(
    "int64", "Start, ns since the Unix epoch (since the file's own zero if `meta` says so)."
)
_DUR = Column("int64", "Duration, ns; half-open [ts_ns, ts_ns + dur_ns).")
_NAME = Column("category", "Name as recorded.")
_CAT = Column("category", "Category as recorded.")
_PID = Column("Int64", "Process id as recorded.")
_TID = Column("Int64", "Thread id as recorded.")
_THREAD = Column("int32", "Thread within this trace; joins `threads`.")
_DEVICE = Column("Int64", "GPU ordinal as recorded.")
_STREAM = Column("Int64", "Stream id.")
_CORRELATION = Column("Int64", "Joins the launching call and the work it launched.")
_EXTERNAL = Column("Int64", "Joins an op and the calls made on its behalf.")

HOST_OP_KINDS = ("op", "runtime", "range", "python", "overhead", "other")
DEVICE_OP_KINDS = ("kernel", "memcpy", "memset", "collective")

RAW: tuple[Table, ...] = (
    Table(
        "host_ops",
        "an interval on a host thread",
        {
            "id": _ID,
            "ts_ns": _TS,
            "dur_ns": _DUR,
            "name": _NAME,
            "kind": Column(
                "category",
                "op | runtime call | range (annotation) | python | overhead | other.",
                HOST_OP_KINDS,
            ),
            "cat": _CAT,
            "pid": _PID,
            "tid": _TID,
            "thread": _THREAD,
            "correlation": _CORRELATION,
            "external_id": _EXTERNAL,
        },
    ),
    Table(
        "device_ops",
        "a kernel, copy, fill or collective on a device",
        {
            "id": _ID,
            "ts_ns": _TS,
            "dur_ns": _DUR,
            "name": _NAME,
            "kind": Column(
                "category",
                "kernel | memcpy | memset | collective (told by name or metadata).",
                DEVICE_OP_KINDS,
            ),
            "device": _DEVICE,
            "stream": _STREAM,
            "correlation": _CORRELATION,
            "external_id": _EXTERNAL,
            "size_bytes": Column("Int64", "Bytes moved or set, where recorded."),
        },
    ),
    Table(
        "device_ranges",
        "an annotation projected on a device by the profiler",
        {
            "id": _ID,
            "ts_ns": _TS,
            "dur_ns": _DUR,
            "name": _NAME,
            "device": _DEVICE,
            "stream": _STREAM,
        },
    ),
    Table(
        "syncs",
        "a synchronisation record of a device",
        {
            "id": _ID,
            "ts_ns": _TS,
            "dur_ns": _DUR,
            "name": _NAME,
            "device": _DEVICE,
            "stream": _STREAM,
            "correlation": _CORRELATION,
        },
    ),
    Table(
        "memory_ops",
        "an allocation or a free, as the profiler's allocator hook saw it",
        {
            "id": _ID,
            "ts_ns": _TS,
            "pid": _PID,
            "tid": _TID,
            "thread": _THREAD,
            "device_type": Column("Int64", "0 CPU, 1 CUDA, 6 HIP, 12 XPU, 20 private."),
            "device": _DEVICE,
            "size_bytes": Column("Int64", "Bytes allocated, negative when freed."),
            "allocated_bytes": Column("Int64", "Allocated in all after it."),
            "reserved_bytes": Column("Int64", "Reserved in all after it."),
        },
    ),
    Table(
        "counters",
        "one sample of a counter",
        {"id": _ID, "ts_ns": _TS, "name": _NAME, "value": Column("Float64", "Value as recorded.")},
    ),
    Table(
        "flows",
        "one end of an arrow between two intervals (read on request)",
        {
            "id": _ID,
            "ts_ns": _TS,
            "cat": _CAT,
            "phase": Column("category", "start | step | end.", ("start", "step", "end")),
            "flow": Column("Int64", "Joins the ends of one arrow."),
            "thread": _THREAD,
        },
    ),
    Table(
        "windows",
        "the span that a profiler says it recorded",
        {"id": _ID, "ts_ns": _TS, "dur_ns": _DUR, "name": _NAME},
    ),
    Table(
        "threads",
        "a thread of the trace",
        {
            "thread": _THREAD,
            "pid": _PID,
            "tid": _TID,
            "name": Column("category", "Thread name, where recorded."),
            "process_name": Column("category", "Process name, where recorded."),
        },
    ),
)

KEYS: Mapping[str, Column] = {
    "run": Column("category", "Run the source belongs to."),
    "tool": Column("category", "Profiler that recorded it: torch | nsys | torch_memory | log."),
    "role": Column("category", "Role of the process, as recorded."),
    "rank": Column("Int64", "Global rank of the process."),
    "host": Column("category", "Host of the process."),
    "pid": Column("Int64", "Process id."),
    "replica": Column("Int64", "Rollout or reward replica."),
    "scope": Column("category", "What part of a step the source covers, as recorded."),
    "part": Column(
        "category", "Piece of a step or stage: a mini-batch window, a repeated capture."
    ),
    "source": Column("category", "File, relative to the directory given."),
}
"""What every measured row begins with: process = (run, host, pid); role and rank are labels."""

_STEP = Column("Int64", "Step number as the run counted it.")
_STAGE = Column("category", "Stage name as recorded.")
_OCCURRENCE = Column(
    "int32", "0 for the first of that name and step in the source, 1 for the next …"
)
_WORK = {
    "launch_count": Column(
        "Int64", "Device ops launched inside it; <NA> where no device was recorded."
    ),
    "work_ns": Column("Int64", "Σ duration of the device ops launched inside it; not a wall time."),
    "work_busy_ns": Column(
        "Int64", "The same as a union per device, Σ over devices; may exceed the wall."
    ),
}

MEASURED: tuple[Table, ...] = (
    Table(
        "captures",
        "one process in one source",
        {
            **KEYS,
            "world_size": Column("Int64", "Ranks in the job, where recorded."),
            "ts_ns": _TS,
            "dur_ns": Column("int64", "From the first start to the last end of anything, ns."),
            "absolute_time": Column("bool", "Whether ts_ns counts from the Unix epoch."),
            "row_count": Column("int64", "Elements read."),
            "host_op_count": Column("int64", "Rows of host_ops."),
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
            "device": _DEVICE,
            "window": Column("category", "capture | step | stage.", ("capture", "step", "stage")),
            "step": _STEP,
            "stage": _STAGE,
            "occurrence": _OCCURRENCE,
            "ts_ns": _TS,
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
            "step": _STEP,
            "occurrence": _OCCURRENCE,
            "origin": Column(
                "category",
                "profiler (ProfilerStep) | file (the source is the step) | stage (it is one stage of it).",
                ("profiler", "file", "stage"),
            ),
            "ts_ns": _TS,
            "dur_ns": Column("int64", "Wall time on the host, ns."),
            **_WORK,
        },
    ),
    Table(
        "stages",
        "one annotated range on the step thread",
        {
            **KEYS,
            "step": _STEP,
            "stage": _STAGE,
            "parent": Column("category", "Enclosing range, where there is one."),
            "occurrence": _OCCURRENCE,
            "ts_ns": _TS,
            "dur_ns": Column("int64", "Wall time on the host, ns."),
            **_WORK,
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
            "stage": _STAGE,
            "count": Column("int64", "Device ops."),
            "dur_ns": Column("int64", "Σ duration, ns."),
        },
    ),
    Table(
        "kernels",
        "one kernel (copy, fill, collective) name on one device",
        {
            **KEYS,
            "device": _DEVICE,
            "kind": Column("category", "As in device_ops.", DEVICE_OP_KINDS),
            "name": _NAME,
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
            "name": _NAME,
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
            "device": _DEVICE,
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
            "step": _STEP,
            "stage": _STAGE,
            "name": Column("category", "Metric id."),
            "value": Column("Float64", "Value in its unit."),
            "unit": Column("category", "ns, bytes, ratio, count, gb_per_s."),
            "better": Column(
                "category", "lower | higher | neither.", ("lower", "higher", "neither")
            ),
        },
    ),
)

TABLES: Mapping[str, Table] = {table.name: table for table in (*RAW, *MEASURED)}
