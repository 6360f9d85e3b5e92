"""Recorded collections of Python's garbage collector; all threads that run Python stop during one."""

from __future__ import annotations

import re

import numpy as np

from tracekit.model.intervals import Intervals, merge_intervals
from tracekit.model.trace import Trace
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names

COLLECTION = re.compile(r"\bgc\b|\bpython_gc\b|garbage.?collect", re.IGNORECASE)
"""Names of ranges around a collection: a program's own, `gc gen2`, and `python_gc` of `gc.callbacks`."""

COLLECTION_ROW = re.compile(r"Python GC\Z|<built-in (?:function|method) collect\b")
"""Names of Python functions that collect: the rows of `record_python_gc_info`, and manual calls of `gc.collect()`."""


def find_garbage_collections(trace: Trace) -> Intervals:
    """Find when any recorded collection runs; overlapping records count once."""
    is_range = mark_wanted_names(trace.texts("host_ops", "name"), COLLECTION.search)
    is_range &= mark_rows_of_kind(trace, "host_ops", "range", "op", "other")
    is_row = mark_wanted_names(trace.texts("python_calls", "name"), COLLECTION_ROW.match)
    starts, ends = [], []
    for table, chosen in (("host_ops", is_range), ("python_calls", is_row)):
        rows = chosen.nonzero()[0]
        start = trace.numbers(table, "ts_ns")[rows]
        starts.append(start)
        ends.append(start + trace.numbers(table, "dur_ns")[rows])
    return merge_intervals(np.concatenate(starts), np.concatenate(ends))
