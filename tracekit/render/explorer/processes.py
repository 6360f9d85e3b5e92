"""Processes and rows of the page: their data from the workers, on one clock and in one order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.report import Report
from tracekit.render.explorer.inputs.process_files import FileLabels, ProcessData, find_time_bounds, merge_process_files
from tracekit.render.explorer.report_values import RankTable, read_rank_table

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]


_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PageProcess:
    """One process on the clock of the page: `shift_ns` from its times to those of the page."""

    number: int
    data: ProcessData
    shift_ns: int

    def read_column(self, name: str) -> Ints:
        """Read a column; empty if the process has none of this name."""
        column = self.data.numbers.get(name)
        return _NONE if column is None else column.astype(np.int64)

    def read_times(self, name: str) -> Ints:
        """Read a column of instants, from the begin of the page."""
        return self.read_column(name) + self.shift_ns


class JoinedColumns:
    """Columns of several processes, joined in their order when first read."""

    def __init__(self, processes: Sequence[PageProcess]) -> None:
        self.processes = processes
        self._joined: dict[str, tuple[Ints, Ints]] = {}

    def read(self, name: str) -> Ints:
        """Read a column of all processes."""
        return self._join(name)[0]

    def count(self, name: str) -> Ints:
        """Count the values of each process in a column."""
        return self._join(name)[1]

    def _join(self, name: str) -> tuple[Ints, Ints]:
        """Join a column: (values, number of those of each process)."""
        if name not in self._joined:
            parts = [process.data.numbers.get(name, _NONE) for process in self.processes]
            sizes = np.array([len(part) for part in parts], np.int64)
            self._joined[name] = np.concatenate((_NONE, *parts), dtype=np.int64, casting="unsafe"), sizes
        return self._joined[name]

    def repeat(self, values: Sequence[int] | Ints, name: str) -> Ints:
        """Repeat the value of each process for each of its values in a column."""
        return np.repeat(np.asarray(values, np.int64), self.count(name))

    def read_times(self, name: str) -> Ints:
        """Read a column of instants, from the begin of the page."""
        return self.read(name) + self.repeat([process.shift_ns for process in self.processes], name)

    def look_up(self, tables: Sequence[Ints], name: str) -> Ints:
        """Look up the values of a column, each in the table of its process."""
        ends = np.cumsum([0, *map(len, tables)])
        joined: Ints = np.concatenate((_NONE, *tables))
        places = self.read(name) + self.repeat(ends[: len(self.processes)], name)
        values: Ints = joined[places]
        return values


@dataclass(frozen=True, eq=False)
class PageRow:
    """One row of the page: the position of its part in the columns of its process."""

    process: PageProcess
    row: int

    @cached_property
    def places(self) -> dict[str, slice]:
        """Part of each group of columns that belongs to this row."""
        places = {}
        for group in ("lanes", "ranges", "kernels", "sums", "stretches", "comm", "curves"):
            sizes = self.process.data.numbers[f"row.{group}"]
            first = int(sizes[: self.row].sum())
            places[group] = slice(first, first + int(sizes[self.row]))
        return places

    def read_part(self, group: str, name: str) -> Ints:
        """Read the part of a column that belongs to this row."""
        column = self.process.data.numbers.get(name)
        return _NONE if column is None else column[self.places[group]].astype(np.int64)

    def read_times(self, group: str, name: str) -> Ints:
        """Read the part of a column of instants, from the begin of the page."""
        return self.read_part(group, name) + self.process.shift_ns

    def get_label(self, name: str) -> int | None:
        """Get the device or thread of the row."""
        value = int(self.process.data.numbers[f"row.{name}"][self.row])
        return value - 1 if value else None

    @property
    def kind(self) -> int:
        """Kind of the row: a device, a thread, or the log of a driver."""
        return int(self.process.data.numbers["row.kind"][self.row])


@dataclass(frozen=True, eq=False)
class ExplorerRows:
    """All rows in the order of the page, their processes, and the time that they span: from `begin_ns` on.

    `snapshots` are memory snapshots, which have no rows; their numbers follow those of the processes.
    """

    processes: tuple[PageProcess, ...]
    rows: tuple[PageRow, ...]
    begin_ns: int
    span_ns: int
    snapshots: tuple[PageProcess, ...] = ()

    def is_on_clock(self, source: FileLabels, first_ns: int, last_ns: int) -> bool:
        """Check whether times of a source are on the clock of the page: its process is shown and recorded meanwhile."""
        return any(
            (other.run, other.host, other.role, other.rank) == (source.run, source.host, source.role, source.rank)
            and (None in (other.pid, source.pid) or other.pid == source.pid)
            and first < last_ns
            and last > first_ns
            for other, (first, last) in self._recorded
        )

    @cached_property
    def _recorded(self) -> list[tuple[FileLabels, tuple[int, int]]]:
        """Source and time bounds of each process."""
        return [(process.data.source, find_time_bounds(process.data)) for process in self.processes]

    @cached_property
    def joined(self) -> JoinedColumns:
        """Columns of all processes with rows."""
        return JoinedColumns(self.processes)

    @cached_property
    def positions(self) -> Mapping[tuple[int, int], int]:
        """Position of each row of a process on the page."""
        return {(row.process.number, row.row): place for place, row in enumerate(self.rows)}


def arrange_rows(processes: Sequence[ProcessData], report: Report) -> ExplorerRows:
    """Put the rows of all processes on one clock, in order of run, role, rank and device."""
    with_rows = [data for data in processes if len(data.numbers.get("row.kind", ()))]
    ordered = sorted(merge_process_files(with_rows), key=make_order_key)
    offsets = read_clock_offsets(report)
    late = [round(offsets.get_value(data.source) or 0) for data in ordered]
    bounds = [find_time_bounds(data) for data in ordered]
    begin = min((first - offset for (first, _), offset in zip(bounds, late, strict=True)), default=0)
    end = max((last - offset for (_, last), offset in zip(bounds, late, strict=True)), default=begin)
    page = tuple(
        PageProcess(number, data, data.base_ns - offset - begin)
        for number, (data, offset) in enumerate(zip(ordered, late, strict=True))
    )
    rows = tuple(PageRow(process, row) for process in page for row in range(len(process.data.numbers["row.kind"])))
    with_memory = [data for data in processes if len(data.numbers.get("snapshot.peak", ()))]
    snapshots = tuple(
        PageProcess(number, data, data.base_ns - round(offsets.get_value(data.source) or 0) - begin)
        for number, data in enumerate(sorted(with_memory, key=make_order_key), len(page))
    )
    return ExplorerRows(page, rows, begin, max(end - begin, 1), snapshots)


def read_clock_offsets(report: Report) -> RankTable:
    """Read by how much the clock of each rank is ahead, as the report has measured it."""
    return read_rank_table(report, "clocks", "rank", "offset_ns")


def make_order_key(data: ProcessData) -> tuple[str, str, bool, int, str, str]:
    """Make the key by which processes are ordered."""
    source = data.source
    return source.run, source.role or "", source.rank is None, source.rank or 0, source.host or "", source.name
