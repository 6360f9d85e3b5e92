"""Host of each rank, as a column next to the rank in every table of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter

from tracekit.job.frames import distinct
from tracekit.model.keys import records
from tracekit.model.labels import called, phrase
from tracekit.model.report import Cell, Heading, Section, Sheet
from tracekit.model.trace import Measurements

_DOC = "Host that it ran on, as its profile, a manifest, or names of files and folders tell."

BESIDE = {
    "rank": Heading("rank_host", "host", "text", _DOC),
    "who": Heading("process_host", "host", "text", _DOC),
    "late_rank": Heading("late_host", "its host", "text", _DOC),
}
"""Column of hosts that follows each column of ranks, or of processes."""

LABELS = ("run", "role", "replica", "rank")
"""Keys of the owner of a host."""

APART = {"who": ("run",)}
"""Labels that distinguish equal names, where a table has them; for ranks, all but the rank."""

Row = tuple[Cell, ...]


def with_hosts(measured: Measurements, section: Section) -> Section:
    """Add a column of hosts after each column of ranks; the section is unchanged unless several hosts are known."""
    if not any(map(_names_ranks, section.sheets)):
        return section
    owners = measured.derived(_owners)
    if len(set(map(itemgetter(-1), owners))) < 2:
        return section
    sheets = tuple(_with_hosts(owners, sheet) for sheet in section.sheets)
    return replace(section, sheets=sheets)


def _owners(measured: Measurements) -> list[Row]:
    """List the labels and the host of every process with a known rank and host."""
    captures = measured["captures"]
    captures = captures[captures["rank"].notna() & captures["host"].notna()]
    columns = (*LABELS, "host")
    return list(records(distinct(captures, columns), columns))


def _names_ranks(sheet: Sheet) -> bool:
    """Check whether a table has a column of ranks."""
    return not BESIDE.keys().isdisjoint(map(attrgetter("name"), sheet.headings))


def _with_hosts(owners: Sequence[Row], sheet: Sheet) -> Sheet:
    """Add a column of hosts after each column of ranks, where any of its hosts is known."""
    if not sheet.rows or not _names_ranks(sheet):
        return sheet
    headings: list[Heading] = []
    columns: list[Sequence[Cell]] = []
    for heading, column in zip(sheet.headings, zip(*sheet.rows, strict=True), strict=True):
        headings.append(heading)
        columns.append(column)
        if heading.name in BESIDE:
            hosts = _hosts(owners, sheet, heading.name)
            if any(hosts):
                headings.append(BESIDE[heading.name])
                columns.append(hosts)
    return replace(sheet, headings=tuple(headings), rows=tuple(zip(*columns, strict=True)))


def _hosts(owners: Sequence[Row], sheet: Sheet, member: str) -> list[Cell]:
    """Look up the host of each row; None where it is unknown or ambiguous."""
    names = list(map(attrgetter("name"), sheet.headings))
    labels = [label for label in APART.get(member, LABELS[:-1]) if label in names]
    hosts: dict[Row, Cell] = {}
    for owner in owners:
        name = _process(owner) if member == "who" else owner[LABELS.index("rank")]
        key = (*(owner[LABELS.index(label)] for label in labels), name)
        hosts[key] = owner[-1] if hosts.get(key, owner[-1]) == owner[-1] else None
    places = [*map(names.index, labels), names.index(member)]
    return [hosts.get(tuple(map(row.__getitem__, places))) for row in sheet.rows]


def _process(owner: Row) -> str:
    """Name a process like tables do: `rank 3 actor`."""
    _, role, replica, rank, _ = owner
    return phrase(called("rank", rank), called("replica", replica), str(role or ""))
