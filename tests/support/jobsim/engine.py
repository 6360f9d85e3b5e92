"""The ranks of a job run until all have ended: each goes on by itself to its next collective."""

from __future__ import annotations

from collections.abc import Generator

from jobsim.job import Job
from jobsim.rank import Meeting, Rank, Transfer
from jobsim.training import program

Program = Generator[Meeting, int, None]


SLOWDOWN_ROUNDS = 7
"""Simulations until the transfers that kernels run beside stay where they are."""


def run(job: Job) -> list[Rank]:
    """All ranks after their programs.

    A launch fixes when work ends, and a collective that is launched later may still run beside it. Where such collectives slow
    kernels down, the job is simulated again with the transfers of the time before.
    """
    ranks = run_once(job, {})
    for _ in range(SLOWDOWN_ROUNDS if job.slowdown else 0):
        ranks = run_once(job, {rank.rank: rank.transfers for rank in ranks})
    return ranks


def run_once(job: Job, transfers: dict[int, list[Transfer]]) -> list[Rank]:
    """All ranks after their programs, with kernels slowed down while these transfers last."""
    ranks = [Rank(job, index, transfers.get(index, [])) for index in range(job.ranks)]
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
