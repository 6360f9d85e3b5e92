"""Host of each rank, as a column next to the rank in every table of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracekit.model.report import Cell, Heading, Section, Sheet
from tracekit.model.text.labels import format_numbered_word, join_phrase
from tracekit.model.trace import Measurements

_DOC = "Its host, by the profile, a manifest, or names of files and folders."

HOST_HEADINGS = {
    "rank": Heading("rank_host", "host", "text", _DOC),
    "who": Heading("process_host", "host", "text", _DOC),
    "late_rank": Heading("late_host", "its host", "text", _DOC),
}
"""Column of hosts that follows each column of ranks, or of processes."""

LABELS = ("run", "role", "replica", "rank")
"""Keys of the owner of a host."""

DISTINGUISHING_LABELS = {"who": ("run",)}
"""Labels that distinguish equal names, where a table has them; for ranks, all but the rank."""

Row = tuple[Cell, ...]


def add_host_columns(measured: Measurements, section: Section) -> Section:
    """Add a column of hosts after each column of ranks; the section is unchanged unless several hosts are known."""
    if not any(_has_rank_column(sheet) for sheet in section.sheets):
        return section
    owners = measured.derived(_list_host_owners)
    if len({owner[-1] for owner in owners}) < 2:
        return section
    sheets = tuple(_add_host_columns_to_sheet(owners, sheet) for sheet in section.sheets)
    return replace(section, sheets=sheets)


def _list_host_owners(measured: Measurements) -> list[Row]:
    """List the labels and the host of every process with a known rank and host."""
    captures = measured.frame("captures").distinct(*LABELS, "host")
    captures = captures.filter(~captures.is_missing("rank") & ~captures.is_missing("host"))
    return [tuple(row.values()) for row in captures.rows(*LABELS, "host")]


def _has_rank_column(sheet: Sheet) -> bool:
    """Check whether a table has a column of ranks."""
    return not HOST_HEADINGS.keys().isdisjoint(heading.name for heading in sheet.headings)


def _add_host_columns_to_sheet(owners: Sequence[Row], sheet: Sheet) -> Sheet:
    """Add a column of hosts after each column of ranks, where any of its hosts is known."""
    if not sheet.rows or not _has_rank_column(sheet):
        return sheet
    headings: list[Heading] = []
    columns: list[Sequence[Cell]] = []
    for heading, column in zip(sheet.headings, zip(*sheet.rows, strict=True), strict=True):
        headings.append(heading)
        columns.append(column)
        if heading.name in HOST_HEADINGS:
            hosts = _look_up_row_hosts(owners, sheet, heading.name)
            if any(hosts):
                headings.append(HOST_HEADINGS[heading.name])
                columns.append(hosts)
    return replace(sheet, headings=tuple(headings), rows=tuple(zip(*columns, strict=True)))


def _look_up_row_hosts(owners: Sequence[Row], sheet: Sheet, member: str) -> list[Cell]:
    """Look up the host of each row; None where it is unknown or ambiguous."""
    names = [heading.name for heading in sheet.headings]
    labels = [label for label in DISTINGUISHING_LABELS.get(member, LABELS[:-1]) if label in names]
    hosts: dict[Row, Cell] = {}
    for owner in owners:
        name = _name_process_with_role(owner) if member == "who" else owner[LABELS.index("rank")]
        key = (*(owner[LABELS.index(label)] for label in labels), name)
        hosts[key] = owner[-1] if hosts.get(key, owner[-1]) == owner[-1] else None
    places = [names.index(name) for name in (*labels, member)]
    return [hosts.get(tuple(row[place] for place in places)) for row in sheet.rows]


def _name_process_with_role(owner: Row) -> str:
    """Name a process like tables do: `rank 3 actor`."""
    _, role, replica, rank, _ = owner
    return join_phrase(format_numbered_word("rank", rank), format_numbered_word("replica", replica), str(role or ""))
