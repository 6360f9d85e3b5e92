"""Changes that findings name: replayed, they bring what the simulated fault costs. The test tells them nothing of the fault."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.replay_faults import TABLE, predict_saving
from jobsim.faults import ALL_KINDS

from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached
from tracekit.replay.changes import parse_change

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/simulated_gpu/outputs/profile"

FAST = ("straggler_clock", "item_in_loop", "pageable_copies", "python_preprocessing", "fp32_gemm", "kv_preemption")

NO_CHANGE = ("tail_all_ranks", "drift")
"""Kinds whose finding names no change: iterations of a rollout and earlier steps cannot be selected."""

OFF = {"resharding": 0.65, "frequent_reduction": 0.4, "slow_cores": 0.95, "eager_decode": 0.3}
"""Kinds with a larger error than a quarter, and its limit.

R02 keeps the gathers that the host waits for, R05 hides all communication and not only the needless reductions, slow cores
of all ranks have no rank to compare with, and event waits that never had to wait are not seen.
"""


@pytest.mark.parametrize("kind", FAST)
def test_the_fix_of_a_finding_saves_what_the_fault_costs(kind, tmp_path):
    cost, saved, _ = predict_saving(kind, 0, tmp_path)
    assert saved == pytest.approx(cost, rel=0.1)


@pytest.mark.slow
def test_the_fixes_of_findings_save_what_faults_cost(tmp_path):
    """All kinds of faults: the errors of the savings of all findings on each."""
    errors = {}
    for kind in ALL_KINDS:
        if kind in NO_CHANGE:
            continue
        cost, saved, _ = predict_saving(kind, 0, tmp_path / kind)
        if cost >= 0.01:
            errors[kind] = 1.0 if saved is None else abs(saved / cost - 1)
    assert len(errors) >= 70
    assert np.median([*errors.values()]) <= 0.02
    assert {kind: error for kind, error in errors.items() if error > OFF.get(kind, 0.25)} == {}


def test_every_change_that_a_finding_of_the_example_names_can_be_read():
    report = analyze_uncached(EXAMPLE, Options(jobs=1, cache=False)).report
    changes = [change for finding in report.findings for change in finding.changes]
    assert len(changes) >= 5
    for change in changes:
        assert json.loads(change)["do"] == parse_change(change).do


def test_the_page_has_the_errors_of_the_table():
    last = TABLE.read_text("utf-8").splitlines()[-2:]
    page = (ROOT / "docs" / "whatif.md").read_text("utf-8")
    assert all(line in page for line in last)
