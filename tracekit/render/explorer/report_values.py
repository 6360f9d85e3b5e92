"""Values that the page takes from a report: its tables by name, late ranks, and the steps that count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tracekit.model.records import dataclass
from tracekit.model.report import Cell, Report, Sheet
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.explorer.inputs.process_files import FileLabels
from tracekit.render.grid import make_grid

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


class RankKey(NamedTuple):
    """A rank of a table. Roles, and runs, number their ranks apart; each is None where the table has only one."""

    run: Cell
    role: Cell
    replica: Cell
    rank: int


class RankTable(NamedTuple):
    """Numbers of a table by rank, and those of run, role and replica that distinguish its ranks."""

    columns: frozenset[str]
    values: Mapping[RankKey, float]

    def get_value(self, source: FileLabels) -> float | None:
        """Get the number of the rank that a file was read from; None if the table does not have it."""
        if source.rank is None:
            return None
        run = source.run if "run" in self.columns else None
        role = source.role if "role" in self.columns else None
        return self.values.get(RankKey(run, role, None, source.rank))


NO_RANKS = RankTable(frozenset(), {})


@dataclass(frozen=True, slots=True)
class RankDelays:
    """Time per step, by rank: `late_ns` that others wait for it, `beyond_ns` that it works longer than the median rank."""

    late_ns: RankTable
    beyond_ns: RankTable


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
    beyond = read_rank_table(report, "ranks", "rank", "beyond_ns")
    late = read_rank_table(report, "waits", "late_rank", "each_ns")
    if late.columns == beyond.columns or not late.values:
        late = RankTable(beyond.columns, {**dict.fromkeys(beyond.values, 0.0), **late.values})
    return RankDelays(late, beyond)


def read_rank_table(report: Report, sheet: str, rank: str, value: str) -> RankTable:
    """Read a table of the question about stragglers: sums of known numbers by known rank."""
    columns = get_sheet_columns(report, "stragglers", sheet)
    ranks, numbers = columns.get(rank, []), columns.get(value, [])
    labels = [columns.get(name, [None] * len(ranks)) for name in ("run", "role", "replica")]
    sums: dict[RankKey, float] = {}
    for run, role, replica, of_rank, number in zip(*labels, ranks, numbers, strict=True):
        if isinstance(of_rank, int) and isinstance(number, int | float):
            key = RankKey(run, role, replica, of_rank)
            sums[key] = sums.get(key, 0.0) + float(number)
    return RankTable(frozenset({"run", "role", "replica"} & columns.keys()), sums)


def read_counted_steps(report: Report) -> list[int] | None:
    """Read the numbers of the steps that count, without warm-up; None if the report does not list them."""
    numbers = {number for of_run in report.counted_steps for number in of_run.numbers}
    return sorted(numbers) if report.counted_steps else None


TABLE_ROWS = 60
"""Rows of a table in the head of the page at most."""


def _drop_bars(sheet: Sheet) -> Sheet:
    """Drop the last column if it has bars."""
    if not sheet.headings or sheet.headings[-1].name != "bar":
        return sheet
    return replace(sheet, headings=sheet.headings[:-1], rows=tuple(row[:-1] for row in sheet.rows))


def describe_sheet(title: str, sheet: Sheet) -> dict[str, Any]:
    """Describe a table as texts, without bars of characters: the page draws its own."""
    grid = make_grid(_drop_bars(sheet), TABLE_ROWS)
    missing = phrases.describe_missing_rows(len(grid.rows), grid.more, grid.omitted, "the JSON report has all")
    return {
        "section": make_printable(title, 120),
        "title": grid.title,
        "columns": [[column.title, int(column.numeric)] for column in grid.columns],
        "rows": grid.rows,
        "note": " ".join(text for text in (grid.caption, missing) if text),
    }
