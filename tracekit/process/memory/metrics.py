"""What comparisons and gates see of a memory snapshot: its levels under the names of metrics, and the allocated peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit.model.trace import Trace
from tracekit.process.memory.replay import MAX_BYTES, NEVER, Ints, Replay, has_segments

ROUNDED_TO = 512
"""PyTorch's CUDA allocator gives whole multiples of this (`kMinBlockSize` of c10/cuda/CUDACachingAllocator)."""

LEVEL_METRICS = {
    "peak_allocated_bytes": "device_peak_allocated",
    "end_requested_bytes": "device_end_requested",
    "end_allocated_bytes": "device_end_allocated",
    "end_reserved_bytes": "device_end_reserved",
    "stranded_bytes": "device_end_stranded",
}
"""Columns of levels, and the metrics that they become."""


def level_metrics(trace: Trace, levels: Sequence[pd.DataFrame]) -> Mapping[str, Mapping[str, Any]]:
    """The table `metrics` of one snapshot: the highest of each level (`LEVEL_METRICS`) over its GPUs; none where none is known.

    The step is that of the file; pinned host memory is in none of them.
    """
    if not levels:
        return {}
    rows = pd.concat(levels, ignore_index=True)
    rows = rows[(rows["memory"] == "device").to_numpy()]
    values_of = {LEVEL_METRICS[n]: rows[n].dropna() for n in rows if n in LEVEL_METRICS}
    highest_levels = {
        name: float(values.max()) for name, values in values_of.items() if len(values)
    }
    if not highest_levels:
        return {}
    return {
        "metrics": {
            "step": pd.array([trace.source.step] * len(highest_levels), dtype="Int64"),
            "name": np.array([*highest_levels], object),
            "value": pd.array([*highest_levels.values()], dtype="Float64"),
        }
    }


def allocated_peak(trace: Trace, replay: Replay) -> int | None:
    """The most that was allocated at one time of the history, at least: sizes as the allocator rounds them up, bytes.

    What was in use at the end has the size of its block; of what was freed before nothing tells whether its
    block kept a rest that was too small to split off. None without a history or an allocator's segments.
    """
    if not len(replay.rows) or not has_segments(trace):
        return None
    pieces = replay.pieces
    size = _allocated(trace, replay)
    change = np.zeros(len(replay.rows), np.int64)
    later, gone = pieces.born >= 0, pieces.died < NEVER
    np.add.at(change, pieces.born[later], size[later])
    np.subtract.at(change, pieces.died[gone], size[gone])
    before = int(size[~later].sum())
    return max(before, before + int(np.cumsum(change).max()))


def _allocated(trace: Trace, replay: Replay) -> Ints:
    """The size of each piece as allocated: that of its block, else rounded up."""
    pieces = replay.pieces
    rounded = np.maximum(-(-pieces.size // ROUNDED_TO), 1) * ROUNDED_TO
    blocks = trace.get("blocks")["size_bytes"].to_numpy(np.int64, na_value=0)
    pieces_held = (pieces.block >= 0).nonzero()[0]
    size = blocks[pieces.block[pieces_held]]
    sound = (size >= pieces.size[pieces_held]) & (size < MAX_BYTES)
    rounded[pieces_held[sound]] = size[sound]
    return rounded
