"""Which step and stage device work belongs to: by its launch, else by annotation, else by when it ran (M7, M8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.keys import QUEUE, numbered_alike
from tracekit.model.stages import is_collective
from tracekit.model.trace import Trace
from tracekit.process.by_name import is_named
from tracekit.process.host_side import step_thread
from tracekit.process.launches import Launches, latest, launches
from tracekit.process.nesting import holding
from tracekit.process.sound import sound_dur_ns

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PLACED = ("launch", "annotation", "time", "before")
LAUNCH, ANNOTATION, TIME, BEFORE = range(len(PLACED))

EARLY_NS, LONGER_NS = 1, 2
"""By so much the profiler begins a range on a device before its first op, and makes it longer than its ops."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Per row of `device_ops`: the instant that decides on its step and stage, and `how` that is known.

    `how` indexes `PLACED`. launch: `ts_ns` is when it was launched. Without a launch, annotation: when the
    host range began whose projection on the op's stream holds it; time: when it began to run; before: it
    was launched before the recording began, so it belongs to no step or stage, and `ts_ns` tells nothing.
    Of what launched an op this says nothing: questions about launches ask `launches`.
    """

    how: npt.NDArray[np.int8]
    ts_ns: Ints

    @property
    def known(self) -> Bools:
        """Which ops can be in a step or stage at all."""
        is_known: Bools = self.how != BEFORE
        return is_known


def placement(trace: Trace) -> Placement:
    """The place in time of every device op."""
    links: Launches = trace.derived(launches)
    start = trace.get("device_ops")["ts_ns"].to_numpy()
    how = np.where(links.linked, LAUNCH, TIME).astype(np.int8)
    ts = np.where(links.linked, links.ts_ns, start)
    rows = np.flatnonzero(~links.linked)
    if len(rows):
        how[rows[_launched_before(trace, links, rows)]] = BEFORE
        annotated, began = _annotated(trace, rows)
        how[rows[annotated]], ts[rows[annotated]] = ANNOTATION, began
    return Placement(how, ts)


def _launched_before(trace: Trace, links: Launches, rows: Ints) -> Bools:
    """Which of these ops, whose launch is not recorded, were launched before the first call that is.

    Ids rise from call to call: such an op has an id below those of all recorded calls, and it begins before
    all ops of its stream whose launch is recorded, as a stream works in order.
    """
    host, device = trace.get("host_ops"), trace.get("device_ops")
    ids = host["correlation"][(host["kind"] == "runtime").to_numpy()].dropna().to_numpy(np.int64)
    ids_of_ops = device["correlation"].to_numpy(np.int64, na_value=0)
    # An id of 0 is how some profilers write that there is none.
    lowest = int(ids[ids > 0].min(initial=np.iinfo(np.int64).max))
    early = (
        (ids_of_ops > 0) & (ids_of_ops < lowest)
        if (ids > 0).any()
        else np.zeros(len(ids_of_ops), np.bool_)
    )
    (stream,) = numbered_alike(QUEUE, device)
    first = np.full(int(stream.max(initial=0)) + 1, np.iinfo(np.int64).max)
    start = device["ts_ns"].to_numpy()
    np.minimum.at(first, stream[links.linked], start[links.linked])
    is_before: Bools = early[rows] & (start[rows] < first[stream[rows]])
    return is_before


def _annotated(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """(positions in `rows` of the ops that a range on their stream holds; when its host range began)."""
    ranges, began = _projections(trace)
    ops = trace.get("device_ops")[["ts_ns", *QUEUE]].iloc[rows]
    asks = np.flatnonzero((ops["device"].notna() & ops["stream"].notna()).to_numpy())
    if not len(ranges) or not len(asks):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ops = ops.iloc[asks]
    range_queue, op_queue = numbered_alike(QUEUE, ranges, ops)
    start, first = ranges["ts_ns"].to_numpy(), ops["ts_ns"].to_numpy()
    holder = holding(
        range_queue,
        start,
        start + ranges["dur_ns"].to_numpy(),
        op_queue,
        first,
        first + trace.derived(sound_dur_ns)[rows[asks]],
    )
    is_held = holder >= 0
    return asks[is_held], began[holder[is_held]]


def _projections(trace: Trace) -> tuple[pd.DataFrame, Ints]:
    """(rows of `device_ranges` that annotations of the step thread were projected to; when each of those began).

    In the order in which the host ranges began, so that of two equal projections the inner one comes last. Left
    out: ranges on no known stream, longer than everything together lasted, and those without a host range.
    """
    ranges, host = trace.get("device_ranges"), trace.get("host_ops")
    thread = step_thread(trace) if len(ranges) else None
    if thread is None:
        return ranges.iloc[:0], np.empty(0, np.int64)
    sound = (ranges["dur_ns"].to_numpy() >= 0) & (ranges["dur_ns"].to_numpy() <= _whole(trace))
    sound &= (ranges["device"].notna() & ranges["stream"].notna()).to_numpy()
    ranges = ranges[sound]
    chosen = (host["kind"] == "range").to_numpy() & (host["thread"] == thread).to_numpy()
    chosen &= ~is_named(host["name"], is_collective)
    twin = _host_ranges(ranges, host.iloc[np.flatnonzero(chosen)])
    start = host["ts_ns"].to_numpy()[chosen]
    dur = host["dur_ns"].to_numpy()[chosen]
    twins_known = np.flatnonzero(twin >= 0)
    order = twins_known[np.lexsort((-dur[twin[twins_known]], start[twin[twins_known]]))]
    return ranges.iloc[order], start[twin[order]]


def _whole(trace: Trace) -> int:
    """How long everything together lasted."""
    host, device = trace.get("host_ops"), trace.get("device_ops")
    starts = np.concatenate((host["ts_ns"].to_numpy(), device["ts_ns"].to_numpy()))
    durs = np.concatenate((host["dur_ns"].to_numpy(), trace.derived(sound_dur_ns)))
    return int((starts + durs).max() - starts.min()) + LONGER_NS if len(starts) else 0


def _host_ranges(ranges: pd.DataFrame, host: pd.DataFrame) -> Ints:
    """For each range on a device the row of `host` that it projects, -1 for none.

    That of its name and external id; without one, of its name the last that began before it or with it.
    """
    numbers = {name: code for code, name in enumerate(host["name"].cat.categories)}
    places = [numbers.get(name, -1) for name in ranges["name"].cat.categories]
    name = np.array([*places, -1], np.int64)[ranges["name"].cat.codes.to_numpy()]
    host_name = host["name"].cat.codes.to_numpy().astype(np.int64)
    width = len(numbers) + 1
    code, _ = pd.factorize(pd.concat([host["external_id"], ranges["external_id"]]))
    pair = code.astype(np.int64) * width + np.concatenate((host_name, name))
    has_id = np.flatnonzero(code[: len(host)] >= 0)
    asks = np.flatnonzero((code[len(host) :] >= 0) & (name >= 0))
    start = host["ts_ns"].to_numpy()
    limit = ranges["ts_ns"].to_numpy() + EARLY_NS
    rows_of_ranges = np.full(len(ranges), -1, np.int64)
    place = latest(pair[has_id], start[has_id], pair[len(host) + asks], limit[asks])
    rows_of_ranges[asks[place >= 0]] = has_id[place[place >= 0]]
    asks = np.flatnonzero((rows_of_ranges < 0) & (name >= 0))
    place = latest(host_name, start, name[asks], limit[asks])
    place[(place >= 0) & (start[place] > limit[asks])] = -1
    rows_of_ranges[asks] = place
    return rows_of_ranges
