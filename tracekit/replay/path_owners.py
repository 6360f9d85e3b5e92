"""The critical path of a run by kind of work and by row or op, per step."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.records import dataclass
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.ledger import find_critical_path
from tracekit.replay.steps import JobSteps
from tracekit.replay.what_if_tables import measure_path_cover, sum_owners

PathOwner = tuple[str, str | None]
"""Label of a kind, and the name of a row or op; None where nothing is recorded."""


@dataclass(frozen=True, slots=True)
class PathOwners:
    """The recorded critical path of a run: ns per counted step by owner over all ranks, which add up to `step_ns`.

    `residual_share` is the share that no dependency explains.
    """

    ns: Mapping[PathOwner, float]
    step_ns: float
    steps: int
    residual_share: float


def measure_path_owners(job: JobGraph, steps: JobSteps) -> PathOwners | None:
    """Measure the critical path of a run by owner; None if no part is recorded."""
    path = find_critical_path(job, steps)
    cover = measure_path_cover(steps, path, job.time)
    if not cover.ns:
        return None
    sums: dict[PathOwner, int] = {}
    for (_, kind, name), ns in sum_owners(job, path.spent).items():
        sums[kind, name] = sums.get((kind, name), 0) + ns
    by_owner = {owner: ns / cover.steps for owner, ns in sums.items()}
    return PathOwners(by_owner, cover.ns / cover.steps, cover.steps, cover.residual_share)
