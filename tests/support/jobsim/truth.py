"""What a fault costs: the same job simulated again with the same noise, but without it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobsim import kineto
from jobsim.engine import run
from jobsim.job import Job
from jobsim.rank import Rank


def counted(job: Job) -> list[int]:
    """The steps that count: all but the first, in which profiling begins and code is loaded; a single one counts."""
    return [*job.step_numbers()][1:] or [job.first_step]


def mean_step(ranks: list[Rank], steps: list[int]) -> float:
    """The mean time from the start of the first of these steps to the end of the last, per step and over ranks."""
    walls = []
    for rank in ranks:
        windows = [(start, end) for step, start, end in rank.steps if step in steps]
        walls.append((windows[-1][1] - windows[0][0]) / len(windows))
    return sum(walls) / len(walls)


def truth(job: Job, ranks: list[Rank]) -> dict[str, Any]:
    """What was planted, and the ns of a step that each fault and all faults cost."""
    steps = counted(job)
    slow = mean_step(ranks, steps)
    costs = []
    for fault in job.faults:
        alone = job.without(fault)
        costs.append(round(slow - mean_step(run(alone), steps)))
    together = costs[0] if len(costs) == 1 else 0
    if len(costs) > 1:
        together = round(slow - mean_step(run(job.without(*job.faults)), steps))
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
        "first_steps_ns": first_steps(job, ranks),
        "faults": [
            {**{key: value for key, value in asdict(fault).items() if value is not None}, "cost_ns": cost}
            for fault, cost in zip(job.faults, costs, strict=True)
        ],
    }  # fmt: skip


def first_steps(job: Job, ranks: list[Rank]) -> int:
    """What the steps that do not count take longer in all, because of faults."""
    skipped = [step for step in job.step_numbers() if step not in counted(job)]
    if not skipped:
        return 0
    without = run(job.without(*job.faults))
    return round((mean_step(ranks, skipped) - mean_step(without, skipped)) * len(skipped))


def make(job: Job, folder: Path) -> dict[str, Any]:
    """The truth of a job; its traces lie under `folder/profile`, and `truth.json` beside them."""
    ranks = run(job)
    profile = folder / "profile"
    profile.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        kineto.write(rank, profile)
    figures = truth(job, ranks)
    (folder / "truth.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures
