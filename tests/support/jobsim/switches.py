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


def keep_job(job: Job) -> Job | None:
    """Return the job as it is."""
    return job


def keep_rows(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Return all ranks with all rows."""
    return ranks


@dataclass(frozen=True)
class Switch:
    """One condition: what it changes in the job, in the rows of its ranks, and in the files."""

    about: str
    change: Callable[[Job], Job | None] = keep_job
    """Returns None for a job to which the switch does not apply."""
    record: Callable[[Job, list[Rank]], list[Rank]] = keep_rows
    spoil: Callable[[Job, list[Rank], list[Path]], dict[int, int]] = recorded.write_all
    unknown: frozenset[str] = frozenset()
    """What no report can tell under this switch: `@stage`, `@step`."""
    size: str = "small"
    """The size of the jobs, a name in `ALL_SIZES`."""
    several: int = 1
    """Kinds of faults in a job."""


def settings(**changes: Any) -> Callable[[Job], Job | None]:
    """Return what changes these settings of a job."""

    def change(job: Job) -> Job | None:
        return replace(job, **changes, _behaviours={})

    return change


def split_into_stages(job: Job) -> Job | None:
    """Split the model into two pipeline stages; not where it is split already."""
    if job.tensor_parallel > 1 or job.moe or job.pipeline > 1 or job.ranks % 2 or job.ranks > 8:
        return None
    return replace(job, pipeline=2, micros=4, _behaviours={})


def generate_on_half(job: Job) -> Job | None:
    """Generate on half of the ranks while the others train."""
    if job.tensor_parallel > 1 or job.pipeline > 1 or job.ranks % 2 or job.ranks > 8:
        return None
    return replace(job, async_rollout=True, _behaviours={})


def let_host_run_ahead(job: Job) -> Job | None:
    """Leave generation out, and read numbers from the device only in every third step."""
    if not job.sync_steps:
        return None
    return replace(job, rollout=False, sync_steps=False, sync_every=3, _behaviours={})


def spread_over_hosts(skew_ns: int) -> Callable[[Job], Job | None]:
    """Return what puts two ranks on each host (eight in large jobs) and sets the clocks of hosts apart."""

    def change(job: Job) -> Job | None:
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
    "renamed": Switch("stages, engine and kernels have other names", record=recorded.rename),
    "no_shapes": Switch("shapes of inputs are not recorded", record=recorded.drop_shapes),
    "periodic": Switch("validation every second step, checkpoint every third", settings(validate_every=2, checkpoint_every=3), size="long"),
    "pipeline": Switch("two pipeline stages", split_into_stages),
    "async_rollout": Switch("half of the ranks generate, weights are broadcast", generate_on_half),
    "host_ahead": Switch("training only, the device is read every third step", let_host_run_ahead, size="long"),
    "short_queue": Switch("a launch queue of 64", settings(queue_depth=64)),
    "preemption": Switch("requests are preempted in every tenth iteration", settings(preempt_every=10)),
    "contention": Switch("compute is 15 % slower during collectives", settings(contention=0.15)),
    "noisy": Switch("noise of kernels, clocks, links, hosts and batches", settings(noise=0.03, wander=0.006, link_noise=0.1, os_noise=0.002, batch_spread=0.03, host_noise=0.25)),
    "pairs": Switch("two faults", several=2),
    "triples": Switch("three faults", several=3),
}  # fmt: skip
"""Every switch by its name."""
