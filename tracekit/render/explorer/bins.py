"""Bins of the page: the time of each row by class of work, in equal parts of the whole time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.render.explorer.processes import ExplorerRows, PageRow

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LEAST_BINS, MOST_BINS = 1_024, 65_536
BYTES_OF_BINS = 0.1
"""Share of the budget from which the number of bins follows, before they are compressed."""

FIRST_CAUSE = 5
"""State of a timeline that is the first cause of idle time; 0 is unknown, 1 to 4 are compute, communication, copies, fills."""


@dataclass(frozen=True, slots=True)
class PageBins:
    """Number and width (ns) of the bins of all rows."""

    count: int
    width: int


def choose_bins(rows: ExplorerRows, budget_bytes: int) -> PageBins:
    """Choose the number of bins, a power of two: by budget, but no more than four per stretch of the busiest row."""
    most = max((int(row.process.data.numbers["row.stretches"].max()) for row in rows.rows), default=1)
    room = int(budget_bytes * BYTES_OF_BINS) // max(len(rows.rows), 1)
    count = max(LEAST_BINS, min(MOST_BINS, 1 << room.bit_length() - 1 if room else 1, 1 << (4 * most).bit_length()))
    return PageBins(count, -(-rows.span_ns // count))


def iterate_bin_planes(rows: ExplorerRows, bins: PageBins) -> Iterator[Bytes]:
    """Make the planes of each row: compute, exposed communication, exposed copies, all communication, main idle cause + 1."""
    for row in rows.rows:
        states = sum_states(row, bins)
        parts = (states[:, 1], states[:, 2], states[:, 3] + states[:, 4], _measure_communication(row, bins))
        for part in parts:
            yield np.round(part * (255 / bins.width)).astype(np.uint8)
        causes = states[:, FIRST_CAUSE:]
        main = causes.argmax(1) + 1 if causes.shape[1] else np.zeros(bins.count, np.int64)
        yield np.where(causes.any(1), main, 0).astype(np.uint8)


def sum_states(row: PageRow, bins: PageBins) -> npt.NDArray[np.float64]:
    """Sum the time of each state of the timeline of a row, by bin (exact: below 2**53)."""
    start = row.read_times("stretches", "timeline.start")
    state = row.read_part("stretches", "timeline.state")
    first, last = int(start[0]) // bins.width, -(-int(start[-1]) // bins.width)
    edges = np.arange(first, last + 1, dtype=np.int64) * bins.width
    points = np.sort(np.concatenate((start, edges)), kind="stable")
    stretch = np.searchsorted(start, points, side="right") - 1
    states = np.where(stretch >= 0, state[stretch], 0)
    length = np.diff(points)
    count = max(int(state.max()) + 1, FIRST_CAUSE)
    key = np.clip(points[:-1] // bins.width, 0, bins.count - 1) * count + states[:-1]
    sums: npt.NDArray[np.float64] = np.bincount(key, length, bins.count * count).astype(np.float64)
    return sums.reshape(bins.count, count)


def _measure_communication(row: PageRow, bins: PageBins) -> npt.NDArray[np.float64]:
    """Measure how much of each bin any communication covers."""
    start, length = row.read_times("comm", "comm.start"), row.read_part("comm", "comm.length")
    if not len(start):
        return np.zeros(bins.count)
    edges = np.arange(bins.count + 1, dtype=np.int64) * bins.width
    place = np.searchsorted(start, edges, side="right") - 1
    before = np.cumsum(length) - length
    inside = np.clip(edges - start[place], 0, length[place])
    covered: npt.NDArray[np.float64] = np.diff(np.where(place >= 0, before[place] + inside, 0)).astype(np.float64)
    return covered
