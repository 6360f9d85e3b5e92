"""Free space in reserved memory, and its fragmentation: by addresses at any time, by blocks at the end.

The allocator fits a request into one free piece of its pool, stream and kind of segment. By addresses,
remainders of up to 1 MiB of large blocks that were freed later count as free, since they were not split off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    concatenate_parts,
    mask_value,
    select_all_rows,
    select_rows,
)
from tracekit.model.tables.keys import group_arrays, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import (
    CODE,
    MAX_BYTES,
    NEVER,
    Replay,
    mark_blocks_in_use,
    pair_begins_and_ends,
    read_ints,
)
from tracekit.process.name_filters import look_up_name_codes

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LEAST, SMALL = 512, 2**20
"""Granularity of sizes; largest request placed in a small segment."""

SMALL_SEGMENT, LARGE_SEGMENT, OWN_SEGMENT = 2 * 2**20, 20 * 2**20, 10 * 2**20

DEFAULT_POOL = "0,0"
_LOWEST = np.iinfo(np.int64).min
POOL_KEYS = ("pool", "stream", "kind")


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


def name_request_kinds(sizes: Ints, most: int = SMALL) -> Coded:
    """Name the kind of segment for rounded sizes, or of segments with `most=SMALL_SEGMENT`."""
    return Coded((sizes > most).astype(np.int64), ("small", "large"))


def read_pools(trace: Trace, table: str, rows: Ints) -> Coded:
    """Read the pools of these rows of a table; the default pool where none was recorded, and for -1."""
    pool = trace.texts(table, "pool")
    texts = tuple(dict.fromkeys((*pool.texts, DEFAULT_POOL)))
    codes = look_up_name_codes(pool, rows)
    codes[codes < 0] = texts.index(DEFAULT_POOL)
    return Coded(codes, texts)


def read_pool_keys(trace: Trace, rows: Ints) -> dict[str, Array]:
    """Read `pool`, `stream` and `kind` of these rows of `memory_segments`."""
    others = (select_rows(trace.array("memory_segments", name), rows) for name in ("stream", "kind"))
    return dict(zip(POOL_KEYS, (read_pools(trace, "memory_segments", rows), *others), strict=True))


@dataclass(frozen=True, slots=True)
class MemorySegments:
    """Every segment that a device had at some time of its history; positions as in `MemoryPieces`."""

    born: Ints
    died: Ints
    address: Ints
    size: Ints
    keys: dict[str, Array]
    """`pool`, `stream` and `kind` of each."""


def list_memory_segments(trace: Trace, replay: Replay) -> MemorySegments | None:
    """List the segments of a device; None if they were not recorded, or grow in place."""
    rows = replay.segments
    expandable, address = (trace.nullable("memory_segments", name) for name in ("expandable", "address"))
    grows = len(replay.during("segment_map", "segment_unmap")) or mask_value(expandable, 1)[rows].any()
    if not trace.has("memory_segments") or grows or address.missing[rows].any():
        return None
    moved = replay.during("segment_alloc", "segment_free")
    is_alloc = replay.action[moved] == CODE["segment_alloc"]
    starts, ends, orphan, last = pair_begins_and_ends(replay.address[moved], is_alloc)
    ghost = rows[~np.isin(address.values[rows], replay.address[moved[last]])]
    moves = np.concatenate((moved[starts], moved[orphan]))
    entries = replay.rows[moves]
    none = np.full(len(ghost), -1, np.int64)
    size = np.concatenate((replay.size[moves], read_ints(trace, "memory_segments", "size_bytes", ghost)))
    of_entries: dict[str, Array] = {
        "pool": read_pools(trace, "allocations", entries),
        "stream": select_rows(trace.nullable("allocations", "stream"), entries),
        "kind": name_request_kinds(replay.size[moves], SMALL_SEGMENT),
    }
    return MemorySegments(
        np.concatenate((moved[starts], np.full(len(orphan), -1), none)).astype(np.int64),
        np.concatenate((np.where(ends >= 0, moved[ends], NEVER), moved[orphan], np.full(len(ghost), NEVER))).astype(
            np.int64
        ),
        np.concatenate((replay.address[moves], address.values[ghost])),
        np.where(size < MAX_BYTES, size, 0),
        concatenate_parts([of_entries, read_pool_keys(trace, ghost)]),
    )


def measure_free_space_at(trace: Trace, replay: Replay, segments: MemorySegments, entry: int) -> dict[str, Any]:
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
    return _sum_segments_by_pool(
        select_all_rows(segments.keys, alive),
        {
            "segment_count": np.ones(count, np.int64),
            "expandable_count": np.zeros(count, np.int64),
            "reserved_bytes": size,
            "requested_bytes": asked,
            "free_bytes": free,
            "releasable_bytes": np.where(pieces == 0, size, 0),
            "stranded_bytes": np.where(pieces == 0, 0, free),
        },
        largest,
    )


def compute_occupied_bytes(trace: Trace, replay: Replay, pieces: Ints) -> Ints:
    """Compute the bytes that each piece occupies: the size of its block, else the request rounded up."""
    occupied_bytes = round_up_requests(replay.pieces.size[pieces])
    block = replay.pieces.block[pieces]
    has_block = block >= 0
    size = read_ints(trace, "blocks", "size_bytes", block[has_block])
    occupied_bytes[has_block] = np.where((size > 0) & (size < MAX_BYTES), size, occupied_bytes[has_block])
    return occupied_bytes


def find_block_owners(trace: Trace, segments: Ints) -> tuple[Ints, Ints]:
    """Find the blocks of these rows of `memory_segments`: (rows of `blocks`, place of each one's segment)."""
    place = np.full(trace.row_count("memory_segments"), -1, np.int64)
    place[segments] = np.arange(len(segments))
    owner = place[trace.numbers("blocks", "segment")]
    rows = (owner >= 0).nonzero()[0]
    return rows, owner[rows]


def measure_free_space_at_end(trace: Trace, replay: Replay) -> dict[str, Any]:
    """Measure the free space at the end, by blocks: rows of `free_space` per pool, stream and kind."""
    rows = replay.segments
    blocks, owner = find_block_owners(trace, rows)
    size, asked = (
        np.clip(read_ints(trace, "blocks", name, blocks), 0, MAX_BYTES) for name in ("size_bytes", "requested_bytes")
    )
    active = mark_blocks_in_use(trace)[blocks]
    idle = mask_value(trace.texts("blocks", "state"), "inactive")[blocks]
    largest, pieces = np.zeros((2, len(rows)), np.int64)
    total = sum_by_group(owner, size, len(rows))
    used = sum_by_group(owner[active], size[active], len(rows))
    requested = sum_by_group(owner[active], asked[active], len(rows))
    np.add.at(pieces, owner[active], 1)
    np.maximum.at(largest, owner[idle], size[idle])
    free = total - used
    return _sum_segments_by_pool(
        read_pool_keys(trace, rows),
        {
            "segment_count": np.ones(len(rows), np.int64),
            "expandable_count": mask_value(trace.nullable("memory_segments", "expandable"), 1)[rows].astype(np.int64),
            "reserved_bytes": total,
            "requested_bytes": requested,
            "internal_bytes": used - requested,
            "free_bytes": free,
            "releasable_bytes": np.where(pieces == 0, total, 0),
            "stranded_bytes": np.where(pieces == 0, 0, free),
        },
        largest,
    )


def _sum_segments_by_pool(keys: dict[str, Array], parts: dict[str, Ints], largest_free: Ints) -> dict[str, Any]:
    """Sum the segments of each pool, stream and kind, the largest first; asserts that the sums agree."""
    group, first = group_arrays(list(keys.values()))
    sums = {name: sum_by_group(group, values, len(first)) for name, values in parts.items()}
    largest = sums["largest_free_bytes"] = np.zeros(len(first), np.int64)
    np.maximum.at(largest, group, largest_free)
    assert (sums["free_bytes"] == sums["releasable_bytes"] + sums["stranded_bytes"]).all()
    assert (largest <= sums["free_bytes"]).all()
    return select_all_rows({**select_all_rows(keys, first), **sums}, np.argsort(-sums["reserved_bytes"], kind="stable"))
