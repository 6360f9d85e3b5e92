"""Replay of a caching allocator's history: bytes in use after every entry, and the pieces in use.

Sizes of a history are requested bytes. The allocator rounds them up, which only blocks record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import (
    Array,
    Nullable,
    concatenate_parts,
    fill_missing,
    mask_value,
    repeat_number,
    repeat_text,
    select_rows,
    trim_all_texts,
)
from tracekit.model.tables.keys import compute_stable_order, number_keys
from tracekit.model.tables.snapshots import ACTIONS, MEMORIES
from tracekit.model.trace import Trace
from tracekit.process.name_filters import mark_wanted_names

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_BYTES = 2**50
"""Largest plausible block or level (1 PiB); larger numbers are damage and are left out."""

MAX_DEVICES = 64
"""Devices of one source that are replayed at most: those with the longest histories."""

NEVER = np.iinfo(np.int64).max
"""End of a piece that was in use at the end."""

CODE = {action: code for code, action in enumerate(ACTIONS)}
"""Code of each action in the category of `allocations`."""

SEGMENT_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Sign with which an action changes the reserved bytes."""


@dataclass(frozen=True, slots=True)
class MemoryPieces:
    """Every piece of memory that was in use at some time of the history.

    In use after the entries `born` … `died` - 1 of the history: -1 is before it, `NEVER` after it. `row` is
    its allocation in `allocations`, -1 if before the history; `freed` its free, -1 for none; `block` its row
    of `blocks`, -1 if it was free at the end.
    """

    born: Ints
    died: Ints
    address: Ints
    size: Ints
    row: Ints
    freed: Ints
    block: Ints

    def live(self, entry: int) -> Ints:
        """Find the pieces in use after this entry of the history."""
        return ((self.born <= entry) & (self.died > entry)).nonzero()[0]


@dataclass(frozen=True, slots=True)
class Replay:
    """History of one device: bytes in use after each of its entries.

    `rows` are those of `allocations`, in order; `blocks` and `segments` those of `blocks` and `memory_segments`. `ts_ns` are their times, which never decrease; without
    recorded times (not `timed`) they are positions. `requested` are bytes allocated and not freed; `reserved`
    those got from the driver, None if no segments were recorded or they contradict the history. `base` was in
    use and `reserved_before` reserved before the history. `unsound` counts entries with an unknown or
    impossible size.
    """

    memory: str
    device: int | None
    timed: bool
    rows: Ints
    blocks: Ints
    segments: Ints
    ts_ns: Ints
    action: Ints
    address: Ints
    size: Ints
    requested: Ints
    reserved: Ints | None
    reserved_before: int
    pieces: MemoryPieces
    base: int
    unsound: int

    def during(self, *actions: str) -> Ints:
        """Find the positions of the entries with one of these actions."""
        wanted = np.zeros(len(ACTIONS), np.bool_)
        wanted[[CODE[action] for action in actions]] = True
        return wanted[self.action].nonzero()[0]

    def peak(self) -> int:
        """Find the first entry after which most was requested; -1 if the peak was before the history."""
        if not len(self.requested) or int(self.requested.max()) < self.base:
            return -1
        return int(self.requested.argmax())

    def get_requested_bytes(self, entry: int) -> int:
        """Look up the requested bytes after an entry; -1 is before the history."""
        return self.base if entry < 0 else int(self.requested[entry])


def replay_all_devices(trace: Trace) -> tuple[Replay, ...]:
    """Replay every device (and pinned host memory) with a history or blocks."""
    return tuple(
        replayed
        for device in _split_snapshot_by_device(trace)
        if (replayed := _replay_device(trace, *device)) is not None
    )


_OF_ALLOCATOR = ("allocated_bytes", "active_bytes", "kind")
"""Columns of segments that only an allocator records."""


def is_synthetic_segments(segments: Mapping[str, Array]) -> bool:
    """Check whether segments are synthetic: `_profile_to_snapshot` makes one of all addresses of a device.

    A real allocator records the allocated bytes of a segment, and the size of its blocks.
    """
    columns = [segments[name] for name in _OF_ALLOCATOR]
    return len(columns[0]) > 0 and all(mask_value(column, None).all() for column in columns)


def has_allocator_segments(trace: Trace) -> bool:
    """Check whether the segments of an allocator were recorded."""
    segments = {name: trace.array("memory_segments", name) for name in _OF_ALLOCATOR}
    return trace.has("memory_segments") and not is_synthetic_segments(segments)


def _split_snapshot_by_device(trace: Trace) -> Iterator[tuple[str, int | None, Ints, Ints, Ints]]:
    """Yield (memory, device, rows of allocations, of blocks, of memory_segments) for every device."""
    owners = [_number_memory_owners(trace, table) for table in ("allocations", "blocks", "memory_segments")]
    distinct_owners, number = number_keys(np.concatenate(owners))
    counts = np.bincount(number)
    parts = np.split(number, np.cumsum([len(part) for part in owners])[:-1])
    for place in np.sort(np.argsort(-counts, kind="stable")[:MAX_DEVICES]).tolist():
        memory, device = divmod(int(distinct_owners[place]), _NO_DEVICE + 1)
        rows = [(part == place).nonzero()[0] for part in parts]
        known = None if device == _NO_DEVICE else device
        yield MEMORIES[memory], known, rows[0], rows[1], rows[2]


_NO_DEVICE = 2**32
"""Number of an unrecorded device; sorts last."""


def _number_memory_owners(trace: Trace, table: str) -> Ints:
    """Combine the memory and device of each row into one number, in order of both."""
    memory = trace.texts(table, "memory").codes.astype(np.int64)
    return memory * (_NO_DEVICE + 1) + fill_missing(trace.nullable(table, "device"), _NO_DEVICE)


def _replay_device(
    trace: Trace, memory: str, device: int | None, rows: Ints, blocks: Ints, segments: Ints
) -> Replay | None:
    """Replay one device; None if its sizes exceed any memory."""
    action = trace.texts("allocations", "action").codes[rows].astype(np.int64)
    size, sized = _read_plausible_sizes(trace, "allocations", "size_bytes", rows)
    address = read_ints(trace, "allocations", "address", rows)
    placed = ~trace.nullable("allocations", "address").missing[rows]
    moves = np.isin(action, [CODE["alloc"], CODE["free_completed"]])
    sound = sized & placed
    usable = (moves & sound).nonzero()[0]
    active = blocks[(mark_blocks_in_use(trace) & ~trace.nullable("blocks", "address").missing)[blocks]]
    block_size = _read_plausible_sizes(trace, "blocks", "requested_bytes", active)[0]
    if float(size.sum(dtype=np.float64)) + float(block_size.sum(dtype=np.float64)) > 2.0**62:
        return None
    is_alloc = action[usable] == CODE["alloc"]
    pieces = _build_memory_pieces(trace, usable, is_alloc, address[usable], size[usable], active, rows)
    base = int(pieces.size[pieces.born < 0].sum())
    # A free ends the allocation at its address, even if it records another size.
    delta = np.zeros(len(rows), np.int64)
    later, gone = pieces.born >= 0, pieces.died < NEVER
    np.add.at(delta, pieces.born[later], pieces.size[later])
    np.subtract.at(delta, pieces.died[gone], pieces.size[gone])
    signs = np.zeros(len(ACTIONS), np.int64)
    for name, sign in SEGMENT_SIGNS.items():
        signs[CODE[name]] = sign
    got = np.where(sized, signs[action] * size, 0)
    ts_ns, timed = _read_history_times(select_rows(trace.nullable("allocations", "ts_ns"), rows))
    reserved = _compute_reserved_bytes(trace, segments, got)
    return Replay(
        memory,
        device,
        timed,
        rows,
        blocks,
        segments,
        ts_ns,
        action,
        address,
        size,
        base + np.cumsum(delta),
        reserved,
        0 if reserved is None or not len(reserved) else int(reserved[0]) - int(got[0]),
        pieces,
        base,
        int(np.count_nonzero((moves & ~sound) | ((signs[action] != 0) & ~sized))),
    )


_IN_USE = ("active", "pending_free")


def mark_blocks_in_use(trace: Trace) -> Mask:
    """Mark the blocks that were in use at the end, or waited to be freed."""
    return mark_wanted_names(trace.texts("blocks", "state"), _IN_USE.__contains__)


def _build_memory_pieces(
    trace: Trace, entries: Ints, is_alloc: Mask, address: Ints, size: Ints, active: Ints, rows: Ints
) -> MemoryPieces:
    """Build the pieces: allocations paired with frees, frees of earlier memory, and blocks that stayed."""
    starts, ends, orphan, last = pair_begins_and_ends(address, is_alloc)
    addresses = read_ints(trace, "blocks", "address", active)
    ghost = active[~np.isin(addresses, address[last])]
    ghost_size = _read_plausible_sizes(trace, "blocks", "requested_bytes", ghost)[0]
    gone = np.where(ends >= 0, entries[ends], NEVER)
    born = np.concatenate((entries[starts], np.full(len(orphan), -1), np.full(len(ghost), -1))).astype(np.int64)
    none = np.full(len(ghost), -1, np.int64)
    stays = _find_blocks_at_addresses(addresses, active, address[starts], ends < 0)
    return MemoryPieces(
        born,
        np.concatenate((gone, entries[orphan], np.full(len(ghost), NEVER))).astype(np.int64),
        np.concatenate((address[starts], address[orphan], read_ints(trace, "blocks", "address", ghost))),
        np.concatenate((size[starts], size[orphan], ghost_size)),
        np.concatenate((rows[entries[starts]], np.full(len(orphan), -1), none)).astype(np.int64),
        np.concatenate((np.where(ends >= 0, rows[entries[ends]], -1), rows[entries[orphan]], none)).astype(np.int64),
        np.concatenate((stays, np.full(len(orphan), -1), ghost)).astype(np.int64),
    )


def pair_begins_and_ends(address: Ints, begins: Mask) -> tuple[Ints, Ints, Ints, Ints]:
    """Pair entries that begin or end at an address: (begins, their ends or -1, ends without begin, last begins).

    An entry lasts until the next end at its address; `last` are begins without a later entry.
    """
    order = compute_stable_order(address)
    where, opened = address[order], begins[order]
    follows = np.append(False, where[1:] == where[:-1])[: len(order)]
    closes = follows & ~opened & np.append(False, opened[:-1])[: len(order)]
    partner = np.full(len(order), -1, np.int64)
    partner[closes.nonzero()[0] - 1] = order[closes]
    is_last = np.append(~follows[1:], True)[: len(order)]
    return order[opened], partner[opened], order[~opened & ~closes], order[opened & is_last]


def _find_blocks_at_addresses(block_addresses: Ints, active: Ints, address: Ints, is_kept: Mask) -> Ints:
    """Find the block in use at each kept address; -1 for none."""
    if not len(block_addresses):
        return np.full(len(address), -1, np.int64)
    order = np.argsort(block_addresses, kind="stable")
    place = np.minimum(np.searchsorted(block_addresses[order], address), len(block_addresses) - 1)
    blocks_at = active[order][place]
    return np.where(is_kept & (block_addresses[order][place] == address), blocks_at, -1)


def _compute_reserved_bytes(trace: Trace, segments: Ints, got: Ints) -> Ints | None:
    """Compute the reserved bytes after each entry, backward from the end."""
    if not has_allocator_segments(trace):
        return None
    size = _read_plausible_sizes(trace, "memory_segments", "size_bytes", segments)[0]
    if float(size.sum(dtype=np.float64)) > 2.0**62:
        return None
    reserved: Ints = int(size.sum()) - int(got.sum()) + np.cumsum(got)
    return reserved if not len(reserved) or int(reserved.min()) >= 0 else None


def _read_history_times(times: Nullable) -> tuple[Ints, bool]:
    """Read the times of entries: (times that never decrease, whether all were recorded); else positions."""
    if not len(times) or times.missing.any():
        return np.arange(len(times), dtype=np.int64), False
    return np.maximum.accumulate(times.values), True


def _read_plausible_sizes(trace: Trace, table: str, column: str, rows: Ints) -> tuple[Ints, Mask]:
    """Read sizes of these rows: (bytes, 0 where unknown or impossible; mask of known sizes)."""
    size = select_rows(trace.nullable(table, column), rows)
    is_plausible = ~size.missing & (size.values >= 0) & (size.values < MAX_BYTES)
    return np.where(is_plausible, size.values, 0), is_plausible


def read_ints(trace: Trace, table: str, column: str, rows: Ints) -> Ints:
    """Read numbers of these rows of a table, 0 where missing."""
    return fill_missing(select_rows(trace.nullable(table, column), rows))


def add_memory_keys(replay: Replay, columns: Mapping[str, Array]) -> dict[str, Array]:
    """Add the key columns of a replay's memory and device."""
    length = len(next(iter(columns.values())))
    return {**columns, "memory": repeat_text(replay.memory, length), "device": repeat_number(replay.device, length)}


def concatenate_columns(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Concatenate tables, with texts in sorted order; {} without rows."""
    present = [part for part in parts if len(next(iter(part.values())))]
    return trim_all_texts(concatenate_parts(present))
