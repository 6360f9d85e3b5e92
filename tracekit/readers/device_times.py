"""Device ops whose times contradict their launches or their stream: left out or cut, and counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.codes import LATE_ENDS, LOST_KERNELS, UNUSABLE_KERNELS, Data
from tracekit.model.keys import distinct, is_one_of
from tracekit.model.labels import plural
from tracekit.model.patterns import expression
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Nullable
from tracekit.model.trace import Note
from tracekit.model.units import show
from tracekit.process.calls.launches import latest
from tracekit.process.impossible_times import (
    SKEW_NS,
    cut_late_ends,
    early_ops,
    has_late_ends,
    usual_durations,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

KERNEL_LAUNCH = expression(r"(?:cuda|cu|hip)\w*Launch\w*Kernel\w*")
_EXTENDED_LAUNCH = expression(r"(?:cudaLaunchKernelExC|cuLaunchKernelEx)\w*")
"""The only calls that can launch a kernel programmatically, beside the end of the one before it."""
BEGIN_CAPTURE = expression(r"(?:cuda|cu|hip)StreamBeginCapture\w*")
END_CAPTURE = expression(r"(?:cuda|cu|hip)StreamEndCapture\w*")
_HIP = expression(r"hip[A-Z]\w*")

MOST_AFTER_HEAD = 0.5
"""Kernels are missing at the head only where later launches mostly have theirs; else kernels were not recorded."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Runtime and driver calls with a correlation id: when each began, and what its name says of it."""

    ts_ns: Ints
    correlation: Ints
    pid: Callable[[], Ints]
    """The process of each call, made where it is asked for: hardly ever."""
    name: npt.NDArray[Any]
    names: tuple[str, ...]
    captures: tuple[Ints, Ints]
    """When captures of a stream into a graph began and ended: kernels launched meanwhile do not run."""

    def named(self, pattern: re.Pattern[str]) -> Mask:
        """Which calls have a name of this pattern."""
        return np.asarray(has_name(self.names, pattern)[self.name], np.bool_)

    @property
    def is_ambiguous(self) -> bool:
        """Whether kernel launches share ids or come from several processes: then an id does not name a launch."""
        is_launch = self.named(KERNEL_LAUNCH)
        ids = self.correlation[is_launch]
        return len(distinct(ids)) < len(ids) or len(distinct(self.pid()[is_launch])) > 1


_NONE: Ints = np.empty(0, np.int64)


def has_name(names: Sequence[str], pattern: re.Pattern[str]) -> Mask:
    """Which of these names of calls match; the last place is for a missing name."""
    matches = [name.startswith(("cu", "hip")) and bool(pattern.fullmatch(name)) for name in names]
    return np.array([*matches, False], np.bool_)


@dataclass(frozen=True, slots=True)
class Ops:
    """Device ops: times, codes of names, a number for each stream (-1: not recorded), and correlation ids."""

    ts_ns: Ints
    dur_ns: Ints
    name: npt.NDArray[Any]
    stream: Ints
    correlation: Nullable


@dataclass(frozen=True, slots=True)
class Repair:
    """What to change in a table of device ops: rows to leave out, rows with their new durations, and notes."""

    left_out: Ints
    cut: Ints
    dur_ns: Ints
    notes: tuple[Note, ...]


def repair(ops: Ops, calls: Calls, lost: Ints, source: str) -> Repair:
    """Check device ops against the calls that launched them and against their streams.

    `lost` are the correlation ids of ops that were left out before, as their times lie nowhere in the recording.
    Nearly every recording is sound: that is found out first, with as little work as possible.
    """
    early = _early(ops, calls)
    is_late = has_late_ends(ops.ts_ns, ops.ts_ns + ops.dur_ns, ops.stream)
    is_sound = not len(early) and not is_late and not len(lost) and _has_first_kernel(ops, calls)
    if is_sound or calls.is_ambiguous:
        return Repair(_NONE, _NONE, _NONE, ())
    is_kept = np.ones(len(ops.ts_ns), np.bool_)
    is_kept[early] = False
    cut, dur = _cut(ops, calls, is_kept)
    lost = np.concatenate((lost, ops.correlation.values[early]))
    kept_ids = ops.correlation.values[is_kept & ~ops.correlation.missing]
    notes = (
        *_missing_kernels(calls, kept_ids, lost, source),
        *_late_ends(ops.dur_ns[cut] - dur, source),
    )
    return Repair(early, cut, dur, notes)


def _has_first_kernel(ops: Ops, calls: Calls) -> bool:
    """Whether the first launch of the recording has an op, or there is no launch."""
    launches = calls.named(KERNEL_LAUNCH).nonzero()[0]
    if not len(launches):
        return True
    first = calls.correlation[launches[calls.ts_ns[launches].argmin()]]
    return bool(((ops.correlation.values == first) & ~ops.correlation.missing).any())


def _early(ops: Ops, calls: Calls) -> Ints:
    """The ops that begin before their launch."""
    if not len(ops.ts_ns) or not len(calls.ts_ns):
        return _NONE
    span = int(np.ptp(calls.ts_ns))
    if _least_lag(ops, calls) >= -SKEW_NS:
        return _NONE
    call = _launching_calls(ops, calls)
    linked = (call >= 0).nonzero()[0]
    lag = ops.ts_ns[linked] - calls.ts_ns[call[linked]]
    return linked[early_ops(lag, span)]


def _least_lag(ops: Ops, calls: Calls) -> int:
    """How long after its call an op starts at least; of several calls with its correlation id the last in the file counts."""
    low, high = int(calls.correlation.min()), int(calls.correlation.max())
    if high - low > ROOM * len(calls.correlation):
        return -SKEW_NS - 1  # a table would be too large: each call is looked up
    # Ids of no call, and missing ones, find a start before all others.
    table = np.full(high - low + 3, np.iinfo(np.int64).min // 2, np.int64)
    table[calls.correlation - (low - 1)] = calls.ts_ns
    ids = ops.correlation.values
    if ops.correlation.missing.any():
        ids = np.where(ops.correlation.missing, low - 1, ids)
    begins = np.take(table, ids - (low - 1), mode="clip")
    return int((ops.ts_ns - begins).min())


ROOM = 16
"""A table of ids may have this many places per call."""


def _launching_calls(ops: Ops, calls: Calls) -> Ints:
    """For each op the call that launched it: of those with its correlation id the last before it; -1 where there is none."""
    call = np.full(len(ops.ts_ns), -1, np.int64)
    known = (~ops.correlation.missing).nonzero()[0]
    ids, limit = ops.correlation.values[known], ops.ts_ns[known]
    call[known] = latest(calls.correlation, calls.ts_ns, ids, limit)
    return call


def _cut(ops: Ops, calls: Calls, is_kept: Mask) -> tuple[Ints, Ints]:
    """The ops with a late end, and how long they lasted: up to the next op of their stream, or as long as ops of their name do.

    The start of the next op is only a bound: behind the op its stream may have idled.
    """
    kept = is_kept.nonzero()[0]
    call = _launching_calls(ops, calls)
    start, end = ops.ts_ns[kept], ops.ts_ns[kept] + ops.dur_ns[kept]
    is_extended = np.append(calls.named(_EXTENDED_LAUNCH), False)[call[kept]]
    rows, ends = cut_late_ends(
        start,
        end,
        ops.stream[kept],
        np.where(ops.correlation.missing, -1, ops.correlation.values)[kept],
        may_overlap=is_extended,
        is_in_order=bool(calls.named(_HIP).any()),
    )
    is_sound = np.ones(len(kept), np.bool_)
    is_sound[rows] = False
    usual = usual_durations(ops.name[kept], ops.dur_ns[kept], is_sound, rows)
    return kept[rows], np.minimum(ends - start[rows], usual)


def _missing_kernels(calls: Calls, kept_ids: Ints, lost: Ints, source: str) -> Iterator[Note]:
    """Count launches whose kernel is unusable, and launches at the head of the recording that have none."""
    launches = calls.named(KERNEL_LAUNCH).nonzero()[0]
    count = len(launches)
    if not count:
        return
    launches = launches[np.argsort(calls.ts_ns[launches], kind="stable")]
    ids = calls.correlation[launches]
    has_kernel = is_one_of(ids, kept_ids)
    is_unusable = is_one_of(ids, lost) & ~has_kernel
    unusable = int(is_unusable.sum())
    data = Data(launches=count)
    if unusable:
        message = (
            f"{unusable:,} of {count:,} launches have no usable kernel: its time is impossible"
        )
        yield Note("data_loss", UNUSABLE_KERNELS, message, source, unusable, data=data)
    if not has_kernel.any():
        return
    head = int(np.argmax(has_kernel | is_unusable))
    runs = ~_is_captured(calls, calls.ts_ns[launches[:head]])
    missing = int(runs.sum())
    if missing and has_kernel[head:].mean() >= MOST_AFTER_HEAD:
        message = f"{missing:,} of {count:,} launches have no kernel: the first of the recording are missing"
        yield Note("data_loss", LOST_KERNELS, message, source, missing, data=data)


def _is_captured(calls: Calls, ts_ns: Ints) -> Mask:
    """Whether a stream was being captured into a graph at each of these times."""
    begins, ends = map(np.sort, calls.captures)
    begun, ended = (np.searchsorted(edges, ts_ns, side="right") for edges in (begins, ends))
    # A capture that was under way when the recording began has only its end.
    was_open = len(ends) - ended > len(begins) - begun
    return np.asarray((begun > ended) | was_open, np.bool_)


def _late_ends(cut_ns: Ints, source: str) -> Iterator[Note]:
    """The note on ops that were cut by so much each; none without any."""
    count, total = len(cut_ns), int(cut_ns.sum())
    if not count:
        return
    ops = f"{count:,} device {plural(count, 'op')} ended after the next of the same stream"
    message = f"{ops}: cut to end before it, {show(total, 'ns')} in all"
    yield Note("warning", LATE_ENDS, message, source, count, data=Data(cut_ns=total))
