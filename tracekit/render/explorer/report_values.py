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


Member = tuple[str | None, int]
"""Role and rank: ranks of two roles may have the same number."""


@dataclass(frozen=True, slots=True)
class RankDelays:
    """Time per step by role and rank: `late_ns` that others wait for it, `beyond_ns` that it works longer than their median.

    The role is None where the report compares the ranks of one role only.
    """

    late_ns: Mapping[Member, float]
    beyond_ns: Mapping[Member, float]

    def get_late_ns(self, role: str | None, rank: int | None) -> float | None:
        """Get the time that others wait for a rank; None if the report does not compare it."""
        return _get_of_member(self.late_ns, role, rank)

    def get_beyond_ns(self, role: str | None, rank: int | None) -> float | None:
        """Get the time that a rank works longer than the others; None if the report does not compare it."""
        return _get_of_member(self.beyond_ns, role, rank)


def _get_of_member(times: Mapping[Member, float], role: str | None, rank: int | None) -> float | None:
    """Get the time of a rank of a role."""
    if rank is None:
        return None
    return times.get((role, rank), times.get((None, rank)))


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
    beyond = _sum_by_member(work, "rank", "beyond_ns")
    waits = get_sheet_columns(report, "stragglers", "waits")
    late = dict.fromkeys(beyond, 0.0) | _sum_by_member(waits, "late_rank", "each_ns")
    return RankDelays(late, beyond)


def _sum_by_member(columns: Mapping[str, list[Cell]], rank_name: str, time_name: str) -> dict[Member, float]:
    """Sum known times by role and known rank."""
    ranks, times = columns.get(rank_name, []), columns.get(time_name, [])
    sums: dict[Member, float] = {}
    for role, rank, time in zip(columns.get("role", [None] * len(ranks)), ranks, times, strict=True):
        if isinstance(rank, int) and isinstance(time, int | float):
            member = (None if role is None else str(role)), rank
            sums[member] = sums.get(member, 0.0) + float(time)
    return sums


def read_counted_steps(report: Report) -> list[int] | None:
    """Read the numbers of the steps that count, without warm-up; None if the report does not list them."""
    numbers = {number for of_run in report.counted_steps for number in of_run.numbers}
    return sorted(numbers) if report.counted_steps else None
