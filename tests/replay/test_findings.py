"""Changes that findings name: replayed, they bring what the simulated fault costs. The test tells them nothing of the fault."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.replay_faults import LEAST_COST, TABLE, predict_saving
from jobsim.clean import clean_job
from jobsim.faults import ALL_KINDS
from jobsim.truth import make
from rules.firing import write_sources
from rules.traces import FIRES

from tracekit import analyses
from tracekit.analyses import ANALYSES
from tracekit.pipeline.options import Options
from tracekit.pipeline.prediction.predicting import plan_findings
from tracekit.pipeline.replaying import replay_run
from tracekit.pipeline.run import analyze_uncached, judge
from tracekit.replay.changes import parse_change

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/simulated_gpu/outputs/profile"

FAST = (
    "straggler_clock", "item_in_loop", "pageable_copies", "python_preprocessing", "fp32_gemm", "kv_preemption",
    "exposed_communication", "frequent_reduction", "slow_weight_sync", "eager_decode", "drift", "unfused_optimizer",
)  # fmt: skip

OTHER_FIX = ("resharding", "slow_network", "slow_cores")
"""Kinds whose findings propose another fix than the repair of the fault, which saves less.

R02 drops the waits for gathers of single tensors, not the gathers and the host's work for each. Slow cores of all ranks and a
slow network of all groups have nothing in the run to compare with: R03 and R13 propose a graph and fewer messages.
"""


@pytest.mark.parametrize("kind", FAST)
def test_the_fix_of_a_finding_saves_what_the_fault_costs(kind, tmp_path):
    predicted = predict_saving(kind, 0, tmp_path)
    assert predicted.saving == pytest.approx(predicted.cost, rel=0.1)


@pytest.mark.parametrize(
    "kind", [OTHER_FIX[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHER_FIX[1:])]
)
def test_another_fix_than_the_repair_saves_what_it_saves_in_the_simulation(kind, tmp_path):
    predicted = predict_saving(kind, 0, tmp_path)
    assert predicted.proposed < predicted.cost / 2
    assert abs(predicted.saving - predicted.proposed) < 0.002


@pytest.mark.parametrize("name", ["plain", "tensor_parallel", "short_steps", "full_overlap", "experts"])
def test_findings_on_a_job_without_a_fault_save_next_to_nothing(name, tmp_path):
    """Small findings remain, such as the exposed gathers of a weight sync; what they predict is below 0.5 % of the step."""
    make(clean_job(name), tmp_path)
    run = replay_run(tmp_path / "profile", Options(jobs=1, cache=False), questions=None)
    findings = [finding for finding in judge(run.measured, details=False).findings if finding.changes]
    plan, _ = plan_findings(run.job, run.steps, findings)
    shortest_ns = min((fix.saving.step_ns for fix in plan.fixes), default=plan.recorded_ns)
    assert plan.recorded_ns - shortest_ns < 0.005 * plan.recorded_ns


@pytest.mark.slow
def test_the_fixes_of_findings_save_what_faults_cost(tmp_path):
    """All kinds of faults: the errors of the savings of all findings on each, against the same fixes where they are simulated."""
    of_fault, of_fix = {}, {}
    for kind in ALL_KINDS:
        each = predict_saving(kind, 0, tmp_path / kind)
        if each.cost >= LEAST_COST:
            of_fault[kind] = of_fix[kind] = 1.0 if each.saving is None else abs(each.saving / each.cost - 1)
            if each.saving is not None and each.proposed is not None:
                of_fix[kind] = abs(each.saving - each.proposed) / max(each.proposed, LEAST_COST)
    assert len(of_fault) >= 74
    assert np.median([*of_fault.values()]) <= 0.0125
    assert np.quantile([*of_fault.values()], 0.9) <= 0.12
    assert {kind for kind, error in of_fault.items() if error > 0.25} <= {*OTHER_FIX}
    assert np.quantile([*of_fix.values()], 0.95) <= 0.1
    assert {kind: error for kind, error in of_fix.items() if error > 0.25} == {}


def test_every_change_that_a_finding_of_the_example_names_can_be_read():
    report = analyze_uncached(EXAMPLE, Options(jobs=1, cache=False)).report
    changes = [change for finding in report.findings for change in finding.changes]
    assert len(changes) >= 5
    for change in changes:
        assert json.loads(change)["do"] == parse_change(change).do


PAGES = Path(analyses.__file__).parent
OF_LOGS = {page.stem for subject in ("run_log", "engines") for page in (PAGES / subject).glob("*.md")}

WITHOUT_CHANGE = OF_LOGS | {
    "fragmentation", "hang", "late-rank", "low-gpu-utilization", "memory-growth", "memory-imbalance", "memory-near-limit",
    "out-of-memory", "profiling-artefact", "ragged-micro-batches", "reserved-growth", "slow-first-iterations", "start-up",
}  # fmt: skip
"""Rules about logs, which record no dependencies, about memory, the recording or idle time without a cause, and two whose pages say why nothing can be replayed."""

UNKNOWN_ON_ITS_TRACE = {"exposed-communication", "weight-sync"}
"""Rules without a change on their shortest trace: one collective per step, which overlaps with nothing, and a sync without bytes."""


@pytest.mark.parametrize(
    "rule", sorted({rule for analysis in ANALYSES for rule in analysis.rules} - UNKNOWN_ON_ITS_TRACE)
)
def test_a_rule_names_a_change_that_can_be_read(tmp_path, rule):
    questions = tuple(analysis.id for analysis in ANALYSES if rule in analysis.rules)
    sources = write_sources(tmp_path, FIRES[rule].rows)
    report = analyze_uncached(sources, Options(jobs=1, questions=questions)).report
    (finding,) = [finding for finding in report.findings if finding.rule == rule]
    assert bool(finding.changes) == (rule not in WITHOUT_CHANGE)
    for change in finding.changes:
        assert json.loads(change)["do"] == parse_change(change).do


def test_the_page_has_the_errors_of_the_table():
    last = TABLE.read_text("utf-8").splitlines()[-2:]
    page = (ROOT / "docs" / "whatif.md").read_text("utf-8")
    assert all(line in page for line in last)
