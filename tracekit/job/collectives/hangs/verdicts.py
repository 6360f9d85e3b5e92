"""Which rank blocks a job: it did not arrive at a collective, or called another operation or size.

Per group, the first collective that some ranks enqueued and none completed is compared over the ranks. The group whose
missing rank waits in no other group is the cause; the others follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tracekit.job.collectives.hangs.conflicts import GroupConflict, find_group_conflicts
from tracekit.job.collectives.hangs.dumps import (
    UNTRACKED,
    GroupCounts,
    GroupKey,
    RankDump,
    Record,
    list_group_members,
    list_group_ranks,
)
from tracekit.job.collectives.hangs.hangs import Confidence, Hang, bound_wait
from tracekit.job.collectives.hangs.transfers import find_one_sided_transfers
from tracekit.model.records import dataclass
from tracekit.process.collectives.names import SYNCHRONISING, parse_collective_op

_SAME_INPUT = frozenset(
    ("all_reduce", "allreduce", "_all_gather_base", "_allgather_base", "_reduce_scatter_base", "broadcast", "reduce")
)
"""Operations whose inputs have one size on all ranks; those of others may differ."""

_NO_COUNT: GroupCounts = GroupCounts(("", "", ""))


@dataclass(frozen=True, slots=True)
class HangSearch:
    """The cause among the hangs of a run, those that follow from it, and groups that wait without a proof of a hang."""

    cause: Hang | None
    others: tuple[Hang, ...] = ()
    waits: tuple[Hang, ...] = ()
    conflict: GroupConflict | None = None


def search_hangs(dumps: Mapping[int, RankDump], least_wait_ns: float) -> HangSearch:
    """Search the groups of a run for hangs. A wait known to be shorter than `least_wait_ns` proves nothing.

    Dumps that disagree about the members of a group are not compared.
    """
    conflicts = find_group_conflicts(dumps)
    if conflicts:
        return HangSearch(None, conflict=conflicts[0])
    keys = list(dict.fromkeys(key for dump in dumps.values() for key in dump.groups))
    judged = [hang for key in keys if (hang := _judge_collectives(dumps, key)) is not None]
    judged += find_one_sided_transfers(dumps)
    short = [hang for hang in judged if hang.at_most_ns is not None and hang.at_most_ns < least_wait_ns]
    hangs = sorted((hang for hang in judged if hang not in short), key=lambda hang: (hang.since_ns or 0, hang.key))
    cause = _name_idle_culprits(dumps, _choose_cause(hangs), hangs)
    others = tuple(hang for hang in hangs if cause is not None and hang.key != cause.key)
    return HangSearch(cause, others, tuple(short))


def _name_idle_culprits(dumps: Mapping[int, RankDump], cause: Hang | None, hangs: Sequence[Hang]) -> Hang | None:
    """Name only those missing ranks that wait in no other group: the others wait for them."""
    if cause is None or cause.kind != "missing":
        return cause
    busy = {rank for other in hangs if other.key != cause.key for rank in other.waiting}
    culprits = tuple(rank for rank in cause.culprits if rank not in busy) or cause.culprits
    group = dumps[culprits[0]].groups.get(cause.key, _NO_COUNT)
    return replace(cause, culprits=culprits, other=group.records.get(group.last_completed))


def _choose_cause(hangs: Sequence[Hang]) -> Hang | None:
    """Choose the hang from which the others follow: its ranks wait in no other group; the earliest of several."""
    if not hangs:
        return None
    roots = [hang for hang in hangs if not _waits_elsewhere(hang, hangs)]
    if roots:
        return roots[0]
    for hang in hangs:
        for other in hangs:
            crossed = set(hang.culprits) & set(other.waiting) and set(other.culprits) & set(hang.waiting)
            if other.key != hang.key and crossed:
                return replace(hang, kind="order", against=other)
    return hangs[0]


def _waits_elsewhere(hang: Hang, hangs: Sequence[Hang]) -> bool:
    """Check whether every rank that blocks a collective waits in another one."""
    others = {rank for other in hangs if other.key != hang.key for rank in other.waiting}
    return hang.kind == "missing" and set(hang.culprits) <= others


def _judge_collectives(dumps: Mapping[int, RankDump], key: GroupKey) -> Hang | None:
    """Judge one group; None if nothing in it waits, or no rank can be named and no watchdog gave up."""
    ranks = list_group_ranks(dumps, key)
    groups = _list_comparable_counts(dumps, key, ranks)
    first = {rank: seq for rank in ranks if (seq := _find_first_wait(groups, rank)) is not None}
    if not first:
        return None
    seq = min(first.values())
    waiting = [rank for rank in ranks if seq <= groups[rank].last_enqueued and not groups[rank].has_completed(seq)]
    behind = [rank for rank in ranks if groups[rank].last_enqueued < seq]
    missing = [rank for rank in behind if not _is_older_dump(groups, rank)]
    base = _make_hang(dumps, groups, key, seq, waiting)
    if missing:
        confidence = _rate_missing_ranks(dumps, groups, missing)
        return replace(base, kind="missing", culprits=tuple(missing), confidence=confidence)
    return _find_mismatch(groups, base) or _judge_without_culprit(groups, base, has_older=bool(behind))


def _list_comparable_counts(
    dumps: Mapping[int, RankDump], key: GroupKey, ranks: Sequence[int]
) -> Mapping[int, GroupCounts]:
    """List the counts of a group by rank. gloo's status counts sends too, so there only the records are compared."""
    groups = {rank: dumps[rank].groups.get(key, _NO_COUNT) for rank in ranks}
    backends = {record.backend for group in groups.values() for record in group.records.values()}
    if not backends & UNTRACKED:
        return groups
    return {rank: GroupCounts(key, records=group.records) for rank, group in groups.items()}


def _make_hang(
    dumps: Mapping[int, RankDump],
    groups: Mapping[int, GroupCounts],
    key: GroupKey,
    seq: int,
    waiting: Sequence[int],
) -> Hang:
    """Make the common part of a hang: who waits in what, since when, and at most how long."""
    members = list_group_members(key)
    undumped = tuple(sorted(members - set(dumps))) if members is not None else ()
    records = _list_records(groups, waiting, seq)
    since_ns = min((record.created_ns for record in records if record.created_ns is not None), default=None)
    written = [written_ns for rank in waiting if (written_ns := dumps[rank].written_ns) is not None]
    at_most_ns = bound_wait(since_ns, written if len(written) == len(waiting) else ())
    kept = next((record for record in records if record.frame is not None), records[0] if records else None)
    return Hang("no dump", key, seq, tuple(waiting), (), "likely", kept, None, since_ns, at_most_ns, undumped)


def _list_records(groups: Mapping[int, GroupCounts], ranks: Sequence[int], seq: int) -> list[Record]:
    """List the records that these ranks have of a collective."""
    return [record for rank in ranks if (record := groups[rank].records.get(seq)) is not None]


def _find_first_wait(groups: Mapping[int, GroupCounts], rank: int) -> int | None:
    """Find the first collective in which a rank waits: enqueued, not completed, and not proven complete by another rank."""
    for seq in groups[rank].list_pending():
        if not _is_proven_complete(groups, seq):
            return seq
    return None


def _is_proven_complete(groups: Mapping[int, GroupCounts], seq: int) -> bool:
    """Check whether some rank completed a collective that no rank completes alone: then every rank arrived."""
    for group in groups.values():
        record = group.records.get(seq)
        op = record.op if record is not None else _find_op(groups, seq)
        if op is not None and parse_collective_op(op) in SYNCHRONISING and group.has_completed(seq):
            return True
    return False


def _find_op(groups: Mapping[int, GroupCounts], seq: int) -> str | None:
    """Find the operation with this number in any rank's records."""
    return next((group.records[seq].op for group in groups.values() if seq in group.records), None)


def _is_older_dump(groups: Mapping[int, GroupCounts], rank: int) -> bool:
    """Check whether a rank's dump is older than others: it waits in a collective that another rank completed."""
    return any(_is_proven_complete(groups, seq) for seq in groups[rank].list_pending())


def _rate_missing_ranks(
    dumps: Mapping[int, RankDump], groups: Mapping[int, GroupCounts], missing: Sequence[int]
) -> Confidence:
    """Rate the claim that ranks did not arrive: unknown if the ring dropped records and no status counts them."""
    for rank in missing:
        if groups[rank].enqueued is None and dumps[rank].is_cut:
            return "unknown"
    return "sure"


def _find_mismatch(groups: Mapping[int, GroupCounts], base: Hang) -> Hang | None:
    """Find ranks that called the collective with another operation, size or type than most."""
    records = {rank: record for rank in base.waiting if (record := groups[rank].records.get(base.seq)) is not None}
    signatures = {rank: _describe_signature(record) for rank, record in records.items()}
    counts = Counter(signatures.values()).most_common()
    if len(counts) < 2:
        return None
    usual = counts[0][0]
    odd = tuple(rank for rank, signature in signatures.items() if signature != usual)
    has_majority = counts[0][1] > counts[1][1]
    agreeing = tuple(rank for rank in records if rank not in odd)
    return replace(
        base,
        kind="mismatch",
        waiting=agreeing,
        culprits=odd,
        confidence="sure" if has_majority else "likely",
        record=records[agreeing[0]],
        other=records[odd[0]],
        has_majority=has_majority,
    )


def _describe_signature(record: Record) -> tuple[str, str, str]:
    """Describe what all ranks of a collective have in common: the operation, and the size and type where they must agree."""
    if record.op in _SAME_INPUT:
        return record.op, record.input_sizes, record.dtypes
    if parse_collective_op(record.op) == "all_gather":
        return record.op, record.output_sizes, record.dtypes
    return record.op, "", ""


def _judge_without_culprit(groups: Mapping[int, GroupCounts], base: Hang, *, has_older: bool) -> Hang | None:
    """Judge a collective that every dumped rank enqueued alike."""
    if base.undumped:
        return replace(base, culprits=base.undumped)
    records = _list_records(groups, base.waiting, base.seq)
    if has_older or not any(record.timed_out for record in records):
        return None
    states = {rank: groups[rank].records[base.seq].state for rank in base.waiting if base.seq in groups[rank].records}
    blocked = tuple(rank for rank, state in states.items() if state == "scheduled")
    return replace(
        base, kind="timed out", confidence="likely", culprits=blocked if "started" in states.values() else ()
    )


def list_waiting_rows(dumps: Mapping[int, RankDump], hang: Hang) -> Iterator[tuple[int, GroupCounts, Record | None]]:
    """List the ranks of a hang's group with their counts and their record of the collective, or the last one."""
    for rank, group in _list_comparable_counts(dumps, hang.key, list_group_ranks(dumps, hang.key)).items():
        record = group.records.get(hang.seq) or group.records.get(group.last_enqueued)
        yield rank, group, record
