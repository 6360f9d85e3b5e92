"""Rows of both sides of a comparison: each run begins at 0, to show runs of different days together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit.model.inputs.timeline import PathPieces
from tracekit.model.records import dataclass
from tracekit.render.explorer.inputs.process_files import ProcessData, find_time_bounds, merge_process_files
from tracekit.render.explorer.processes import ExplorerRows, PageProcess, PageRow, make_order_key


@dataclass(frozen=True, slots=True, eq=False)
class PageSide:
    """One side: its name, the data of its processes, and the critical path of its runs.

    `excluded` are the numbers of the steps of each run that do not count.
    """

    name: str
    processes: Sequence[ProcessData]
    excluded: Mapping[str, frozenset[int]]
    critical: PathPieces | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SideRows:
    """Rows of all sides in order; per process its side, and the numbers of its steps that do not count."""

    rows: ExplorerRows
    sides: tuple[int, ...]
    excluded: Mapping[int, frozenset[int]]


def arrange_side_rows(sides: Sequence[PageSide]) -> SideRows:
    """Put the rows of all sides in order of side, run, role, rank and device, and each run on a clock from 0."""
    ordered = [
        (number, data)
        for number, side in enumerate(sides)
        for data in sorted(merge_process_files(_list_with_rows(side.processes)), key=make_order_key)
    ]
    bounds = [find_time_bounds(data) for _, data in ordered]
    begins: dict[tuple[int, str], int] = {}
    for (side, data), (first, _) in zip(ordered, bounds, strict=True):
        run = (side, data.source.run)
        begins[run] = min(first, begins.get(run, first))
    processes, ends = [], [1]
    for number, ((side, data), (_, last)) in enumerate(zip(ordered, bounds, strict=True)):
        begin = begins[side, data.source.run]
        processes.append(PageProcess(number, data, data.base_ns - begin))
        ends.append(last - begin)
    rows = tuple(PageRow(process, row) for process in processes for row in range(len(process.data.numbers["row.kind"])))
    excluded = {
        number: sides[side].excluded.get(data.source.run, frozenset()) for number, (side, data) in enumerate(ordered)
    }
    return SideRows(ExplorerRows(tuple(processes), rows, 0, max(ends)), tuple(side for side, _ in ordered), excluded)


def _list_with_rows(processes: Sequence[ProcessData]) -> list[ProcessData]:
    """List the processes that have rows."""
    return [data for data in processes if len(data.numbers.get("row.kind", ()))]
