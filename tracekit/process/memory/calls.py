"""Driver calls of a caching allocator: memory requested, memory returned, and OOM failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import find_window_at
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables.snapshots import ACTIONS
from tracekit.model.trace import Trace
from tracekit.process.memory import windows as snapshot_windows
from tracekit.process.memory.live import look_up_sites
from tracekit.process.memory.replay import CODE, NEVER, Replay, read_ints
from tracekit.process.memory.space import (
    DEFAULT_POOL,
    SMALL,
    MemorySegments,
    compute_occupied_bytes,
    compute_segment_size,
    list_memory_segments,
    measure_free_space_at,
    round_up_requests,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LAST = 20
"""Entries listed before a failed request."""

MAX_OOM = 50
"""Failed requests of one device that are examined at most: the last ones."""

_GOT = ("segment_alloc", "segment_map")
_BACK = ("segment_free", "segment_unmap")


def measure_allocator_steps(trace: Trace, replay: Replay) -> pd.DataFrame:
    """Compute the rows of `allocator_steps` of one device, without device columns: one per step of its history."""
    steps = snapshot_windows.list_snapshot_steps(trace, replay)
    start = steps["ts_ns"].to_numpy()
    step_row = find_window_at(start, start + steps["dur_ns"].to_numpy(), replay.ts_ns)
    count = len(steps)
    out: dict[str, Any] = {"step": steps["step"].array, "occurrence": steps["occurrence"].array}
    for name, actions in (("alloc", ("alloc",)), ("driver_alloc", _GOT), ("driver_free", _BACK)):
        rows = replay.during(*actions)
        out[f"{name}_count"] = _sum_per_step(step_row[rows], np.ones(len(rows), np.int64), count)
        out[f"{name}_bytes"] = _sum_per_step(step_row[rows], replay.size[rows], count)
    tried = find_allocation_retries(trace, replay)
    out["retry_count"] = _sum_per_step(step_row[tried], np.ones(len(tried), np.int64), count)
    segments_ = list_memory_segments(trace, replay)
    if segments_ is None:
        out["needless_count"] = pd.array([pd.NA] * count, dtype="Int64")
    else:
        got = find_needless_segments(trace, replay, segments_)
        sums = _sum_per_step(step_row[got], np.ones(len(got), np.int64), count)
        out["needless_count"] = pd.array(sums, dtype="Int64")
    return pd.DataFrame(out)


def _sum_per_step(step_rows: Ints, value: Ints, count: int) -> Ints:
    """Sum the values of each step."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, step_rows[step_rows >= 0], value[step_rows >= 0])
    return sums


def find_allocation_retries(trace: Trace, replay: Replay) -> Ints:
    """Find segments allocated right after a cache flush by the same request: one stack made both calls."""
    back = np.isin(replay.action, [CODE["segment_free"]])
    next_got = np.append(replay.action[1:] == CODE["segment_alloc"], False)[: len(back)]
    first_of_retry = (back & next_got).nonzero()[0]
    column = trace.get("allocations")["stack"]
    before, after = (column.iloc[replay.rows[first_of_retry]], column.iloc[replay.rows[first_of_retry + 1]])
    has_stacks = before.notna().to_numpy() & after.notna().to_numpy()
    # A stack without frames does not identify the caller.
    has_stacks &= np.isin(read_ints(before), trace.get("stacks")["stack"].to_numpy())
    retried: Ints = first_of_retry[has_stacks & (read_ints(before) == read_ints(after))] + 1
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
    entries = trace.get("allocations")
    row = np.where(pieces.row >= 0, pieces.row, pieces.freed)
    by_entry = _look_up_pool_keys(entries, row, pieces.size)
    ghost = (row < 0).nonzero()[0]
    if len(ghost):
        parts = trace["memory_segments"].iloc[trace["blocks"]["segment"].iloc[pieces.block[ghost]]]
        by_entry.iloc[ghost, 0] = parts["pool"].to_numpy(object)
        by_entry.iloc[ghost, 1] = parts["stream"].array
        by_entry.iloc[ghost, 2] = parts["kind"].to_numpy(object)
    requests = _look_up_pool_keys(entries, replay.rows[asked], replay.size[asked])
    all_pieces = pd.concat([by_entry, segments.frame, requests], ignore_index=True)
    all_pieces["pool"] = all_pieces["pool"].where(all_pieces["pool"].notna(), DEFAULT_POOL)
    number = all_pieces.groupby(["pool", "stream", "kind"], dropna=False, sort=False).ngroup()
    numbers: Ints = number.to_numpy().astype(np.int64)
    first, second = len(by_entry), len(by_entry) + len(segments.frame)
    return numbers[:first], numbers[first:second], numbers[second:]


def _look_up_pool_keys(entries: pd.DataFrame, row: Ints, size: Ints) -> pd.DataFrame:
    """Look up `pool`, `stream` and `kind` in entries of the history; missing for row -1."""
    pools = np.array([*entries["pool"].cat.categories, None], object)
    codes = np.append(entries["pool"].cat.codes.to_numpy().astype(np.int64), -1)
    streams = np.append(read_ints(entries["stream"]), 0)
    missing = np.append(entries["stream"].isna().to_numpy(), True)
    return pd.DataFrame(
        {
            "pool": pd.Series(pools[codes[row]], dtype=object),
            "stream": pd.arrays.IntegerArray(streams[row], missing[row]),
            "kind": pd.Series(np.where(round_up_requests(size) <= SMALL, "small", "large"), dtype=object),
        }
    )


def list_oom_failures(trace: Trace, replay: Replay) -> list[dict[str, Any]]:
    """List the OOM failures of one device: rows of `out_of_memory` without device columns.

    `step` and `stage` are as recorded.
    """
    entries = replay.during("oom")[-MAX_OOM:]
    if not len(entries):
        return []
    steps = snapshot_windows.list_snapshot_steps(trace, replay)
    stages = snapshot_windows.list_snapshot_stages(trace, steps)
    when = replay.ts_ns[entries]
    step, stage = (
        find_window_at(f["ts_ns"].to_numpy(), (f["ts_ns"] + f["dur_ns"]).to_numpy(), when) for f in (steps, stages)
    )
    history = trace["allocations"]
    site = find_entry_sites(trace, replay.rows[entries])
    segments_ = list_memory_segments(trace, replay)
    failures = []
    for i, entry in enumerate(entries.tolist()):
        row = history.iloc[int(replay.rows[entry])]
        asked = int(replay.size[entry])
        space = _measure_space_for_request(trace, replay, segments_, entry, row, asked)
        reserved = None if replay.reserved is None else int(replay.reserved[entry])
        free = row["device_free_bytes"]
        details = {
            "asked_bytes": asked,
            "device_free_bytes": None if pd.isna(free) else int(free),
            "reserved_bytes": reserved,
            "requested_bytes": replay.get_requested_bytes(entry),
            **space,
        }
        failures.append(
            {
                **{name: pd.NA if value is None else value for name, value in details.items()},
                "step": steps["step"].iloc[int(step[i])] if step[i] >= 0 else pd.NA,
                "stage": stages["stage"].iloc[int(stage[i])] if stage[i] >= 0 and replay.timed else None,
                "ts_ns": int(when[i]) if replay.timed else pd.NA,
                "entry": entry,
                "cause": diagnose_oom_cause(details),
                "given_back_bytes": _sum_bytes_freed_before(replay, entry),
                "site": site[i],
            }
        )
    return failures


def _measure_space_for_request(
    trace: Trace, replay: Replay, segments: MemorySegments | None, entry: int, row: pd.Series[Any], asked: int
) -> dict[str, int | None]:
    """Measure the free space where the request could have been placed; None if unknown."""
    if segments is None:
        return {"free_bytes": None, "largest_free_bytes": None}
    space = measure_free_space_at(trace, replay, segments, entry)
    pool = DEFAULT_POOL if pd.isna(row["pool"]) else str(row["pool"])
    small = int(round_up_requests(np.array([asked]))[0]) <= SMALL
    fitting = space[(space["pool"] == pool) & (space["kind"] == ("small" if small else "large"))]
    if not pd.isna(row["stream"]):
        fitting = fitting[(fitting["stream"] == row["stream"]).fillna(value=False)]
    largest = int(fitting["largest_free_bytes"].max()) if len(fitting) else 0
    return {"free_bytes": int(fitting["free_bytes"].sum()), "largest_free_bytes": largest}


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


def list_last_actions(trace: Trace, replay: Replay, entry: int) -> pd.DataFrame:
    """List the entries before one failed request, newest first: rows of `list_last_actions` without device columns."""
    before = np.arange(entry - 1, max(entry - 1 - LAST, -1), -1)
    return pd.DataFrame(
        {
            "entry": entry,
            "before": np.arange(1, len(before) + 1, dtype=np.int32),
            "action": np.array(ACTIONS, object)[replay.action[before]],
            "size_bytes": trace["allocations"]["size_bytes"].iloc[replay.rows[before]].array,
            "site": find_entry_sites(trace, replay.rows[before]),
        }
    )


def find_entry_sites(trace: Trace, rows: Ints) -> Any:
    """Look up the site of the stack of these rows of `allocations`; None without one."""
    stack = trace.get("allocations")["stack"].iloc[rows]
    return look_up_sites(trace, read_ints(stack), stack.isna().to_numpy())[0]


def measure_block_lifetimes(replay: Replay) -> pd.DataFrame:
    """Count blocks by lifetime in powers of ten, those never freed last: rows of `lifetimes` without device columns."""
    pieces = replay.pieces
    born_inside = (pieces.born >= 0).nonzero()[0]
    done = born_inside[pieces.died[born_inside] < NEVER]
    parts = []
    if replay.timed and len(done):
        lived = replay.ts_ns[pieces.died[done]] - replay.ts_ns[pieces.born[done]]
        decade = np.searchsorted(_DECADES, lived, side="right") - 1
        counts = pd.DataFrame({"decade": decade, "block_count": 1, "size_bytes": pieces.size[done]})
        counts = counts.groupby("decade")[["block_count", "size_bytes"]].sum().reset_index()
        decades = counts["decade"].to_numpy()
        parts.append(
            pd.DataFrame(
                {
                    "low_ns": pd.array(_DECADES[decades], dtype="Int64"),
                    "high_ns": pd.array(np.append(_DECADES[1:], NEVER)[decades], dtype="Int64"),
                    "block_count": counts["block_count"],
                    "size_bytes": counts["size_bytes"],
                }
            )
        )
    stay = born_inside[pieces.died[born_inside] == NEVER]
    none = pd.array([pd.NA], dtype="Int64")
    sums = pd.DataFrame(
        {"low_ns": none, "high_ns": none, "block_count": len(stay), "size_bytes": int(pieces.size[stay].sum())}
    )
    parts.append(sums if len(stay) else sums.iloc[:0])
    return pd.concat(parts, ignore_index=True)


_DECADES = np.concatenate((np.zeros(1, np.int64), 10 ** np.arange(4, 13, dtype=np.int64)))
"""0, 10 µs, 100 µs … 1,000 s, in ns."""
