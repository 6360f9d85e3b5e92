"""The ranks of a job run until all have ended: each goes on by itself to its next collective."""

from __future__ import annotations

from collections.abc import Generator

from jobsim.job import Job
from jobsim.rank import Meeting, Rank
from jobsim.training import program

Program = Generator[Meeting, int, None]


def run(job: Job) -> list[Rank]:
    """All ranks after their programs."""
    ranks = [Rank(job, index) for index in range(job.ranks)]
    meet([program(rank) for rank in ranks])
    return ranks


def meet(programs: list[Program]) -> None:
    """Nothing; a collective ends when its last rank has come and the longest transfer is over."""
    waiting: dict[str, dict[int, Meeting]] = {}
    ready: list[tuple[int, int | None]] = [(index, None) for index in range(len(programs))]
    alive = len(programs)
    while ready:
        index, end = ready.pop()
        try:
            meeting = next(programs[index]) if end is None else programs[index].send(end)
        except StopIteration:
            alive -= 1
            continue
        there = waiting.setdefault(meeting.name, {})
        there[index] = meeting
        if len(there) == len(meeting.group):
            del waiting[meeting.name]
            last = max(each.start for each in there.values())
            over = last + max(each.transfer for each in there.values())
            ready += [(member, over) for member in there]
    assert not alive, f"ranks wait for one another for ever: {sorted(waiting)}"
