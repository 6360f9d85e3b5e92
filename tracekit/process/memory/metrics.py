"""Metrics of a memory snapshot for comparisons and gates: its levels, and the allocated peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit.model.trace import Trace
from tracekit.process.memory.replay import MAX_BYTES, NEVER, Ints, Replay, has_allocator_segments

ROUNDED_TO = 512
"""Rounding of PyTorch's CUDA allocator, bytes (`kMinBlockSize` of c10/cuda/CUDACachingAllocator)."""

LEVEL_METRICS = {
    "peak_allocated_bytes": "device_peak_allocated",
    "end_requested_bytes": "device_end_requested",
    "end_allocated_bytes": "device_end_allocated",
    "end_reserved_bytes": "device_end_reserved",
    "stranded_bytes": "device_end_stranded",
}
"""Metric by column of levels."""


def make_level_metrics(trace: Trace, levels: Sequence[pd.DataFrame]) -> Mapping[str, Mapping[str, Any]]:
    """Build the table `metrics` of one snapshot: each level's maximum over its GPUs; {} if unknown.

    `LEVEL_METRICS` lists the levels. The step is that of the file. Pinned host memory is not included.
    """
    if not levels:
        return {}
    rows = pd.concat(levels, ignore_index=True)
    rows = rows[(rows["memory"] == "device").to_numpy()]
    values_of = {LEVEL_METRICS[n]: rows[n].dropna() for n in rows if n in LEVEL_METRICS}
    highest_levels = {name: float(values.max()) for name, values in values_of.items() if len(values)}
    if not highest_levels:
        return {}
    return {
        "metrics": {
            "step": pd.array([trace.source.step] * len(highest_levels), dtype="Int64"),
            "name": np.array([*highest_levels], object),
            "value": pd.array([*highest_levels.values()], dtype="Float64"),
        }
    }


def compute_allocated_peak(trace: Trace, replay: Replay) -> int | None:
    """Compute a lower bound of the peak of allocated bytes in the history: sizes as the allocator rounds them up.

    Memory in use at the end has the size of its block. For memory freed earlier it is unknown whether its
    block kept a remainder too small to split off. None without a history or an allocator's segments.
    """
    if not len(replay.rows) or not has_allocator_segments(trace):
        return None
    pieces = replay.pieces
    size = _compute_allocated_sizes(trace, replay)
    change = np.zeros(len(replay.rows), np.int64)
    later, gone = pieces.born >= 0, pieces.died < NEVER
    np.add.at(change, pieces.born[later], size[later])
    np.subtract.at(change, pieces.died[gone], size[gone])
    before = int(size[~later].sum())
    return max(before, before + int(np.cumsum(change).max()))


def _compute_allocated_sizes(trace: Trace, replay: Replay) -> Ints:
    """Compute the allocated size of each piece: that of its block, else the request rounded up."""
    pieces = replay.pieces
    rounded = np.maximum(-(-pieces.size // ROUNDED_TO), 1) * ROUNDED_TO
    blocks = trace.get("blocks")["size_bytes"].to_numpy(np.int64, na_value=0)
    pieces_held = (pieces.block >= 0).nonzero()[0]
    size = blocks[pieces.block[pieces_held]]
    sound = (size >= pieces.size[pieces_held]) & (size < MAX_BYTES)
    rounded[pieces_held[sound]] = size[sound]
    return rounded
