"""Host rows of the page, shown on demand: the longest recorded rows of all threads with their call paths."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import select_rows
from tracekit.model.tables.keys import find_largest
from tracekit.process.host.tree import HostThreadRows
from tracekit.process.page_blocks.call_paths import add_call_paths, shorten_page_name
from tracekit.process.page_blocks.columns import PageTexts, PathTable

Ints = npt.NDArray[np.int64]

MAX_HOST_ROWS = 20_000
"""Longest host rows of one process that are kept."""


def make_host_columns(host: HostThreadRows, names: PageTexts, paths: PathTable) -> dict[str, Ints]:
    """Make the columns of the longest host rows by thread and start; the paths around them are kept too."""
    recorded = host.recorded.nonzero()[0]
    start = host.axis.times(host.thread, host.begin)
    length = host.end - start
    rows = np.sort(recorded[find_largest(length[recorded], MAX_HOST_ROWS)])
    used = np.zeros(len(host.begin), np.bool_)
    level = rows
    while len(level):
        used[level] = True
        above = host.tree.parent[level]
        above = above[above >= 0]
        level = np.unique(above[~used[above]])
    in_use = used.nonzero()[0]
    parent = host.tree.parent[in_use].astype(np.int64)
    parent = np.where(parent >= 0, np.searchsorted(in_use, parent), -1)
    name = names.add_column(select_rows(host.name, in_use), shorten_page_name)
    path = add_call_paths(parent, name, paths)[np.searchsorted(in_use, rows)]
    return {
        "host.thread": host.thread[rows].astype(np.int64),
        "host.start": start[rows],
        "host.length": length[rows],
        "host.path": path + 1,
        # All rows at least this long are kept.
        "host.cut_ns": np.array([0 if len(rows) == len(recorded) else int(length[rows].min()) + 1]),
    }
