"""The history of a caching allocator replayed: how much was held after every entry, and of what.

Sizes of a history are bytes as requested; the allocator rounds them up, which only blocks tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.keys import numbered, stable_order
from tracekit.model.records import dataclass
from tracekit.model.tables.snapshots import ACTIONS, MEMORIES
from tracekit.model.trace import Trace

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_BYTES = 2**50
"""No block is as large as a pebibyte: what is said to be is damage and is left out."""

MAX_DEVICES = 64
"""Most devices of one source that are replayed: those with the longest histories."""

NEVER = np.iinfo(np.int64).max
"""When a piece dies that was in use at the end."""

CODE = {action: code for code, action in enumerate(ACTIONS)}
"""The code of each action in the category of `allocations`."""

_SEGMENT_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True, slots=True)
class Pieces:
    """Everything that was in use at some time of the history, one entry each.

    In use after the entries `born` … `died` - 1 of the history: -1 is before it, `NEVER` after it.
    `row` is that of the allocation in `allocations`, -1 if it was before the history; `freed` that of the
    free, -1 for none; `block` that of `blocks`, -1 for what was free at the end.
    """

    born: Ints
    died: Ints
    address: Ints
    size: Ints
    row: Ints
    freed: Ints
    block: Ints

    def live(self, at: int) -> Ints:
        """The pieces in use after this entry of the history."""
        return ((self.born <= at) & (self.died > at)).nonzero()[0]


@dataclass(frozen=True, slots=True)
class Replay:
    """One device's history: what was held after each of its entries.

    `rows` are those of `allocations`, in order, and `ts_ns` their times, which never go back; without
    recorded times (`timed`) the position of each. `requested` are bytes asked for and not freed,
    `reserved` those got from the driver, None where no segments were recorded or they contradict the
    history. `base` was in use and `reserved_before` reserved before the history, `unsound` entries had no size or an impossible one.
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
    pieces: Pieces
    base: int
    unsound: int

    def during(self, *actions: str) -> Ints:
        """The positions of the entries with one of these actions."""
        wanted = np.zeros(len(ACTIONS), np.bool_)
        wanted[list(map(CODE.__getitem__, actions))] = True
        return wanted[self.action].nonzero()[0]

    def peak(self) -> int:
        """The first entry after which most was requested; -1 if that was before the history."""
        if not len(self.requested) or int(self.requested.max()) < self.base:
            return -1
        return int(self.requested.argmax())

    def held(self, at: int) -> int:
        """Requested bytes after an entry; -1 is before the history."""
        return self.base if at < 0 else int(self.requested[at])


def replays(trace: Trace) -> tuple[Replay, ...]:
    """The replay of every device (and of pinned host memory) with a history or blocks."""
    return tuple(
        replayed for device in _devices(trace) if (replayed := _replay(trace, *device)) is not None
    )


def is_made_up(segments: pd.DataFrame | None) -> bool:
    """Whether segments are no allocator's: `_profile_to_snapshot` makes one of all addresses of a device.

    Every allocator tells how much of a segment is allocated, and for blocks of which size it is.
    """
    if segments is None or not len(segments):
        return False
    return bool(segments[["allocated_bytes", "active_bytes", "kind"]].isna().all(axis=None))


def has_segments(trace: Trace) -> bool:
    """Whether the segments of an allocator were recorded."""
    return trace.has("memory_segments") and not is_made_up(trace["memory_segments"])


def _devices(trace: Trace) -> Iterator[tuple[str, int | None, Ints, Ints, Ints]]:
    """(memory, device, rows of allocations, of blocks, of memory_segments) of every device."""
    frames = [trace.get(name) for name in ("allocations", "blocks", "memory_segments")]
    owners = [_owners(frame) for frame in frames]
    distinct_owners, number = numbered(np.concatenate(owners))
    counts = np.bincount(number)
    parts = np.split(number, np.cumsum(list(map(len, frames)))[:-1])
    for place in np.sort(np.argsort(-counts, kind="stable")[:MAX_DEVICES]).tolist():
        memory, device = divmod(int(distinct_owners[place]), _NO_DEVICE + 1)
        rows = [(part == place).nonzero()[0] for part in parts]
        known = None if device == _NO_DEVICE else device
        yield MEMORIES[memory], known, rows[0], rows[1], rows[2]


_NO_DEVICE = 2**32
"""Stands for a device that was not recorded, behind all others."""


def _owners(frame: pd.DataFrame) -> Ints:
    """A number for the memory and device of each row, in order of both."""
    memory = frame["memory"].cat.codes.to_numpy().astype(np.int64)
    device = frame["device"].to_numpy(np.int64, na_value=_NO_DEVICE)
    owners: Ints = memory * (_NO_DEVICE + 1) + device
    return owners


def _replay(
    trace: Trace, memory: str, device: int | None, rows: Ints, blocks: Ints, segments: Ints
) -> Replay | None:
    """The replay of one device; None where its sizes are beyond any memory."""
    history = trace.get("allocations").iloc[rows]
    action = history["action"].cat.codes.to_numpy().astype(np.int64)
    size, sized = _bounded(history["size_bytes"])
    address = ints(history["address"])
    placed = history["address"].notna().to_numpy()
    moves = np.isin(action, [CODE["alloc"], CODE["free_completed"]])
    sound = sized & placed
    usable = (moves & sound).nonzero()[0]
    active = _active(trace, blocks)
    block_size = _bounded(trace.get("blocks")["requested_bytes"].iloc[active])[0]
    if float(size.sum(dtype=np.float64)) + float(block_size.sum(dtype=np.float64)) > 2.0**62:
        return None
    is_alloc = action[usable] == CODE["alloc"]
    pieces = _pieces(trace, usable, is_alloc, address[usable], size[usable], active, rows)
    base = int(pieces.size[pieces.born < 0].sum())
    # A free ends what was allocated, whatever size it names itself.
    delta = np.zeros(len(rows), np.int64)
    later, gone = pieces.born >= 0, pieces.died < NEVER
    np.add.at(delta, pieces.born[later], pieces.size[later])
    np.subtract.at(delta, pieces.died[gone], pieces.size[gone])
    signs = np.zeros(len(ACTIONS), np.int64)
    for name, sign in _SEGMENT_SIGNS.items():
        signs[CODE[name]] = sign
    got = np.where(sized, signs[action] * size, 0)
    ts_ns, timed = _times(history["ts_ns"])
    reserved = _reserved(trace, segments, got)
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


def _active(trace: Trace, blocks: Ints) -> Ints:
    """The rows of the blocks that were in use at the end, or waited to be free."""
    frame = trace.get("blocks").iloc[blocks]
    in_use = frame["state"].isin(("active", "pending_free")) & frame["address"].notna()
    return blocks[in_use.to_numpy(np.bool_)]


def _pieces(
    trace: Trace,
    held: Ints,
    is_alloc: Mask,
    address: Ints,
    size: Ints,
    active: Ints,
    rows: Ints,
) -> Pieces:
    """Allocations with the free that ended each, frees of what was there before, and blocks that stayed."""
    starts, ends, orphan, last = paired(address, is_alloc)
    blocks = trace.get("blocks")
    addresses = ints(blocks["address"].iloc[active])
    ghost = active[~np.isin(addresses, address[last])]
    ghost_size = _bounded(blocks["requested_bytes"].iloc[ghost])[0]
    gone = np.where(ends >= 0, held[ends], NEVER)
    born = np.concatenate((held[starts], np.full(len(orphan), -1), np.full(len(ghost), -1))).astype(
        np.int64
    )
    none = np.full(len(ghost), -1, np.int64)
    stays = _block_at(addresses, active, address[starts], ends < 0)
    return Pieces(
        born,
        np.concatenate((gone, held[orphan], np.full(len(ghost), NEVER))).astype(np.int64),
        np.concatenate((address[starts], address[orphan], ints(blocks["address"].iloc[ghost]))),
        np.concatenate((size[starts], size[orphan], ghost_size)),
        np.concatenate((rows[held[starts]], np.full(len(orphan), -1), none)).astype(np.int64),
        np.concatenate(
            (np.where(ends >= 0, rows[held[ends]], -1), rows[held[orphan]], none)
        ).astype(np.int64),
        np.concatenate((stays, np.full(len(orphan), -1), ghost)).astype(np.int64),
    )


def paired(address: Ints, begins: Mask) -> tuple[Ints, Ints, Ints, Ints]:
    """Of entries in order that begin or end something at an address: (begins, its end or -1, ends alone, last begins).

    What begins lasts until the end that comes next at its address; `last` are those that nothing follows.
    """
    order = stable_order(address)
    where, opened = address[order], begins[order]
    follows = np.append(False, where[1:] == where[:-1])[: len(order)]
    closes = follows & ~opened & np.append(False, opened[:-1])[: len(order)]
    partner = np.full(len(order), -1, np.int64)
    partner[closes.nonzero()[0] - 1] = order[closes]
    is_last = np.append(~follows[1:], True)[: len(order)]
    return order[opened], partner[opened], order[~opened & ~closes], order[opened & is_last]


def _block_at(at: Ints, active: Ints, address: Ints, kept: Mask) -> Ints:
    """For each address that was kept, the row of the block in use there; -1 for none."""
    if not len(at):
        return np.full(len(address), -1, np.int64)
    order = np.argsort(at, kind="stable")
    place = np.minimum(np.searchsorted(at[order], address), len(at) - 1)
    blocks_at = active[order][place]
    return np.where(kept & (at[order][place] == address), blocks_at, -1)


def _reserved(trace: Trace, segments: Ints, got: Ints) -> Ints | None:
    """What was reserved after each entry: that of the end less what came later."""
    if not has_segments(trace):
        return None
    size = _bounded(trace["memory_segments"]["size_bytes"].iloc[segments])[0]
    if float(size.sum(dtype=np.float64)) > 2.0**62:
        return None
    reserved: Ints = int(size.sum()) - int(got.sum()) + np.cumsum(got)
    return reserved if not len(reserved) or int(reserved.min()) >= 0 else None


def _times(column: pd.Series[Any]) -> tuple[Ints, bool]:
    """(the time of each entry, never going back; whether all were recorded, else they are positions)."""
    if not len(column) or column.isna().any():
        return np.arange(len(column), dtype=np.int64), False
    times: Ints = np.maximum.accumulate(column.to_numpy(np.int64))
    return times, True


def _bounded(column: pd.Series[Any]) -> tuple[Ints, Mask]:
    """(bytes, 0 where unknown or impossible; which are known)."""
    size = column.to_numpy(np.int64, na_value=-1)
    is_plausible = (size >= 0) & (size < MAX_BYTES)
    return np.where(is_plausible, size, 0), is_plausible


def ints(column: pd.Series[Any]) -> Ints:
    """The numbers of a column, 0 where unknown."""
    whole_numbers: Ints = column.to_numpy(np.int64, na_value=0)
    return whole_numbers
