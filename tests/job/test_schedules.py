"""The step of a log under other schedules: hand-worked bounds, and no claim where generation dominates."""

import json

import numpy as np
import pytest
from analyses.rl_report import rows, section

from tracekit.job.run_log.schedules import predict_schedules
from tracekit.job.run_log.stages import resolve_logged_stages
from tracekit.job.run_log.values import RunLog
from tracekit.model.recording.rl_frameworks import find_framework
from tracekit.pipeline import analyze


def predict(gen, train, tail=0.5, sync=2.0, mean=500.0, longest=1_000.0, **more):
    """Predict the schedules of a step of verl on 8 GPUs."""
    values = {
        "timing_s/gen": gen, "timing_s/update_actor": train - sync, "timing_s/update_weights": sync,
        "timing_s/step": gen + train, "perf/total_num_tokens": 8_000.0 * (gen + train), "perf/throughput": 1_000.0,
        "response_length/mean": mean, "response_length/max": longest, **more,
    }  # fmt: skip
    series = {name: np.full(8, value) for name, value in values.items()}
    log = RunLog(None, "log", find_framework(values), np.zeros(8, np.int64), np.arange(8), series)
    return {row.schedule: row for row in predict_schedules(resolve_logged_stages(log), tail)}


def test_separate_pools_with_and_without_the_tail():
    """On n of 8 GPUs generation takes 40 · (0.5 + 4 / n): with a tail of 20 s, 2 GPUs need 100 s, training on 6 80 s."""
    rows = predict(40.0, 60.0)
    best = min(max(40 * (0.5 + 4 / n), 60 * 8 / (8 - n)) for n in range(1, 8))
    assert rows["one step off, on separate GPUs"].step_s == pytest.approx(best) == pytest.approx(96.0)
    # Fully async: 20 s of work on all GPUs are 80 s on 2, as long as training on 6.
    assert rows["fully async, on separate GPUs"].step_s == pytest.approx(80.0)
    assert "2 of 8 GPUs generate" in rows["fully async, on separate GPUs"].assumption


@pytest.mark.parametrize(("gen", "is_claimed"), [(49.0, True), (50.0, False), (80.0, False)])
def test_overlap_is_not_claimed_where_generation_dominates(gen, is_claimed):
    rows = predict(gen, 100.0 - gen)
    for schedule in ("one step off, on separate GPUs", "fully async, on separate GPUs"):
        assert (rows[schedule].step_s is not None) == is_claimed
        assert rows[schedule].assumption.startswith("no claim") != is_claimed


def test_a_tail_cut_at_p95():
    """3.0 times a mean of 500 is 1,498 of 3,000 tokens: generation of 40 s ends after 20.0 s."""
    row = predict(40.0, 60.0, longest=3_000.0)["generation tail cut at p95"]
    assert row.step_s == pytest.approx(100 - 40 * (1 - 1497.866 / 3_000), abs=0.001)
    assert "1,498 tokens" in row.assumption
    # Nothing is longer than p95.
    assert "generation tail cut at p95" not in predict(40.0, 60.0, longest=1_400.0)


VALUES = {
    "timing_s/gen": 40.0, "timing_s/update_actor": 60.0, "timing_s/step": 100.0, "perf/total_num_tokens": 800_000,
    "perf/throughput": 1_000.0, "response_length/mean": 500.0, "response_length/max": 3_000.0,
    "training/off_policy/trajectory_staleness/max": 0,
}  # fmt: skip


def write_run(folder, requests=None, steps=12):
    """A log of equal steps, and in each step's dump the `requests`: seconds of generation."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"step": step, "data": VALUES}) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if requests is not None:
        (folder / "rollout").mkdir()
        for step in range(1, steps + 1):
            samples = [
                {"input": "secret", "output": "secret", "score": 1.0, "step": step, "generate_sequences": seconds}
                for seconds in requests(step)
            ]
            text = "".join(json.dumps(sample) + "\n" for sample in samples)
            (folder / "rollout" / f"{step}.jsonl").write_text(text)
    return analyze(folder, questions=("run-log", "requests"))


def tail_cut(report):
    return next(
        (row for row in rows(report, "run-log", "schedules") if row["schedule"] == "generation tail cut at p95"), None
    )


def test_the_tail_is_cut_at_the_p95_of_the_recorded_requests(tmp_path):
    """Of 1 to 20 and 100 s, 20 s is the 95th percentile: a fifth of generation is left, 8 of 40 s."""
    row = tail_cut(write_run(tmp_path, lambda step: [*range(1, 21), 100]))
    assert row["step, at least"] == 68 * 10**9
    assert row["change"] == pytest.approx(-0.32)
    assert "95th percentile of its requests, 20.0 s" in row["assumption"]
    assert "by 252 recorded requests of 12 steps" in row["assumption"]
    assert "exponentially" not in row["assumption"]


def test_the_dumps_of_one_run_are_one_source(tmp_path):
    report = write_run(tmp_path, lambda step: [4] * 18 + [20] * 3)
    (finding,) = [finding for finding in report.findings if finding.rule == "request-tail"]
    assert "of 252 requests" in finding.claim
    # Logs alone have neither ranks nor GPU work.
    assert not {"ranks unknown", "no GPU activity recorded"} & set(report.identity)
    assert "take over 20.0 s, 5.0 times the median" in finding.claim
    assert finding.places[0].source == "rollout/1.jsonl"
    assert any(
        "252 requests of rollout/1.jsonl and 11 more" in metric.label for metric in section(report, "requests").metrics
    )


def test_the_p95_is_that_of_each_step_not_of_all(tmp_path):
    # In every other step all requests take ten times as long: its own p95 is a fifth of its longest, too.
    row = tail_cut(write_run(tmp_path, lambda step: [t * (1 + 9 * (step % 2)) for t in (*range(1, 21), 100)]))
    assert row["step, at least"] == 68 * 10**9


@pytest.mark.parametrize("requests", [None, lambda step: range(1, 20), lambda step: []])
def test_without_enough_recorded_requests_lengths_are_assumed(tmp_path, requests):
    assert "fall off exponentially" in tail_cut(write_run(tmp_path, requests))["assumption"]


def test_equal_requests_have_no_tail_to_cut(tmp_path):
    assert tail_cut(write_run(tmp_path, lambda step: [5] * 21)) is None


def test_weight_sync_in_the_background():
    assert predict(40.0, 60.0)["weight sync in the background"].step_s == pytest.approx(98.0)


def test_an_async_trainer_has_no_other_schedule():
    assert predict(40.0, 60.0, **{"fully_async/x": 1.0}) == {}
