"""Waits that the profiler recorded: which op a call or a stream waited for. They come before inferred waits.

Records of synchronization state the stream that is waited for, and the call that recorded the event there. Kineto writes them with
`enable_cuda_sync_events`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracekit.model.tables.arrays import Nullable
from tracekit.model.trace import Trace
from tracekit.process.collectives.arguments import read_count_argument
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names
from tracekit.replay.edges import Ints, Mask

ON_STREAM, RECORD = "wait_on_stream", "wait_on_cuda_event_record_corr_id"
_STREAM_WAIT, _EVENT_SYNC, _STREAM_SYNC = (
    re.compile(pattern).match for pattern in ("Stream Wait Event", "Event Sync", "Stream Sync")
)


class LaunchedOps(NamedTuple):
    """Launched ops in the order of their launches: number, when the launch began, and the recorded stream."""

    op: Ints
    at_ns: Ints
    stream: Ints

    def find_last(self, stream: Ints, ts_ns: Ints) -> Ints:
        """Find the last op launched on each stream up to a time; -1 for none."""
        return self._find(stream, ts_ns, after=False)

    def find_first(self, stream: Ints, ts_ns: Ints) -> Ints:
        """Find the first op launched on each stream after a time; -1 for none."""
        return self._find(stream, ts_ns, after=True)

    def _find(self, stream: Ints, ts_ns: Ints, *, after: bool) -> Ints:
        found = np.full(len(stream), -1, np.int64)
        for number in np.unique(stream).tolist():
            mine, asked = np.flatnonzero(self.stream == number), np.flatnonzero(stream == number)
            place = np.searchsorted(self.at_ns[mine], ts_ns[asked], side="right") - (not after)
            fits = (place >= 0) & (place < len(mine))
            found[asked[fits]] = self.op[mine[place[fits]]]
        return found


class RecordedWaits(NamedTuple):
    """Recorded waits: `waiting[i]` for `awaited[i]`, ops of two streams; and the op that the call of each correlation waited for.

    `is_complete`: every wait between streams is recorded with the op that it was for.
    """

    waiting: Ints
    awaited: Ints
    call: Ints
    op: Ints
    is_complete: bool

    def find_of_calls(self, correlation: Nullable) -> Ints:
        """Find the op that each call waited for, by its correlation; -1 where none is recorded."""
        found = np.full(len(correlation.values), -1, np.int64)
        if not len(self.call):
            return found
        order = np.argsort(self.call, kind="stable")
        place = np.minimum(np.searchsorted(self.call[order], correlation.values), len(order) - 1)
        hit = (self.call[order[place]] == correlation.values) & ~correlation.missing
        return np.where(hit, self.op[order[place]], -1)


def read_recorded_waits(trace: Trace, launched: LaunchedOps) -> RecordedWaits:
    """Read the waits that the profiler recorded."""
    none = np.empty(0, np.int64)
    if not trace.has("syncs") or not trace.has("host_ops") or not len(launched.op):
        return RecordedWaits(none, none, none, none, is_complete=False)
    names, ids = trace.texts("syncs", "name"), trace.numbers("syncs", "id").astype(np.int64)
    key = trace.nullable("syncs", "correlation")
    called_ns = _find_call_times(trace, key)
    on_stream, record = (read_count_argument(trace, name, ids) for name in (ON_STREAM, RECORD))
    recorded_ns = _find_call_times(trace, record)
    is_known = ~on_stream.missing & (recorded_ns >= 0) & (called_ns >= 0)
    awaited = launched.find_last(on_stream.values, np.where(is_known, recorded_ns, -1))
    is_wait = mark_wanted_names(names, _STREAM_WAIT)
    own_stream = trace.nullable("syncs", "stream")
    waits = np.flatnonzero(is_wait & is_known & (awaited >= 0) & ~own_stream.missing)
    waiting = launched.find_first(own_stream.values[waits].astype(np.int64), called_ns[waits])
    waits, waiting = waits[waiting >= 0], waiting[waiting >= 0]
    events = mark_wanted_names(names, _EVENT_SYNC) & is_known & (awaited >= 0)
    streams = mark_wanted_names(names, _STREAM_SYNC) & ~own_stream.missing & (called_ns >= 0)
    of_stream = launched.find_last(own_stream.values.astype(np.int64), np.where(streams, called_ns, -1))
    streams &= of_stream >= 0
    calls = np.flatnonzero(events | streams)
    op = np.where(events, awaited, of_stream)[calls]
    is_complete = bool(is_wait.any()) and bool((is_known | ~is_wait).all())
    return RecordedWaits(waiting, awaited[waits], key.values[calls].astype(np.int64), op, is_complete)


def _find_call_times(trace: Trace, correlation: Nullable) -> Ints:
    """Find when the runtime call of each correlation began; -1 where it is not recorded."""
    rows = np.flatnonzero(mark_rows_of_kind(trace, "host_ops", "runtime"))
    keys = trace.nullable("host_ops", "correlation")
    rows = rows[~keys.missing[rows]]
    begin = np.full(len(correlation.values), -1, np.int64)
    if not len(rows):
        return begin
    order = rows[np.argsort(keys.values[rows], kind="stable")]
    place = np.minimum(np.searchsorted(keys.values[order], correlation.values), len(order) - 1)
    hit: Mask = (keys.values[order[place]] == correlation.values) & ~correlation.missing
    begin[hit] = trace.numbers("host_ops", "ts_ns")[order[place[hit]]]
    return begin
