"""Pauses of the host of a process without a device: time of a step in which no op, call or collective runs for long."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import (
    EMPTY,
    Intervals,
    expand_ranges,
    measure_coverage,
    merge_interval_sets,
    merge_intervals,
    subtract,
)
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, Coded, select_all_rows, trim_all_texts
from tracekit.model.tables.keys import find_distinct, group_arrays, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.calls.activity import HostActivity, find_garbage_collections, measure_host_activity
from tracekit.process.collectives.compute_between_collectives import find_host_blocked_spans
from tracekit.process.extremes import find_longest_by_keys
from tracekit.process.host.phases import HostWindows, build_host_windows, find_step_thread
from tracekit.process.idle_time.attribution import attribute_idle_time
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.name_filters import make_narrow_coded, mark_rows_of_kind
from tracekit.process.steps.stage_lookup import find_range_codes_at, select_outer_ranges
from tracekit.process.steps.windows import find_steps_and_stages

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PauseSearch:
    """Search for pauses of at least `silence_ns` inside one step and stage; pass an instance to `trace.derived`."""

    silence_ns: int

    def __call__(self, trace: Trace) -> Intervals:
        """Find the pauses; empty for a trace without ops, which cannot show that none ran."""
        steps, ranges = trace.derived(find_steps_and_stages).step_rows, trace.derived(select_outer_ranges)
        if trace.has("device_ops") or not mark_rows_of_kind(trace, "host_ops", "op").any():
            return EMPTY
        did: HostActivity = trace.derived(measure_host_activity)
        waits = trace.derived(find_host_blocked_spans)
        busy = [trace.derived(find_garbage_collections), did.loader, waits, did.op, did.overhead]
        free = subtract(merge_intervals(steps.ts_ns, steps.end_ns), merge_interval_sets(busy))
        edges = find_distinct(np.concatenate((steps.ts_ns, steps.end_ns, ranges.ts_ns, ranges.end_ns)))
        pieces = _split_at_edges(free, edges)
        is_long = pieces.end - pieces.start >= self.silence_ns
        return Intervals(pieces.start[is_long], pieces.end[is_long])


def _split_at_edges(spans: Intervals, edges: Ints) -> Intervals:
    """Split intervals at edges inside them."""
    first = np.searchsorted(edges, spans.start, side="right")
    place, edge = expand_ranges(first, np.searchsorted(edges, spans.end))
    return Intervals(np.insert(spans.start, place + 1, edges[edge]), np.insert(spans.end, place, edges[edge]))


def measure_host_pauses(trace: Trace, pauses: Intervals) -> dict[str, Array]:
    """Sum pauses by step, stage, and the ops around them: the columns of the measured table `host_pauses`."""
    where: HostWindows = trace.derived(build_host_windows)
    after, before = _find_ops_around(trace, pauses)
    keys = {
        **where.steps_of(where.step_at(pauses.start)),
        "stage": find_range_codes_at(trace, pauses.start),
        "after": after,
        "before": before,
    }
    group, first = group_arrays(list(keys.values()))
    dur_ns = pauses.end - pauses.start
    code_ns = measure_coverage(trace.derived(measure_host_activity).code, pauses.start, pauses.end)
    longest_ns = np.zeros(len(first), np.int64)
    np.maximum.at(longest_ns, group, dur_ns)
    sums = {name: sum_by_group(group, ns, len(first)) for name, ns in (("pause_ns", dur_ns), ("code_ns", code_ns))}
    count = np.bincount(group, minlength=len(first))
    sums |= {"max_ns": longest_ns, "max_ts_ns": find_longest_by_keys(keys, pauses.start, dur_ns)["longest_ts_ns"]}
    return trim_all_texts({**select_all_rows(keys, first), "count": count, **sums})


def _find_ops_around(trace: Trace, pauses: Intervals) -> tuple[Coded, Coded]:
    """Find the outermost op of the step thread that ends last before each pause, and the first that begins after it."""
    names, thread = trace.texts("host_ops", "name"), trace.derived(find_step_thread)
    chosen = mark_rows_of_kind(trace, "host_ops", "op")
    if thread is not None:
        chosen = chosen & (trace.numbers("host_ops", "thread") == thread)
    rows = chosen.nonzero()[0]
    start = trace.numbers("host_ops", "ts_ns")[rows]
    end = start + trace.numbers("host_ops", "dur_ns")[rows]
    by_end, by_start = np.lexsort((-start, end)), np.lexsort((-end, start))
    last = np.searchsorted(end[by_end], pauses.start, side="right") - 1
    following = np.searchsorted(start[by_start], pauses.end)
    codes = np.append(names.codes[rows].astype(np.int64), -1)
    after = np.where(last >= 0, codes[np.append(by_end, -1)[last]], -1)
    before = codes[np.append(by_start, -1)[following]]
    return make_narrow_coded(after, names.texts), make_narrow_coded(before, names.texts)


def attribute_pauses(trace: Trace, pauses: Intervals) -> dict[str, dict[str, Array]]:
    """Attribute pauses to places in the call tree: columns like those of `idle_blame` and `idle_frames`."""
    nowhere = np.full(len(pauses.start), -1, np.int64)
    first, last = int(pauses.start[0]), int(pauses.end[-1])
    none = np.empty(0, np.int64)
    idle = DeviceIdle(None, none, first, last, pauses, nowhere, nowhere, {}, {})
    tables = attribute_idle_time(trace, [idle])
    return {"pause_blame": tables["idle_blame"], "pause_frames": tables["idle_frames"]}
