"""Pairing of begin (`B`) and end (`E`) events of an interval, by nesting on their thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def pair_begins_with_ends(
    ts_ns: Ints, thread: npt.NDArray[Any], is_begin: Mask, is_end: Mask, *, is_complete: bool
) -> tuple[Ints, Ints, Ints]:
    """Pair begin and end events: (rows of begins, rows of their ends, durations in ns).

    An end closes the last open begin of its thread. Unless all events were read (`is_complete`), threads
    with unequal counts of the two are left out, because an end may belong to a begin that was not read.
    """
    rows = (is_begin | is_end).nonzero()[0]
    step = np.where(is_begin[rows], 1, -1)
    if not is_complete:
        balance = np.bincount(thread[rows], weights=step)
        whole = balance[thread[rows]] == 0
        rows, step = rows[whole], step[whole]
    order = np.lexsort((ts_ns[rows], thread[rows]))
    rows, step = rows[order], step[order]
    level = np.cumsum(step)
    level[step < 0] += 1
    # On one level of a thread, begins and ends alternate: a begin directly before an end is a pair.
    order = np.lexsort((level, thread[rows]))
    rows, step, level = rows[order], step[order], level[order]
    closes = (step[:-1] > 0) & (step[1:] < 0) & (level[:-1] == level[1:])
    closes &= thread[rows[:-1]] == thread[rows[1:]]
    first = closes.nonzero()[0]
    begins, ends = rows[first], rows[first + 1]
    return begins, ends, ts_ns[ends] - ts_ns[begins]
