"""Predicted savings beside the truth: SIMULATED jobs with one fault, replayed, and simulated again without it.

    python tests/benchmarks/replay_faults.py [--seeds 2] [--only KIND,…] [--jobs 2] [--write]

Each kind of fault is predicted twice: with the parameter of the fault (`tests/support/replay/remedies.py`), which measures the
graph alone, and with the changes that the findings on it name, which also measures the rules. A line has the cost of the fault as a
share of the step, the largest error of both savings over the seeds, and the rules. `--write` writes the table to
`replay_faults.txt`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import numpy as np
from benchmarks.job_expected import EXPECTED
from jobsim.faults import ALL_KINDS, job_of
from jobsim.truth import make
from replay.simulations import measure_errors

from tracekit.pipeline.options import Options
from tracekit.pipeline.prediction.predicting import plan_findings
from tracekit.pipeline.replaying import replay_run
from tracekit.pipeline.run import judge

TABLE = Path(__file__).with_suffix(".txt")
LEAST_COST = 0.01
"""Smaller costs, as a share of the step, have no error in per cent."""


class Outcome(NamedTuple):
    """One job: cost of the fault as a share of the step, errors of the savings (None: no saving), and the rule."""

    kind: str
    cost: float
    graph: float | None
    finding: float | None
    rule: str


def predict_saving(kind: str, seed: int, folder: Path) -> tuple[float, float | None, str]:
    """Predict what the fixes of the findings that name a fault save together: (cost, saving as shares of the step, rules)."""
    truth = make(job_of(kind, "small", seed), folder)
    run = replay_run(folder / "profile", Options(jobs=1, cache=False), questions=None)
    expected = EXPECTED.get(kind)
    rules = (*(expected.rules or ()), *expected.also) if expected else ()
    findings = judge(run.measured, details=False).findings
    named = [finding for finding in findings if finding.changes and (not rules or finding.rule in rules)]
    step, cost = truth["step_ns"], truth["all_faults_ns"]
    if not named:
        return cost / step, None, "no finding names a change"
    plan, _ = plan_findings(run.job, run.steps, named)
    if not plan.fixes:
        return cost / step, None, "no change matches"
    saved = plan.recorded_ns - plan.step_ns
    return cost / step, saved / step, ", ".join(dict.fromkeys(named[fix.place].rule for fix in plan.fixes))


def measure(work: tuple[str, int]) -> Outcome:
    """Predict one job in both ways."""
    kind, seed = work
    with tempfile.TemporaryDirectory() as folder:
        cost, saving, rule = predict_saving(kind, seed, Path(folder))
    graph = measure_errors(kind, seed).gain
    finding = None if saving is None or cost < LEAST_COST else abs(saving / cost - 1)
    return Outcome(kind, cost, graph, finding, rule)


def make_table(outcomes: list[Outcome]) -> Iterator[str]:
    """Make the lines of the table: a line for each kind, and the errors over all jobs."""
    yield "SIMULATED jobs: errors of the predicted saving, largest over the seeds"
    yield f"{'kind':28}{'cost':>8}{'parameter':>11}{'finding':>9}  rule"
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        graph = max((o.graph for o in of_kind if o.graph is not None), default=None)
        finding = max((o.finding for o in of_kind if o.finding is not None), default=None)
        cost = float(np.mean([o.cost for o in of_kind]))
        yield f"{kind:28}{cost:8.1%}{_share(graph):>11}{_share(finding):>9}  {of_kind[0].rule}"
    for title, errors in (
        ("with the parameter of the fault", [o.graph for o in outcomes if o.graph is not None]),
        ("with the changes of the findings", [o.finding for o in outcomes if o.finding is not None]),
    ):
        values = np.array(errors)
        within = float((values <= 0.25).mean())
        yield (
            f"{title}: {len(values)} jobs, median {np.median(values):.1%}, p95 {np.quantile(values, 0.95):.1%},"
            f" largest {values.max():.1%}, within 25 %: {within:.1%}"
        )


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
