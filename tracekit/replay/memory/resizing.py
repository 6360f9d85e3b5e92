"""Sizes of the memory before a history, changed: its segments are laid out again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracekit.process.memory.allocator.plain import ALLOC, BEGINS, EXPANDABLE
from tracekit.process.memory.allocator.rules import compute_segment_bytes, round_requests
from tracekit.process.memory.allocator.run import OP, OWNER, SIZE, AllocatorProgram
from tracekit.replay.changes import ChangeError

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def scale_owners(program: AllocatorProgram, owners: Mask, factor: float) -> AllocatorProgram:
    """Scale the memory of the marked owners: their requests, and their blocks before the history."""
    ops = program.ops.copy()
    touched = (ops[:, OP] == ALLOC) & owners[np.minimum(ops[:, OWNER], program.owners - 1)]
    ops[touched, SIZE] = np.maximum(np.ceil(ops[touched, SIZE] * factor), 1).astype(np.int64)
    size = program.blocks[:, 1]
    is_touched = mark_touched_blocks(program, owners)
    scaled = round_requests(np.maximum(np.ceil(size * factor), 1).astype(np.int64), program.options.divisions)
    return replace(program, ops=ops, blocks=resize_blocks(program, is_touched, np.where(is_touched, scaled, size)))


def mark_touched_blocks(program: AllocatorProgram, owners: Mask) -> Mask:
    """Mark the blocks before the history that belong to these owners."""
    owner = program.blocks[:, 3]
    return (owner >= 0) & owners[np.maximum(owner, 0)]


def resize_blocks(program: AllocatorProgram, is_touched: Mask, size: Ints) -> Ints:
    """Resize the touched blocks before the history; size 0 removes one.

    Segments whose blocks in use are all touched shrink and grow with them, as if they had been allocated so. In others
    the rest of a block becomes free, and a block cannot grow: `ChangeError`.
    """
    rows = program.blocks
    if not is_touched.any():
        return rows
    starts = ((rows[:, 4] & BEGINS) != 0).nonzero()[0]
    ends = np.append(starts[1:], len(rows))
    number = np.cumsum((rows[:, 4] & BEGINS) != 0) - 1
    parts: list[Ints] = []
    done = 0
    for segment in np.unique(number[is_touched]).tolist():
        first, last = int(starts[segment]), int(ends[segment])
        parts.append(rows[done:first])
        parts.append(_resize_segment(rows[first:last], is_touched[first:last], size[first:last]))
        done = last
    return np.concatenate([*parts, rows[done:]])


def _resize_segment(rows: Ints, is_touched: Mask, size: Ints) -> Ints:
    is_used = rows[:, 3] >= 0
    if (is_touched == is_used).all() and not (rows[:, 4] & EXPANDABLE).any():
        return _pack_segment(rows, is_used, size)
    if (size > rows[:, 1]).any():
        raise ChangeError("memory from before the history shares its segments with other memory, and cannot grow")
    kept = []
    for row, new in zip(rows.tolist(), size.tolist(), strict=True):
        address, old, shelf, owner, flags = row
        if new:
            kept.append([address, new, shelf, owner, flags])
        if new < old:
            kept.append([address + new, old - new, shelf, -1, flags & ~BEGINS if new else flags])
    return _merge_free_blocks(np.array(kept, np.int64))


def _merge_free_blocks(rows: Ints) -> Ints:
    """Merge free blocks next to each other, with and without pages apart."""
    is_free = rows[:, 3] < 0
    same = is_free[1:] & is_free[:-1] & (rows[1:, 4] == rows[:-1, 4] & ~BEGINS)
    group = np.cumsum(np.append(True, ~same)) - 1
    first = np.append(True, ~same).nonzero()[0]
    merged = rows[first].copy()
    merged[:, 1] = np.bincount(group, weights=rows[:, 1]).astype(np.int64)
    return merged


def _pack_segment(rows: Ints, is_used: Mask, size: Ints) -> Ints:
    """Make a segment of its resized blocks alone: as large as the allocator would get for their sum."""
    used, sizes = rows[is_used & (size > 0)], size[is_used & (size > 0)]
    total = int(sizes.sum())
    if not total:
        return rows[:0]
    shelf = int(rows[0, 2])
    # A request above 1 MiB gets a segment of its own size; small blocks share segments of 2 MiB.
    length = max(int(compute_segment_bytes(np.array([total if shelf % 2 else 1]))[0]), total)
    address = int(rows[0, 0]) + np.cumsum(sizes) - sizes
    packed = np.column_stack((address, sizes, used[:, 2], used[:, 3], np.zeros(len(used), np.int64)))
    if length > total:
        packed = np.concatenate((packed, [[int(rows[0, 0]) + total, length - total, shelf, -1, 0]]))
    packed[0, 4] = BEGINS
    return packed.astype(np.int64)
