"""Exclusive time of a device: each instant goes to the first running class (M4), else to an idle cause (M6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import affordable, beginning, covered, shared
from tracekit.model.keys import distinct, numbered
from tracekit.model.tables import DEVICE_OP_KINDS
from tracekit.model.tables.slots import CAUSES, CLASSES
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, launches
from tracekit.process.calls.op_paths import op_paths
from tracekit.process.device.windows import device_windows
from tracekit.process.exclusive_time.time_shares import (
    NO_OP,
    NONE,
    UNLINKED,
    Parts,
    keyed,
    together,
)
from tracekit.process.idle_time.causes import DeviceIdle, name_ranks
from tracekit.process.ops.work_classes import work_stages

Ints = npt.NDArray[np.int64]
Rows = sweeps.Rows

_CLASS_OF_KIND = {"kernel": "compute"}


def device_slots(
    trace: Trace, devices: Sequence[DeviceIdle], low: Ints, high: Ints
) -> tuple[list[Parts], Ints]:
    """Compute the time shares of each window: (shares per device, a row of `host_ops` for each path).

    A device op is in the window in which it runs, and of the stage it belongs to by its launch. Windows that
    are too expensive to compute are left out.
    """
    links = trace.derived(launches)
    keys, key, path_rows = _keys(trace, links)
    slots = []
    for idle in devices:
        rows = idle.rows
        start = trace.numbers("device_ops", "ts_ns")[rows]
        end = start + trace.numbers("device_ops", "dur_ns")[rows]
        shared_windows = affordable(start, end, low, high).nonzero()[0]
        ops = start, end, keys[1][key[rows]]
        ties = partial(_ties, trace, rows)
        got = shared(ops, low[shared_windows], high[shared_windows], ties)
        del start, end, ops
        work = Parts(keys, shared_windows[got.window], key[rows][got.op], got.begun, got.ns)
        slots.append(together([work, _idle(trace, idle, low, high, shared_windows)]))
    return slots, path_rows


def _ties(trace: Trace, rows: Ints, places: Ints) -> tuple[Ints, Ints, Rows]:
    """Build the tie-breakers for ops with one start and one end: (launch time, stream, rank of the name)."""
    ops, links = rows[places], trace.derived(launches)
    streams = trace.nullable("device_ops", "stream")
    stream = np.where(streams.missing[ops], -1, streams.values[ops])
    launched = np.where(links.linked[ops], links.ts_ns[ops], 0)
    return launched, stream, trace.derived(name_ranks)[ops]


def _keys(trace: Trace, links: Launches) -> tuple[Ints, Ints, Ints]:
    """Build the keys of device ops: (distinct keys, key of each op, a row of `host_ops` for each path)."""
    classes = [CLASSES.index(_CLASS_OF_KIND.get(kind, kind)) for kind in DEVICE_OP_KINDS]
    kind = np.array(classes, np.int64).take(trace.texts("device_ops", "kind").codes)
    callers, caller = numbered(links.op)
    path, path_rows = np.full(len(callers), NO_OP), np.empty(0, np.int64)
    has_caller = callers >= 0
    path[has_caller], path_rows = op_paths(trace, callers[has_caller])
    path = np.where(links.linked, path[caller], UNLINKED)
    name = trace.texts("device_ops", "name").codes.astype(np.int64)
    none = np.full(len(name), NONE, np.int64)
    keys, key = keyed((trace.derived(work_stages), kind, none, path, name))
    return keys, key, path_rows


def _idle(trace: Trace, idle: DeviceIdle, low: Ints, high: Ints, kept: Ints) -> Parts:
    """Share the idle time of each window by stage and cause."""
    stages = trace.derived(device_windows).outer_stages
    cuts = distinct(np.concatenate((low, high, stages.ts_ns, stages.end_ns)))
    window, cell = beginning(cuts, low[kept], high[kept])
    codes = np.append(stages.stage.codes.astype(np.int64), -1)
    stage = codes[stages.row_at(cuts)]
    until = np.append(cuts[1:], cuts[-1:])
    entries = []
    for cause, name in enumerate(CAUSES):
        part = idle.causes[name]
        ns = covered(part, cuts, until)
        count = np.searchsorted(part.start, until) - np.searchsorted(part.start, cuts)
        used = ((ns[cell] > 0) | (count[cell] > 0)).nonzero()[0]
        used_cell = cell[used]
        entries.append(
            (
                window[used],
                stage[used_cell],
                np.full(len(used_cell), cause),
                count[used_cell],
                ns[used_cell],
            )
        )
    where, stages_, causes, counts, ns = (np.concatenate(c) for c in zip(*entries, strict=True))
    none = np.full(len(where), NONE, np.int64)
    keys, key = keyed((stages_, np.full(len(where), CLASSES.index("idle")), causes, none, none))
    return Parts(keys, kept[where], key, counts, ns)
