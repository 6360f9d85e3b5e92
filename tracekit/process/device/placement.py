"""Placement of device work in steps and stages: by its launch, else by annotation, else by when it ran (M7, M8)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stages import is_collective_range
from tracekit.model.tables.arrays import concatenate_like_arrays, select_rows
from tracekit.model.tables.keys import QUEUE, group_arrays
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_latest_match, find_launches
from tracekit.process.calls.nesting import find_enclosing_intervals
from tracekit.process.host.phases import find_step_thread
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PLACED = ("launch", "annotation", "time", "before")
LAUNCH, ANNOTATION, TIME, BEFORE = range(len(PLACED))

EARLY_NS, LONGER_NS = 1, 2
"""Slack of a projected range, ns: the profiler begins it before its first op, and makes it longer than its ops."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Per row of `device_ops`: the instant that decides on its step and stage, and `how` that instant is known.

    `how` indexes `PLACED`:
    - launch: `ts_ns` is when the op was launched.
    - annotation: the launch is unknown; `ts_ns` is the begin of the host range whose projection on the op's
      stream contains it.
    - time: the launch is unknown; `ts_ns` is when the op began to run.
    - before: the op was launched before the recording began, so it has no step or stage, and `ts_ns` is
      meaningless.

    A placement does not identify the launching call; use `find_launches` for that.
    """

    how: npt.NDArray[np.int8]
    ts_ns: Ints

    @property
    def is_placed(self) -> Bools:
        """Mask of ops that can be in a step or stage at all."""
        is_known: Bools = self.how != BEFORE
        return is_known


def place_device_ops(trace: Trace) -> Placement:
    """Place every device op in time."""
    links: Launches = trace.derived(find_launches)
    how = np.where(links.linked, LAUNCH, TIME).astype(np.int8)
    ts = np.where(links.linked, links.ts_ns, trace.numbers("device_ops", "ts_ns"))
    rows = (~links.linked).nonzero()[0]
    if len(rows):
        how[rows[_mark_ops_launched_before_recording(trace, links, rows)]] = BEFORE
        annotated, began = _place_ops_by_annotation(trace, rows)
        how[rows[annotated]], ts[rows[annotated]] = ANNOTATION, began
    return Placement(how, ts)


def _mark_ops_launched_before_recording(trace: Trace, links: Launches, rows: Ints) -> Bools:
    """Mark the ops of unknown launch that were launched before the first recorded call.

    Ids rise from call to call: such an op has an id below those of all recorded calls. A stream works in
    order, so the op also begins before all ops of its stream whose launch is recorded.
    """
    host_id, op_id = (trace.nullable(table, "correlation") for table in ("host_ops", "device_ops"))
    ids = host_id.values[mark_rows_of_kind(trace, "host_ops", "runtime") & ~host_id.missing]
    # Some profilers write 0 for "no id".
    ids = ids[ids > 0]
    if not len(ids):
        return np.zeros(len(rows), np.bool_)
    early = ~op_id.missing & (op_id.values > 0) & (op_id.values < ids.min())
    queue, first_rows = group_arrays([trace.nullable("device_ops", name) for name in QUEUE])
    first = np.full(len(first_rows), np.iinfo(np.int64).max)
    start = trace.numbers("device_ops", "ts_ns")
    np.minimum.at(first, queue[links.linked], start[links.linked])
    is_before: Bools = early[rows] & (start[rows] < first[queue[rows]])
    return is_before


def _place_ops_by_annotation(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Find the ops inside a projected range of their stream: (positions in `rows`, begin of the host range)."""
    ranges, began = _match_projected_ranges(trace)
    queue = [trace.nullable("device_ops", name) for name in QUEUE]
    asks = (~(queue[0].missing | queue[1].missing)[rows]).nonzero()[0]
    if not len(ranges) or not len(asks):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ops = rows[asks]
    range_queue = [select_rows(trace.nullable("device_ranges", name), ranges) for name in QUEUE]
    both = [concatenate_like_arrays([a, select_rows(b, ops)]) for a, b in zip(range_queue, queue, strict=True)]
    of_range, of_op = np.split(group_arrays(both)[0], [len(ranges)])
    start = trace.numbers("device_ranges", "ts_ns")[ranges]
    first = trace.numbers("device_ops", "ts_ns")[ops]
    holder = find_enclosing_intervals(
        of_range,
        start,
        start + trace.numbers("device_ranges", "dur_ns")[ranges],
        of_op,
        first,
        first + trace.numbers("device_ops", "dur_ns")[ops],
    )
    is_held = holder >= 0
    return asks[is_held], began[holder[is_held]]


def _match_projected_ranges(trace: Trace) -> tuple[Ints, Ints]:
    """Match device ranges with step-thread annotations: (rows of `device_ranges`, begin of their host ranges).

    Sorted by the begin of the host range, so the inner one of two equal projections comes last. Skips ranges
    on an unknown stream, ranges longer than the whole recording, and ranges without a host range.
    """
    dur = trace.numbers("device_ranges", "dur_ns")
    thread = find_step_thread(trace) if len(dur) else None
    if thread is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    sound = (dur >= 0) & (dur <= _measure_recording_length(trace))
    for name in QUEUE:
        sound &= ~trace.nullable("device_ranges", name).missing
    ranges = sound.nonzero()[0]
    chosen = mark_rows_of_kind(trace, "host_ops", "range") & (trace.numbers("host_ops", "thread") == thread)
    chosen &= ~mark_wanted_names(trace.texts("host_ops", "name"), is_collective_range)
    annotations = chosen.nonzero()[0]
    twin = _match_host_ranges_to_projections(trace, ranges, annotations)
    start = trace.numbers("host_ops", "ts_ns")[annotations]
    host_dur = trace.numbers("host_ops", "dur_ns")[annotations]
    twins = (twin >= 0).nonzero()[0]
    order = twins[np.lexsort((-host_dur[twin[twins]], start[twin[twins]]))]
    return ranges[order], start[twin[order]]


def _measure_recording_length(trace: Trace) -> int:
    """Compute the length of the whole recording (ns), plus the slack of a projected range."""
    starts = np.concatenate([trace.numbers(table, "ts_ns") for table in ("host_ops", "device_ops")])
    durs = np.concatenate((trace.numbers("host_ops", "dur_ns"), trace.numbers("device_ops", "dur_ns")))
    return int((starts + durs).max() - starts.min()) + LONGER_NS if len(starts) else 0


def _match_host_ranges_to_projections(trace: Trace, ranges: Ints, annotations: Ints) -> Ints:
    """Find the position in `annotations` of the host range that each device range projects; -1 for none.

    A device range with an external id matches the host range with its name and id. Otherwise it matches the
    last host range with its name that began no later.
    """
    names = trace.texts("device_ranges", "name")
    host_names = trace.texts("host_ops", "name")
    numbers = {text: code for code, text in enumerate(host_names.texts)}
    places = np.array([*(numbers.get(text, -1) for text in names.texts), -1], np.int64)
    name = places[names.codes[ranges]]
    host_name = host_names.codes[annotations].astype(np.int64)
    host_id = select_rows(trace.nullable("host_ops", "external_id"), annotations)
    range_id = select_rows(trace.nullable("device_ranges", "external_id"), ranges)
    code, _ = group_arrays([np.concatenate((host_id.values, range_id.values))])
    pair = code * (len(numbers) + 1) + np.concatenate((host_name, name))
    has_id = (~host_id.missing).nonzero()[0]
    asks = (~range_id.missing & (name >= 0)).nonzero()[0]
    start = trace.numbers("host_ops", "ts_ns")[annotations]
    limit = trace.numbers("device_ranges", "ts_ns")[ranges] + EARLY_NS
    rows_of_ranges = np.full(len(ranges), -1, np.int64)
    place = find_latest_match(pair[has_id], start[has_id], pair[len(annotations) + asks], limit[asks])
    rows_of_ranges[asks[place >= 0]] = has_id[place[place >= 0]]
    asks = ((rows_of_ranges < 0) & (name >= 0)).nonzero()[0]
    place = find_latest_match(host_name, start, name[asks], limit[asks])
    place[(place >= 0) & (start[place] > limit[asks])] = -1
    rows_of_ranges[asks] = place
    return rows_of_ranges
