"""What a fault costs: the same job simulated again with the same noise, but without it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobsim import kineto
from jobsim.engine import run
from jobsim.job import Fault, Job
from jobsim.rank import Rank
from jobsim.switches import SWITCHES


def counted(job: Job) -> list[int]:
    """The steps that count: all but the first, in which profiling begins and code is loaded; a single one counts."""
    return [*job.step_numbers()][1:] or [job.first_step]


def mean_step(ranks: list[Rank], steps: list[int]) -> float:
    """The mean time from the start of the first of these steps to the end of the last, per step and over ranks."""
    walls = []
    for rank in ranks:
        if rank.job.sync_every > 1:
            walls.append(mean_of_device(rank, steps))
            continue
        windows = [(start, end) for step, start, end in rank.steps if step in steps]
        walls.append((windows[-1][1] - windows[0][0]) / len(windows))
    return sum(walls) / len(walls)


def mean_of_device(rank: Rank, steps: list[int]) -> float:
    """The mean time between the ends of steps on the device, where the host does not wait for it."""
    first, last = steps[0] - rank.job.first_step, steps[-1] - rank.job.first_step
    start = rank.device_ends[first - 1] if first else rank.steps[0][1]
    return (rank.device_ends[last] - start) / (last - first + 1)


def truth(
    job: Job, ranks: list[Rank], steps: list[int] | None = None, recorded: list[Rank] | None = None
) -> dict[str, Any]:
    """What was planted, and the ns of a step that each fault and all faults cost, in these steps or those that count.

    The cost of all is that of faults on `recorded` ranks: a recording does not show what another rank does.
    """
    steps = steps or counted(job)
    seen = [fault for fault in job.faults if is_recorded(fault, ranks if recorded is None else recorded)]
    slow = mean_step(ranks, steps)
    costs = []
    for fault in job.faults:
        alone = job.without(fault)
        costs.append(round(slow - mean_step(run(alone), steps)))
    together = costs[0] if len(costs) == 1 and seen else 0
    if len(costs) > 1:
        together = round(slow - mean_step(run(job.without(*seen)), steps))
    return {
        "simulated": kineto.NOTICE,
        "name": job.name,
        "ranks": job.ranks,
        "steps": job.steps,
        "seed": job.seed,
        "tensor_parallel": job.tensor_parallel,
        "stacks": job.stacks,
        "step_ns": round(slow),
        "steps_that_count": steps,
        "step_ns_without": round(slow) - together,
        "all_faults_ns": together,
        "costs": costs_of_kinds(job, slow, steps, seen) or {job.faults[0].kind: together} if job.faults else {},
        "first_steps_ns": first_steps(job, ranks),
        "faults": [
            {**{key: value for key, value in asdict(fault).items() if value is not None}, "cost_ns": cost}
            for fault, cost in zip(job.faults, costs, strict=True)
        ],
    }  # fmt: skip


def is_recorded(fault: Fault, recorded: list[Rank]) -> bool:
    """Whether any rank that a fault hits was recorded."""
    return fault.ranks is None or any(rank.rank in fault.ranks for rank in recorded)


def costs_of_kinds(job: Job, slow: float, steps: list[int], seen: list[Fault]) -> dict[str, int]:
    """Return what each kind of fault costs on recorded ranks, where several were planted."""
    kinds = dict.fromkeys((fault.kind for fault in job.faults), 0)
    if len(kinds) < 2:
        return {}
    for kind in kinds:
        own = [fault for fault in seen if fault.kind == kind]
        kinds[kind] = round(slow - mean_step(run(job.without(*own)), steps))
    return kinds


def common_steps(job: Job, recorded: list[Rank], lost: dict[int, int]) -> list[int]:
    """List the steps that count and that every rank recorded; `lost` counts steps at the end that a rank's file lacks."""
    kept = set(counted(job))
    for rank in recorded:
        kept &= {*rank.kept_steps[: len(rank.kept_steps) - lost.get(rank.rank, 0)]}
    return sorted(kept) or counted(job)


def first_steps(job: Job, ranks: list[Rank]) -> int:
    """What the steps that do not count take longer in all, because of faults."""
    skipped = [step for step in job.step_numbers() if step not in counted(job)]
    if not skipped:
        return 0
    without = run(job.without(*job.faults))
    return round((mean_step(ranks, skipped) - mean_step(without, skipped)) * len(skipped))


def make(job: Job, folder: Path, switch: str = "none") -> dict[str, Any]:
    """Simulate a job under a switch and return its truth.

    The traces are in `folder/profile`, the truth beside them in `truth.json`.
    """
    chosen = SWITCHES[switch]
    changed = chosen.change(job)
    assert changed is not None, f"{switch} does not apply to {job.name}"
    job = changed
    ranks = run(job)
    profile = folder / "profile"
    profile.mkdir(parents=True, exist_ok=True)
    recorded = chosen.record(job, ranks)
    paths = [kineto.write(rank, profile) for rank in recorded]
    lost = chosen.spoil(job, recorded, paths)
    figures = truth(job, ranks, common_steps(job, recorded, lost), recorded) | {"switch": switch}
    figures["recorded_steps"] = sorted({step for rank in recorded for step in rank.kept_steps})
    (folder / "truth.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures
