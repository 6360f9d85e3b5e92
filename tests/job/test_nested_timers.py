"""Timers that run within others in some steps: the stages of a step never add up to more than the step."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.job.run_log.nesting import MOST_EXCESS, find_nested_steps
from tracekit.job.run_log.stages import find_logged_period, resolve_logged_stages
from tracekit.job.run_log.values import RunLog
from tracekit.model.recording.rl_frameworks import find_framework
from tracekit.pipeline import analyze

NAMES = ("gen", "reward", "ref", "update_actor", "my_filter")


def resolve(series, step_s):
    values = {"timing_s/step": np.array(step_s, float)}
    values |= {f"timing_s/{name}": np.array(seconds, float) for name, seconds in series.items()}
    count = len(step_s)
    framework = find_framework(values)
    return resolve_logged_stages(RunLog(None, "log", framework, np.zeros(count, np.int64), np.arange(count), values))


def added_by_step(steps):
    return sum(np.nan_to_num(stage.seconds) for stage in steps.stages if stage.is_added)


def test_a_reward_within_generation_in_some_steps_is_added_in_the_others():
    """Steps 0 to 5: 60 + 8 + 30 and 2 in no timer. In steps 1 and 4 the reward runs within generation: 100 is 92."""
    steps = resolve({"gen": [60] * 6, "reward": [8] * 6, "update_actor": [30] * 6}, [100, 92, 100, 100, 92, 100])
    assert steps.residual_s.tolist() == [2, 2, 2, 2, 2, 2]
    alone, nested = (stage for stage in steps.stages if stage.label == "reward")
    assert np.nan_to_num(alone.seconds).tolist() == [8, 0, 8, 8, 0, 8]
    assert np.nan_to_num(nested.seconds).tolist() == [0, 8, 0, 0, 8, 0]
    assert (alone.where, alone.nested_steps, nested.where) == ("inside", 2, "nested")


def test_a_timer_within_others_in_most_steps_is_nested_in_all():
    """In the last step 12 s are in no timer, so the sum does not show that the reward is nested there as well."""
    steps = resolve({"gen": [60] * 6, "reward": [8] * 6, "update_actor": [30] * 6}, [92] * 5 + [110])
    assert [stage.where for stage in steps.stages] == ["inside", "nested", "inside"]
    assert steps.residual_s.tolist() == [2, 2, 2, 2, 2, 20]


def test_the_timer_that_leaves_the_usual_residual_is_nested_of_two_that_are_long_enough():
    """Usually 5 s are in no timer. An excess of 5 s is a nested one of 10 s; one of 8 s would leave 3 s."""
    series = {"gen": [60] * 4, "adv": [8] * 4, "reward": [10] * 4, "update_actor": [30] * 4}
    steps = resolve(series, [113, 103, 113, 113])
    nested = [(stage.label, np.nan_to_num(stage.seconds).tolist()) for stage in steps.stages if stage.where == "nested"]
    assert nested == [("reward", [0, 10, 0, 0])]


def test_rounding_leaves_all_timers_in_place():
    steps = resolve({"gen": [60.2] * 3, "update_actor": [40.3] * 3}, [100] * 3)
    assert [stage.where for stage in steps.stages] == ["inside", "inside"]
    assert steps.residual_s.tolist() == [0, 0, 0]
    assert steps.wall_s == pytest.approx([100.5] * 3)


lengths = st.one_of(st.just(0.0), st.floats(0.01, 1e4))


@st.composite
def nestings(draw):
    """Draw logs: each timer is in no other, or within another one, anew in each step."""
    count = draw(st.integers(1, 8))
    timers = np.array([[draw(lengths) for _ in range(count)] for _ in NAMES])
    step_s = np.zeros(count)
    for step in range(count):
        nested = draw(st.lists(st.integers(1, len(NAMES) - 1), max_size=3, unique=True))
        outer = max(timers[0, step], 0.01)
        timers[0, step] = outer
        for place in nested:
            timers[place, step] = min(timers[place, step], outer)
        beside = [place for place in range(1, len(NAMES)) if place not in nested]
        step_s[step] = outer + timers[beside, step].sum() + draw(lengths)
    return timers, step_s


@given(nestings())
def test_no_step_has_a_negative_residual(log):
    timers, step_s = log
    steps = resolve(dict(zip(NAMES, timers, strict=True)), step_s)
    added = added_by_step(steps)
    assert (steps.residual_s >= 0).all()
    assert (added <= steps.step_s * (1 + MOST_EXCESS) * (1 + 1e-9)).all()
    assert added + steps.residual_s == pytest.approx(steps.wall_s)
    whole = sum(np.nan_to_num(stage.seconds) for stage in steps.stages)
    assert whole == pytest.approx(timers.sum(axis=0)), "no time of a timer is lost or doubled"


@given(
    st.lists(st.lists(lengths, min_size=5, max_size=5), min_size=1, max_size=6),
    st.lists(st.floats(0.01, 1e4), min_size=5, max_size=5),
)
def test_the_rest_of_any_timers_fits_into_the_step(timers, step_s):
    """Also timers that no nesting explains, such as one that is longer than its step."""
    seconds, whole = np.array(timers), np.array(step_s)
    nested = np.array(find_nested_steps(list(seconds), whole))
    assert (np.where(nested, 0, seconds).sum(axis=0) <= whole * (1 + MOST_EXCESS)).all()
    fits = seconds.sum(axis=0) <= whole * (1 + MOST_EXCESS)
    for of_timer, mask in zip(seconds, nested, strict=True):
        assert not mask[fits].any() or mask[of_timer > 0].all(), (
            "a step that fits changes only with all steps of a timer"
        )


def test_the_table_names_the_steps_in_which_a_timer_is_nested(tmp_path):
    rows = []
    for step in range(1, 13):
        data = {"timing_s/step": 92.0 if step in (6, 9) else 100.0}
        data |= {"timing_s/gen": 60.0, "timing_s/reward": 8.0, "timing_s/update_actor": 30.0}
        rows.append(json.dumps({"step": step, "data": data}))
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    report = analyze(tmp_path, questions=("run-log",))
    names = [heading.name for heading in report.overview.headings]
    table = {row[1 if "run" in names else 0]: dict(zip(names, row, strict=True)) for row in report.overview.rows}
    assert table["reward"]["how"] == "within other timers in 2 of 12 steps"
    # 7 of the 9 steps that count have a reward of their own; each has 2 s in no timer.
    assert table["reward"]["mean_ns"] == round(7 * 8 / 9 * 1e9)
    assert table["(in no timer)"]["mean_ns"] == 2 * 10**9
    assert "within other timers, not added: reward (in 2 of 12 steps)" in report.section("run-log").caveats


SLIME = {
    "perf/sleep_time": 5.324, "perf/update_weights_time": 2.530, "perf/wake_up_time": 2.576,
    "perf/data_preprocess_time": 0.056, "perf/train_wait_time": 347.606, "perf/log_probs_time": 17.182,
    "perf/actor_train_time": 46.912, "perf/train_time": 64.718, "perf/step_time": 412.324, "perf/save_model_time": 30.0,
}  # fmt: skip
"""Times of one step as slime's console prints them; the wait contains sleep, wake-up, the sync and the checkpoint."""


def test_all_that_slime_does_between_trainings_is_within_its_wait():
    """347.606 + 17.182 + 46.912 + 0.056 of 412.324: 0.568 in no timer."""
    values = {name: np.full(8, seconds) for name, seconds in SLIME.items()}
    log = RunLog(None, "log", find_framework(values), np.zeros(8, np.int64), np.arange(8), values)
    steps = resolve_logged_stages(log)
    added = {stage.canonical: stage.seconds[0] for stage in steps.stages if stage.is_added}
    assert added == {"gen": 347.606, "old_log_prob": 17.182, "update_actor": 46.912, "data_preprocess": 0.056}
    assert steps.residual_s == pytest.approx(np.full(8, 0.568))


def test_a_validation_that_is_timed_in_every_step_counts_where_it_ran():
    """AReaL times the call in each step: 1 ms, and 20 s in every fourth. Its checkpoint of every step takes 0.2 s."""
    evals = np.where(np.arange(1, 17) % 4 == 0, 20.0, 0.001)
    values = {
        "timeperf/rollout": np.full(16, 50.0), "timeperf/train_step": np.full(16, 30.0),
        "timeperf/eval": evals, "timeperf/save": np.full(16, 0.2),
    }  # fmt: skip
    log = RunLog(None, "log", find_framework(values), np.zeros(16, np.int64), np.arange(1, 17), values)
    steps = resolve_logged_stages(log)
    (validation,) = [stage for stage in steps.stages if stage.canonical == "test"]
    assert find_logged_period(steps, validation) == 4
    assert steps.average_stage_seconds(validation) == 5
    # Without the first three steps and the four validations.
    assert steps.counted.steady_count == 9
    assert steps.step_s[steps.counted.steady] == pytest.approx(np.full(9, 80.2))


def test_tokens_per_second_of_all_gpus_of_roll_are_not_those_of_one():
    values = {"time/step_total": np.full(8, 60.0), "time/step_train": np.full(8, 20.0), "system/tps": np.full(8, 9e3)}
    log = RunLog(None, "log", find_framework(values), np.zeros(8, np.int64), np.arange(8), values)
    assert resolve_logged_stages(log).get_steady(*log.framework.throughput) is None
    values |= {"system/tps_gpu": np.full(8, 1e3)}
    log = RunLog(None, "log", find_framework(values), np.zeros(8, np.int64), np.arange(8), values)
    assert resolve_logged_stages(log).get_steady(*log.framework.throughput).tolist() == [1e3] * 6
