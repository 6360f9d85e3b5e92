"""The tables that follow memory over time: by step, by stage, at its peak, and as a curve."""

from __future__ import annotations

from tracekit.model.tables.columns import DEVICE, KEYS, OCCURRENCE, STAGE, STEP, TS
from tracekit.model.tables.table import Column, Table

_DEVICE_TYPE = Column(
    "Int64",
    "Whose memory: 0 host (CPU), 1 CUDA, 6 HIP, 12 XPU, 20 private, 101 what was got from the CUDA driver "
    "(segments of an allocator among it); never added together.",
)
_LEVELS = {
    "floor_bytes": Column("Int64", "Least allocated at any time of it."),
    "end_bytes": Column("Int64", "Allocated when it ended."),
    "peak_bytes": Column("Int64", "Most allocated at any time of it."),
    "reserved_bytes": Column("Int64", "Most reserved from the device at any time of it."),
}

TABLES: tuple[Table, ...] = (
    Table(
        "memory_steps",
        "the memory of one allocator in one step",
        {
            **KEYS,
            "device_type": _DEVICE_TYPE,
            "device": DEVICE,
            "step": STEP,
            "occurrence": OCCURRENCE,
            "ts_ns": TS,
            "dur_ns": Column("int64", "Wall time of the step on the host, ns."),
            "relative": Column("bool", "Whether levels count from the start of the recording."),
            **_LEVELS,
        },
    ),
    Table(
        "memory_stages",
        "the memory of one allocator in one outermost stage",
        {
            **KEYS,
            "device_type": _DEVICE_TYPE,
            "device": DEVICE,
            "step": STEP,
            "stage": STAGE,
            "occurrence": OCCURRENCE,
            "ts_ns": TS,
            "dur_ns": Column("int64", "Wall time of the stage on the host, ns."),
            **_LEVELS,
        },
    ),
    Table(
        "memory_peaks",
        "the highest levels of one allocator in one source",
        {
            **KEYS,
            "device_type": _DEVICE_TYPE,
            "device": DEVICE,
            "sample_count": Column("int64", "Allocations and frees."),
            "unsound_count": Column("int64", "Samples without a size or with an impossible one."),
            "relative": Column("bool", "Whether levels count from the start of the recording."),
            "peak_bytes": Column("int64", "Most allocated."),
            "peak_ts_ns": Column("int64", "When first, ns on the clock of ts_ns."),
            "peak_step": Column("Int64", "Step of the peak."),
            "peak_stage": Column("category", "Outermost stage around the peak, as recorded."),
            "peak_op": Column("category", "Innermost op around the peak."),
            "reserved_peak_bytes": Column("Int64", "Most reserved from the device."),
            "reserved_ts_ns": Column("Int64", "When first."),
            "reserved_stage": Column("category", "Outermost stage around that, as recorded."),
            "omitted_stage_count": Column(
                "int64", "Stages beyond the cap: not in memory_stages, the shortest first."
            ),
        },
    ),
    Table(
        "device_sizes",
        "the memory of one device that a process can see",
        {
            **KEYS,
            "device": DEVICE,
            "size_bytes": Column("int64", "All of its memory, as the driver tells."),
        },
    ),
    Table(
        "memory_curve",
        "the highest levels of one allocator in one stretch of time: at most 400 a source",
        {
            **KEYS,
            "device_type": _DEVICE_TYPE,
            "device": DEVICE,
            "ts_ns": TS,
            "allocated_bytes": Column("int64", "Most allocated."),
            "reserved_bytes": Column("Int64", "Most reserved."),
        },
    ),
)
