"""Memory at the beginning of a history: segments and blocks, wound back from those at its end.

Blocks that are free next to each other are always merged, so the blocks in use determine the free ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.process.memory.allocator.plain import BEGINS, EXPANDABLE, UNMAPPED
from tracekit.process.memory.allocator.rules import ADDRESS_SPACE, SEGMENT_STEP

Ints = npt.NDArray[np.int64]


class UnreplayableError(Exception):
    """A history that cannot be replayed, with the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentRanges:
    """Ranges of addresses that an allocator had from the driver, each with its shelf; 1 in `expandable` if it can grow."""

    address: Ints
    size: Ints
    shelf: Ints
    expandable: Ints

    def select(self, rows: Ints) -> SegmentRanges:
        """Select rows."""
        return SegmentRanges(self.address[rows], self.size[rows], self.shelf[rows], self.expandable[rows])


@dataclass(frozen=True, slots=True, eq=False)
class SegmentMoves:
    """Segments or pages got (`is_gain`) and given back in the history, in order."""

    address: Ints
    size: Ints
    shelf: Ints
    is_gain: npt.NDArray[np.bool_]
    is_page: npt.NDArray[np.bool_]


def wind_back_segments(ranges: SegmentRanges, moves: SegmentMoves) -> SegmentRanges:
    """Find the ranges at the beginning from those at the end and the moves. Raises `UnreplayableError`."""
    grows = ranges.expandable != 0
    whole = ranges.select((~grows).nonzero()[0])
    # Of a segment with several moves at its address, the first tells whether it was there before.
    at = (~moves.is_page).nonzero()[0]
    _, first = np.unique(moves.address[at], return_index=True)
    first = at[first]
    earlier = first[~moves.is_gain[first]]
    kept = (~np.isin(whole.address, moves.address[at])).nonzero()[0]
    parts = [
        whole.select(kept),
        SegmentRanges(
            moves.address[earlier], moves.size[earlier], moves.shelf[earlier], np.zeros(len(earlier), np.int64)
        ),
        _wind_back_pages(ranges.select(grows.nonzero()[0]), moves),
    ]
    joined = SegmentRanges(
        np.concatenate([part.address for part in parts]),
        np.concatenate([part.size for part in parts]),
        np.concatenate([part.shelf for part in parts]),
        np.concatenate([part.expandable for part in parts]),
    )
    return joined.select(np.argsort(joined.address, kind="stable"))


def _wind_back_pages(ranges: SegmentRanges, moves: SegmentMoves) -> SegmentRanges:
    """Wind back the mapped ranges of expandable segments."""
    of_pages = moves.is_page.nonzero()[0]
    if ((np.concatenate((ranges.address, moves.address[of_pages])) % SEGMENT_STEP) != 0).any():
        raise UnreplayableError("pages of expandable segments are not at multiples of 2 MiB")
    mapped: dict[int, int] = {}
    for address, size, shelf in zip(ranges.address.tolist(), ranges.size.tolist(), ranges.shelf.tolist(), strict=True):
        mapped.update(dict.fromkeys(range(address // SEGMENT_STEP, (address + size) // SEGMENT_STEP), shelf))
    for move in of_pages[::-1].tolist():
        first, size = int(moves.address[move]) // SEGMENT_STEP, int(moves.size[move]) // SEGMENT_STEP
        for page in range(first, first + size):
            if moves.is_gain[move]:
                mapped.pop(page, None)
            else:
                mapped[page] = int(moves.shelf[move])
    pages = np.array(sorted(mapped), np.int64)
    shelf = np.array([mapped[page] for page in pages.tolist()], np.int64)
    starts = (np.append(True, (np.diff(pages) != 1) | (np.diff(shelf) != 0))[: len(pages)]).nonzero()[0]
    counts = np.diff(np.append(starts, len(pages)))
    return SegmentRanges(
        pages[starts] * SEGMENT_STEP, counts * SEGMENT_STEP, shelf[starts], np.ones(len(starts), np.int64)
    )


def add_unmapped_ranges(ranges: SegmentRanges, lowest: dict[int, int]) -> tuple[SegmentRanges, Ints]:
    """Add the unmapped addresses of expandable segments: (ranges by segment, flags of each).

    `lowest` is the lowest address of the expandable segment of a shelf; a shelf has one at most.
    """
    rows: list[tuple[int, int, int, int, int]] = [
        (address, size, shelf, 0, BEGINS)
        for address, size, shelf, grows in zip(
            *(column.tolist() for column in (ranges.address, ranges.size, ranges.shelf, ranges.expandable)), strict=True
        )
        if not grows
    ]
    grows = ranges.expandable != 0
    for shelf in np.unique(ranges.shelf[grows]).tolist():
        at = (grows & (ranges.shelf == shelf)).nonzero()[0]
        base = end = min(lowest.get(shelf, 2**63), int(ranges.address[at[0]]))
        for address, size in zip(ranges.address[at].tolist(), ranges.size[at].tolist(), strict=True):
            if address > end:
                rows.append((end, address - end, shelf, 1, EXPANDABLE | UNMAPPED | (BEGINS if end == base else 0)))
            rows.append((address, size, shelf, 1, EXPANDABLE | (BEGINS if address == base else 0)))
            end = address + size
        rows.append((end, ADDRESS_SPACE, shelf, 1, EXPANDABLE | UNMAPPED))
    table = np.array(rows, np.int64).reshape(-1, 5)
    return SegmentRanges(table[:, 0], table[:, 1], table[:, 2], table[:, 3]), table[:, 4]


def lay_out_blocks(ranges: SegmentRanges, flags: Ints, address: Ints, size: Ints, owner: Ints) -> Ints:
    """Lay out the blocks in use, and the free ones between them: rows of `AllocatorProgram.blocks`.

    Raises `UnreplayableError` for blocks outside all segments, or over one another.
    """
    by_address = np.argsort(ranges.address, kind="stable")
    place = np.searchsorted(ranges.address[by_address], address, side="right") - 1
    if len(address) and (not len(by_address) or (place < 0).any()):
        raise UnreplayableError("blocks from before the history lie outside all segments")
    within = by_address[place] if len(address) else np.empty(0, np.int64)
    order = np.lexsort((address, within))
    within, address, size, owner = within[order], address[order], size[order], owner[order]
    end = address + size
    is_first = np.append(True, within[1:] != within[:-1])[: len(within)]
    before = np.where(is_first, ranges.address[within], np.append(0, end[:-1])[: len(end)])
    if (address < before).any() or (end > (ranges.address + ranges.size)[within]).any():
        raise UnreplayableError("blocks from before the history lie over one another")
    if (flags[within] & UNMAPPED).any():
        raise UnreplayableError("blocks from before the history are at unmapped addresses")
    last = ranges.address.copy()
    last[within] = end  # the last one of each segment stays
    rows = [
        _stack_columns(within, before, address - before, -np.ones(len(within), np.int64)),
        _stack_columns(within, address, size, owner),
        _stack_columns(np.arange(len(last)), last, ranges.address + ranges.size - last, -np.ones(len(last), np.int64)),
    ]
    table = np.concatenate(rows)
    table = table[table[:, 2] > 0]
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    number = table[:, 0]
    starts = np.append(True, number[1:] != number[:-1])[: len(number)]
    table_flags = flags[number] & ~np.where(starts, 0, BEGINS)
    return np.column_stack((table[:, 1], table[:, 2], ranges.shelf[number], table[:, 3], table_flags)).astype(np.int64)


def _stack_columns(number: Ints, address: Ints, size: Ints, owner: Ints) -> Ints:
    return np.column_stack((number, address, size, owner)).astype(np.int64)
