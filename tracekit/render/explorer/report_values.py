"""Values that the page takes from a report: its tables by name, late ranks, and the steps that count."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.records import dataclass
from tracekit.model.report import Cell, Report

SHARES = (
    ("compute_ratio", "compute"),
    ("exposed_comm_ratio", "communication not overlapped with compute"),
    ("copy_ratio", "exposed copies"),
    ("idle_ratio", "idle"),
    ("host_op_ratio", "ops"),
    ("host_collective_ratio", "waiting for collectives"),
    ("host_loader_ratio", "data loader"),
    ("host_gc_ratio", "garbage collection"),
    ("host_no_op_ratio", "no op (Python, waits)"),
)
"""Metrics of the headline that divide a step, of GPUs or, without a device, of hosts; and their words."""


@dataclass(frozen=True, slots=True)
class RankDelays:
    """Time per step, by rank: `late_ns` that others wait for it, `beyond_ns` that it is busy longer than the median rank."""

    late_ns: Mapping[int, float]
    beyond_ns: Mapping[int, float]


def get_sheet_columns(report: Report, section_id: str, name: str) -> dict[str, list[Cell]]:
    """Get the columns of a sheet of the report; empty if the report has none of this name."""
    for section in report.sections:
        if section.id == section_id:
            for sheet in section.sheets:
                if sheet.name == name:
                    columns = [list(column) for column in zip(*sheet.rows, strict=True)] or [[] for _ in sheet.headings]
                    return dict(zip((heading.name for heading in sheet.headings), columns, strict=True))
    return {}


def get_overview_rows(report: Report, *names: str) -> list[tuple[Cell, ...]]:
    """Get columns of the first table of the report by row; empty if it has other columns, or several runs."""
    if report.overview is None:
        return []
    columns = [heading.name for heading in report.overview.headings]
    if "run" in columns or not {*names} <= {*columns}:
        return []
    return [tuple(row[columns.index(name)] for name in names) for row in report.overview.rows]


def read_rank_delays(report: Report) -> RankDelays:
    """Read which ranks are late, and by how much they work longer than the median rank."""
    work = get_sheet_columns(report, "stragglers", "ranks")
    beyond = _sum_by_rank(work.get("rank", []), work.get("beyond_ns", []))
    waits = get_sheet_columns(report, "stragglers", "waits")
    late = dict.fromkeys(beyond, 0.0) | _sum_by_rank(waits.get("late_rank", []), waits.get("each_ns", []))
    return RankDelays(late, beyond)


def _sum_by_rank(ranks: list[Cell], times: list[Cell]) -> dict[int, float]:
    """Sum known times by known rank."""
    sums: dict[int, float] = {}
    for rank, time in zip(ranks, times, strict=True):
        if isinstance(rank, int) and isinstance(time, int | float):
            sums[rank] = sums.get(rank, 0.0) + float(time)
    return sums


def read_counted_steps(report: Report) -> list[int] | None:
    """Read the numbers of the steps that count, without warm-up; None if the report does not list them."""
    numbers = {number for of_run in report.counted_steps for number in of_run.numbers}
    return sorted(numbers) if report.counted_steps else None
