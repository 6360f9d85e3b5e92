"""Late ranks where a pipeline, a missing file or an early end of a recording stands between: named, at their cost."""

import pytest
from benchmarks.job_faults import planned
from jobsim.truth import make

from tracekit.pipeline.run import Options, analyze_uncached


@pytest.mark.parametrize(
    ("work", "rule", "within"),
    [
        # The others also wait for the bubble, 20.1 ms in all.
        (("straggler_clock", "small", 2, "pipeline"), "straggler", 0.25),
        # Eight late ranks of the fifteen that were recorded, of sixteen.
        (("slow_host", "small", 2, "missing_rank"), "straggler", 0.1),
        # In one of the three steps all wait for the rank that is missing: the cost has its wait, the saving does not.
        (("rotating_tokens", "small", 2, "missing_rank"), "rank-imbalance", 0.1),
        # Two steps count; who works longest is known of the two before too.
        (("rotating_tokens", "small", 0, "late_rank"), "rank-imbalance", 0.1),
        # Half a step precedes the first mark.
        (("late_start", "small", 2, "half_step"), "straggler", 0.1),
        (("frequent_checkpoints", "small", 0, "half_step"), "periodic-stage", 0.2),
        # Late in the last two steps, the second of which another rank lacks.
        (("straggler_late", "small", 2, "short_rank"), "straggler", 0.1),
        # The file of one of the four late ranks is truncated.
        (("four_stragglers", "small", 2, "cut_file"), "straggler", 0.1),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_they_are_named_for_what_they_cost(tmp_path, work, rule, within):
    *job, switch = work
    figures = make(planned(*job), tmp_path, switch)
    report = analyze_uncached(tmp_path / "profile", Options(jobs=1, cache=False)).report
    (found,) = [finding for finding in report.findings if finding.rule == rule]
    of_missing = (rule, switch) == ("rank-imbalance", "missing_rank")
    amount = found.saving.alone_ns if of_missing else found.cost_ns
    assert amount == pytest.approx(figures["all_faults_ns"], rel=within)
    if of_missing:
        assert found.cost_ns > 1.3 * amount
        assert any("1 rank was not recorded" in caveat for caveat in found.caveats)
