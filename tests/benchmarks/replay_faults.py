"""Predicted savings beside the truth: SIMULATED jobs with one fault, replayed, and simulated again without it.

    python tests/benchmarks/replay_faults.py [--seeds 2] [--only KIND,…] [--jobs 2] [--write]

Each kind of fault is predicted twice: with the parameter of the fault (`tests/support/replay/remedies.py`), which measures the
graph alone, and with the changes that the findings on it name, which also measures the rules. The second saving is compared with
the cost of the fault, and with the same job simulated with the fixes that the findings propose, where the simulation can carry them
out (`tests/support/jobsim/proposals.py`): a finding that proposes to overlap collectives does not promise a faster network.

A line has the cost of the fault as a share of the step, the share of it that the proposed fixes save in the simulation, the largest
errors of the savings over the seeds, and the rules. `--write` writes the table to `replay_faults.txt`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import numpy as np
from benchmarks.job_expected import EXPECTED
from jobsim.engine import run as simulate
from jobsim.faults import ALL_KINDS, job_of
from jobsim.job import Job
from jobsim.proposals import read_proposal
from jobsim.truth import make, mean_step
from replay.simulations import measure_errors

from tracekit.pipeline.options import Options
from tracekit.pipeline.prediction.predicting import plan_findings
from tracekit.pipeline.replaying import replay_run
from tracekit.pipeline.run import judge

TABLE = Path(__file__).with_suffix(".txt")
LEAST_COST = 0.01
"""Smaller costs, as a share of the step, have no error in per cent; errors of smaller savings are shares of this one."""


class Prediction(NamedTuple):
    """Shares of the step: cost of a fault, predicted saving, and saving of the same fixes in the simulation; None is unknown."""

    cost: float
    saving: float | None
    proposed: float | None
    rules: str


class Outcome(NamedTuple):
    """One job: cost of the fault as a share of the step, errors of the savings (None: no saving), and the rule.

    `reach` is the share of the cost that the proposed fixes save in the simulation; `proposal` the error of their saving.
    """

    kind: str
    cost: float
    graph: float | None
    finding: float | None
    reach: float | None
    proposal: float | None
    rule: str


def predict_saving(kind: str, seed: int, folder: Path) -> Prediction:
    """Predict what the fixes of the findings that name a fault save together."""
    job = job_of(kind, "small", seed)
    truth = make(job, folder)
    run = replay_run(folder / "profile", Options(jobs=1, cache=False), questions=None)
    expected = EXPECTED.get(kind)
    rules = (*(expected.rules or ()), *expected.also) if expected else ()
    findings = judge(run.measured, details=False).findings
    named = [finding for finding in findings if finding.changes and (not rules or finding.rule in rules)]
    step, cost = truth["step_ns"], truth["all_faults_ns"]
    if not named:
        return Prediction(cost / step, None, None, "no finding names a change")
    plan, _ = plan_findings(run.job, run.steps, named)
    if not plan.fixes:
        return Prediction(cost / step, None, None, "no change matches")
    saved = plan.recorded_ns - plan.step_ns
    planned = [named[fix.place] for fix in plan.fixes]
    proposed = simulate_fixes(job, truth, [change for finding in planned for change in finding.changes])
    rules_planned = ", ".join(dict.fromkeys(finding.rule for finding in planned))
    return Prediction(cost / step, saved / step, proposed, rules_planned)


def simulate_fixes(job: Job, truth: dict[str, Any], changes: Sequence[str]) -> float | None:
    """Simulate a job with its fault and proposed fixes: their saving as a share of the step; None if it cannot carry them out."""
    proposal = read_proposal(changes)
    if proposal is None:
        return None
    fixed = mean_step(simulate(replace(job, proposal=proposal)), truth["steps_that_count"])
    return (truth["step_ns"] - fixed) / truth["step_ns"]


def measure(work: tuple[str, int]) -> Outcome:
    """Predict one job in both ways."""
    kind, seed = work
    with tempfile.TemporaryDirectory() as folder:
        cost, saving, proposed, rules = predict_saving(kind, seed, Path(folder))
    graph = measure_errors(kind, seed).gain
    finding = proposal = reach = None
    if saving is not None and cost >= LEAST_COST:
        finding = abs(saving / cost - 1)
        if proposed is not None:
            proposal = abs(saving - proposed) / max(proposed, LEAST_COST)
            reach = proposed / cost
    return Outcome(kind, cost, graph, finding, reach, proposal, rules)


def make_table(outcomes: list[Outcome]) -> Iterator[str]:
    """Make the lines of the table: a line for each kind, and the errors over all jobs."""
    yield "SIMULATED jobs: errors of the predicted saving, largest over the seeds, against the job without the fault and,"
    yield "as `proposal`, against the job with the fault and with the fixes that the findings propose; `reach` is what these"
    yield "fixes save in the simulation, as a share of the cost of the fault"
    yield f"{'kind':28}{'cost':>8}{'parameter':>11}{'finding':>9}{'reach':>8}{'proposal':>10}  rule"
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        graph, finding, proposal = (_find_largest(of_kind, name) for name in ("graph", "finding", "proposal"))
        reach = min((o.reach for o in of_kind if o.reach is not None), default=None)
        cost = float(np.mean([o.cost for o in of_kind]))
        cells = f"{cost:8.1%}{_share(graph):>11}{_share(finding):>9}{_share(reach):>8}{_share(proposal):>10}"
        yield f"{kind:28}{cells}  {of_kind[0].rule}"
    own = [o.finding if o.proposal is None else o.proposal for o in outcomes]
    for title, errors in (
        ("with the parameter of the fault", [o.graph for o in outcomes if o.graph is not None]),
        ("with the changes of the findings", [o.finding for o in outcomes if o.finding is not None]),
        (
            "the same against the proposed fixes, where they are simulated",
            [error for error in own if error is not None],
        ),
    ):
        values = np.array(errors)
        within = float((values <= 0.25).mean())
        yield (
            f"{title}: {len(values)} jobs, median {np.median(values):.1%}, p95 {np.quantile(values, 0.95):.1%},"
            f" largest {values.max():.1%}, within 25 %: {within:.1%}"
        )


def _find_largest(outcomes: list[Outcome], name: str) -> float | None:
    return max((value for o in outcomes if (value := getattr(o, name)) is not None), default=None)


def _share(value: float | None) -> str:
    return "—" if value is None else f"{value:.1%}"


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    kinds = chosen.only.split(",") if chosen.only else list(ALL_KINDS)
    works = [(kind, seed) for kind in kinds for seed in range(chosen.seeds)]
    with ProcessPoolExecutor(chosen.jobs) as pool:
        outcomes = list(pool.map(measure, works))
    text = "\n".join(make_table(outcomes)) + "\n"
    if chosen.write:
        TABLE.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
