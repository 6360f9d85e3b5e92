"""Pieces of memory with the times at which they were in use, and a merge of small ones that keeps the peak exact."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

GRIDS = (4_096, 1_024, 256, 64, 16, 4, 1)
"""Numbers of equal parts of the time to which lifetimes of small pieces are cut, the finest first."""


HOLDERS = (
    *("trainer_state", "activations", "other", "weights", "kv_cache"),
    *("regions", "graphs", "communication", "unknown", "pool_cache", "cache"),
)
"""Holders. `pool_cache` and `cache` are reserved and not requested: of pools that may be unmapped, of all others."""

HOLDER_TITLES = (
    *("trainer state", "activations", "other in use", "engine weights", "KV cache"),
    *("paused regions", "CUDA graphs", "communication", "unknown pools", "unused in engine pools", "cached by PyTorch"),
)
"""Titles of the holders, in their order."""


class HeldPieces(NamedTuple):
    """Pieces by `start`: in use in [start, end), or to the end of the history if `end` is past it.

    `path` is the stack + 1 (0: unknown), `before` is 1 for memory from before the history, `holder` the number of its
    holder, `allocations` how many are in the piece.
    """

    start: Ints
    end: Ints
    size: Ints
    path: Ints
    before: Ints
    holder: Ints
    allocations: Ints


class PieceSelection(NamedTuple):
    """Pieces to show: all allocations of more than `floor` bytes are exact (-1: all), `hidden` ones are not shown."""

    pieces: HeldPieces
    floor: int
    hidden: int

    def count_merged(self) -> int:
        """Count the allocations that are not exact but shown."""
        if self.floor < 0:
            return 0
        is_exact = (self.pieces.allocations == 1) & (self.pieces.size > self.floor)
        return int(self.pieces.allocations[~is_exact].sum())


def select_memory_pieces(selection: PieceSelection, peak: int, span: int, limit: int) -> PieceSelection:
    """Select the largest pieces and merge the others by stack and holder, to at most about `limit` pieces.

    The lifetimes of merged pieces are cut inward to parts of the time, so the bytes in use are never too many. At the
    instant `peak` they are exact. Pieces that do not last for any whole part are hidden.
    """
    pieces = selection.pieces
    if len(pieces.start) <= limit:
        return selection
    key = np.where((pieces.allocations == 1) & (pieces.size > selection.floor), pieces.size, -1)
    order = np.argsort(-key, kind="stable")
    kept, rest = order[: limit // 2], order[limit // 2 :]
    small = HeldPieces(*(column[rest] for column in pieces))
    for parts in GRIDS:
        merged = _merge_pieces(small, _make_time_parts(peak, span, parts))
        if len(merged.start) <= limit - len(kept):
            break
    else:
        merged = _merge_pieces(small._replace(path=np.zeros_like(small.path)), _make_time_parts(peak, span, 1))
    hidden = selection.hidden + int(small.allocations.sum() - merged.allocations.sum())
    columns = [np.concatenate((column[kept], of_merged)) for column, of_merged in zip(pieces, merged, strict=True)]
    by_start = np.argsort(columns[0], kind="stable")
    shown = HeldPieces(*(column[by_start] for column in columns))
    return PieceSelection(shown, max(selection.floor, int(key[rest].max())), hidden)


def _make_time_parts(peak: int, span: int, parts: int) -> Ints:
    """Make the edges of equal parts of the time; the instant of the peak is a part by itself."""
    edges = np.linspace(0, span, parts + 1).astype(np.int64)
    return np.unique(np.concatenate((edges, [peak, peak + 1, span + 1])))


def _merge_pieces(pieces: HeldPieces, grid: Ints) -> HeldPieces:
    """Cut lifetimes inward to the grid and merge pieces of one stack, holder and lifetime."""
    last = len(grid) - 1
    start = grid[np.minimum(np.searchsorted(grid, pieces.start), last)]
    end = grid[np.searchsorted(grid, pieces.end, side="right") - 1]
    lasts = end > start
    keys = (start, end, pieces.path, pieces.before, pieces.holder)
    columns = [column[lasts] for column in (*keys, pieces.size, pieces.allocations)]
    if not lasts.any():
        return HeldPieces(*(column[:0] for column in pieces))
    order = np.lexsort(columns[:5])
    start, end, path, before, holder, size, allocations = (column[order] for column in columns)
    opens = np.ones(len(order), np.bool_)
    for key in (start, end, path, before, holder):
        opens[1:] &= key[1:] == key[:-1]
    opens[1:] = ~opens[1:]
    first = opens.nonzero()[0]
    size, allocations = (np.add.reduceat(column, first) for column in (size, allocations))
    return HeldPieces(start[first], end[first], size, path[first], before[first], holder[first], allocations)
