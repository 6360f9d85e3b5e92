"""Surviving memory of a snapshot: blocks in use at the end, by the stack that allocated them and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stages import parse_numbered_step, parse_profiler_step
from tracekit.model.tables.arrays import (
    Nullable,
    concatenate_like_arrays,
    concatenate_parts,
    fill_missing,
    make_nullable_numbers,
    mask_value,
    select_all_rows,
    select_rows,
)
from tracekit.model.tables.keys import (
    compute_stable_order,
    count_by_group,
    find_distinct,
    find_first_rows,
    group_arrays,
    sum_by_group,
)
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import MAX_BYTES, mark_blocks_in_use

Ints = npt.NDArray[np.int64]

MAX_STACKS = 4_000
"""Stacks of one snapshot listed at most: those with most bytes."""

MAX_BLOCKS = 50_000
"""Blocks of one snapshot listed at most: those of the stacks with most new blocks."""

MAX_MARKS, MAX_GROWING = 200, 300
"""Steps followed within one snapshot at most (the last ones), and stacks that grow over them."""

_BEFORE = np.iinfo(np.int64).min
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class SurvivingMemory:
    """Memory in use at the end of a snapshot, in requested bytes.

    `windows`: one row per device: device, begin_ns, end_ns (of the history), entry_count, live_bytes,
    live_count, omitted_stack_count, omitted_block_count. `stacks`: device, stack, live_ and born_ bytes and
    counts (born: allocated within the history). `blocks`: device, stack, address, size_bytes, born, born_ns
    of the blocks of stacks to which the history adds; blocks of other stacks are all as old as the history or
    older.
    """

    windows: dict[str, Any]
    stacks: dict[str, Any]
    blocks: dict[str, Any]


def find_surviving_memory(trace: Trace) -> SurvivingMemory:
    """List the blocks in use at the end of a snapshot's history, by device and stack."""
    live = trace.derived(list_blocks_in_use)
    active = select_all_rows(live, mask_value(live["state"], "active"))
    device, size, born = fill_missing(active["device"], -1), active["size_bytes"], active["born"]
    code = number_equal_rows(device, fill_missing(active["stack"], -1), active["stack"].missing.astype(np.int64))
    count = int(code.max(initial=-1)) + 1
    first = find_first_rows(code, count)
    live_bytes, born_count = sum_by_group(code, size, count), count_by_group(code[born], count)
    born_bytes = sum_by_group(code, born * size, count)
    largest = _find_heaviest_rows(device[first], live_bytes, MAX_STACKS)
    stacks = {
        "device": select_rows(active["device"], first[largest]),
        "stack": select_rows(active["stack"], first[largest]),
        "live_bytes": live_bytes[largest],
        "live_count": count_by_group(code, count)[largest],
        "born_bytes": born_bytes[largest],
        "born_count": born_count[largest],
    }
    # List single blocks only for stacks that gained some, those that gained most first.
    chosen = np.zeros(count, np.bool_)
    chosen[largest] = born_count[largest] > 0
    rows = (chosen[code] & ~active["address"].missing).nonzero()[0]
    chosen_rows = rows[_find_heaviest_rows(device[rows], born_bytes[code[rows]], MAX_BLOCKS)]
    columns = ("device", "stack", "address", "size_bytes", "born", "born_ns")
    blocks = select_all_rows({name: active[name] for name in columns}, chosen_rows)
    windows = _describe_device_histories(trace, live)
    devices = fill_missing(windows["device"], -1)
    left_stacks = np.ones(count, np.bool_)
    left_stacks[largest] = False
    left_blocks = ~np.isin(rows, chosen_rows)
    windows["omitted_stack_count"] = _count_each(device[first][left_stacks], devices.tolist())
    windows["omitted_block_count"] = _count_each(device[rows][left_blocks], devices.tolist())
    return SurvivingMemory(windows, stacks, blocks)


def _count_each(values: Ints, wanted: Sequence[int]) -> Ints:
    """Count how often each wanted number occurs."""
    return np.array([int((values == number).sum()) for number in wanted], np.int64)


def number_equal_rows(*columns: Ints) -> Ints:
    """Assign a number to each row; rows that are equal in all columns share one."""
    order = compute_stable_order(columns[0])
    for column in columns[1:]:
        order = order[compute_stable_order(column[order])]
    new = np.zeros(len(order), np.bool_)
    for column in columns:
        in_order = column[order]
        new[1:] |= in_order[1:] != in_order[:-1]
    out = np.empty(len(order), np.int64)
    out[order] = np.cumsum(new)
    return out


def _find_heaviest_rows(device: Ints, weight: Ints, max_count: int) -> Ints:
    """Find, per device, the `max_count` rows with the largest weight, the heaviest first."""
    order = np.lexsort((-weight, device))
    begin = np.searchsorted(device[order], device[order])
    chosen = order[np.arange(len(order)) - begin < max_count]
    return chosen[np.argsort(-weight[chosen], kind="stable")]


def list_blocks_in_use(trace: Trace) -> dict[str, Any]:
    """List the blocks in use: device, address, size_bytes (requested), stack, state, born, born_ns."""
    asked, rounded = (fill_missing(trace.nullable("blocks", name), -1) for name in ("requested_bytes", "size_bytes"))
    size = np.where(asked >= 0, asked, rounded)
    sound = mask_value(trace.array("blocks", "memory"), "device") & mark_blocks_in_use(trace)
    sound &= (size >= 0) & (size < MAX_BYTES)
    # Impossible totals are damage, and would overflow 64 bits.
    if float(size[sound].astype(np.float64).sum()) >= 2.0**62:
        sound[:] = False
    size = size[sound]
    live: dict[str, Any] = {
        name: select_rows(trace.array("blocks", name), sound) for name in ("device", "address", "stack", "state")
    }
    past = trace.derived(list_allocation_history)
    count = len(past["is_alloc"])
    place = number_equal_rows(
        *(fill_missing(concatenate_like_arrays([part[n] for part in (past, live)]), -1) for n in ("device", "address"))
    )
    last = np.full(int(place.max(initial=-1)) + 1, -1, np.int64)
    last[place[:count]] = np.arange(count)
    allocation = last[place[count:]]
    known = ((allocation >= 0) & ~live["address"].missing).nonzero()[0]
    entries = allocation[known]
    is_same = past["is_alloc"][entries] & (past["size_bytes"].values[entries] == size[known])
    known, entries = known[is_same], entries[is_same]
    born, untimed, ts_ns = np.zeros(len(size), np.bool_), np.ones(len(size), np.bool_), np.zeros(len(size), np.int64)
    born[known], untimed[known] = True, past["ts_ns"].missing[entries]
    ts_ns[known] = past["ts_ns"].values[entries]
    return {**live, "size_bytes": size, "born": born, "born_ns": Nullable(ts_ns, untimed)}


def list_allocation_history(trace: Trace) -> dict[str, Any]:
    """List allocations and completed frees of devices in order: device, address, ts_ns, size_bytes, stack, is_alloc."""
    columns = {
        name: trace.nullable("allocations", name) for name in ("device", "address", "ts_ns", "size_bytes", "stack")
    }
    size, action = columns["size_bytes"], trace.texts("allocations", "action")
    is_alloc = mask_value(action, "alloc")
    is_usable = is_alloc | mask_value(action, "free_completed")
    is_usable &= mask_value(trace.texts("allocations", "memory"), "device") & ~columns["address"].missing
    is_usable &= ~size.missing & (size.values >= 0) & (size.values < MAX_BYTES)
    return select_all_rows({**columns, "is_alloc": is_alloc}, is_usable)


def _describe_device_histories(trace: Trace, live: Mapping[str, Any]) -> dict[str, Any]:
    """Describe every device with a history or blocks."""
    of_devices = mask_value(trace.texts("allocations", "memory"), "device")
    device, ts = (select_rows(trace.nullable("allocations", name), of_devices) for name in ("device", "ts_ns"))
    of_entries, of_live = fill_missing(device, -1), fill_missing(live["device"], -1)
    numbers = find_distinct(np.append(of_entries, of_live)).tolist()
    times = [ts.values[(of_entries == number) & ~ts.missing] for number in numbers]
    sizes = [live["size_bytes"][of_live == number] for number in numbers]
    return {
        "device": make_nullable_numbers([None if number < 0 else number for number in numbers]),
        "begin_ns": make_nullable_numbers([int(each.min()) if len(each) else None for each in times]),
        "end_ns": make_nullable_numbers([int(each.max()) if len(each) else None for each in times]),
        "entry_count": _count_each(of_entries, numbers),
        "live_bytes": np.array([each.sum() for each in sizes], np.int64),
        "live_count": np.array([len(each) for each in sizes], np.int64),
    }


def find_growing_stacks(trace: Trace) -> dict[str, Any]:
    """Find the stacks that have more bytes at the last step end than at the first, within one snapshot.

    Columns: device, stack, window (number of the step's end), step (as recorded), live_bytes, live_count,
    cohort_count (number of steps that surviving blocks come from; only at the last end). {} with fewer
    than 3 ends.
    """
    ends, numbers = find_step_ends(trace)
    rows = trace.derived(list_allocation_history)
    if len(ends) < 3 or rows["ts_ns"].missing.any():
        return {}
    lives = _compute_block_lives(rows, trace.derived(list_blocks_in_use))
    # Devices in order, an unrecorded one last.
    device = fill_missing(lives["device"], _NEVER)
    parts = [
        _find_growing_stacks_of_device(select_all_rows(lives, device == number), ends)
        for number in find_distinct(device).tolist()
    ]
    if not parts:
        return {}
    table = concatenate_parts(parts)
    return {**table, "step": select_rows(make_nullable_numbers(numbers), table["window"])}


def find_step_ends(trace: Trace) -> tuple[Ints, list[int | None]]:
    """Find the (times when steps end, their numbers), from annotations of steps, else of an optimizer's step."""
    times, name = trace.nullable("annotations", "ts_ns"), trace.texts("annotations", "name")
    is_end = mask_value(trace.texts("annotations", "stage"), "end")
    rows = (is_end & ~times.missing & (name.codes >= 0)).nonzero()[0]
    rows = rows[group_arrays([times.values[rows], name.codes[rows]])[1]]
    rows = rows[np.argsort(times.values[rows], kind="stable")]
    ts, code = times.values[rows], name.codes[rows]
    # If the file itself is a step, the ranges that a program numbers are parts of it.
    is_one_step = trace.source.step is not None
    for number_of in (parse_profiler_step,) if is_one_step else (parse_profiler_step, parse_numbered_step):
        numbers = [number_of(text) for text in name.texts]
        chosen = np.array([n is not None for n in numbers], np.bool_)[code]
        if chosen.any():
            return ts[chosen][-MAX_MARKS:], [numbers[c] for c in code[chosen][-MAX_MARKS:]]
    optimizer = np.array([text.startswith("Optimizer.step#") for text in name.texts], np.bool_)[code]
    if is_one_step or not optimizer.any():
        return np.empty(0, np.int64), []
    # Of several optimizers, take the one that steps most often.
    in_thread = code == np.bincount(code[optimizer]).argmax()
    return ts[in_thread][-MAX_MARKS:], [None] * int(min(in_thread.sum(), MAX_MARKS))


def _compute_block_lives(rows: Mapping[str, Any], left: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the life of every block: device, stack, size_bytes, begin_ns, end_ns."""
    code = number_equal_rows(fill_missing(rows["device"], -1), fill_missing(rows["address"], -1))
    order = compute_stable_order(code)
    code, alloc = code[order], rows["is_alloc"][order]
    ts = rows["ts_ns"].values[order]
    same = np.append(code[1:] == code[:-1], False)[: len(code)]
    end = np.where(same, np.append(ts[1:], _NEVER)[: len(ts)], _NEVER)
    names = ("device", "stack")
    born = order[alloc]
    old = (mask_value(left["state"], "active") & ~left["born"]).nonzero()[0]
    lives = {
        **select_all_rows({name: rows[name] for name in names}, born),
        "size_bytes": rows["size_bytes"].values[born],
        "begin_ns": ts[alloc],
        "end_ns": end[alloc],
    }
    earlier = {
        **select_all_rows({name: left[name] for name in (*names, "size_bytes")}, old),
        "begin_ns": np.full(len(old), _BEFORE),
        "end_ns": np.full(len(old), _NEVER),
    }
    return concatenate_parts([lives, earlier])


def _find_growing_stacks_of_device(lives: Mapping[str, Any], ends: Ints) -> dict[str, Any]:
    """Find the stacks of one device with more bytes at the last end than at the first; one row per stack and end."""
    code, first_rows = group_arrays([lives["stack"]])
    begin, size = lives["begin_ns"], lives["size_bytes"]
    first = np.searchsorted(ends, begin, "left")
    stop = np.searchsorted(ends, lives["end_ns"], "left")
    alive = first < stop
    changes = np.zeros((2, len(first_rows), len(ends) + 1), np.int64)
    for sign, when in ((1, first), (-1, stop)):
        np.add.at(changes[0], (code[alive], when[alive]), sign * size[alive])
        np.add.at(changes[1], (code[alive], when[alive]), sign)
    levels, count = np.cumsum(changes, axis=2)[:, :, :-1]
    grown = levels[:, -1] - levels[:, 0]
    chosen = np.argsort(-grown, kind="stable")[:MAX_GROWING]
    chosen = chosen[grown[chosen] > 0]
    left = alive & (stop == len(ends))
    cohort = code[left], np.where(begin == _BEFORE, -1, first)[left]
    cohorts = count_by_group(cohort[0][group_arrays(cohort)[1]], len(first_rows))[chosen]
    marks = len(ends)
    window = np.tile(np.arange(marks), len(chosen))
    rows = first_rows[np.repeat(chosen, marks)]
    return {
        **select_all_rows({name: lives[name] for name in ("device", "stack")}, rows),
        "window": window,
        "live_bytes": levels[chosen].ravel(),
        "live_count": count[chosen].ravel(),
        "cohort_count": Nullable(np.repeat(cohorts, marks), window < marks - 1),
    }
