"""Flight recorders of the ranks of a run: groups, the last collectives of each, and which are done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Frame
from tracekit.model.trace import Measurements
from tracekit.process.collectives.names import parse_collective_op

UNTRACKED = frozenset({"gloo", "mpi", "ucc", "fake"})
"""Libraries whose records stay `scheduled`: there, a record that the recorder retired is done."""

GroupKey = tuple[str, str, str]
"""Name, description and members of a group: names may repeat with other members."""


@dataclass(frozen=True, slots=True)
class Record:
    """One collective of one rank."""

    seq: int
    op: str
    backend: str | None
    input_sizes: str
    output_sizes: str
    dtypes: str
    state: str | None
    retired: bool
    created_ns: int | None
    frame: str | None
    stack: str | None
    dur_ns: int | None = None

    @property
    def is_done(self) -> bool:
        """Whether it completed; gloo's states are not tracked, so there it is done once it is retired."""
        return self.retired if self.backend in UNTRACKED else self.state == "completed"

    @property
    def timed_out(self) -> bool:
        """Whether the watchdog gave up on it."""
        return self.retired and not self.is_done

    @property
    def title(self) -> str:
        """The operation and its number: `all_gather #41`."""
        op = parse_collective_op(self.op)
        return f"{self.op if op in ('other', 'send', 'recv') else op} #{self.seq}"


@dataclass(slots=True)
class GroupCounts:
    """One group as one rank recorded it: its last collectives by number, and the status that the dump gives."""

    key: GroupKey
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    records: dict[int, Record] = field(default_factory=dict[int, Record])

    @property
    def last_enqueued(self) -> int:
        """Number of the last collective that the rank enqueued, by the status or its records."""
        return max([self.enqueued or 0, *self.records])

    @property
    def last_completed(self) -> int:
        """Number of the last collective that completed, by the status or the records without a gap."""
        if self.completed is not None:
            return self.completed
        pending = [seq for seq, record in self.records.items() if not record.is_done]
        return (min(pending) - 1) if pending else self.last_enqueued

    def has_completed(self, seq: int) -> bool:
        """Whether the rank completed this collective."""
        record = self.records.get(seq)
        return record.is_done if record is not None else seq <= self.last_completed

    def list_pending(self) -> Iterator[int]:
        """List the numbers of collectives that were enqueued and did not complete."""
        for seq in range(self.last_completed + 1, self.last_enqueued + 1):
            record = self.records.get(seq)
            if record is None or not record.is_done:
                yield seq


@dataclass(slots=True)
class RankDump:
    """The flight recorder of one rank. `is_cut`: the ring dropped its first records."""

    rank: int
    source: str
    host: str | None
    groups: dict[GroupKey, GroupCounts] = field(default_factory=dict[GroupKey, GroupCounts])
    transfers: list[Transfer] = field(default_factory=list["Transfer"])
    is_cut: bool = False
    newest_ns: int = 0
    written_ns: int | None = None
    has_stacks: bool = False

    @property
    def backends(self) -> set[str]:
        """Libraries of its collectives."""
        records = (record for group in self.groups.values() for record in group.records.values())
        return {record.backend for record in records if record.backend}

    @property
    def order(self) -> tuple[int, bool, str]:
        """Key by which the best of several dumps of one rank is chosen: the latest, then one with stacks."""
        return self.newest_ns, self.has_stacks, self.source


@dataclass(frozen=True, slots=True)
class Transfer:
    """One send or receive of one rank, with its group and its place among those of the group."""

    key: GroupKey
    record: Record


def get_group_title(key: GroupKey) -> str:
    """Get the title of a group: its description or name."""
    name, desc, _ = key
    return desc if desc and desc != "undefined" else f"group {name or '?'}"


def list_group_members(key: GroupKey) -> frozenset[int] | None:
    """List the members of a group; None if unknown."""
    return frozenset(map(int, key[2].split(","))) if key[2] else None


def collect_dumps(measured: Measurements) -> dict[str | None, dict[int, RankDump]]:
    """Collect the dumps by run and rank. Of several dumps of one rank the latest counts."""
    by_source: dict[tuple[str | None, str], RankDump] = {}
    names: dict[tuple[str | None, str], dict[tuple[str, str], GroupKey]] = {}
    for row in _list_ranked_rows(measured, "hang_groups"):
        place = row["run"], row["source"]
        dump = by_source.setdefault(place, RankDump(row["rank"], row["source"], row["host"]))
        key: GroupKey = (row["group"] or "", row["group_desc"] or "", row["members"] or "")
        names.setdefault(place, {})[key[:2]] = key
        dump.groups[key] = GroupCounts(key, row["last_enqueued"], row["last_started"], row["last_completed"])
        dump.written_ns = row["written_ns"]
    for row in _list_ranked_rows(measured, "hang_records"):
        place = row["run"], row["source"]
        dump = by_source.setdefault(place, RankDump(row["rank"], row["source"], row["host"]))
        _add_record(dump, names.get(place, {}), row)
    chosen: dict[str | None, dict[int, RankDump]] = {}
    for (run, _), dump in by_source.items():
        of_run = chosen.setdefault(run, {})
        if dump.rank not in of_run or of_run[dump.rank].order < dump.order:
            of_run[dump.rank] = dump
    for of_run in chosen.values():
        _complete_members(of_run)
    return {run: dict(sorted(of_run.items())) for run, of_run in chosen.items()}


def _complete_members(dumps: Mapping[int, RankDump]) -> None:
    """Complete the members of groups that a dump does not list by the only list of the other dumps with its rank."""
    lists: dict[tuple[str, str], set[str]] = {}
    for dump in dumps.values():
        for name, desc, members in dump.groups:
            if members:
                lists.setdefault((name, desc), set()).add(members)
    for rank, dump in dumps.items():
        names: dict[GroupKey, GroupKey] = {}
        for name, desc, members in dump.groups:
            known = [text for text in lists.get((name, desc), ()) if str(rank) in text.split(",")]
            names[name, desc, members] = (name, desc, known[0] if not members and len(known) == 1 else members)
        dump.groups = {names[key]: replace(counts, key=names[key]) for key, counts in dump.groups.items()}
        dump.transfers = [replace(transfer, key=names.get(transfer.key, transfer.key)) for transfer in dump.transfers]


def _list_ranked_rows(measured: Measurements, table: str) -> Iterator[Mapping[str, Any]]:
    """List the rows of a table whose rank is known."""
    rows: Frame = measured.frame(table)
    for row in rows.rows(*rows.columns):
        if row["rank"] is not None:
            yield row


def _add_record(dump: RankDump, names: Mapping[tuple[str, str], GroupKey], row: Mapping[str, Any]) -> None:
    """Add one record to a dump."""
    name: tuple[str, str] = (row["group"] or "", row["group_desc"] or "")
    key = names.get(name, (*name, ""))
    number = row["p2p_seq"] if row["is_p2p"] else row["seq"]
    record = Record(
        number or 0,
        row["op"] or "?",
        row["backend"],
        row["input_sizes"] or "",
        row["output_sizes"] or "",
        row["dtypes"] or "",
        row["state"],
        row["retired"],
        row["created_ns"],
        row["frame"],
        row["stack"],
        row["dur_ns"],
    )
    dump.is_cut |= bool(row["ring_dropped"])
    dump.newest_ns = max(dump.newest_ns, record.created_ns or 0)
    dump.has_stacks |= record.stack is not None
    if row["is_p2p"]:
        dump.transfers.append(Transfer(key, record))
        return
    records = dump.groups.setdefault(key, GroupCounts(key)).records
    if records and record.seq < max(records):  # the group was destroyed and made again under its name
        records.clear()
    records[record.seq] = record


def list_group_ranks(dumps: Mapping[int, RankDump], key: GroupKey) -> Sequence[int]:
    """List the ranks with a dump that belong to a group: by its members, or those that recorded it.

    The default group contains every rank.
    """
    members = list_group_members(key)
    if members is not None:
        return [rank for rank in dumps if rank in members]
    if key[1] == "default_pg":
        return list(dumps)
    return [rank for rank, dump in dumps.items() if key in dump.groups]
