"""Exclusive time of a device: each instant goes to the first running class (M4), else to an idle cause (M6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import list_starts_in_windows, mask_affordable_windows, measure_coverage, share_time
from tracekit.model.keys import find_distinct, number_keys
from tracekit.model.tables import DEVICE_OP_KINDS
from tracekit.model.tables.slots import CAUSES, CLASSES
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.op_paths import number_op_paths
from tracekit.process.device.windows import align_windows_to_device
from tracekit.process.exclusive_time.time_shares import (
    NO_OP,
    NONE,
    UNLINKED,
    TimeShares,
    concatenate_time_shares,
    number_share_keys,
)
from tracekit.process.idle_time.causes import DeviceIdle, rank_device_op_names
from tracekit.process.ops.work_classes import find_work_stages

Ints = npt.NDArray[np.int64]
Rows = sweeps.Rows

_CLASS_OF_KIND = {"kernel": "compute"}


def compute_device_slots(
    trace: Trace, devices: Sequence[DeviceIdle], low: Ints, high: Ints
) -> tuple[list[TimeShares], Ints]:
    """Compute the time shares of each window: (shares per device, a row of `host_ops` for each path).

    A device op is in the window in which it runs, and of the stage it belongs to by its launch. Windows that
    are too expensive to compute are left out.
    """
    links = trace.derived(find_launches)
    keys, key, path_rows = _build_device_slot_keys(trace, links)
    slots = []
    for idle in devices:
        rows = idle.rows
        start = trace.numbers("device_ops", "ts_ns")[rows]
        end = start + trace.numbers("device_ops", "dur_ns")[rows]
        shared_windows = mask_affordable_windows(start, end, low, high).nonzero()[0]
        ops = start, end, keys[1][key[rows]]
        ties = partial(_break_op_ties, trace, rows)
        got = share_time(ops, low[shared_windows], high[shared_windows], ties)
        del start, end, ops
        work = TimeShares(keys, shared_windows[got.window], key[rows][got.op], got.begun, got.ns)
        slots.append(concatenate_time_shares([work, _share_idle_time(trace, idle, low, high, shared_windows)]))
    return slots, path_rows


def _break_op_ties(trace: Trace, rows: Ints, places: Ints) -> tuple[Ints, Ints, Rows]:
    """Build the tie-breakers for ops with one start and one end: (launch time, stream, rank of the name)."""
    ops, links = rows[places], trace.derived(find_launches)
    streams = trace.nullable("device_ops", "stream")
    stream = np.where(streams.missing[ops], -1, streams.values[ops])
    launched = np.where(links.linked[ops], links.ts_ns[ops], 0)
    return launched, stream, trace.derived(rank_device_op_names)[ops]


def _build_device_slot_keys(trace: Trace, links: Launches) -> tuple[Ints, Ints, Ints]:
    """Build the keys of device ops: (distinct keys, key of each op, a row of `host_ops` for each path)."""
    classes = [CLASSES.index(_CLASS_OF_KIND.get(kind, kind)) for kind in DEVICE_OP_KINDS]
    kind = np.array(classes, np.int64).take(trace.texts("device_ops", "kind").codes)
    callers, caller = number_keys(links.op)
    path, path_rows = np.full(len(callers), NO_OP), np.empty(0, np.int64)
    has_caller = callers >= 0
    path[has_caller], path_rows = number_op_paths(trace, callers[has_caller])
    path = np.where(links.linked, path[caller], UNLINKED)
    name = trace.texts("device_ops", "name").codes.astype(np.int64)
    none = np.full(len(name), NONE, np.int64)
    keys, key = number_share_keys((trace.derived(find_work_stages), kind, none, path, name))
    return keys, key, path_rows


def _share_idle_time(trace: Trace, idle: DeviceIdle, low: Ints, high: Ints, windows: Ints) -> TimeShares:
    """Share the idle time of each window by stage and cause."""
    stages = trace.derived(align_windows_to_device).outer_stages
    cuts = find_distinct(np.concatenate((low, high, stages.ts_ns, stages.end_ns)))
    window, cell = list_starts_in_windows(cuts, low[windows], high[windows])
    codes = np.append(stages.stage.codes.astype(np.int64), -1)
    stage = codes[stages.row_at(cuts)]
    until = np.append(cuts[1:], cuts[-1:])
    entries = []
    for cause, name in enumerate(CAUSES):
        part = idle.causes[name]
        ns = measure_coverage(part, cuts, until)
        count = np.searchsorted(part.start, until) - np.searchsorted(part.start, cuts)
        used = ((ns[cell] > 0) | (count[cell] > 0)).nonzero()[0]
        used_cell = cell[used]
        entries.append(
            (window[used], stage[used_cell], np.full(len(used_cell), cause), count[used_cell], ns[used_cell])
        )
    where, stages_, causes, counts, ns = (np.concatenate(c) for c in zip(*entries, strict=True))
    none = np.full(len(where), NONE, np.int64)
    keys, key = number_share_keys((stages_, np.full(len(where), CLASSES.index("idle")), causes, none, none))
    return TimeShares(keys, windows[where], key, counts, ns)
