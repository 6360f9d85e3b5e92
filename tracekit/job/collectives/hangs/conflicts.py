"""Dumps that disagree about the members of a process group: they are not of one attempt of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from tracekit.job.collectives.hangs.dumps import RankDump, collect_dumps, get_group_title
from tracekit.model.records import dataclass
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements
from tracekit.model.units import format_ranges


@dataclass(frozen=True, slots=True)
class GroupConflict:
    """A group whose members differ between dumps: per list of members, the ranks whose dumps have it."""

    title: str
    ranks_of: Mapping[str, tuple[int, ...]]


def find_group_conflicts(dumps: Mapping[int, RankDump]) -> list[GroupConflict]:
    """Find the groups of one name whose lists of members differ and have a rank in common.

    Groups of one name without a common rank are different groups.
    """
    lists: dict[tuple[str, str], dict[str, tuple[int, ...]]] = {}
    for rank, dump in dumps.items():
        for name, desc, members in dump.groups:
            if members:
                of_name = lists.setdefault((name, desc), {})
                of_name[members] = (*of_name.get(members, ()), rank)
    return [
        GroupConflict(get_group_title((*name, "")), ranks_of)
        for name, ranks_of in lists.items()
        if any(set(one.split(",")) & set(other.split(",")) for one, other in combinations(ranks_of, 2))
    ]


def describe_group_conflicts(measured: Measurements) -> tuple[str, ...]:
    """Describe the first conflict of each run in one line."""
    if not measured.row_count("hang_groups"):
        return ()
    return tuple(_list_conflict_lines(measured))


def _list_conflict_lines(measured: Measurements) -> Iterator[str]:
    """List the lines about conflicts, one per run."""
    for dumps in collect_dumps(measured).values():
        conflicts = find_group_conflicts(dumps)
        if conflicts:
            yield describe_group_conflict(conflicts[0])


def describe_group_conflict(conflict: GroupConflict) -> str:
    """Describe a conflict: the group, its lists of members and the ranks that have them."""
    largest_first = sorted(conflict.ranks_of.items(), key=lambda item: (-len(item[1]), item[1]))
    lists = [
        f"{format_ranges(tuple(map(int, members.split(','))))} by {choose_plural(len(ranks), 'rank', 'ranks')} {format_ranges(ranks)}"
        for members, ranks in largest_first
    ]
    return (
        f"flight-recorder dumps disagree about the ranks of {conflict.title}: {'; '.join(lists)}. They are not of one "
        "attempt of a job, so their collectives are not compared"
    )
