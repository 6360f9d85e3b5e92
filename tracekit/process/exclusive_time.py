"""Exclusive time of each step: its window shared out to ops, kernels and causes of idle time.

The rows of a step add up to its length on every device, or on the step thread if no device was recorded. On a
device each instant goes to the first running class (M4), else to an idle cause (M6); without a device it goes to
the innermost op of the step thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import (
    list_starts_in_windows,
    mask_affordable_windows,
    measure_coverage,
    merge_intervals,
    share_time,
)
from tracekit.model.records import dataclass
from tracekit.model.stages import is_collective_range
from tracekit.model.tables import DEVICE_OP_KINDS
from tracekit.model.tables import slots as slot_texts
from tracekit.model.tables.arrays import Array, Coded, concatenate_parts, repeat_number, trim_all_texts
from tracekit.model.tables.keys import find_distinct, number_keys, sum_by_group
from tracekit.model.tables.slots import CAUSES, CLASSES
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import build_call_tree_of_rows, find_innermost_rows_in_tree
from tracekit.process.calls.op_paths import format_op_paths, number_op_paths
from tracekit.process.collectives.compute_between_collectives import BACKWARD
from tracekit.process.device.windows import align_windows_to_device
from tracekit.process.host.phases import find_step_thread
from tracekit.process.idle_time.causes import DeviceIdle, rank_device_op_names
from tracekit.process.name_filters import make_narrow_coded, mark_rows_of_kind, mark_wanted_names
from tracekit.process.ops.work_classes import find_work_stages
from tracekit.process.steps.stage_lookup import find_stage_codes_at, list_outer_stage_names, select_outer_stages
from tracekit.process.steps.windows import StepWindows

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Rows = sweeps.Rows

NONE, NO_OP, UNLINKED, OTHER = -1, -2, -3, -4
"""Placeholders for a stage, path or kernel that does not exist or is not listed."""

STAGE, CLASS, CAUSE, PATH, KERNEL = range(5)
"""Rows of `TimeShares.keys`: stage code, index in `CLASSES`, index in `CAUSES`, path number, kernel code."""

MAX_KEYS = 2_000
"""Rows of one step on one device at most; those with least time are merged into one row per stage and class."""

MAX_ROWS = 20_000
"""Rows of one source, approximately: with many steps each step gets fewer."""

MIN_KEYS = 100
"""Rows that each step gets at least."""

MAX_STAGES = 64
"""Stages listed at most, those with most time; the others are merged into one."""

MAX_THREADS = 8
"""Threads examined at most: the step thread, and those that run the backward pass."""

_IN_FLIGHT = re.compile(r"(?:gloo|mpi|ucc):")
"""Ranges that last as long as a collective that the host carries out, on any thread."""

_CLASS_OF_KIND = {"kernel": "compute"}
_COLLECTIVE, _HOST, _NO_OP = (CLASSES.index(name) for name in ("collective", "host", "no_op"))


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Time shares of windows: `ns` of `window` went to the key `keys[:, key]`, which began `count` times."""

    keys: npt.NDArray[np.int64]
    window: Ints
    key: Ints
    count: Ints
    ns: Ints


def number_share_keys(columns: Sequence[Ints]) -> tuple[npt.NDArray[np.int64], Ints]:
    """Assign numbers to the distinct rows of these columns: (distinct keys, key number of each row)."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in [part for part in columns if len(part)]:
        low, high = int(column.min()), int(column.max())
        if low < high:
            _, number = number_keys(number * (high - low + 1) + column - low)
    keys = np.empty((len(columns), int(number.max(initial=-1)) + 1), np.int64)
    for position, column in enumerate(columns):
        keys[position, number] = column
    return keys, number


def concatenate_time_shares(parts: Sequence[TimeShares]) -> TimeShares:
    """Concatenate time shares, and merge equal keys."""
    sizes = np.cumsum([0, *(part.keys.shape[1] for part in parts)])
    keys = np.concatenate([part.keys for part in parts], axis=1)
    key = np.concatenate([part.key + offset for part, offset in zip(parts, sizes[:-1], strict=True)])
    window, count, ns = (np.concatenate([getattr(part, name) for part in parts]) for name in ("window", "count", "ns"))
    return merge_time_shares(TimeShares(keys, window, key, count, ns))


def merge_time_shares(parts: TimeShares) -> TimeShares:
    """Merge time shares: each key once, and each pair of window and key once."""
    keys, number = number_share_keys(list(parts.keys))
    width = max(keys.shape[1], 1)
    pairs, place = number_keys(parts.window * width + number[parts.key])
    return TimeShares(
        keys,
        pairs // width,
        pairs % width,
        sum_by_group(place, parts.count, len(pairs)),
        sum_by_group(place, parts.ns, len(pairs)),
    )


def fold_small_time_shares(parts: TimeShares, max_keys: int, max_stages: int) -> TimeShares:
    """Fold the keys with least time over all windows into one per stage and class, to keep about `max_keys`.

    A key is kept or folded in all windows alike, so windows stay comparable. Idle time and time in no op are
    kept.
    """
    keys = parts.keys.copy()
    total = sum_by_group(parts.key, parts.ns, keys.shape[1])
    codes, stage = number_keys(keys[STAGE])
    small = ~_mark_largest_shares(sum_by_group(stage, total, len(codes)), max_stages)
    small &= codes != NONE
    if not small.any() and keys.shape[1] <= max_keys:
        return parts
    keys[STAGE, small[stage]] = OTHER
    has_detail = (keys[PATH] >= 0) | (keys[KERNEL] >= 0)
    is_left = has_detail.copy()
    is_left[has_detail] = ~_mark_largest_shares(total[has_detail], max_keys)
    keys[PATH, is_left] = OTHER
    keys[KERNEL, is_left & (keys[KERNEL] >= 0)] = OTHER
    return merge_time_shares(TimeShares(keys, parts.window, parts.key, parts.count, parts.ns))


def _mark_largest_shares(values: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Mark the `count` largest values; values tied at the edge are not marked, so order does not matter."""
    if len(values) <= count:
        return np.ones(len(values), np.bool_)
    edge = np.partition(values, len(values) - count - 1)[len(values) - count - 1]
    above: npt.NDArray[np.bool_] = values > edge
    return above


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


def compute_host_slots(trace: Trace, low: Ints, high: Ints) -> tuple[list[TimeShares], Ints]:
    """Compute the time shares of each window on the host: (shares, a row of `host_ops` for each path).

    At each instant the innermost op of the step thread counts; if it is in none, that of a thread which runs
    the backward pass; if that is in none, the collective that they wait for. Windows that are too expensive
    to compute are left out.
    """
    start = trace.numbers("host_ops", "ts_ns")
    collective = mark_wanted_names(trace.texts("host_ops", "name"), is_collective_range)
    lanes = _list_compute_threads(trace, collective)
    flying = _list_collectives_in_flight(trace)
    cuts = _list_host_slot_cuts(trace, [low, high], np.concatenate((*lanes, flying)))
    row = np.full(len(cuts), -1, np.int64)
    for lane in lanes:
        free = (row < 0).nonzero()[0]
        thread = np.repeat(trace.numbers("host_ops", "thread")[lane[:1]], len(free))
        row[free] = find_innermost_rows_in_tree(trace, build_call_tree_of_rows(trace, lane), thread, cuts[free])
    ops = np.concatenate(lanes)
    nothing = (row < 0).nonzero()[0]
    work = ops[~collective[ops]]
    row[nothing] = _find_awaited_collectives(trace, flying, work, cuts[nothing])
    begins = np.diff(row, prepend=-2) != 0
    is_flight = np.zeros(len(start) + 1, np.bool_)
    is_flight[flying] = True
    is_flight[ops] = False
    begins &= (row < 0) | is_flight[row]
    ts = np.concatenate((cuts, start[ops]))
    order = np.argsort(ts, kind="stable")
    ts = ts[order]
    row = np.concatenate((row, ops))[order]
    ns = np.concatenate((np.diff(cuts, append=cuts[-1:]), np.zeros(len(ops), np.int64)))[order]
    count = np.concatenate((begins, np.ones(len(ops), np.bool_)))[order].astype(np.int64)
    shared_windows = mask_affordable_windows(ts, ts, low, high).nonzero()[0]
    window, place = list_starts_in_windows(ts, low[shared_windows], high[shared_windows])
    keys, key, path_rows = _build_host_slot_keys(trace, ts, row, collective)
    return [merge_time_shares(TimeShares(keys, shared_windows[window], key[place], count[place], ns[place]))], path_rows


def _build_host_slot_keys(trace: Trace, ts_ns: Ints, row: Ints, collective: Bools) -> tuple[Ints, Ints, Ints]:
    """Build the keys of host time: (distinct keys, key at each instant, a row of `host_ops` for each path)."""
    rows, place = number_keys(row)
    path, path_rows = np.full(len(rows), NO_OP), np.empty(0, np.int64)
    has_row = rows >= 0
    path[has_row], path_rows = number_op_paths(trace, rows[has_row])
    kind = np.where(np.append(collective, False)[rows], _COLLECTIVE, _HOST)
    kind = np.where(has_row, kind, _NO_OP)
    none = np.full(len(ts_ns), NONE, np.int64)
    keys, key = number_share_keys((find_stage_codes_at(trace, ts_ns), kind[place], none, path[place], none))
    return keys, key, path_rows


def _list_compute_threads(trace: Trace, collective: Bools) -> list[Ints]:
    """List ops and collectives (rows of `host_ops`) of the step thread, then of each thread of the backward pass."""
    names = trace.texts("host_ops", "name")
    thread, op = trace.numbers("host_ops", "thread"), mark_rows_of_kind(trace, "host_ops", "op")
    first = trace.derived(find_step_thread)
    if first is None:
        threads, counts = np.unique(thread[op] if op.any() else thread, return_counts=True)
        first = int(threads[counts.argmax()]) if len(threads) else -1
    backward = op & mark_wanted_names(names, lambda name: name.startswith(BACKWARD))
    backward_threads, counts = np.unique(thread[backward & (thread != first)], return_counts=True)
    backward_threads = backward_threads[np.argsort(-counts, kind="stable")][: MAX_THREADS - 1]
    chosen = op | (collective & mark_rows_of_kind(trace, "host_ops", "range"))
    return [(chosen & (thread == number)).nonzero()[0] for number in (first, *backward_threads.tolist())]


def _list_collectives_in_flight(trace: Trace) -> Ints:
    """List the rows of `host_ops` that last as long as a collective, sorted by end."""
    names = trace.texts("host_ops", "name")
    is_range = mark_rows_of_kind(trace, "host_ops", "range")
    rows = (mark_wanted_names(names, _IN_FLIGHT.match) & is_range).nonzero()[0]
    if not len(rows):
        return rows
    start, length = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
    rank = np.argsort(np.argsort(np.array(names.texts, object)))[names.codes[rows]]
    return rows[np.lexsort((rank, start, start + length))]


def _list_host_slot_cuts(trace: Trace, edges: list[Ints], rows: Ints) -> Ints:
    """List every instant at which a window, a stage or any of these rows begins or ends."""
    stages = trace.derived(select_outer_stages)
    start, length = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
    of_stages = (stages.ts_ns, stages.end_ns)
    return find_distinct(np.concatenate((*edges, start, start + length, *of_stages)))


def _find_awaited_collectives(trace: Trace, flying: Ints, work: Ints, ts_ns: Ints) -> Ints:
    """Find the collective (row of `host_ops`) that is awaited at each instant outside of work; -1 for none.

    In a gap in which collectives end, the host waits until the last of them ends: for the one that ends next,
    while any is in flight. A gap in which none ends is Python at work.
    """
    if not len(flying) or not len(ts_ns):
        return np.full(len(ts_ns), -1, np.int64)
    start = trace.numbers("host_ops", "ts_ns")
    end = start + trace.numbers("host_ops", "dur_ns")
    busy = merge_intervals(start[work], end[work])
    resumes = np.append(busy.start, np.iinfo(np.int64).max)[np.searchsorted(busy.start, ts_ns)]
    begun, ended = np.sort(start[flying]), end[flying]
    following = np.searchsorted(ended, ts_ns, side="right")
    ends_in_time = np.append(ended, np.iinfo(np.int64).max)[following] <= resumes
    running = np.searchsorted(begun, ts_ns, side="right") > following
    is_awaited = ends_in_time & running & (following < len(flying))
    return np.where(is_awaited, np.append(flying, -1)[following], -1)


def compute_exclusive_slots(trace: Trace, devices: Sequence[DeviceIdle]) -> dict[str, Array]:
    """Compute the rows of the measured table `slots`, without keys: by step, then stage, class and names.

    `devices` is the idle time of every device of the trace; if it is empty, the rows describe the step
    thread. If very many steps overlap, the last may be left out.
    """
    steps = trace.derived(align_windows_to_device).step_rows
    low = steps.ts_ns
    high = low + np.maximum(steps.dur_ns, 0)
    if not len(low):
        return {}
    if devices:
        shares, path_rows = compute_device_slots(trace, devices, low, high)
        numbers = [idle.device for idle in devices]
    else:
        shares, path_rows = compute_host_slots(trace, low, high)
        numbers = [None]
    share = MAX_ROWS // max(len(low) * len(shares), 1)
    of_devices = []
    for number, parts in zip(numbers, shares, strict=True):
        total = sum_by_group(parts.window, parts.ns, len(low))
        used_windows = find_distinct(parts.window)
        assert (total[used_windows] == (high - low)[used_windows]).all(), "slots must add up to the step"
        bounded_parts = fold_small_time_shares(parts, min(max(share, MIN_KEYS), MAX_KEYS), MAX_STAGES)
        assert int(bounded_parts.ns.sum()) == int(parts.ns.sum()), "what is put together keeps its time"
        rows = _label_slots(trace, bounded_parts, steps, path_rows)
        of_devices.append({**rows, "device": repeat_number(number, len(rows["count"]))})
    slots = concatenate_parts(of_devices)
    return slots if len(of_devices) == 1 else {**trim_all_texts(slots), "class": slots["class"]}


def _label_slots(trace: Trace, parts: TimeShares, steps: StepWindows, path_rows: Ints) -> dict[str, Array]:
    """Replace key numbers by names, and sort by window, stage, class and names."""
    stage, kind, cause, path, kernel = parts.keys
    kernels, stages = trace.texts("device_ops", "name").texts, list_outer_stage_names(trace)
    texts = {
        "stage": _code_slot_texts(stage, lambda used: [stages[code] for code in used]),
        "class": make_narrow_coded(kind, CLASSES),
        "cause": _code_slot_texts(cause, lambda used: [CAUSES[code] for code in used]),
        "op": _code_slot_texts(path, lambda used: format_op_paths(trace, path_rows[used])),
        "kernel": _code_slot_texts(kernel, lambda used: [kernels[code] for code in used]),
    }
    by_text = [np.where(text.codes < 0, len(text.texts), text.codes) for text in texts.values()]
    order = np.lexsort(by_text[::-1])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    entries = ((parts.ns > 0) | (parts.count > 0)).nonzero()[0]
    rows = entries[np.lexsort((rank[parts.key[entries]], parts.window[entries]))]
    keys, window = parts.key[rows], parts.window[rows]
    return {
        "step": steps.numbers(window),
        "occurrence": steps.occurrence[window],
        **{name: Coded(text.codes[keys], text.texts) for name, text in texts.items()},
        "count": parts.count[rows],
        "exclusive_ns": parts.ns[rows],
    }


_TEXTS = {NO_OP: slot_texts.NO_OP, UNLINKED: slot_texts.UNLINKED, OTHER: slot_texts.OTHER}


def _code_slot_texts(codes: Ints, texts: Callable[[Ints], list[str]]) -> Coded:
    """Code texts for these numbers, in the order of the texts; some numbers below 0 have a fixed text."""
    used, place = number_keys(codes)
    names = [_TEXTS.get(code) for code in used[used < 0].tolist()] + texts(used[used >= 0])
    in_order = sorted({name for name in names if name is not None})
    code_of: dict[str | None, int] = {None: -1, **{name: code for code, name in enumerate(in_order)}}
    return make_narrow_coded(np.array([code_of[name] for name in names], np.int64)[place], in_order)
