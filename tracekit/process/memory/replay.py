"""Replay of a caching allocator's history: bytes in use after every entry, and the pieces in use.

Sizes of a history are requested bytes. The allocator rounds them up, which only blocks record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables.keys import compute_stable_order, mask_equal, number_keys
from tracekit.model.tables.snapshots import ACTIONS, MEMORIES
from tracekit.model.trace import Trace

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

_SEGMENT_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


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

    `rows` are those of `allocations`, in order. `ts_ns` are their times, which never decrease; without
    recorded times (not `timed`) they are positions. `requested` are bytes allocated and not freed; `reserved`
    those got from the driver, None if no segments were recorded or they contradict the history. `base` was in
    use and `reserved_before` reserved before the history. `unsound` counts entries with an unknown or
    impossible size.
    """

    memory: str
    device: int | None
    timed: bool
    rows: Ints
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


def is_synthetic_segments(segments: pd.DataFrame | None) -> bool:
    """Check whether segments are synthetic: `_profile_to_snapshot` makes one of all addresses of a device.

    A real allocator records the allocated bytes of a segment, and the size of its blocks.
    """
    if segments is None or not len(segments):
        return False
    return bool(segments[["allocated_bytes", "active_bytes", "kind"]].isna().all(axis=None))


def has_allocator_segments(trace: Trace) -> bool:
    """Check whether the segments of an allocator were recorded."""
    return trace.has("memory_segments") and not is_synthetic_segments(trace["memory_segments"])


def _split_snapshot_by_device(trace: Trace) -> Iterator[tuple[str, int | None, Ints, Ints, Ints]]:
    """Yield (memory, device, rows of allocations, of blocks, of memory_segments) for every device."""
    frames = [trace.get(name) for name in ("allocations", "blocks", "memory_segments")]
    owners = [_number_memory_owners(frame) for frame in frames]
    distinct_owners, number = number_keys(np.concatenate(owners))
    counts = np.bincount(number)
    parts = np.split(number, np.cumsum([len(frame) for frame in frames])[:-1])
    for place in np.sort(np.argsort(-counts, kind="stable")[:MAX_DEVICES]).tolist():
        memory, device = divmod(int(distinct_owners[place]), _NO_DEVICE + 1)
        rows = [(part == place).nonzero()[0] for part in parts]
        known = None if device == _NO_DEVICE else device
        yield MEMORIES[memory], known, rows[0], rows[1], rows[2]


_NO_DEVICE = 2**32
"""Number of an unrecorded device; sorts last."""


def _number_memory_owners(frame: pd.DataFrame) -> Ints:
    """Combine the memory and device of each row into one number, in order of both."""
    memory = frame["memory"].cat.codes.to_numpy().astype(np.int64)
    device = frame["device"].to_numpy(np.int64, na_value=_NO_DEVICE)
    owners: Ints = memory * (_NO_DEVICE + 1) + device
    return owners


def _replay_device(
    trace: Trace, memory: str, device: int | None, rows: Ints, blocks: Ints, segments: Ints
) -> Replay | None:
    """Replay one device; None if its sizes exceed any memory."""
    history = trace.get("allocations").iloc[rows]
    action = history["action"].cat.codes.to_numpy().astype(np.int64)
    size, sized = _read_plausible_sizes(history["size_bytes"])
    address = read_ints(history["address"])
    placed = history["address"].notna().to_numpy()
    moves = np.isin(action, [CODE["alloc"], CODE["free_completed"]])
    sound = sized & placed
    usable = (moves & sound).nonzero()[0]
    active = _find_active_blocks(trace, blocks)
    block_size = _read_plausible_sizes(trace.get("blocks")["requested_bytes"].iloc[active])[0]
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
    for name, sign in _SEGMENT_SIGNS.items():
        signs[CODE[name]] = sign
    got = np.where(sized, signs[action] * size, 0)
    ts_ns, timed = _read_history_times(history["ts_ns"])
    reserved = _compute_reserved_bytes(trace, segments, got)
    return Replay(
        memory,
        device,
        timed,
        rows,
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


def _find_active_blocks(trace: Trace, blocks: Ints) -> Ints:
    """Find the blocks that were in use at the end, or waited to be freed."""
    frame = trace.get("blocks").iloc[blocks]
    in_use = frame["state"].isin(("active", "pending_free")) & frame["address"].notna()
    return blocks[in_use.to_numpy(np.bool_)]


def _build_memory_pieces(
    trace: Trace, entries: Ints, is_alloc: Mask, address: Ints, size: Ints, active: Ints, rows: Ints
) -> MemoryPieces:
    """Build the pieces: allocations paired with frees, frees of earlier memory, and blocks that stayed."""
    starts, ends, orphan, last = pair_begins_and_ends(address, is_alloc)
    blocks = trace.get("blocks")
    addresses = read_ints(blocks["address"].iloc[active])
    ghost = active[~np.isin(addresses, address[last])]
    ghost_size = _read_plausible_sizes(blocks["requested_bytes"].iloc[ghost])[0]
    gone = np.where(ends >= 0, entries[ends], NEVER)
    born = np.concatenate((entries[starts], np.full(len(orphan), -1), np.full(len(ghost), -1))).astype(np.int64)
    none = np.full(len(ghost), -1, np.int64)
    stays = _find_blocks_at_addresses(addresses, active, address[starts], ends < 0)
    return MemoryPieces(
        born,
        np.concatenate((gone, entries[orphan], np.full(len(ghost), NEVER))).astype(np.int64),
        np.concatenate((address[starts], address[orphan], read_ints(blocks["address"].iloc[ghost]))),
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
    size = _read_plausible_sizes(trace["memory_segments"]["size_bytes"].iloc[segments])[0]
    if float(size.sum(dtype=np.float64)) > 2.0**62:
        return None
    reserved: Ints = int(size.sum()) - int(got.sum()) + np.cumsum(got)
    return reserved if not len(reserved) or int(reserved.min()) >= 0 else None


def _read_history_times(column: pd.Series[Any]) -> tuple[Ints, bool]:
    """Read the times of entries: (times that never decrease, whether all were recorded); else positions."""
    if not len(column) or column.isna().any():
        return np.arange(len(column), dtype=np.int64), False
    times: Ints = np.maximum.accumulate(column.to_numpy(np.int64))
    return times, True


def _read_plausible_sizes(column: pd.Series[Any]) -> tuple[Ints, Mask]:
    """Read sizes: (bytes, 0 where unknown or impossible; mask of known sizes)."""
    size = column.to_numpy(np.int64, na_value=-1)
    is_plausible = (size >= 0) & (size < MAX_BYTES)
    return np.where(is_plausible, size, 0), is_plausible


def read_ints(column: pd.Series[Any]) -> Ints:
    """Convert a column to int64, 0 where missing."""
    whole_numbers: Ints = column.to_numpy(np.int64, na_value=0)
    return whole_numbers


def concatenate_columns(parts: Sequence[pd.DataFrame]) -> Mapping[str, Any]:
    """Concatenate frames to columns; {} without rows."""
    present = [part for part in parts if len(part)]
    if not present:
        return {}
    frame = pd.concat([part.astype({"device": "Int64"}) for part in present], ignore_index=True)
    return {str(name): _convert_text_to_objects(frame[name]) for name in frame}


def _convert_text_to_objects(column: pd.Series[Any]) -> Any:
    """Convert text to objects, also if all is missing; numbers stay as they are."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype) or dtype.kind == "O" or str(dtype) == "str":
        return column.to_numpy(object)
    return column.array


def make_memory_keys(replay: Replay) -> dict[str, Any]:
    """Make the key columns of a replay's memory and device."""
    return {"memory": replay.memory, "device": replay.device}


def select_replay_rows(trace: Trace, table: str, replay: Replay) -> pd.DataFrame:
    """Select the rows of a snapshot table for the memory and device of a replay."""
    frame = trace.get(table)
    of_memory = (frame["memory"] == replay.memory).to_numpy()
    return frame[of_memory & mask_equal(frame["device"], replay.device)]
