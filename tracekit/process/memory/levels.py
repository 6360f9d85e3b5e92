"""Memory levels of each allocator over time (M15), from samples of `memory_ops` and histories of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.keys import of_arrays
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded, Columns, Nullable, at_rows
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import innermost, nesting
from tracekit.process.memory import windows as snapshot_windows
from tracekit.process.memory.replay import Replay, replays
from tracekit.process.name_filters import named, of_kind
from tracekit.process.steps.stage_lookup import outer_ranges, range_at
from tracekit.process.steps.windows import Stages, Steps, windows

Ints = npt.NDArray[np.int64]

CPU = 0
"""The `device_type` of host memory."""

DRIVER = 101
"""The `device_type` of memory allocated by the CUDA driver, including segments of PyTorch's allocator."""

SNAPSHOT = 102
"""The `device_type` of memory from a snapshot of PyTorch's allocator: requested bytes."""

MAX_BYTES = 2**50
"""Largest plausible level (1 PiB); larger numbers are damage and are left out."""

MAX_DEVICES = 64
"""Allocators of one source that are followed at most: those with the most samples."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels of one allocator after each of its samples, in order of time.

    `reserved` is None if nothing was recorded; its unknown entries are -1. `rows` are the rows of
    `memory_ops`. `relative`: levels count from the start of the recording, not from zero. Levels of a
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
        """Compute `floor_bytes`, `peak_bytes`, `end_bytes` and `reserved_bytes` (peak) of each window.

        The level at the start of a window counts for it. Missing for windows before the first sample.
        """
        low = np.maximum(np.searchsorted(self.ts_ns, start, "right") - 1, 0)
        high = np.searchsorted(self.ts_ns, end, "left")
        has_rows = high > low
        reserved = self.reserved
        return {
            "floor_bytes": _nullable(_reduced(np.minimum, self.allocated, low, high), has_rows),
            "peak_bytes": _nullable(_reduced(np.maximum, self.allocated, low, high), has_rows),
            "end_bytes": _nullable(self.allocated[np.maximum(high - 1, 0)], has_rows),
            "reserved_bytes": _seen(reserved, low, high, has_rows),
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
            "reserved_bytes": _seen(self.reserved, first, last, is_known),
        }


def levels(trace: Trace) -> tuple[Levels, ...]:
    """Compute the levels of every allocator of a trace: one per (device_type, device), never merged."""
    return (*_sampled(trace), *map(_replayed, _of_devices(trace)))


def windows_of(trace: Trace, level: Levels) -> tuple[Steps, Stages]:
    """Select the windows for a level: (steps, outermost ranges), in order of start."""
    if level.replay is None:
        return trace.derived(windows).step_rows, trace.derived(outer_ranges)
    steps = snapshot_windows.steps(trace, level.replay)
    of_steps: Any = Columns.of(steps)
    of_stages: Any = Columns.of(snapshot_windows.stages(trace, steps))
    return (
        Steps(
            of_steps["ts_ns"],
            of_steps["dur_ns"],
            of_steps["step"],
            of_steps["occurrence"],
            origin="",
        ),
        Stages(
            of_stages["ts_ns"],
            of_stages["dur_ns"],
            of_stages["step"],
            of_stages["stage"],
            parent=Coded(np.full(len(of_stages), -1, np.int8), ()),
            occurrence=of_stages["occurrence"],
        ),
    )


def _of_devices(trace: Trace) -> list[Replay]:
    """Select the histories of GPU memory."""
    all_replays = trace.derived(replays) if trace.has("allocations") else ()
    return [replay for replay in all_replays if replay.memory == "device" and len(replay.rows)]


def _replayed(replay: Replay) -> Levels:
    """Convert a history to levels in requested bytes, beginning with the level before it."""
    reserved = replay.reserved
    return Levels(
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


def _sampled(trace: Trace) -> tuple[Levels, ...]:
    """Compute the levels of every sampled allocator."""
    type_, device = (trace.nullable("memory_ops", name) for name in ("device_type", "device"))
    if not len(device):
        return ()
    (type_code, types), (code, devices) = of_arrays([type_]), of_arrays([device])
    key = type_code * len(devices) + code
    keys, counts = np.unique(key, return_counts=True)
    chosen_keys = keys[np.sort(np.argsort(-counts, kind="stable")[:MAX_DEVICES])]
    order = np.lexsort((trace.numbers("memory_ops", "id"), trace.numbers("memory_ops", "ts_ns")))
    sampled = []
    for device_key in chosen_keys.tolist():
        of_type = _number(type_, int(types[device_key // len(devices)]))
        of_device = _number(device, int(devices[device_key % len(devices)]))
        sampled.append(_levels(trace, order[key[order] == device_key], of_type, of_device))
    return tuple(level for level in sampled if len(level.ts_ns))


def _number(numbers: Nullable, row: int) -> int | None:
    """Get the number in this row; None if missing."""
    return None if numbers.missing[row] else int(numbers.values[row])


def _levels(trace: Trace, rows: Ints, type_: int | None, device: int | None) -> Levels:
    """Compute the levels of one allocator: recorded totals, else the running sum of recorded changes."""
    size, total, reserved_bytes = (
        at_rows(trace.nullable("memory_ops", name), rows)
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
    return Levels(
        type_,
        device,
        trace.numbers("memory_ops", "ts_ns")[rows],
        value,
        reserved if (reserved > 0).any() else None,
        rows,
        fresh or not totals,
        unsound,
    )


def places(trace: Trace, level: Levels, at: Ints) -> tuple[list[str | None], list[str | None]]:
    """Find the (outermost stage, innermost op) around each of these samples, as recorded; None if there is none."""
    if level.replay is not None:
        stages = windows_of(trace, level)[1]
        inside = stages.row_at(level.ts_ns[at])
        return named(stages.stage, inside).tolist(), [None] * len(at)
    rows = level.rows[at]
    thread = trace.numbers("memory_ops", "thread")[rows]
    inside = innermost(trace, thread, level.ts_ns[at])
    is_op = of_kind(trace, "host_ops", "op")
    above = (inside >= 0).nonzero()[0]
    above = above[~is_op[inside[above]]]
    inside[above] = trace.derived(nesting).nearest(is_op, inside[above])
    ops = named(trace.texts("host_ops", "name"), inside)
    return range_at(trace, level.ts_ns[at]).tolist(), ops.tolist()


def capacities(trace: Trace) -> dict[int, int]:
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


def sizes_of(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Build the table `device_sizes`; {} if the trace lists no devices."""
    by_device = capacities(trace)
    if not by_device:
        return {}
    return {
        "device_sizes": {
            "device": np.array(list(by_device), np.int64),
            "size_bytes": np.array(list(by_device.values()), np.int64),
        }
    }


def _reduced(function: np.ufunc, values: Ints, low: Ints, high: Ints) -> Ints:
    """Apply `function` to values[low[i]:high[i]]; arbitrary for an empty slice."""
    if not len(low):
        return np.empty(0, np.int64)
    # `reduceat` needs valid indices: pad with a copy of the last value.
    padded = np.append(values, values[-1])
    bounds = np.empty(2 * len(low), np.int64)
    bounds[0::2], bounds[1::2] = low, np.maximum(high, low)
    out: Ints = function.reduceat(padded, bounds)[0::2]
    return out


def _seen(reserved: Ints | None, low: Ints, high: Ints, known: npt.NDArray[np.bool_]) -> Nullable:
    """Compute the highest reserved level of each slice; missing if none was recorded."""
    if reserved is None:
        return _nullable(np.zeros(len(low), np.int64), np.zeros(len(low), np.bool_))
    peak = _reduced(np.maximum, reserved, low, high)
    return _nullable(peak, known & (peak >= 0))


def _nullable(values: Ints, known: npt.NDArray[np.bool_]) -> Nullable:
    """Mask unknown values."""
    return Nullable(np.where(known, values, 0), ~known)
