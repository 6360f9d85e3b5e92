"""Checks of device ops whose times contradict their launches or their stream: ops to drop or shorten."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.note_codes import LATE_ENDS, LOST_KERNELS, UNUSABLE_KERNELS, Data
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.keys import find_distinct, mask_members
from tracekit.model.text.labels import choose_plural
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.trace import Note
from tracekit.model.units import format_quantity
from tracekit.process.calls.launches import find_latest_match
from tracekit.process.impossible_times import (
    SKEW_NS,
    compute_typical_durations,
    find_late_stream_ends,
    find_ops_before_launch,
    has_overlapping_stream_ops,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

KERNEL_LAUNCH = compile_lazily(r"(?:cuda|cu|hip)\w*Launch\w*Kernel\w*")
_EXTENDED_LAUNCH = compile_lazily(r"(?:cudaLaunchKernelExC|cuLaunchKernelEx)\w*")
"""Launch calls that support programmatic launch: only such a kernel may overlap the end of the one before."""
BEGIN_CAPTURE = compile_lazily(r"(?:cuda|cu|hip)StreamBeginCapture\w*")
END_CAPTURE = compile_lazily(r"(?:cuda|cu|hip)StreamEndCapture\w*")
_HIP = compile_lazily(r"hip[A-Z]\w*")

MOST_AFTER_HEAD = 0.5
"""Share of later launches that must have a kernel before kernels at the head count as missing.

Below it, kernels were not recorded at all.
"""


@dataclass(frozen=True, slots=True)
class LaunchCalls:
    """Runtime and driver calls with a correlation id: start times and names."""

    ts_ns: Ints
    correlation: Ints
    pid: Callable[[], Ints]
    """Process of each call. Computed on demand, because it is rarely needed."""
    name: npt.NDArray[Any]
    names: tuple[str, ...]
    captures: tuple[Ints, Ints]
    """Start and end times of stream captures into graphs: kernels launched during a capture do not run."""

    def named(self, pattern: re.Pattern[str]) -> Mask:
        """Select the calls whose name matches the pattern."""
        return np.asarray(match_call_names(self.names, pattern)[self.name], np.bool_)

    @property
    def is_ambiguous(self) -> bool:
        """Whether a correlation id may fail to identify a launch.

        That is so if kernel launches share ids or come from several processes.
        """
        is_launch = self.named(KERNEL_LAUNCH)
        ids = self.correlation[is_launch]
        return len(find_distinct(ids)) < len(ids) or len(find_distinct(self.pid()[is_launch])) > 1


_NONE: Ints = np.empty(0, np.int64)


def match_call_names(names: Sequence[str], pattern: re.Pattern[str]) -> Mask:
    """Match call names against a pattern; an extra last element, for a missing name, is False."""
    matches = [name.startswith(("cu", "hip")) and bool(pattern.fullmatch(name)) for name in names]
    return np.array([*matches, False], np.bool_)


@dataclass(frozen=True, slots=True)
class DeviceOpTimes:
    """Device ops as columns: times, name codes, stream numbers (-1: not recorded) and correlation ids."""

    ts_ns: Ints
    dur_ns: Ints
    name: npt.NDArray[Any]
    stream: Ints
    correlation: Nullable


@dataclass(frozen=True, slots=True)
class DeviceTimeRepair:
    """Changes to a table of device ops: rows to drop, rows to shorten with their new durations, and notes."""

    left_out: Ints
    cut: Ints
    dur_ns: Ints
    notes: tuple[Note, ...]


def check_device_times(ops: DeviceOpTimes, calls: LaunchCalls, lost: Ints, source: str) -> DeviceTimeRepair:
    """Check device ops against the calls that launched them and against their streams.

    `lost` contains correlation ids of ops dropped earlier, whose times are outside the recording.
    Nearly every recording is sound, so cheap checks run first.
    """
    early = _find_early_ops(ops, calls)
    is_late = has_overlapping_stream_ops(ops.ts_ns, ops.ts_ns + ops.dur_ns, ops.stream)
    is_sound = not len(early) and not is_late and not len(lost) and _has_first_kernel(ops, calls)
    if is_sound or calls.is_ambiguous:
        return DeviceTimeRepair(_NONE, _NONE, _NONE, ())
    is_kept = np.ones(len(ops.ts_ns), np.bool_)
    is_kept[early] = False
    cut, dur = _find_late_ops(ops, calls, is_kept)
    lost = np.concatenate((lost, ops.correlation.values[early]))
    kept_ids = ops.correlation.values[is_kept & ~ops.correlation.missing]
    notes = (*_note_missing_kernels(calls, kept_ids, lost, source), *_note_late_ends(ops.dur_ns[cut] - dur, source))
    return DeviceTimeRepair(early, cut, dur, notes)


def _has_first_kernel(ops: DeviceOpTimes, calls: LaunchCalls) -> bool:
    """Check whether the first kernel launch of the recording has an op, or there is no launch."""
    launches = calls.named(KERNEL_LAUNCH).nonzero()[0]
    if not len(launches):
        return True
    first = calls.correlation[launches[calls.ts_ns[launches].argmin()]]
    return bool(((ops.correlation.values == first) & ~ops.correlation.missing).any())


def _find_early_ops(ops: DeviceOpTimes, calls: LaunchCalls) -> Ints:
    """Find the ops that start before their launch."""
    if not len(ops.ts_ns) or not len(calls.ts_ns):
        return _NONE
    span = int(np.ptp(calls.ts_ns))
    if _compute_min_launch_lag(ops, calls) >= -SKEW_NS:
        return _NONE
    call = _match_ops_to_calls(ops, calls)
    linked = (call >= 0).nonzero()[0]
    lag = ops.ts_ns[linked] - calls.ts_ns[call[linked]]
    return linked[find_ops_before_launch(lag, span)]


def _compute_min_launch_lag(ops: DeviceOpTimes, calls: LaunchCalls) -> int:
    """Compute the smallest time from a call to the start of its op, in ns.

    If several calls share a correlation id, the last one in the file counts.
    """
    low, high = int(calls.correlation.min()), int(calls.correlation.max())
    if high - low > MAX_TABLE_ENTRIES_PER_CALL * len(calls.correlation):
        return -SKEW_NS - 1  # the table would be too large: make the caller look up each call
    # Ids without a call, and missing ids, map to a start before all others.
    table = np.full(high - low + 3, np.iinfo(np.int64).min // 2, np.int64)
    table[calls.correlation - (low - 1)] = calls.ts_ns
    ids = ops.correlation.values
    if ops.correlation.missing.any():
        ids = np.where(ops.correlation.missing, low - 1, ids)
    begins = np.take(table, ids - (low - 1), mode="clip")
    return int((ops.ts_ns - begins).min())


MAX_TABLE_ENTRIES_PER_CALL = 16
"""Largest table of ids, in entries per call."""


def _match_ops_to_calls(ops: DeviceOpTimes, calls: LaunchCalls) -> Ints:
    """Find the call that launched each op: the last one before it with its correlation id; -1 if none."""
    call = np.full(len(ops.ts_ns), -1, np.int64)
    known = (~ops.correlation.missing).nonzero()[0]
    ids, limit = ops.correlation.values[known], ops.ts_ns[known]
    call[known] = find_latest_match(calls.correlation, calls.ts_ns, ids, limit)
    return call


def _find_late_ops(ops: DeviceOpTimes, calls: LaunchCalls, is_kept: Mask) -> tuple[Ints, Ints]:
    """Find the ops that end too late, and their corrected durations in ns.

    An op ends at the latest when the next op of its stream starts. It lasts at most as long as ops of its
    name usually do, because its stream may have been idle before the next op.
    """
    kept = is_kept.nonzero()[0]
    call = _match_ops_to_calls(ops, calls)
    start, end = ops.ts_ns[kept], ops.ts_ns[kept] + ops.dur_ns[kept]
    is_extended = np.append(calls.named(_EXTENDED_LAUNCH), False)[call[kept]]
    rows, ends = find_late_stream_ends(
        start,
        end,
        ops.stream[kept],
        np.where(ops.correlation.missing, -1, ops.correlation.values)[kept],
        may_overlap=is_extended,
        is_in_order=bool(calls.named(_HIP).any()),
    )
    is_sound = np.ones(len(kept), np.bool_)
    is_sound[rows] = False
    usual = compute_typical_durations(ops.name[kept], ops.dur_ns[kept], is_sound, rows)
    return kept[rows], np.minimum(ends - start[rows], usual)


def _note_missing_kernels(calls: LaunchCalls, kept_ids: Ints, lost: Ints, source: str) -> Iterator[Note]:
    """Yield notes on launches whose kernel is unusable, and on launches at the head without a kernel."""
    launches = calls.named(KERNEL_LAUNCH).nonzero()[0]
    count = len(launches)
    if not count:
        return
    launches = launches[np.argsort(calls.ts_ns[launches], kind="stable")]
    ids = calls.correlation[launches]
    has_kernel = mask_members(ids, kept_ids)
    is_unusable = mask_members(ids, lost) & ~has_kernel
    unusable = int(is_unusable.sum())
    data = Data(launches=count)
    if unusable:
        message = f"{unusable:,} of {count:,} launches have no usable kernel: its time is impossible"
        yield Note("data_loss", UNUSABLE_KERNELS, message, source, unusable, data=data)
    if not has_kernel.any():
        return
    head = int(np.argmax(has_kernel | is_unusable))
    runs = ~_is_in_stream_capture(calls, calls.ts_ns[launches[:head]])
    missing = int(runs.sum())
    if missing and has_kernel[head:].mean() >= MOST_AFTER_HEAD:
        message = f"{missing:,} of {count:,} launches have no kernel: the first of the recording are missing"
        yield Note("data_loss", LOST_KERNELS, message, source, missing, data=data)


def _is_in_stream_capture(calls: LaunchCalls, ts_ns: Ints) -> Mask:
    """Check for each time whether a stream was being captured into a graph."""
    begins, ends = (np.sort(edges) for edges in calls.captures)
    begun, ended = (np.searchsorted(edges, ts_ns, side="right") for edges in (begins, ends))
    # A capture that began before the recording has only its end.
    was_open = len(ends) - ended > len(begins) - begun
    return np.asarray((begun > ended) | was_open, np.bool_)


def _note_late_ends(cut_ns: Ints, source: str) -> Iterator[Note]:
    """Yield a note on ops that were shortened by `cut_ns` each, if there are any."""
    count, total = len(cut_ns), int(cut_ns.sum())
    if not count:
        return
    ops = f"{count:,} device {choose_plural(count, 'op')} ended after the next of the same stream"
    message = f"{ops}: cut to end before it, {format_quantity(total, 'ns')} in all"
    yield Note("warning", LATE_ENDS, message, source, count, data=Data(cut_ns=total))
