"""Driver calls of a caching allocator: memory requested, memory returned, and OOM failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import (
    Array,
    Coded,
    Nullable,
    concatenate_parts,
    get_number_or_none,
    mask_value,
    repeat_number,
    select_rows,
)
from tracekit.model.tables.keys import count_by_group, group_arrays, sum_by_group
from tracekit.model.tables.snapshots import ACTIONS
from tracekit.model.trace import Trace
from tracekit.process.memory.live import look_up_sites
from tracekit.process.memory.replay import CODE, NEVER, Replay
from tracekit.process.memory.space import (
    MemorySegments,
    compute_occupied_bytes,
    compute_segment_size,
    list_memory_segments,
    measure_free_space_at,
    name_request_kinds,
    read_pool_keys,
    read_pools,
    round_up_requests,
)
from tracekit.process.memory.windows import list_snapshot_stages, list_snapshot_steps
from tracekit.process.name_filters import look_up_names

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LAST = 20
"""Entries listed before a failed request."""

MAX_OOM = 50
"""Failed requests of one device that are examined at most: the last ones."""

_GOT = ("segment_alloc", "segment_map")
_BACK = ("segment_free", "segment_unmap")


def measure_allocator_steps(trace: Trace, replay: Replay) -> dict[str, Array]:
    """Compute the rows of `allocator_steps` of one device, without device columns: one per step of its history."""
    steps = list_snapshot_steps(trace, replay)
    step_row, count = steps.row_at(replay.ts_ns), len(steps)
    out: dict[str, Array] = {"step": steps.step, "occurrence": steps.occurrence}
    for name, actions in (("alloc", ("alloc",)), ("driver_alloc", _GOT), ("driver_free", _BACK)):
        rows = replay.during(*actions)
        out[f"{name}_count"] = count_by_group(step_row[rows], count)
        out[f"{name}_bytes"] = sum_by_group(step_row[rows], replay.size[rows], count)
    out["retry_count"] = count_by_group(step_row[find_allocation_retries(trace, replay)], count)
    segments = list_memory_segments(trace, replay)
    out["needless_count"] = repeat_number(None, count)
    if segments is not None:
        needless = find_needless_segments(trace, replay, segments)
        out["needless_count"] = Nullable(count_by_group(step_row[needless], count), np.zeros(count, np.bool_))
    return out


def find_allocation_retries(trace: Trace, replay: Replay) -> Ints:
    """Find segments allocated right after a cache flush by the same request: one stack made both calls."""
    back = np.isin(replay.action, [CODE["segment_free"]])
    next_got = np.append(replay.action[1:] == CODE["segment_alloc"], False)[: len(back)]
    first_of_retry = (back & next_got).nonzero()[0]
    stack = trace.nullable("allocations", "stack")
    before, after = (select_rows(stack, replay.rows[first_of_retry + later]) for later in (0, 1))
    is_same = ~before.missing & ~after.missing & (before.values == after.values)
    # A stack without frames does not identify the caller.
    is_same &= np.isin(before.values, trace.numbers("stacks", "stack"))
    retried: Ints = first_of_retry[is_same] + 1
    return retried


def find_needless_segments(trace: Trace, replay: Replay, segments: MemorySegments) -> Ints:
    """Find segments allocated although the free pieces of their kind were together large enough (fragmentation)."""
    got = replay.during("segment_alloc")
    allocs = replay.during("alloc")
    if not len(got) or not len(allocs):
        return got[:0]
    place = np.searchsorted(allocs, got)
    got, place = got[place < len(allocs)], place[place < len(allocs)]
    asked = allocs[place]
    piece, segment, request = _number_pools_and_streams(trace, replay, segments, asked)
    occupied_bytes = compute_occupied_bytes(trace, replay, np.arange(len(replay.pieces.size)))
    pieces = replay.pieces
    ends, gone = pieces.died < NEVER, segments.died < NEVER
    group = np.concatenate((piece, piece[ends], segment, segment[gone]))
    when = np.concatenate((pieces.born, pieces.died[ends], segments.born, segments.died[gone]))
    delta = np.concatenate((-occupied_bytes, occupied_bytes[ends], segments.size, -segments.size[gone]))
    wide = len(replay.rows) + 2
    key = group * wide + when + 1
    order = np.argsort(key, kind="stable")
    key, sums = key[order], np.append(0, np.cumsum(delta[order]))
    low = np.searchsorted(key, request * wide, side="left")
    high = np.searchsorted(key, request * wide + got, side="right")  # state before the segment
    free = sums[high] - sums[low]
    needless_: Ints = got[free >= round_up_requests(replay.size[asked])]
    return needless_


def _number_pools_and_streams(
    trace: Trace, replay: Replay, segments: MemorySegments, asked: Ints
) -> tuple[Ints, Ints, Ints]:
    """Assign a number to the (pool, stream, kind) of each piece, each segment and each of these requests."""
    pieces = replay.pieces
    row = np.where(pieces.row >= 0, pieces.row, pieces.freed)
    is_ghost = row < 0
    parts = [
        read_entry_pool_keys(trace, row[~is_ghost], pieces.size[~is_ghost]),
        read_pool_keys(trace, trace.numbers("blocks", "segment")[pieces.block[is_ghost]]),
        segments.keys,
        read_entry_pool_keys(trace, replay.rows[asked], replay.size[asked]),
    ]
    numbers = group_arrays(list(concatenate_parts(parts).values()))[0]
    of_entries, of_ghosts, of_segments, of_requests = np.split(
        numbers, np.cumsum([len(part["pool"]) for part in parts])[:-1]
    )
    of_pieces = np.empty(len(row), np.int64)
    of_pieces[~is_ghost], of_pieces[is_ghost] = of_entries, of_ghosts
    return of_pieces, of_segments, of_requests


def read_entry_pool_keys(trace: Trace, rows: Ints, size: Ints) -> dict[str, Any]:
    """Read `pool`, `stream` and `kind` of requests: rows of the history, and their sizes."""
    return {
        "pool": read_pools(trace, "allocations", rows),
        "stream": select_rows(trace.nullable("allocations", "stream"), rows),
        "kind": name_request_kinds(round_up_requests(size)),
    }


def list_oom_failures(trace: Trace, replay: Replay) -> list[dict[str, Any]]:
    """List the OOM failures of one device: rows of `out_of_memory` without device columns.

    `step` and `stage` are as recorded.
    """
    entries = replay.during("oom")[-MAX_OOM:]
    if not len(entries):
        return []
    steps = list_snapshot_steps(trace, replay)
    stages = list_snapshot_stages(trace, steps)
    when, rows = replay.ts_ns[entries], replay.rows[entries]
    step = steps.numbers(steps.row_at(when))
    stage = look_up_names(stages.stage, stages.row_at(when))
    site = look_up_names(find_entry_sites(trace, rows), np.arange(len(rows)))
    device_free = select_rows(trace.nullable("allocations", "device_free_bytes"), rows)
    segments = list_memory_segments(trace, replay)
    failures = []
    for i, entry in enumerate(entries.tolist()):
        details: dict[str, int | None] = {
            "asked_bytes": int(replay.size[entry]),
            "device_free_bytes": get_number_or_none(device_free, i),
            "reserved_bytes": None if replay.reserved is None else int(replay.reserved[entry]),
            "requested_bytes": replay.get_requested_bytes(entry),
            "free_bytes": None,
            "largest_free_bytes": None,
        }
        if segments is not None:
            details |= _measure_space_for_request(trace, replay, segments, entry)
        failures.append(
            {
                **details,
                "step": get_number_or_none(step, i),
                "stage": stage[i] if replay.timed else None,
                "ts_ns": int(when[i]) if replay.timed else None,
                "entry": entry,
                "cause": diagnose_oom_cause(details),
                "given_back_bytes": _sum_bytes_freed_before(replay, entry),
                "site": site[i],
            }
        )
    return failures


def _measure_space_for_request(trace: Trace, replay: Replay, segments: MemorySegments, entry: int) -> dict[str, int]:
    """Measure the free space where the request of this entry could have been placed."""
    space = measure_free_space_at(trace, replay, segments, entry)
    pool, stream, kind = read_entry_pool_keys(trace, replay.rows[[entry]], replay.size[[entry]]).values()
    fits = mask_value(space["pool"], pool.texts[pool.codes[0]]) & mask_value(space["kind"], kind.texts[kind.codes[0]])
    if not stream.missing[0]:
        fits &= mask_value(space["stream"], int(stream.values[0]))
    free, largest = (space[name][fits] for name in ("free_bytes", "largest_free_bytes"))
    return {"free_bytes": int(free.sum()), "largest_free_bytes": int(largest.max(initial=0))}


def diagnose_oom_cause(details: dict[str, int | None]) -> str:
    """Diagnose why a request failed: `fragmentation`, `capacity`, or `unknown` if the numbers do not tell.

    >>> told = {"asked_bytes": 30 << 20, "requested_bytes": 60 << 20, "reserved_bytes": 100 << 20,
    ...         "device_free_bytes": 0, "free_bytes": 40 << 20, "largest_free_bytes": 20 << 20}
    >>> diagnose_oom_cause(told), diagnose_oom_cause(told | {"requested_bytes": 80 << 20, "free_bytes": 20 << 20})
    ('fragmentation', 'capacity')
    """
    asked, in_use_bytes = details["asked_bytes"], details["requested_bytes"]
    reserved, left = details["reserved_bytes"], details["device_free_bytes"]
    free, largest = details["free_bytes"], details["largest_free_bytes"]
    assert asked is not None
    assert in_use_bytes is not None
    if free is not None and largest is not None and largest < asked <= free:
        return "fragmentation"
    if reserved is None or left is None:
        return "unknown"
    if in_use_bytes + asked > reserved + left:
        return "capacity"
    if largest is None or largest >= asked:
        return "unknown"
    # Free memory in other pools, or split over two places, would suffice if it were contiguous.
    return "fragmentation" if reserved - in_use_bytes + left >= compute_segment_size(asked) else "capacity"


def _sum_bytes_freed_before(replay: Replay, entry: int) -> int:
    """Sum the bytes returned to the driver right before this entry."""
    back = np.isin(replay.action[:entry], [CODE[action] for action in _BACK])
    forward = (~back).nonzero()[0]
    first = int(forward.max(initial=-1)) + 1
    return int(replay.size[first:entry].sum())


def list_last_actions(trace: Trace, replay: Replay, entry: int) -> dict[str, Array]:
    """List the entries before one failed request, newest first: rows of `last_actions` without device columns."""
    before = np.arange(entry - 1, max(entry - 1 - LAST, -1), -1)
    return {
        "entry": np.full(len(before), entry, np.int64),
        "before": np.arange(1, len(before) + 1, dtype=np.int32),
        "action": Coded(replay.action[before], ACTIONS),
        "size_bytes": select_rows(trace.nullable("allocations", "size_bytes"), replay.rows[before]),
        "site": find_entry_sites(trace, replay.rows[before]),
    }


def find_entry_sites(trace: Trace, rows: Ints) -> Coded:
    """Look up the site of the stack of these rows of `allocations`."""
    return look_up_sites(trace, select_rows(trace.nullable("allocations", "stack"), rows))[0]


def measure_block_lifetimes(replay: Replay) -> dict[str, Array]:
    """Count blocks by lifetime in powers of ten, those never freed last: rows of `lifetimes` without device columns."""
    pieces = replay.pieces
    born_inside = (pieces.born >= 0).nonzero()[0]
    stays = pieces.died[born_inside] == NEVER
    stay, done = born_inside[stays], born_inside[~stays & replay.timed]
    lived = replay.ts_ns[pieces.died[done]] - replay.ts_ns[pieces.born[done]]
    # The last group is never freed.
    group = np.append(np.searchsorted(_DECADES, lived, side="right") - 1, np.full(len(stay), len(_DECADES)))
    block_count = count_by_group(group, len(_DECADES) + 1)
    present = block_count.nonzero()[0]
    bounds = np.append(_DECADES, (NEVER, NEVER))
    is_stay = present == len(_DECADES)
    return {
        "low_ns": Nullable(np.where(is_stay, 0, bounds[present]), is_stay),
        "high_ns": Nullable(np.where(is_stay, 0, bounds[present + 1]), is_stay),
        "block_count": block_count[present],
        "size_bytes": sum_by_group(group, pieces.size[np.append(done, stay)], len(block_count))[present],
    }


_DECADES = np.concatenate((np.zeros(1, np.int64), 10 ** np.arange(4, 13, dtype=np.int64)))
"""0, 10 µs, 100 µs … 1,000 s, in ns."""
