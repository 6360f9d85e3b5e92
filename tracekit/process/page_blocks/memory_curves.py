"""Memory of devices over time on the page, from the samples of the profiler."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.trace import Trace
from tracekit.process.memory.levels import CPU, DRIVER, SNAPSHOT, MemoryLevels, compute_memory_levels

Ints = npt.NDArray[np.int64]

CURVE_POINTS = 2_000
"""Points of one curve at most; each is the highest level of an equal part of the time."""


def make_memory_curve(trace: Trace, device: int | None) -> dict[str, Ints]:
    """Make the curve of the allocator of one device: instants, bytes allocated and reserved (0: unknown).

    Levels that are only known relative to the start of the recording count from their lowest value.
    """
    none = np.empty(0, np.int64)
    columns = {"curve.start": none, "curve.allocated": none, "curve.reserved": none}
    levels: tuple[MemoryLevels, ...] = trace.derived(compute_memory_levels)
    for level in levels:
        if level.device == device and level.device_type not in (CPU, DRIVER, SNAPSHOT):
            curve = level.curve(CURVE_POINTS)
            allocated, reserved = curve["allocated_bytes"], curve["reserved_bytes"]
            columns = {
                "curve.start": curve["ts_ns"],
                "curve.allocated": allocated - min(int(allocated.min()), 0),
                "curve.reserved": np.where(reserved.missing, 0, reserved.values),
            }
            break
    return {**columns, "row.curves": np.array([len(columns["curve.start"])])}
