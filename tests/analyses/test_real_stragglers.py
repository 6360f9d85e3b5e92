"""Who waits for whom in profiles of real runs whose faults are known."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from analyses.waiting_traces import measure_folder, rows_of, section

from tracekit.job.rank_groups import measure_own_work_of_ranks

REAL = os.environ.get("TRACEKIT_REAL_DATA")
pytestmark = [pytest.mark.skipif(REAL is None, reason="real profiles are not here"), pytest.mark.slow]


def findings(measured):
    return [f for f in section(measured).findings if f.rule == "straggler"]


def real(name):
    return Path(REAL) / "chrome" / name


def test_the_slow_rank_of_a_real_run_is_named_with_its_stage_and_cost():
    """Rank 2 multiplies matrices for 303 ms of every update, as the run itself timed."""
    truth = json.loads((real("gloo_cpu/straggler") / "ground_truth.json").read_text())
    injected = np.mean([s["injected_ns"] for s in truth["ranks"][2]["steps"]])
    measured = measure_folder(real("gloo_cpu/straggler"))
    (found,) = findings(measured)
    place = found.places[0]
    assert (place.rank, place.stage, found.severity) == (2, "update_actor", "high")
    evidence = {m.name: m.value for m in found.evidence}
    assert evidence["late_ns"] == pytest.approx(injected, rel=0.15)
    first = rows_of(section(measured), "waits")[0]
    assert (first["late_rank"], first["cause"], first["stage"], first["ranks"]) == (2, "update_actor", "update_actor", 3)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["base_run1", "base_run2", "base_run3", "opt_run1", "opt_run2", "opt_run3", "base_mem", "fault_leak",
     "fault_tiny_ops", "verl_like_perstep"],
)  # fmt: skip
def test_no_other_real_run_has_a_straggler(name):
    measured = measure_folder(real("gloo_cpu") / name)
    assert findings(measured) == []
    own = measure_own_work_of_ranks(measured)
    assert len(own)


def test_of_two_ranks_none_is_named_but_the_waits_are_shown():
    """Rank 1 has three times the samples: rank 0 waits for it in the update."""
    measured = measure_folder(real("verl_cpu/v091_straggler/outputs/profile"))
    assert findings(measured) == []
    ((answer, reason),) = [(v.answer, v.reason) for v in section(measured).verdicts]
    assert answer == "insufficient data"
    assert "most for rank 1: may be chance" in reason
    rows = rows_of(section(measured), "wait_matrix")
    assert {(r["rank"], r["late_rank"]) for r in rows} == {(0, 1)}
    assert (rows[0]["stage"], rows[0]["cause"]) == ("update_actor", "update_actor")
    own = measure_own_work_of_ranks(measured)
    first, second = (
        own["own_ns"][own.equals("canonical", "old_log_prob") & own.equals("rank", rank)].sum() for rank in range(2)
    )
    assert second > 2 * first


def test_of_one_capture_no_rank_is_named_for_a_pause_that_explains_a_third():
    """Two GPUs for 299 ms: rank 0 is 13.6 ms later, of which 4.4 ms are one longer cudaMemsetAsync (5.7 ms instead of 1.3)."""
    measured = measure_folder(Path(REAL) / "nsys/GindaChen_nsys-ai/mfu_2gpu_after.sqlite")
    assert findings(measured) == []
    (verdict,) = section(measured).verdicts
    assert "17.9 ms of a step are waits for late ranks, most for rank 0: may be chance" in verdict.reason  # fmt: skip
