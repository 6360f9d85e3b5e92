"""Stages that the timers of a log resolve to: disjoint, with nested, summed and overlapping timers left out."""

import numpy as np
import pytest

from tracekit.job.run_log.stages import resolve_logged_stages
from tracekit.job.run_log.values import RunLog
from tracekit.model.recording.rl_frameworks import find_framework

STEPS = 8


def resolve(values):
    """Resolve a log of 8 equal steps."""
    series = {name: np.full(STEPS, float(value)) for name, value in values.items()}
    steps = np.arange(STEPS)
    log = RunLog(None, "log", find_framework(values), np.zeros(STEPS, np.int64), steps, series)
    return resolve_logged_stages(log)


LOGS = {
    "a sum of timers does not count next to its parts": (
        {
            "perf/step_time": 100, "perf/train_wait_time": 60, "perf/train_time": 40, "perf/actor_train_time": 30,
            "perf/log_probs_time": 8, "perf/rollout_time": 55, "perf/update_weights_time": 4,
        },
        {"gen": 60, "update_actor": 30, "old_log_prob": 8}, 2,
    ),
    "a sum of timers counts where its parts are not logged": (
        {"perf/step_time": 100, "perf/train_wait_time": 60, "perf/train_time": 40}, {"gen": 60, "train": 40}, 0,
    ),
    "idle times of NeMo-RL are within other timers": (
        {
            "timing/train/total_step_time": 100, "timing/train/exposed_generation": 30,
            "timing/train/idle/buffer_starvation": 25, "timing/train/idle/refit_bubble": 12,
            "timing/train/weight_sync": 9, "timing/train/policy_training": 50,
        },
        {"gen": 30, "update_weights": 9, "update_actor": 50}, 11,
    ),
    "timers of NeMo-RL's validation are not those of training": (
        {
            "timing/train/total_step_time": 100, "timing/train/generation": 40, "timing/validation/generation": 7,
            "timing/validation/total_validation_time": 10, "timing/train/policy_training": 50,
        },
        {"gen": 40, "update_actor": 50, "test": 10}, 0,
    ),
    "generation that overlaps training is not added": (
        {
            "timing_s/step": 100, "timing_s/gen": 20, "timing_s/generate_async": 90, "timing_s/update_actor": 70,
            "timing_s/sync_rollout_weights": 8, "timing_s/update_weights": 6,
        },
        {"gen": 20, "update_actor": 70, "update_weights": 8}, 2,
    ),
    "a name that was prefixed twice is a stage": (
        {"fully_async/x": 1, "timing_s/step": 100, "timing_s/gen": 50, "timing_s/timing_s/param_sync": 5},
        {"gen": 50, "update_weights": 5}, 45,
    ),
    "an unknown timer is a stage of its own name": (
        {"timing_s/step": 100, "timing_s/gen": 60, "timing_s/my_filter": 30}, {"gen": 60, "my_filter": 30}, 10,
    ),
    "a timer in ms is converted, and the prefix of a logger does not matter": (
        {"train/step_time": 20, "train/queue_wait_time_s": 5, "train/wait_scoring_ms": 1500}, {"gen": 5}, 15,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LOGS)
def test_stages_are_disjoint(what):
    values, stages, residual = LOGS[what]
    steps = resolve(values)
    assert {stage.canonical: stage.seconds[0] for stage in steps.stages if stage.is_added} == stages
    assert steps.residual_s[0] == pytest.approx(residual)


def test_the_wait_for_a_reward_in_ms_is_overlapping():
    values = LOGS["a timer in ms is converted, and the prefix of a logger does not matter"][0]
    (scoring,) = [stage for stage in resolve(values).stages if stage.label == "wait_scoring"]
    assert (scoring.where, scoring.canonical, scoring.seconds[0]) == ("overlapping", "reward", 1.5)


@pytest.mark.parametrize(("rollout", "mode", "is_async"), [(55, "slime-sync", False), (90, "slime", True)])
def test_slime_waits_where_its_rollouts_overlap_training(rollout, mode, is_async):
    """A wait as long as the rollout is generation; a longer rollout ran meanwhile."""
    steps = resolve(
        {"perf/step_time": 100, "perf/train_wait_time": 60, "perf/train_time": 40, "perf/rollout_time": rollout}
    )
    assert (steps.mode.code, steps.mode.is_async) == (mode, is_async)
    assert (steps.sum_wait_seconds() is not None) == is_async
