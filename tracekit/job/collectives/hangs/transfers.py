"""Sends and receives without their other side: the k-th send from a to b meets the k-th receive of b from a."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tracekit.job.collectives.hangs.dumps import GroupKey, RankDump, Record, list_group_members
from tracekit.job.collectives.hangs.hangs import Hang, bound_wait
from tracekit.model.records import dataclass

_PAIR = re.compile(r"(send|recv) ([0-9]{1,6})(?:->|<-)([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a pair of ranks in a group, as one side calls it: `send` or `recv`."""

    key: GroupKey
    side: str
    sender: int
    receiver: int


def find_one_sided_transfers(dumps: Mapping[int, RankDump]) -> list[Hang]:
    """Find the sends and receives that wait because the other rank did not call its part.

    Counts are compared, so both recorders must have all their records.
    """
    calls: dict[Direction, list[Record]] = {}
    for rank, dump in dumps.items():
        for direction, record in _list_directions(rank, dump):
            calls.setdefault(direction, []).append(record)
    hangs = []
    for direction, records in calls.items():
        is_send = direction.side == "send"
        own, peer = (direction.sender, direction.receiver) if is_send else (direction.receiver, direction.sender)
        other = Direction(direction.key, "recv" if is_send else "send", direction.sender, direction.receiver)
        count = len(calls.get(other, ()))
        if peer not in dumps or dumps[own].is_cut or dumps[peer].is_cut or len(records) <= count:
            continue
        record = records[count]
        if not record.is_done:
            written_ns = dumps[own].written_ns
            at_most_ns = bound_wait(record.created_ns, () if written_ns is None else (written_ns,))
            hangs.append(
                Hang(
                    *("one-sided", direction.key, record.seq, (own,), (peer,), "sure", record),
                    since_ns=record.created_ns,
                    at_most_ns=at_most_ns,
                )
            )
    return hangs


def _list_directions(rank: int, dump: RankDump) -> Iterator[tuple[Direction, Record]]:
    """List the sends and receives of one rank. Their names number ranks within the group."""
    for transfer in dump.transfers:
        match = _PAIR.fullmatch(transfer.record.op)
        if match is None:
            continue
        members = list_group_members(transfer.key)
        known = None if members is None else sorted(members)
        place = int(match[3])
        if known is not None and place >= len(known):
            continue
        peer = place if known is None else known[place]
        pair = (rank, peer) if match[1] == "send" else (peer, rank)
        yield Direction(transfer.key, match[1], *pair), transfer.record
