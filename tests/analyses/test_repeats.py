"""One side alone: every metric over the steps that count, run by run, and the steps that do not."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from chrome_builder import annotation, launched, op, step, write
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.time import repeats
from tracekit.job.steps.metric_samples import MetricSamples
from tracekit.job.steps.throughput import compute_work_rates
from tracekit.model.report import Report
from tracekit.model.tables.frame import from_rows
from tracekit.pipeline import run as pipeline
from tracekit.render import render

QUESTIONS = ("repeats",)

REAL = os.environ.get("TRACEKIT_REAL_DATA")
ONE = pipeline.Options(jobs=1, questions=QUESTIONS)
STEP, TOKENS = ("step_time", None, None), ("tokens", None, None)


def judged(*paths):
    return repeats.judge(pipeline.analyze_uncached(list(paths), ONE).measurements, load_default_thresholds())


def write_run(folder, lasting, ranks=1, at=0):
    """Steps of these µs back to back, a stage `rollout` in the first half of each, rank r's 10 r µs longer."""
    for rank in range(ranks):
        rows, now = [], at
        for number, dur in enumerate(lasting, 1):
            rows += [step(number, now, dur), annotation("rollout", now + 1, dur // 2 + 10 * rank)]
            rows += [op("aten::mm", now + 2, 5)]
            now += dur
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=ranks)
    return folder


def rows_of(section, name="repeats"):
    found = next((sheet for sheet in section.sheets if sheet.name == name), None)
    if found is None:
        return []
    names = [heading.name for heading in found.headings]
    return [dict(zip(names, row, strict=True)) for row in found.rows]


def test_runs_are_what_is_repeated_where_there_are_several(tmp_path):
    # Without the first step of each capture the means are 110 and 130 µs: mean 120, sd √200 = 14.142.
    runs = [write_run(tmp_path / "a", [500, 100, 120]), write_run(tmp_path / "b", [500, 120, 140])]
    section = judged(*runs)
    found = rows_of(section)[0]
    assert (found["title"], found["runs"], found["steps"]) == ("step", 2, 4)
    assert (found["mean"], found["least"], found["most"]) == (120e3, 100e3, 140e3)
    assert found["sd"] == pytest.approx(14_142.136, abs=1e-3)
    assert found["spread"] == pytest.approx(0.117851, abs=1e-6)
    # t(1, .975) = 12.7062 · 14.142 / √2 = 127.06 µs: the lower end is cut at 0, the upper is 247.06.
    assert (found["low"], found["high"]) == (0.0, pytest.approx(247_062, abs=1))
    assert found["covers"] == "run-to-run"
    assert section.caveats == ("runs are treated as repeats of the same setting",)
    mean, spread = section.metrics
    assert (mean.name, mean.value, mean.low, mean.high) == ("mean_step", 120e3, 0.0, pytest.approx(247_062, abs=1))
    assert (spread.name, spread.label) == ("step_spread", "standard deviation of runs")
    assert spread.value == pytest.approx(0.117851, abs=1e-6)


def test_steps_are_repeated_where_there_is_one_run(tmp_path):
    section = judged(write_run(tmp_path / "a", [900, 100, 104, 96, 100]))
    found = rows_of(section)[0]
    assert (found["runs"], found["steps"], found["mean"], found["covers"]) == (1, 4, 100e3, "within-run")
    assert found["sd"] == pytest.approx(np.std([100e3, 104e3, 96e3, 100e3], ddof=1))
    assert section.caveats == ()
    spread = {m.name: (m.label, m.value) for m in section.metrics}["step_spread"]
    assert spread == ("standard deviation of steps", pytest.approx(np.sqrt(32 / 3) / 100))
    assert [(row["step"], row["reason"]) for row in rows_of(section, "repeats-left-out")] == [(1, "warm-up step")]  # fmt: skip


def test_ranks_are_reduced_before_anything_is_counted(tmp_path):
    one = judged(write_run(tmp_path / "one", [500, 100, 120, 140]))
    four = judged(write_run(tmp_path / "four", [500, 100, 120, 140], ranks=4))
    assert rows_of(one)[0] == rows_of(four)[0], "equal ranks tell nothing more of the step"
    # The stage is that of the longest rank: 60 µs in the mean, and 30 more on rank 3.
    assert rows_of(four)[1]["mean"] == rows_of(one)[1]["mean"] + 30e3 == 90e3


def test_counts_and_bytes_have_no_interval(tmp_path):
    section = judged(write_run(tmp_path / "a", [500, 100, 120]))
    (found,) = [row for row in rows_of(section, "repeats-counts") if not row.get("stage")]
    assert (found["title"], found["mean"], found["sd"]) == ("host ops", 1.0, 0.0)
    assert not {"low", "high", "covers"} & found.keys()


def test_memory_and_gpu_times_are_among_them(tmp_path):
    rows = []
    for number, at in enumerate((0, 100, 200), 1):
        rows += [step(number, at, 100), *launched("k", at + 5, at + 10, 40 + number, number)]
    section = judged(write(tmp_path / "rank0.json", rows, rank=0, world_size=1))
    times = {row["title"]: row["mean"] for row in rows_of(section, "repeats-times")}
    assert times["GPU busy"] == 42_500.0, "kernels of 42 and 43 µs in the steps that count"


def test_of_many_stages_the_longest_are_told_and_the_others_counted(tmp_path):
    rows = []
    for number in (1, 2, 3):
        at = number * 10_000
        rows.append(step(number, at, 10_000))
        rows += [annotation(f"part_{k:02}", at + 100 * k, 10 + k) for k in range(repeats.MAX_STAGES + 4)]  # fmt: skip
    section = judged(write(tmp_path / "rank0.json", rows, rank=0, world_size=1))
    stages = [row["title"] for row in rows_of(section)[1:]]
    assert len(stages) == repeats.MAX_STAGES
    assert stages[0] == f"part_{repeats.MAX_STAGES + 3}"
    assert "part_03" not in stages
    assert section.caveats == ("4 stages that take less time are left out",)


def test_a_single_step_repeats_nothing(tmp_path):
    section = judged(write_run(tmp_path / "a", [100]))
    assert (section.status, section.sheets) == ("skipped", ())
    assert "one counted step" in section.reason


def test_no_step_at_all_is_skipped(tmp_path):
    section = judged(write(tmp_path / "a.json", [op("aten::mm", 0, 5)]))
    assert section.status == "skipped"


def test_tokens_of_the_drivers_log_give_a_step_per_token(tmp_path):
    # Two files of one step each, 1 and 3 ms, and the log of their run: 4 ms / 8,000 tokens = 500 ns.
    for number, dur in ((1, 1000), (2, 3000)):
        name = f"actor_train_step{number}_rank0-of-1_pid100_2026112007330{number}.json"
        rows = [annotation("rollout", number * 10_000, dur)]
        write(tmp_path / "outputs" / "profile" / name, rows, rank=0, world_size=1)
    lines = [
        {"step": at, "data": {"timing_s/step": 1.0, "perf/total_num_tokens": tokens}}
        for at, tokens in enumerate((5000, 3000, 9000), 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = judged(tmp_path)
    per = [row for row in rows_of(section, "repeats-times") if row["title"] == "time per token"]
    # The one stage is as long as the step.
    assert [row["stage"] for row in per] == [None, "rollout"]
    assert [(row["mean"], row["steps"]) for row in per] == [(pytest.approx(500.0), 2)] * 2
    (rate,) = rows_of(section, "repeats-rates")
    assert rate["mean"] == pytest.approx(2e6), "8,000 tokens in 4 ms on one rank"
    tokens = [row for row in rows_of(section, "repeats-counts") if row["title"] == "tokens"]
    assert [row["mean"] for row in tokens] == [4000.0]


def samples_of(key, runs):
    names = tuple(f"run{n}" for n in range(len(runs)))
    steps = tuple(tuple((name, at, None) for at in range(len(run))) for name, run in zip(names, runs, strict=True))  # fmt: skip
    return MetricSamples(key, names, steps, tuple(map(tuple, runs)))


def rates(times, tokens, ranks=2):
    return compute_work_rates({STEP: samples_of(STEP, times), TOKENS: samples_of(TOKENS, tokens)}, ranks)


def test_time_per_token_is_a_ratio_of_sums():
    found = rates([[1e9, 3e9]], [[100.0, 700.0]])
    per = found["time_per_token", None, None].values[0]
    # 4 s / 800 = 5 ms; the steps are off it by (1 − 5 ms · 100) / 400 = 1.25 ms, and as much the other way.
    assert per == pytest.approx((6.25e6, 3.75e6))
    assert np.mean(per) == pytest.approx(5e6)
    # 800 / 4 s / 2 ranks.
    assert np.mean(found["throughput", None, None].values[0]) == pytest.approx(100.0)


def test_steps_that_are_long_because_they_hold_more_tokens_do_not_spread():
    found = rates([[1e9, 3e9, 2e9]], [[100.0, 300.0, 200.0]])
    assert found["time_per_token", None, None].values[0] == pytest.approx((1e7, 1e7, 1e7))


def test_unknown_tokens_or_ranks_give_no_rate():
    assert compute_work_rates({STEP: samples_of(STEP, [[1e9]])}, 2) == {}
    assert rates([[1e9]], [[0.0]]) == {}
    assert set(rates([[1e9]], [[5.0]], ranks=None)) == {("time_per_token", None, None)}


@given(st.lists(st.tuples(st.floats(1e3, 1e12), st.floats(1, 1e9)), min_size=1, max_size=20), st.integers(1, 64))
def test_the_mean_is_the_ratio_of_sums_whatever_the_steps(pairs, ranks):
    found = rates([[t for t, _ in pairs]], [[n for _, n in pairs]], ranks)
    ns, tokens = (sum(values) for values in zip(*pairs, strict=True))
    assert np.mean(found["time_per_token", None, None].values[0]) == pytest.approx(ns / tokens)
    assert np.mean(found["throughput", None, None].values[0]) == pytest.approx(tokens / ns * 1e9 / ranks)


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.parametrize("name", ["gloo_cpu/base_run1", "verl_cpu/v091_e2e_all_ranks", "kineto_tb_plugin"])
def test_real_profiles(name):
    section = judged(Path(REAL) / "chrome" / name)
    assert section.status == "ok"
    for sheet in section.sheets:
        for row in rows_of(section, sheet.name):
            if "least" in row:
                assert row["least"] <= row["mean"] <= row["most"]
    assert render(Report("x", "0", sections=(section,)), "md")


@pytest.mark.parametrize(
    ("recorded", "ranks"), [([4, 4], 4), ([4, None], 4), ([2, 4], None), ([0], None), ([None], None), ([], None)]
)
def test_ranks_are_counted_where_all_processes_agree(recorded, ranks):
    captures = from_rows(("world_size",), [(size,) for size in recorded])
    assert repeats._find_common_world_size(SimpleNamespace(frame=lambda _: captures)) == ranks


def test_one_value_has_no_spread_and_values_that_are_always_0_no_row():
    key = ("gpu_busy", None, None)
    runs = {key: [[6.0]], ("gpu_idle", None, None): [[0.0, 0.0]], STEP: [[8.0, 4.0, 6.0]]}
    found = repeats._list_metric_estimates({key: samples_of(key, values) for key, values in runs.items()})
    shown = list(found.sort("name").rows("name", "mean", "sd", "spread", "least", "most"))
    assert [tuple(row.values()) for row in shown] == [
        ("gpu_busy", 6.0, None, None, 6.0, 6.0), ("step_time", 6.0, 2.0, pytest.approx(1 / 3), 4.0, 8.0),
    ]  # fmt: skip
