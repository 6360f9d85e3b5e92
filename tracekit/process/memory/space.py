"""Free space in reserved memory, and its fragmentation: by addresses at any time, by blocks at the end.

The allocator fits a request into one free piece of its pool, stream and kind of segment. By addresses,
remainders of up to 1 MiB of large blocks that were freed later count as free, since they were not split off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import (
    CODE,
    MAX_BYTES,
    NEVER,
    Replay,
    pair_begins_and_ends,
    read_ints,
    select_replay_rows,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LEAST, SMALL = 512, 2**20
"""Granularity of sizes; largest request placed in a small segment."""

SMALL_SEGMENT, LARGE_SEGMENT, OWN_SEGMENT = 2 * 2**20, 20 * 2**20, 10 * 2**20

DEFAULT_POOL = "0,0"
_LOWEST = np.iinfo(np.int64).min
_GROUP = ["pool", "stream", "kind"]


def round_up_requests(size: Ints) -> Ints:
    """Round requests up to the bytes that they occupy."""
    sizes: Ints = np.maximum(-(-size // LEAST), 1) * LEAST
    return sizes


def compute_segment_size(size: int) -> int:
    """Compute the size of the segment that the allocator gets from the driver for a request.

    >>> [compute_segment_size(n) // 2**20 for n in (1, 2**20 + 1, 10 * 2**20, 11 * 2**20 + 1)]
    [2, 20, 10, 12]
    """
    need = max(-(-size // LEAST), 1) * LEAST
    if need <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if need < OWN_SEGMENT else -(-need // SMALL_SEGMENT) * SMALL_SEGMENT


@dataclass(frozen=True, slots=True)
class MemorySegments:
    """Every segment that a device had at some time of its history; positions as in `MemoryPieces`."""

    born: Ints
    died: Ints
    address: Ints
    size: Ints
    frame: pd.DataFrame
    """`pool`, `stream` and `kind` of each."""


def list_memory_segments(trace: Trace, replay: Replay) -> MemorySegments | None:
    """List the segments of a device; None if they were not recorded, or grow in place."""
    rows = select_replay_rows(trace, "memory_segments", replay)
    grows = len(replay.during("segment_map", "segment_unmap")) or (rows["expandable"] == 1).any()
    if not trace.has("memory_segments") or grows or rows["address"].isna().any():
        return None
    moved = replay.during("segment_alloc", "segment_free")
    is_alloc = replay.action[moved] == CODE["segment_alloc"]
    starts, ends, orphan, last = pair_begins_and_ends(replay.address[moved], is_alloc)
    at_end = read_ints(rows["address"])
    ghost = (~np.isin(at_end, replay.address[moved[last]])).nonzero()[0]
    moves = np.concatenate((moved[starts], moved[orphan]))
    entries = trace["allocations"].iloc[replay.rows[moves]] if len(moves) else trace.get("allocations").iloc[:0]
    none = np.full(len(ghost), -1, np.int64)
    size = np.concatenate((replay.size[moves], read_ints(rows["size_bytes"])[ghost]))
    kind = np.where(replay.size[moves] <= SMALL_SEGMENT, "small", "large").astype(object)
    frame = pd.DataFrame(
        {
            "pool": np.concatenate((_convert_to_objects(entries["pool"]), _convert_to_objects(rows["pool"])[ghost])),
            "stream": pd.array([*entries["stream"].tolist(), *rows["stream"].iloc[ghost].tolist()], dtype="Int64"),
            "kind": np.concatenate((kind, _convert_to_objects(rows["kind"])[ghost])),
        }
    )
    frame["pool"] = frame["pool"].where(frame["pool"].notna(), DEFAULT_POOL)
    return MemorySegments(
        np.concatenate((moved[starts], np.full(len(orphan), -1), none)).astype(np.int64),
        np.concatenate((np.where(ends >= 0, moved[ends], NEVER), moved[orphan], np.full(len(ghost), NEVER))).astype(
            np.int64
        ),
        np.concatenate((replay.address[moves], at_end[ghost])),
        np.where(size < MAX_BYTES, size, 0),
        frame,
    )


def _convert_to_objects(column: pd.Series[Any]) -> npt.NDArray[np.object_]:
    """Convert a column to objects."""
    texts: npt.NDArray[np.object_] = column.to_numpy(object)
    return texts


def measure_free_space_at(trace: Trace, replay: Replay, segments: MemorySegments, entry: int) -> pd.DataFrame:
    """Measure the free space after an entry, by addresses: rows of `free_space` per pool, stream and kind."""
    alive = ((segments.born <= entry) & (segments.died > entry)).nonzero()[0]
    alive = alive[np.argsort(segments.address[alive], kind="stable")]
    start, size = segments.address[alive], segments.size[alive]
    live = replay.pieces.live(entry)
    live = live[np.argsort(replay.pieces.address[live], kind="stable")]
    address, requested = replay.pieces.address[live], replay.pieces.size[live]
    occupied_bytes = compute_occupied_bytes(trace, replay, live)
    inside = np.searchsorted(start, address, side="right") - 1
    within = (inside >= 0) & (address < (start + size)[inside]) if len(start) else inside >= 0
    inside, address, requested, occupied_bytes = (a[within] for a in (inside, address, requested, occupied_bytes))
    count = len(alive)
    used, asked, pieces = (np.zeros(count, np.int64) for _ in range(3))
    # Overlapping blocks are damage: memory that two of them cover counts once.
    end = np.minimum(address + occupied_bytes, (start + size)[inside])
    reached = np.maximum.accumulate(end)
    before = np.maximum(np.append(_LOWEST, reached[:-1])[: len(end)], start[inside])
    np.add.at(used, inside, np.maximum(end - np.maximum(address, before), 0))
    np.add.at(asked, inside, requested)
    np.add.at(pieces, inside, 1)
    largest = np.where(pieces == 0, size, 0)
    np.maximum.at(largest, inside, np.maximum(address - before, 0))
    last = np.append(inside[1:] != inside[:-1], True)[: len(inside)]
    tail = np.maximum((start + size)[inside[last]] - reached[last], 0)
    np.maximum.at(largest, inside[last], tail)
    free = size - used
    parts = (
        segments.frame.iloc[alive]
        .reset_index(drop=True)
        .assign(
            segment_count=1,
            expandable_count=0,
            reserved_bytes=size,
            requested_bytes=asked,
            free_bytes=free,
            releasable_bytes=np.where(pieces == 0, size, 0),
            stranded_bytes=np.where(pieces == 0, 0, free),
            largest_free_bytes=largest,
        )
    )
    return _sum_segments_by_pool(parts)


def compute_occupied_bytes(trace: Trace, replay: Replay, pieces: Ints) -> Ints:
    """Compute the bytes that each piece occupies: the size of its block, else the request rounded up."""
    occupied_bytes = round_up_requests(replay.pieces.size[pieces])
    block = replay.pieces.block[pieces]
    has_block = block >= 0
    size = read_ints(trace.get("blocks")["size_bytes"].iloc[block[has_block]])
    occupied_bytes[has_block] = np.where((size > 0) & (size < MAX_BYTES), size, occupied_bytes[has_block])
    return occupied_bytes


def measure_free_space_at_end(trace: Trace, replay: Replay) -> pd.DataFrame:
    """Measure the free space at the end, by blocks: rows of `free_space` per pool, stream and kind."""
    of_segments = select_replay_rows(trace, "memory_segments", replay)
    rows = of_segments.index.to_numpy()
    place = np.full(len(trace.get("memory_segments")), -1, np.int64)
    place[rows] = np.arange(len(rows))
    blocks = trace.get("blocks")
    owner = place[blocks["segment"].to_numpy(np.int64)] if len(blocks) else np.empty(0, np.int64)
    blocks, owner = blocks[owner >= 0], owner[owner >= 0]
    size = np.clip(read_ints(blocks["size_bytes"]), 0, MAX_BYTES)
    asked = np.clip(read_ints(blocks["requested_bytes"]), 0, MAX_BYTES)
    active = blocks["state"].isin(("active", "pending_free")).to_numpy()
    idle = (blocks["state"] == "inactive").to_numpy()
    total, used, requested, largest, pieces = (np.zeros(len(rows), np.int64) for _ in range(5))
    np.add.at(total, owner, size)
    np.add.at(used, owner[active], size[active])
    np.add.at(requested, owner[active], asked[active])
    np.add.at(pieces, owner[active], 1)
    np.maximum.at(largest, owner[idle], size[idle])
    free = total - used
    parts = pd.DataFrame(
        {
            "pool": of_segments["pool"]
            .astype(object)
            .where(of_segments["pool"].notna(), DEFAULT_POOL)
            .to_numpy(object),
            "stream": of_segments["stream"].array,
            "kind": of_segments["kind"].to_numpy(object),
            "segment_count": 1,
            "expandable_count": (of_segments["expandable"] == 1).fillna(value=False).to_numpy(np.int64),
            "reserved_bytes": total,
            "requested_bytes": requested,
            "internal_bytes": used - requested,
            "free_bytes": free,
            "releasable_bytes": np.where(pieces == 0, total, 0),
            "stranded_bytes": np.where(pieces == 0, 0, free),
            "largest_free_bytes": largest,
        }
    )
    return _sum_segments_by_pool(parts)


def _sum_segments_by_pool(parts: pd.DataFrame) -> pd.DataFrame:
    """Sum the segments of each pool, stream and kind, the largest first; asserts that the sums agree."""
    sums = [c for c in parts if c not in (*_GROUP, "largest_free_bytes")]
    grouped = parts.groupby(_GROUP, dropna=False, sort=False)
    sums_of = grouped[sums].sum()
    sums_of["largest_free_bytes"] = grouped["largest_free_bytes"].max()
    sums_of = sums_of.reset_index()
    assert (sums_of["free_bytes"] == sums_of["releasable_bytes"] + sums_of["stranded_bytes"]).all()
    assert (sums_of["largest_free_bytes"] <= sums_of["free_bytes"]).all()
    return sums_of.sort_values("reserved_bytes", ascending=False, kind="stable", ignore_index=True)
