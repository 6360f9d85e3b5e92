"""Recordings of one GPU with a known cause each: the step predicted without the cause, beside the recording without it."""

from functools import cache
from pathlib import Path

import pytest

from tracekit.pipeline.options import Options
from tracekit.pipeline.prediction.predicting import plan_findings
from tracekit.pipeline.replaying import replay_run
from tracekit.pipeline.run import judge
from tracekit.replay.steps import measure_step_times

PAIRS = Path(__file__).parents[1] / "data" / "gpu" / "pairs"

RULES = {
    "fp32": "no-tensor-cores",
    "pageable": "pageable-copies",
    "loader": "host-silence",
    "host_pause": "stage-edge-idle",
    "unfused_optimizer": "unfused-optimizer",
    "empty_cache": "allocator-calls",
}
"""Cause to the rule that names it."""


@cache
def replay_recording(name):
    return replay_run(PAIRS / f"{name}.pt.trace.json.xz", Options(jobs=1, cache=False), questions=None)


@pytest.mark.parametrize("cause", RULES)
def test_the_step_without_a_cause_is_that_of_the_clean_recording(cause):
    """Recorded steps of one program differ by a few per cent; the causes cost 25 to 55 % of their step."""
    clean = replay_recording("base")
    clean_ns = measure_step_times(clean.steps, clean.job.time).mean_ns
    run = replay_recording(cause)
    (finding,) = [f for f in judge(run.measured, details=False).findings if f.rule == RULES[cause]]
    plan, _ = plan_findings(run.job, run.steps, [finding])
    assert plan.recorded_ns > 1.25 * clean_ns
    assert plan.fixes[0].saving.step_ns == pytest.approx(clean_ns, rel=0.15)


def test_a_step_that_the_host_leaves_early_lasts_until_its_work_is_done():
    """The host launches ahead: its own marks are 38.9 ms apart, and a step without a profiler takes 47.0 ms."""
    run = replay_recording("fp32")
    assert measure_step_times(run.steps, run.job.time).mean_ns == pytest.approx(47.0e6, rel=0.005)
