"""Program of an allocator from the history of a snapshot: its requests, and the memory before it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import fill_missing, mask_value, select_rows
from tracekit.model.trace import Trace
from tracekit.process.memory.allocator.beginning import (
    SegmentMoves,
    SegmentRanges,
    UnreplayableError,
    add_unmapped_ranges,
    lay_out_blocks,
    wind_back_segments,
)
from tracekit.process.memory.allocator.plain import ALLOC, COMPLETE, EMPTY, FRESH, RELEASE, REQUEST
from tracekit.process.memory.allocator.rules import (
    ADDRESS_SPACE,
    SEGMENT_STEP,
    AllocatorOptions,
    read_allocator_options,
    round_requests,
)
from tracekit.process.memory.allocator.run import AllocatorProgram
from tracekit.process.memory.replay import CODE, NEVER, Replay, has_allocator_segments, pair_begins_and_ends, read_ints
from tracekit.process.memory.space import DEFAULT_POOL, LARGE_SEGMENT, SMALL, SMALL_SEGMENT, read_pools

Ints = npt.NDArray[np.int64]

MAX_LANES = 4096
"""Pools by stream that are replayed at most."""

_MOST_BYTES = 2**60
"""Sum of all requests from which on none is replayed: sums of addresses would overflow."""


@dataclass(frozen=True, slots=True, eq=False)
class _Lanes:
    """Pool and stream of everything in a history: of each piece, each segment move, and each final segment."""

    pools: tuple[str, ...]
    pool_of_lane: Ints
    of_pieces: Ints
    of_moves: Ints
    of_segments: Ints


def build_program(trace: Trace, replay: Replay, *, releases_as_recorded: bool = False) -> AllocatorProgram:
    """Build the program of a device's history. Raises `UnreplayableError`.

    With `releases_as_recorded`, the recorded segments are given back, not the whole cache: after garbage collection or
    `max_split_size`, whose limits are not recorded.
    """
    _check_history(trace, replay)
    options = read_allocator_options(trace.meta.get("allocator_settings") or {})
    moved = replay.during("segment_alloc", "segment_map", "segment_free", "segment_unmap")
    lanes = _assign_pools_and_streams(trace, replay, moved)
    moves = _list_moves(replay, moved, lanes)
    final = _list_final_ranges(trace, replay, lanes)
    _check_addresses(replay, final)
    moves = _settle_shelves(replay, lanes, moves, final)
    ranges, flags = add_unmapped_ranges(wind_back_segments(final, moves), _find_lowest_pages(final, moves))
    pieces = replay.pieces
    early = (pieces.born < 0).nonzero()[0]
    occupied = _measure_early_blocks(trace, replay, early, options)
    blocks = lay_out_blocks(ranges, flags, pieces.address[early], occupied, early)
    is_gain = moves.is_gain
    recorded = np.column_stack((moves.address, moves.size, moves.shelf))[is_gain]
    ops, entry = _list_ops(replay, moved, lanes, moves, releases_as_recorded=releases_as_recorded)
    ends = [ranges.address + np.where(flags & 4, ADDRESS_SPACE, ranges.size), recorded[:, 0] + recorded[:, 1]]
    last = max((int(end.max(initial=SEGMENT_STEP)) for end in ends), default=SEGMENT_STEP)
    grows = _find_growing_pools(options, lanes, moves, final)
    next_address = -(-(last + ADDRESS_SPACE * int(grows.any())) // SEGMENT_STEP) * SEGMENT_STEP
    pool_of_lane, pools = lanes.pool_of_lane, lanes.pools
    return AllocatorProgram(
        ops, entry, len(pieces.born), pools, pool_of_lane, grows, blocks, recorded, next_address, options
    )


def _check_history(trace: Trace, replay: Replay) -> None:
    if replay.memory != "device":
        raise UnreplayableError("pinned host memory has an allocator of its own")
    if not has_allocator_segments(trace) or not len(replay.segments):
        raise UnreplayableError("no segments of the allocator were recorded")
    if not len(replay.during("alloc")):
        raise UnreplayableError("no history of allocations was recorded")
    if replay.reserved is None:
        raise UnreplayableError("the segments at the end contradict the history")
    if replay.unsound:
        raise UnreplayableError(f"{replay.unsound:,} entries of the history have no size or address")
    total = float(replay.pieces.size.sum(dtype=np.float64)) + len(replay.rows) * float(20 * 2**20)
    if total > _MOST_BYTES:
        raise UnreplayableError("sizes are larger than any memory")


def _check_addresses(replay: Replay, final: SegmentRanges) -> None:
    """Refuse addresses of the upper half, which would sort as negative numbers."""
    if int(min(replay.address.min(initial=0), final.address.min(initial=0))) < 0:
        raise UnreplayableError("addresses from 2**63 on are not replayed")
    if int(max(replay.address.max(initial=0), final.address.max(initial=0))) > 2**60:
        raise UnreplayableError("addresses are larger than any device has")


def _assign_pools_and_streams(trace: Trace, replay: Replay, moved: Ints) -> _Lanes:
    """Assign a pool and a stream to each piece, each move and each final segment."""
    pieces, segments = replay.pieces, replay.segments
    of_segments = read_pools(trace, "memory_segments", segments)
    rows = np.where(pieces.row >= 0, pieces.row, pieces.freed)
    of_rows = read_pools(trace, "allocations", np.maximum(rows, 0))
    of_moves = read_pools(trace, "allocations", replay.rows[moved])
    names = tuple(dict.fromkeys((DEFAULT_POOL, *of_segments.texts, *of_rows.texts, *of_moves.texts)))
    pool_segments, pool_pieces, pool_moves = (
        np.array([names.index(text) for text in coded.texts], np.int64)[coded.codes]
        for coded in (of_segments, of_rows, of_moves)
    )
    stream = fill_missing(trace.nullable("allocations", "stream"))
    stream_segments = read_ints(trace, "memory_segments", "stream", segments)
    owner = _find_segments_of_blocks(trace, replay)
    has_block = owner >= 0
    stream_pieces = np.where(rows >= 0, stream[np.maximum(rows, 0)], stream_segments[np.maximum(owner, 0)])
    pool_pieces = np.where(has_block, pool_segments[np.maximum(owner, 0)], pool_pieces)
    if (pool_segments > 0).any():
        _place_in_private_pools(replay, moved, segments, trace, pool_segments, pool_pieces, pool_moves)
    pool = np.concatenate((pool_pieces, pool_moves, pool_segments))
    streams = np.concatenate((stream_pieces, stream[replay.rows[moved]], stream_segments))
    keys, lane = np.unique(np.stack((pool, streams)), axis=1, return_inverse=True)
    if keys.shape[1] > MAX_LANES:
        raise UnreplayableError(f"{keys.shape[1]:,} pools and streams are more than {MAX_LANES:,}")
    parts = np.split(lane.ravel().astype(np.int64), np.cumsum([len(pool_pieces), len(pool_moves)]))
    return _Lanes(names, np.ascontiguousarray(keys[0]), *parts)


def _find_segments_of_blocks(trace: Trace, replay: Replay) -> Ints:
    """Find the final segment of each piece that is still in use: its place in `replay.segments`, -1 for none."""
    block = replay.pieces.block
    place = np.full(trace.row_count("memory_segments"), -1, np.int64)
    place[replay.segments] = np.arange(len(replay.segments))
    owner = np.full(len(block), -1, np.int64)
    owner[block >= 0] = place[trace.numbers("blocks", "segment")[block[block >= 0]]]
    return owner


def _place_in_private_pools(
    replay: Replay, moved: Ints, segments: Ints, trace: Trace, pool_segments: Ints, pool_pieces: Ints, pool_moves: Ints
) -> None:
    """Place pieces and moves within the final segments of private pools in these pools: older versions do not record it."""
    address = read_ints(trace, "memory_segments", "address", segments)
    size = read_ints(trace, "memory_segments", "size_bytes", segments)
    pieces = replay.pieces
    order, of_moves = np.argsort(pieces.address, kind="stable"), np.argsort(replay.address[moved], kind="stable")
    sorted_pieces, sorted_moves = pieces.address[order], replay.address[moved][of_moves]
    for place in (pool_segments > 0).nonzero()[0].tolist():
        bounds = address[place], address[place] + size[place]
        inside = of_moves[slice(*np.searchsorted(sorted_moves, bounds).tolist())]
        gains = inside[replay.action[moved[inside]] == CODE["segment_alloc"]]
        since = int(moved[gains].max(initial=-1))
        pool_moves[inside[moved[inside] >= since]] = pool_segments[place]
        held = order[slice(*np.searchsorted(sorted_pieces, bounds).tolist())]
        pool_pieces[held[pieces.born[held] >= since]] = pool_segments[place]


def _list_moves(replay: Replay, moved: Ints, lanes: _Lanes) -> SegmentMoves:
    """List the segments and pages got and given back."""
    action, size = replay.action[moved], replay.size[moved]
    is_page = np.isin(action, [CODE["segment_map"], CODE["segment_unmap"]])
    is_gain = np.isin(action, [CODE["segment_alloc"], CODE["segment_map"]])
    return SegmentMoves(replay.address[moved], size, 2 * lanes.of_moves + (size > SMALL_SEGMENT), is_gain, is_page)


def _list_final_ranges(trace: Trace, replay: Replay, lanes: _Lanes) -> SegmentRanges:
    """List the segments at the end."""
    rows = replay.segments
    address, size = (read_ints(trace, "memory_segments", name, rows) for name in ("address", "size_bytes"))
    kind = select_rows(trace.texts("memory_segments", "kind"), rows)
    is_small, is_large = mask_value(kind, "small"), mask_value(kind, "large")
    is_large = is_large | (~is_small & (size > SMALL_SEGMENT))
    expandable = mask_value(trace.nullable("memory_segments", "expandable"), 1)[rows].astype(np.int64)
    return SegmentRanges(address, size, 2 * lanes.of_segments + is_large, expandable)


def _settle_shelves(replay: Replay, lanes: _Lanes, moves: SegmentMoves, final: SegmentRanges) -> SegmentMoves:
    """Settle the shelf of pages given back: that of the nearest block, new page or final range of their lane.

    Large pages have 20 MiB. Small ones are mapped one by one but given back together: 20 MiB may be either.
    """
    grows, gained = final.expandable != 0, moves.is_page & moves.is_gain
    is_large = replay.pieces.size > SMALL
    anchors = np.concatenate((final.address[grows], moves.address[gained], replay.pieces.address))
    shelves = np.concatenate((final.shelf[grows], moves.shelf[gained], 2 * lanes.of_pieces + is_large))
    given = (moves.is_page & ~moves.is_gain).nonzero()[0]
    settled = moves.shelf.copy()
    for lane in np.unique(moves.shelf[given] // 2).tolist():
        of_lane = shelves // 2 == lane
        rows = given[moves.shelf[given] // 2 == lane]
        if of_lane.any():
            settled[rows] = _find_nearest(anchors[of_lane], shelves[of_lane], moves.address[rows])
    odd = given[moves.size[given] % LARGE_SEGMENT != 0]
    settled[odd] = settled[odd] // 2 * 2
    return SegmentMoves(moves.address, moves.size, settled, moves.is_gain, moves.is_page)


def _find_nearest(anchors: Ints, values: Ints, address: Ints) -> Ints:
    """Find the value of the anchor nearest to each address."""
    order = np.argsort(anchors, kind="stable")
    anchors, values = anchors[order], values[order]
    right = np.minimum(np.searchsorted(anchors, address), len(anchors) - 1)
    left = np.maximum(right - 1, 0)
    is_left = np.abs(address - anchors[left]) < np.abs(anchors[right] - address)
    return values[np.where(is_left, left, right)]


def _find_lowest_pages(final: SegmentRanges, moves: SegmentMoves) -> dict[int, int]:
    """Find the lowest address of the expandable segment of each shelf."""
    lowest: dict[int, int] = {}
    grows = final.expandable != 0
    for address, shelf in (
        *zip(final.address[grows].tolist(), final.shelf[grows].tolist(), strict=True),
        *zip(moves.address[moves.is_page].tolist(), moves.shelf[moves.is_page].tolist(), strict=True),
    ):
        lowest[shelf] = min(lowest.get(shelf, address), address)
    return lowest


def _measure_early_blocks(trace: Trace, replay: Replay, early: Ints, options: AllocatorOptions) -> Ints:
    """Measure the blocks from before the history: as recorded, or the request rounded up."""
    pieces = replay.pieces
    occupied = round_requests(pieces.size[early], options.divisions)
    block = pieces.block[early]
    size = read_ints(trace, "blocks", "size_bytes", np.maximum(block, 0))
    return np.where((block >= 0) & (size > 0), size, occupied)


def _find_growing_pools(options: AllocatorOptions, lanes: _Lanes, moves: SegmentMoves, final: SegmentRanges) -> Ints:
    """Find the pools whose segments are expandable: 1 for each such pool. Raises `UnreplayableError` for a mixture."""
    grows = np.zeros(len(lanes.pools), np.int64)
    pool_moves, pool_final = (lanes.pool_of_lane[shelf // 2] for shelf in (moves.shelf, final.shelf))
    for pool in range(len(lanes.pools)):
        gains = moves.is_gain & (pool_moves == pool)
        pages, whole = int((gains & moves.is_page).sum()), int((gains & ~moves.is_page).sum())
        if pages and whole:
            raise UnreplayableError("expandable segments were switched on or off in the history")
        ranges = final.expandable[pool_final == pool]
        if pages or whole:
            grows[pool] = pages > 0
        elif len(ranges):
            grows[pool] = bool(ranges.any()) and (options.expandable or bool(ranges.all()))
    return grows


def _list_ops(
    replay: Replay, moved: Ints, lanes: _Lanes, moves: SegmentMoves, *, releases_as_recorded: bool
) -> tuple[Ints, Ints]:
    """List the operations of a history, in order: (rows of `AllocatorProgram.ops`, entry of each)."""
    pieces = replay.pieces
    born, gone = (pieces.born >= 0).nonzero()[0], (pieces.died < NEVER).nonzero()[0]
    asked, owner = _find_waiting_frees(replay)
    given = (~moves.is_gain).nonzero()[0]
    is_private = lanes.pool_of_lane[lanes.of_moves[given]] > 0
    private, shared = given[is_private], given[~is_private]
    # The cache is given back segment by segment: of entries that follow one another, the first stands for all.
    starts = shared[np.append(True, np.diff(moved[shared]) > 1)[: len(shared)]]
    recorded = shared[~moves.is_page[shared]] if releases_as_recorded else shared[:0]
    parts = [
        _make_ops(FRESH, _find_retried_allocations(replay, moved, moves)),
        _make_ops(ALLOC, pieces.born[born], born, pieces.size[born], lanes.of_pieces[born]),
        _make_ops(COMPLETE, pieces.died[gone], gone),
        _make_ops(REQUEST, asked, owner),
        _make_ops(EMPTY, moved[starts], size=int(releases_as_recorded)),
        _make_ops(RELEASE, moved[private], size=moves.address[private]),
        _make_ops(RELEASE, moved[recorded], size=moves.address[recorded], lane=1),
    ]
    table = np.concatenate(parts)
    table = table[np.argsort(table[:, 4], kind="stable")]
    return np.ascontiguousarray(table[:, :4]), np.ascontiguousarray(table[:, 4])


def _find_retried_allocations(replay: Replay, moved: Ints, moves: SegmentMoves) -> Ints:
    """Find the allocations for which memory was given back and got again, entry after entry."""
    allocs = replay.during("alloc")
    after_loss = moves.is_gain[1:] & ~moves.is_gain[:-1] & (np.diff(moved) == 1)
    gains = moved[1:][after_loss]
    place = np.searchsorted(allocs, gains)
    retried: Ints = allocs[place[place < len(allocs)]]
    return retried


def _make_ops(op: int, entry: Ints, owner: Ints | int = 0, size: Ints | int = 0, lane: Ints | int = 0) -> Ints:
    """Make rows of (operation, owner, size or address, lane, entry)."""
    columns = np.broadcast_arrays(np.int64(op), owner, size, lane, entry)
    return np.column_stack(columns).astype(np.int64).reshape(-1, 5)


def _find_waiting_frees(replay: Replay) -> tuple[Ints, Ints]:
    """Find frees that wait for other streams: (entry of the request, piece).

    All others complete at once: the request is the entry before.
    """
    moves = replay.during("free_requested", "free_completed")
    is_request = replay.action[moves] == CODE["free_requested"]
    requests, ends, _, _ = pair_begins_and_ends(replay.address[moves], is_request)
    asked, done = moves[requests], np.where(ends >= 0, moves[ends], -1)
    waits = done != asked + 1
    asked, done = asked[waits], done[waits]
    pieces = replay.pieces
    order = np.argsort(pieces.died, kind="stable")
    place = np.minimum(np.searchsorted(pieces.died[order], done), len(order) - 1)
    owner = np.where((done >= 0) & (pieces.died[order[place]] == done), order[place], -1)
    never = (pieces.died == NEVER).nonzero()[0]
    at_end = {address: piece for piece, address in zip(never.tolist(), pieces.address[never].tolist(), strict=True)}
    open_ended = (done < 0).nonzero()[0]
    owner[open_ended] = [at_end.get(address, -1) for address in replay.address[asked[open_ended]].tolist()]
    known = owner >= 0
    return asked[known], owner[known]
