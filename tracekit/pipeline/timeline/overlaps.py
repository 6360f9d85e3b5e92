"""Rows of one track that overlap without nesting, which viewers draw wrongly: they move to further tracks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.sweeps import find_parents

Ints = npt.NDArray[np.int64]


def assign_nesting_tracks(track: Ints, start: Ints, length: Ints) -> Ints:
    """Assign each row 0, or the number of a further track, such that the rows of every track nest.

    Two rows nest if one contains the other, or one ends before the other begins. Of two rows that do not, the later moves.

    >>> assign_nesting_tracks(np.array([0, 0, 0, 0]), np.array([0, 2, 5, 9]), np.array([10, 2, 10, 9])).tolist()
    [0, 0, 1, 2]
    """
    further = np.zeros(len(track), np.int64)
    length = np.maximum(length, 0)
    rows = np.lexsort((-length, start, track))
    crossing: list[Ints] = []
    while len(rows):
        is_crossing = _mark_crossing_rows(rows, track, start, length)
        if not is_crossing.any():
            break
        crossing.append(rows[is_crossing])
        rows = rows[~is_crossing]
    if crossing:
        moved = np.concatenate(crossing)
        _assign_first_fit(
            moved[np.lexsort((-length[moved], start[moved], track[moved]))], track, start, length, further
        )
    return further


def _mark_crossing_rows(rows: Ints, track: Ints, start: Ints, length: Ints) -> npt.NDArray[np.bool_]:
    """Mark rows that outlast an earlier row of their track that runs when they begin."""
    around = find_parents(rows, track, start, length)[rows]
    end = start + length
    crossing: npt.NDArray[np.bool_] = (around >= 0) & (end[around] < end[rows])
    return crossing


def _assign_first_fit(rows: Ints, track: Ints, start: Ints, length: Ints, further: Ints) -> None:
    """Assign the few crossing rows, in order of track and start, to the first further track where they nest."""
    open_ends: list[list[int]] = []
    last = -1
    columns = zip(rows.tolist(), track[rows].tolist(), start[rows].tolist(), length[rows].tolist(), strict=True)
    for row, of_track, begin, duration in columns:
        if of_track != last:
            open_ends, last = [], of_track
        number = next((place for place, ends in enumerate(open_ends) if _fits(ends, begin, begin + duration)), -1)
        if number < 0:
            number = len(open_ends)
            open_ends.append([])
        open_ends[number].append(begin + duration)
        further[row] = number + 1


def _fits(open_ends: list[int], begin: int, end: int) -> bool:
    """Check whether a row nests in the rows of a track that run when it begins, and drop those that do not."""
    while open_ends and open_ends[-1] <= begin:
        open_ends.pop()
    return not open_ends or end <= open_ends[-1]
