"""Switches that apply to every job: other conditions under which the same fault has to be found.

A switch changes the job before it is simulated, so that the cost of a fault is simulated again under the same
conditions, or it changes only what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobsim import recorded
from jobsim.job import Job
from jobsim.rank import Rank


def keep_job(job: Job) -> Job:
    """Return the job as it is."""
    return job


def keep_rows(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Return all ranks with all rows."""
    return ranks


@dataclass(frozen=True)
class Switch:
    """One condition: what it changes in the job, in the rows of its ranks, and in the files."""

    about: str
    change: Callable[[Job], Job] = keep_job
    record: Callable[[Job, list[Rank]], list[Rank]] = keep_rows
    spoil: Callable[[Job, list[Rank], list[Path]], dict[int, int]] = recorded.write_all
    unknown: frozenset[str] = frozenset()
    """What no report can tell under this switch: `@stage`, `@step`."""


def settings(**changes: Any) -> Callable[[Job], Job]:
    """Return what changes these settings of a job."""

    def change(job: Job) -> Job:
        return replace(job, **changes, _behaviours={})

    return change


def spread_over_hosts(skew_ns: int) -> Callable[[Job], Job]:
    """Return what puts two ranks on each host (eight in large jobs) and sets the clocks of hosts apart."""

    def change(job: Job) -> Job:
        hosts = 8 if job.ranks > 8 else max(1, min(2, job.ranks // 2))
        return replace(job, ranks_of_host=hosts, skew_ns=skew_ns, _behaviours={})

    return change


STAGE, STEP = frozenset({"@stage"}), frozenset({"@step"})
US, MS, S = 1_000, 1_000_000, 1_000_000_000

SWITCHES: dict[str, Switch] = {
    "none": Switch("nothing changed"),
    "no_stages": Switch("no ranges of stages and batches", record=recorded.drop_stages, unknown=STAGE),
    "no_marks": Switch("no step ranges", record=recorded.drop_marks, unknown=STEP),
    "no_ranges": Switch("neither stages nor steps", record=recorded.drop_all_ranges, unknown=STAGE | STEP),
    "skew_us": Switch("host clocks up to 400 µs apart", spread_over_hosts(400 * US)),
    "skew_ms": Switch("host clocks up to 20 ms apart", spread_over_hosts(20 * MS)),
    "skew_s": Switch("host clocks up to 5 s apart", spread_over_hosts(5 * S)),
    "short_rank": Switch("one rank ends a step early", record=recorded.drop_last_step),
    "late_rank": Switch("one rank starts recording a step late", record=recorded.drop_first_step),
    "half_step": Switch("recording starts in the middle of a step", record=recorded.drop_half_of_first_step),
    "missing_rank": Switch("the file of a rank is missing", record=recorded.drop_rank),
    "cut_file": Switch("the file of a rank is truncated", spoil=recorded.cut_file),
}  # fmt: skip
"""Every switch by its name."""
