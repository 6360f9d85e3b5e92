"""Memory levels of each allocator over time (M15), from samples of `memory_ops` and histories of snapshots.

Also the levels of a snapshot as metrics, for comparisons and gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Nullable, get_number_or_none, repeat_number, select_rows
from tracekit.model.tables.keys import group_arrays
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import build_call_tree, find_innermost_host_rows
from tracekit.process.memory.replay import (
    MAX_BYTES,
    NEVER,
    Replay,
    has_allocator_segments,
    read_ints,
    replay_all_devices,
)
from tracekit.process.memory.windows import list_snapshot_stages, list_snapshot_steps
from tracekit.process.name_filters import look_up_names, mark_rows_of_kind
from tracekit.process.steps.stage_lookup import find_range_names_at, select_outer_ranges
from tracekit.process.steps.windows import StageWindows, StepWindows, find_steps_and_stages

Ints = npt.NDArray[np.int64]

CPU = 0
"""The `device_type` of host memory."""

DRIVER = 101
"""The `device_type` of memory allocated by the CUDA driver, including segments of PyTorch's allocator."""

SNAPSHOT = 102
"""The `device_type` of memory from a snapshot of PyTorch's allocator: requested bytes."""

MAX_DEVICES = 64
"""Allocators of one source that are followed at most: those with the most samples."""


@dataclass(frozen=True, slots=True)
class MemoryLevels:
    """Levels of one allocator after each of its samples, in order of time.

    `reserved` is None if nothing was recorded; its unknown entries are -1. `rows` are the rows of
    `memory_ops`. `relative`: levels are relative to the start of the recording, not from zero. Levels of a
    snapshot come from its `replay`, and begin with the level before its history.
    """

    device_type: int | None
    device: int | None
    ts_ns: Ints
    allocated: Ints
    reserved: Ints | None
    rows: Ints
    relative: bool
    unsound: int
    replay: Replay | None = None

    def within(self, start: Ints, end: Ints) -> dict[str, Any]:
        """Compute `begin_bytes`, `floor_bytes`, `peak_bytes`, `end_bytes` and `reserved_bytes` (peak) of each window.

        The level at the start of a window counts for it. Missing for windows before the first sample.
        """
        low = np.maximum(np.searchsorted(self.ts_ns, start, "right") - 1, 0)
        high = np.searchsorted(self.ts_ns, end, "left")
        has_rows = high > low
        reserved = self.reserved
        return {
            "begin_bytes": _mask_unknown_levels(self.allocated[low], has_rows),
            "floor_bytes": _mask_unknown_levels(_reduce_slices(np.minimum, self.allocated, low, high), has_rows),
            "peak_bytes": _mask_unknown_levels(_reduce_slices(np.maximum, self.allocated, low, high), has_rows),
            "end_bytes": _mask_unknown_levels(self.allocated[np.maximum(high - 1, 0)], has_rows),
            "reserved_bytes": _compute_reserved_peaks(reserved, low, high, has_rows),
        }

    def curve(self, points: int) -> dict[str, Any]:
        """Downsample to at most `points` bins of equal length: `ts_ns` of the first sample, highest levels."""
        span = int(self.ts_ns[-1] - self.ts_ns[0]) + 1
        width = -(-span // points)
        number = (self.ts_ns - self.ts_ns[0]) // width
        first = np.diff(number, prepend=-1).nonzero()[0]
        last = np.append(first[1:], len(number))
        is_known = np.ones(len(first), np.bool_)
        return {
            "ts_ns": self.ts_ns[first],
            "allocated_bytes": np.maximum.reduceat(self.allocated, first),
            "reserved_bytes": _compute_reserved_peaks(self.reserved, first, last, is_known),
        }


def compute_memory_levels(trace: Trace) -> tuple[MemoryLevels, ...]:
    """Compute the levels of every allocator of a trace: one per (device_type, device), never merged."""
    return (*_compute_sampled_levels(trace), *map(_convert_replay_to_levels, _select_device_replays(trace)))


def select_memory_windows(trace: Trace, level: MemoryLevels) -> tuple[StepWindows, StageWindows]:
    """Select the windows for a level: (steps, outermost ranges), in order of start."""
    if level.replay is None:
        return trace.derived(find_steps_and_stages).step_rows, trace.derived(select_outer_ranges)
    steps = list_snapshot_steps(trace, level.replay)
    return steps, list_snapshot_stages(trace, steps)


def _select_device_replays(trace: Trace) -> list[Replay]:
    """Select the histories of GPU memory."""
    all_replays = trace.derived(replay_all_devices) if trace.has("allocations") else ()
    return [replay for replay in all_replays if replay.memory == "device" and len(replay.rows)]


def _convert_replay_to_levels(replay: Replay) -> MemoryLevels:
    """Convert a history to levels in requested bytes, beginning with the level before it."""
    reserved = replay.reserved
    return MemoryLevels(
        SNAPSHOT,
        replay.device,
        np.append(replay.ts_ns[:1] - 1, replay.ts_ns),
        np.append(replay.base, replay.requested),
        None if reserved is None else np.append(replay.reserved_before, reserved),
        np.append(-1, replay.rows),
        relative=False,
        unsound=replay.unsound,
        replay=replay,
    )


def _compute_sampled_levels(trace: Trace) -> tuple[MemoryLevels, ...]:
    """Compute the levels of every sampled allocator."""
    type_, device = (trace.nullable("memory_ops", name) for name in ("device_type", "device"))
    if not len(device):
        return ()
    (type_code, types), (code, devices) = group_arrays([type_]), group_arrays([device])
    key = type_code * len(devices) + code
    keys, counts = np.unique(key, return_counts=True)
    chosen_keys = keys[np.sort(np.argsort(-counts, kind="stable")[:MAX_DEVICES])]
    order = np.lexsort((trace.numbers("memory_ops", "id"), trace.numbers("memory_ops", "ts_ns")))
    sampled = []
    for device_key in chosen_keys.tolist():
        of_type = get_number_or_none(type_, int(types[device_key // len(devices)]))
        of_device = get_number_or_none(device, int(devices[device_key % len(devices)]))
        sampled.append(_compute_allocator_levels(trace, order[key[order] == device_key], of_type, of_device))
    return tuple(level for level in sampled if len(level.ts_ns))


def _compute_allocator_levels(trace: Trace, rows: Ints, type_: int | None, device: int | None) -> MemoryLevels:
    """Compute the levels of one allocator: recorded totals, else the running sum of recorded changes."""
    size, total, reserved_bytes = (
        select_rows(trace.nullable("memory_ops", name), rows)
        for name in ("size_bytes", "allocated_bytes", "reserved_bytes")
    )
    totals = not bool(total.missing.all())
    amount = total if totals else size
    sound = ~amount.missing & (abs(amount.values) < MAX_BYTES)
    unsound = int(len(sound) - sound.sum())
    value, rows = amount.values[sound], rows[sound]
    if not totals:
        value = np.cumsum(value)
    # A host allocator starts counting when the profiler starts.
    first_size = np.where(size.missing, 0, size.values)[sound][:1]
    fresh = type_ == CPU and bool((value[:1] == first_size).any())
    reserved = reserved_bytes.values[sound]
    is_sound = ~reserved_bytes.missing[sound] & (reserved >= 0) & (reserved < MAX_BYTES)
    reserved = np.where(is_sound, reserved, -1)
    return MemoryLevels(
        type_,
        device,
        trace.numbers("memory_ops", "ts_ns")[rows],
        value,
        reserved if (reserved > 0).any() else None,
        rows,
        fresh or not totals,
        unsound,
    )


def find_sample_contexts(trace: Trace, level: MemoryLevels, samples: Ints) -> tuple[list[str | None], list[str | None]]:
    """Find the (outermost stage, innermost op) around each of these samples, as recorded; None if there is none."""
    if level.replay is not None:
        stages = select_memory_windows(trace, level)[1]
        inside = stages.row_at(level.ts_ns[samples])
        return look_up_names(stages.stage, inside).tolist(), [None] * len(samples)
    rows = level.rows[samples]
    thread = trace.numbers("memory_ops", "thread")[rows]
    inside = find_innermost_host_rows(trace, thread, level.ts_ns[samples])
    is_op = mark_rows_of_kind(trace, "host_ops", "op")
    above = (inside >= 0).nonzero()[0]
    above = above[~is_op[inside[above]]]
    inside[above] = trace.derived(build_call_tree).nearest(is_op, inside[above])
    ops = look_up_names(trace.texts("host_ops", "name"), inside)
    return find_range_names_at(trace, level.ts_ns[samples]).tolist(), ops.tolist()


def read_gpu_capacities(trace: Trace) -> dict[int, int]:
    """Read the memory size of each GPU from `deviceProperties`: bytes by ordinal."""
    devices = trace.meta.get("deviceProperties")
    by_device: dict[int, int] = {}
    for entry in devices if isinstance(devices, list) else ():
        if not isinstance(entry, dict):
            continue
        ordinal, size = entry.get("id"), entry.get("totalGlobalMem")
        if type(ordinal) is int and type(size) is int and 0 < size < MAX_BYTES:
            by_device[ordinal] = size
    return by_device


def make_device_size_table(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Build the table `device_sizes`; {} if the trace lists no devices."""
    by_device = read_gpu_capacities(trace)
    if not by_device:
        return {}
    return {
        "device_sizes": {
            "device": np.array(list(by_device), np.int64),
            "size_bytes": np.array(list(by_device.values()), np.int64),
        }
    }


def _reduce_slices(function: np.ufunc, values: Ints, low: Ints, high: Ints) -> Ints:
    """Apply `function` to values[low[i]:high[i]]; arbitrary for an empty slice."""
    if not len(low):
        return np.empty(0, np.int64)
    # `reduceat` needs valid indices: pad with a copy of the last value.
    padded = np.append(values, values[-1])
    bounds = np.empty(2 * len(low), np.int64)
    bounds[0::2], bounds[1::2] = low, np.maximum(high, low)
    out: Ints = function.reduceat(padded, bounds)[0::2]
    return out


def _compute_reserved_peaks(reserved: Ints | None, low: Ints, high: Ints, is_known: npt.NDArray[np.bool_]) -> Nullable:
    """Compute the highest reserved level of each slice; missing if none was recorded."""
    if reserved is None:
        return _mask_unknown_levels(np.zeros(len(low), np.int64), np.zeros(len(low), np.bool_))
    peak = _reduce_slices(np.maximum, reserved, low, high)
    return _mask_unknown_levels(peak, is_known & (peak >= 0))


def _mask_unknown_levels(values: Ints, is_known: npt.NDArray[np.bool_]) -> Nullable:
    """Mask unknown values."""
    return Nullable(np.where(is_known, values, 0), ~is_known)


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


def make_level_metrics(trace: Trace, levels: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Build the table `metrics` of one snapshot: each level's maximum over its GPUs; {} if unknown.

    `LEVEL_METRICS` lists the levels. The step is that of the file. Pinned host memory is not included.
    """
    of_devices = [row for row in levels if row["memory"] == "device"]
    highest_levels: dict[str, float] = {}
    for column, name in LEVEL_METRICS.items():
        values = [row[column] for row in of_devices if row.get(column) is not None]
        if values:
            highest_levels[name] = float(max(values))
    if not highest_levels:
        return {}
    return {
        "metrics": {
            "step": repeat_number(trace.source.step, len(highest_levels)),
            "name": [*highest_levels],
            "value": [*highest_levels.values()],
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
    pieces_held = (pieces.block >= 0).nonzero()[0]
    size = read_ints(trace, "blocks", "size_bytes", pieces.block[pieces_held])
    sound = (size >= pieces.size[pieces_held]) & (size < MAX_BYTES)
    rounded[pieces_held[sound]] = size[sound]
    return rounded
