"""Checks of the page data of a process that was stored: every number in it has a meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.memory_pieces import HOLDERS
from tracekit.model.inputs.page_blocks import DamagedPageError, Numbers, PageBlocks
from tracekit.model.tables.slots import PAGE_CAUSES

Ints = npt.NDArray[np.int64]

MOST_NS = 2**60
"""Longest time on a page, and the largest sum of times and counts of one column."""

STATES = 5 + len(PAGE_CAUSES)
"""States of a timeline: none, four classes of work, the causes of idle time."""

KINDS = 3
MERGE_LEVELS = 9

PARTS = {
    "lanes": ("lane.kind", "lane.number"),
    "ranges": ("range.start", "range.length", "range.name", "range.depth", "range.step"),
    "kernels": (
        *("kernel.cell", "kernel.lane", "kernel.start", "kernel.length", "kernel.name", "kernel.path"),
        *("kernel.stage", "kernel.delay", "kernel.merge"),
    ),
    "sums": ("sum.step", "sum.range", "sum.path", "sum.name", "sum.kind", "sum.count", "sum.ns"),
    "stretches": ("timeline.start", "timeline.state"),
    "comm": ("comm.start", "comm.length"),
    "curves": ("curve.start", "curve.allocated", "curve.reserved"),
}
"""Columns of the groups that are divided among rows; `row.GROUP` is the size of the part of each row."""

TABLES_OF_PAGE = {
    "row": ("kind", "device", "thread", *PARTS),
    "step": ("row", "number", "start", "length", "compute", "communication", "memcpy", "memset", "idle"),
    "gap": ("row", "start", "length", "before", "after", "segments"),
    "segment": ("length", "cause", "path"),
    "path": ("parent", "name"),
    "host": ("thread", "start", "length", "path"),
    "snapshot": ("host", "device", "timed", "start", "span", "peak", "peak_time", "pieces", "floor", "hidden", "shown"),
    "piece": ("start", "life", "size", "path", "before", "holder", "more"),
}
"""Columns of equal length, by prefix."""

SINGLE = {"gap.dropped": 2, "host.cut_ns": 1}
"""Columns of a fixed length."""

_ORDERED_PARTS = {"stretches": "timeline", "curves": "curve", "comm": "comm"}
_NEEDED = ("row.kind", "path.parent", "step.row")
_NEEDED_OF_MEMORY = ("snapshot.shown", "piece.start", "path.parent")


def check_page_blocks(blocks: PageBlocks) -> None:
    """Check all columns that a page is written from. Raises `DamagedPageError`."""
    if not blocks.numbers:
        return
    columns = _CheckedColumns(blocks.numbers)
    for name in _NEEDED_OF_MEMORY if columns.has("snapshot.shown") else _NEEDED:
        columns.require(name)
    _check_lengths(columns)
    _check_sizes(columns)
    _check_references(columns, len(blocks.names), len(blocks.threads))
    _check_order(columns)


class _CheckedColumns:
    """Columns as signed integers, none beyond the limits."""

    def __init__(self, numbers: Any) -> None:
        self._numbers: dict[str, Numbers] = dict(numbers)
        self._cast: dict[str, Ints] = {}

    def require(self, name: str) -> None:
        """Raise `DamagedPageError` if a column is missing."""
        if name not in self._numbers:
            raise DamagedPageError(f"{name}: missing")

    def has(self, name: str) -> bool:
        """Whether there is a column of this name."""
        return name in self._numbers

    def read(self, name: str) -> Ints:
        """Read a column; empty without it. Raises `DamagedPageError` if its sum is beyond the limit."""
        if name not in self._cast:
            values = self._numbers.get(name)
            if values is None:
                return np.empty(0, np.int64)
            is_time = name.endswith((".start", ".life"))
            largest = float(values.max(initial=0)) if is_time else float(values.astype(np.float64).sum())
            if largest >= (MOST_NS if is_time else 2 * MOST_NS):
                raise DamagedPageError(f"{name}: beyond all limits")
            self._cast[name] = values.astype(np.int64)
        return self._cast[name]

    def check_below(self, name: str, limit: int | Ints) -> None:
        """Raise `DamagedPageError` if a value is not below its limit."""
        if (self.read(name) >= limit).any():
            raise DamagedPageError(f"{name}: a value outside its range")


def _check_lengths(columns: _CheckedColumns) -> None:
    """Check that columns of one table have one length."""
    for prefix, names in TABLES_OF_PAGE.items():
        every = [f"{prefix}.{name}" for name in names]
        if any(map(columns.has, every)) and len({len(columns.read(name)) for name in every}) != 1:
            raise DamagedPageError(f"{prefix}: columns of several lengths")
    for name, length in SINGLE.items():
        if columns.has(name) and len(columns.read(name)) != length:
            raise DamagedPageError(f"{name}: not {length} values")
    if columns.has("gap.row"):
        columns.require("gap.dropped")
    if columns.has("host.thread"):
        columns.require("host.cut_ns")


def _check_sizes(columns: _CheckedColumns) -> None:
    """Check that the parts of rows and gaps are as many as there are values."""
    for group, names in PARTS.items():
        total = int(columns.read(f"row.{group}").sum())
        for name in names:
            if len(columns.read(name)) != total:
                raise DamagedPageError(f"{name}: not the parts of all rows")
    if int(columns.read("gap.segments").sum()) != len(columns.read("segment.length")):
        raise DamagedPageError("segment: not those of all gaps")
    if int(columns.read("snapshot.shown").sum()) != len(columns.read("piece.start")):
        raise DamagedPageError("piece: not those of all memories")
    if (columns.read("row.stretches") < 1).any():
        raise DamagedPageError("timeline: a row without one")


def _check_references(columns: _CheckedColumns, names: int, threads: int) -> None:
    """Check that numbers of rows, names, paths, steps, lanes and ranges exist."""
    rows, paths = len(columns.read("row.kind")), len(columns.read("path.name"))
    ranges = columns.read("row.ranges")
    columns.check_below("step.row", rows)
    steps = np.bincount(columns.read("step.row"), minlength=rows)
    limits: dict[str, int | Ints] = {
        "row.kind": 3,
        "row.thread": threads + 1,
        "gap.row": rows,
        "lane.kind": KINDS,
        "range.depth": 2,
        "kernel.merge": MERGE_LEVELS,
        "sum.kind": KINDS,
        "sum.range": int(ranges.sum()) + 1,
        "timeline.state": STATES,
        "segment.cause": len(PAGE_CAUSES),
        "host.thread": threads,
        "range.step": np.repeat(steps + 1, ranges),
        "kernel.cell": np.repeat(steps + 1, columns.read("row.kernels")),
        "kernel.lane": np.repeat(columns.read("row.lanes"), columns.read("row.kernels")),
        "kernel.stage": np.repeat(ranges + 1, columns.read("row.kernels")),
        "sum.step": np.repeat(steps + 1, columns.read("row.sums")),
        "path.parent": np.arange(1, paths + 1),
    }
    limits |= dict.fromkeys(("range.name", "kernel.name", "sum.name", "path.name"), names)
    limits |= dict.fromkeys(("gap.before", "gap.after"), names + 1)
    limits |= dict.fromkeys(("kernel.path", "sum.path", "segment.path", "host.path", "piece.path"), paths + 1)
    span = columns.read("snapshot.span")
    limits |= {"piece.start": np.repeat(span + 1, columns.read("snapshot.shown")), "snapshot.peak_time": span + 1}
    limits |= dict.fromkeys(("snapshot.host", "snapshot.timed", "piece.before"), 2) | {"piece.holder": len(HOLDERS)}
    for name, limit in limits.items():
        columns.check_below(name, limit)


def _check_order(columns: _CheckedColumns) -> None:
    """Check that instants ascend within the parts of rows."""
    sizes = {f"row.{group}": f"{name}.start" for group, name in _ORDERED_PARTS.items()}
    for group, name in {**sizes, "snapshot.shown": "piece.start"}.items():
        begins = np.cumsum(columns.read(group))[:-1]
        falls = np.flatnonzero(np.diff(columns.read(name)) < 0) + 1
        if not np.isin(falls, begins).all():
            raise DamagedPageError(f"{name}: times that go back")
