"""User code around calls: functions of the program and its libraries, as opposed to those of Python and torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import Coded
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import CallTree, find_last_reaching, sort_by_start
from tracekit.process.calls.segments import ThreadAxis
from tracekit.process.host.tree import mark_window_rows
from tracekit.process.memory.site_grades import MACHINERY, PROFILED, grade_frame_file
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names

Ints = npt.NDArray[np.int64]

_STANDARD = (
    *("threading", "queue", "selectors", "socket", "contextlib", "functools", "runpy", "enum", "abc", "typing"),
    *("collections", "multiprocessing", "concurrent", "asyncio", "importlib", "logging", "copy", "re", "json"),
)
"""Modules of Python's standard library, whose paths profilers cut off."""


def is_user_code_frame(frame: str) -> bool:
    """Check whether a frame is user code: of the program or its libraries, not of Python, torch or a builtin.

    >>> is_user_code_frame("train.py(3): step"), is_user_code_frame("torch/optim/adam.py(3): step"), is_user_code_frame("queue.py(3): get")
    (True, False, False)
    """
    match = PROFILED.fullmatch(frame)
    if match is None or match[1].startswith("<"):
        return False
    module = match[1].lstrip("/").partition("/")[0].removesuffix(".py")
    return grade_frame_file(match[1]) != MACHINERY and module not in _STANDARD and match[3] != "<module>"


def find_user_code_around(trace: Trace, rows: Ints) -> Coded:
    """Find the innermost user function around each of these rows of `host_ops`, else the innermost range.

    The ranges of steps and stages do not count.
    """
    names = trace.texts("host_ops", "name")
    start, dur = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
    thread = trace.numbers("host_ops", "thread")[rows].astype(np.int64)
    # Clocks of functions and of calls differ by up to a microsecond.
    middle = start + dur // 2
    functions = trace.texts("python_calls", "name")
    function = _find_innermost_rows_of_table(
        trace, "python_calls", mark_wanted_names(functions, is_user_code_frame).nonzero()[0], thread, middle
    )
    ranges = (mark_rows_of_kind(trace, "host_ops", "range") & (mark_window_rows(trace) == 0)).nonzero()[0]
    in_range = _find_innermost_rows_of_table(trace, "host_ops", ranges, thread, middle)
    count = len(functions.texts)
    codes = np.append(names.codes.astype(np.int64), -1)[in_range]
    codes[codes >= 0] += count
    called = function >= 0
    codes[called] = functions.codes[function[called]]
    return Coded(codes, (*functions.texts, *names.texts))


def _find_innermost_rows_of_table(trace: Trace, table: str, rows: Ints, thread: Ints, ts_ns: Ints) -> Ints:
    """Find which of these rows of a table began last on a thread and still runs, at each instant; -1 for none."""
    if not len(rows):
        return np.full(len(ts_ns), -1, np.int64)
    start, dur, of_row = (trace.numbers(table, name)[rows] for name in ("ts_ns", "dur_ns", "thread"))
    order = sort_by_start(of_row, start, start + dur)
    start, end, of_row = start[order], (start + dur)[order], of_row[order].astype(np.int64)
    axis = ThreadAxis.build((start, end), int(max(of_row.max(), thread.max(initial=0))))
    begin, until = axis.lift(of_row, start), axis.lift(of_row, end)
    # An enclosing row outlasts the inner one, as in the tree of host rows.
    parent = find_last_reaching(np.maximum(begin, until - 1), until)
    tree = CallTree(parent, np.arange(len(order)))
    place = np.searchsorted(begin, axis.lift(thread, ts_ns), side="right") - 1
    place[(place >= 0) & (of_row[place] != thread)] = -1
    found = tree.running(place, end, ts_ns)
    return np.where(found >= 0, rows[order[found]], -1)
