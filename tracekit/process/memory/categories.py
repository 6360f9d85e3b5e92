"""Memory timeline by category: the total over all categories at each time, and each category at chosen times."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import fill_missing
from tracekit.model.tables.snapshots import CATEGORIES
from tracekit.model.trace import Trace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CategoryMoments:
    """Totals after each time of a change; the first is the total before the recording.

    `row` is the last row of `memory_categories` at that time, -1 before all; `total` the sum over categories.
    The first moment has the time of the second.
    """

    row: Ints
    ts_ns: Ints
    total: Ints

    def peak(self) -> int:
        """Find the first moment with the highest total; 0 is before the recording."""
        return int(self.total.argmax())


def compute_category_moments(trace: Trace) -> CategoryMoments:
    """Compute the moments of a timeline with at least one change."""
    ts = fill_missing(trace.nullable("memory_categories", "ts_ns"), -1)
    total = np.cumsum(trace.numbers("memory_categories", "change_bytes"))
    last = np.append(ts[1:] != ts[:-1], True)[: len(ts)].nonzero()[0]
    if ts[0] >= 0:
        last = np.append(-1, last)
    when = ts[last]
    when[0] = ts[last[1]] if len(last) > 1 else -1
    return CategoryMoments(last, when, np.where(last < 0, 0, total[last]))


def compute_category_levels(trace: Trace, row_numbers: Ints) -> Ints:
    """Compute the level of each category after each of these rows (-1: before all): array of rows × categories."""
    code = trace.texts("memory_categories", "category").codes
    level = trace.numbers("memory_categories", "level_bytes")
    by_category = np.zeros((len(row_numbers), len(CATEGORIES)), np.int64)
    for category in range(len(CATEGORIES)):
        of_category = (code == category).nonzero()[0]
        seen = np.searchsorted(of_category, row_numbers, side="right")
        by_category[:, category] = np.append(0, level[of_category])[seen]
    return by_category


def find_peak_per_bin(all_moments: CategoryMoments, points: int) -> tuple[Ints, Ints, Ints]:
    """Find the peak of each of at most `points` equal bins of time: (start, length, moment of the peak).

    The level at the start of a bin counts for it. A timeline without duration has no bins.
    """
    if len(all_moments.row) < 2:
        none = np.empty(0, np.int64)
        return none, none, none
    begin, span = int(all_moments.ts_ns[1]), int(all_moments.ts_ns[-1] - all_moments.ts_ns[1]) + 1
    width = -(-span // points)
    start = begin + width * np.arange(-(-span // width), dtype=np.int64)
    number = (all_moments.ts_ns[1:] - begin) // width
    order = np.lexsort((np.arange(len(number)), -all_moments.total[1:], number))
    first = np.diff(number[order], prepend=-1).nonzero()[0]
    # The moment before a bin lasts until the first moment of the bin.
    chosen = np.searchsorted(all_moments.ts_ns[1:], start, side="left")
    own_row = order[first] + 1
    stretch = number[order[first]]
    higher = all_moments.total[own_row] >= all_moments.total[chosen[stretch]]
    chosen[stretch[higher]] = own_row[higher]
    return start, np.full(len(start), width, np.int64), chosen
