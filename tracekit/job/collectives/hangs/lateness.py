"""Ranks that arrive last at collectives, by the durations in flight recorders.

A collective ends on all ranks together, so the rank on which it is shortest arrived last. The next longer duration shows how
long the other ranks waited for it alone. The clocks of the hosts do not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tracekit.job.collectives.hangs.dumps import GroupKey, RankDump, Record, list_group_ranks
from tracekit.model.records import dataclass
from tracekit.process.collectives.names import SYNCHRONISING, parse_collective_op

Arrivals = Mapping[int, Record]
"""Records of one collective by rank, all with a duration."""


@dataclass(frozen=True, slots=True)
class LateArrival:
    """A rank that arrives last at the collectives of one call site.

    `late_ns` is the median over `calls` of the time after the arrival of the rank before it; `last` counts the calls in which it is
    last, `waited_ns` is the sum over them, and `span_ns` the time from the first enqueued call to the last one.
    """

    rank: int
    key: GroupKey
    op: str
    frame: str | None
    ranks: tuple[int, ...]
    calls: int
    last: int
    late_ns: int
    waited_ns: int
    span_ns: int | None

    @property
    def wait_ratio(self) -> float | None:
        """Share of the time in which the other ranks waited for it alone."""
        return min(self.waited_ns / self.span_ns, 1.0) if self.span_ns else None


def find_late_arrivals(
    dumps: Mapping[int, RankDump], min_calls: float, last_ratio: float, late_ns: float
) -> list[LateArrival]:
    """Find the ranks that arrive last in most calls of a call site, those that the others wait for most first."""
    keys = dict.fromkeys(key for dump in dumps.values() for key in dump.groups)
    late = [
        rank
        for key in keys
        for calls in _group_timed_calls(dumps, key).values()
        if len(calls) >= min_calls and (rank := _find_late_arrival(key, calls, last_ratio, late_ns)) is not None
    ]
    return sorted(late, key=lambda rank: (-rank.waited_ns, rank.rank, rank.key, rank.op))


def count_timed_calls(dumps: Mapping[int, RankDump]) -> int:
    """Count the collectives whose duration is known on all dumped ranks of their group."""
    keys = dict.fromkeys(key for dump in dumps.values() for key in dump.groups)
    return sum(len(calls) for key in keys for calls in _group_timed_calls(dumps, key).values())


def _group_timed_calls(
    dumps: Mapping[int, RankDump], key: GroupKey
) -> Mapping[tuple[str, str, str | None], Sequence[Arrivals]]:
    """Group the collectives of a group with a duration on all dumped ranks by operation, size and line of the first rank."""
    ranks = list_group_ranks(dumps, key)
    sites: dict[tuple[str, str, str | None], list[Arrivals]] = {}
    if len(ranks) < 2:
        return sites
    for arrivals in _list_timed_collectives(dumps, key, ranks):
        first = arrivals[ranks[0]]
        sites.setdefault((first.op, first.input_sizes, first.frame), []).append(arrivals)
    return sites


def _list_timed_collectives(dumps: Mapping[int, RankDump], key: GroupKey, ranks: Sequence[int]) -> Iterator[Arrivals]:
    """List the collectives that all ranks completed, with a duration; no rank can end them before all have begun."""
    of_rank = [dumps[rank].groups[key].records if key in dumps[rank].groups else {} for rank in ranks]
    for seq in sorted(set(of_rank[0]).intersection(*of_rank[1:])):
        records = [of[seq] for of in of_rank]
        is_one = len({record.op for record in records}) == 1
        is_timed = all(record.is_done and record.dur_ns is not None for record in records)
        if is_one and is_timed and parse_collective_op(records[0].op) in SYNCHRONISING:
            yield dict(zip(ranks, records, strict=True))


def _find_late_arrival(
    key: GroupKey, calls: Sequence[Arrivals], last_ratio: float, late_ns: float
) -> LateArrival | None:
    """Find the rank that is last in most calls of a site; None if it is so in too few, or hardly late."""
    ranks = tuple(calls[0])
    durations = np.array([[arrivals[rank].dur_ns for rank in ranks] for arrivals in calls], np.int64)
    place, _ = Counter(durations.argmin(axis=1).tolist()).most_common(1)[0]
    # Negative where another rank is last.
    others = np.delete(durations, place, axis=1).min(axis=1)
    late = others - durations[:, place]
    is_last = late > 0
    median = int(np.median(late))
    if is_last.mean() < last_ratio or median < late_ns:
        return None
    created = [r.created_ns for r in (arrivals[ranks[place]] for arrivals in calls) if r.created_ns is not None]
    first = calls[0][ranks[place]]
    return LateArrival(
        *(ranks[place], key, first.op, first.frame, ranks, len(calls), int(is_last.sum()), median),
        waited_ns=int(late[is_last].sum()),
        span_ns=max(created) - min(created) if len(created) > 1 else None,
    )
