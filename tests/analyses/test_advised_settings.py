"""Advice on logs of OpenRLHF, TRL, slime, ROLL and AReaL names settings of that framework, and no other's."""

import json

import pytest

from tracekit.model.recording.advised_settings import ADVISED_SETTINGS, TOPICS
from tracekit.model.recording.rl_frameworks import FRAMEWORKS
from tracekit.pipeline import analyze

SLIME = {"perf/step_time": 100.0, "perf/train_wait_time": 60.0, "perf/train_time": 40.0}
AREAL = {"timeperf/rollout": 50.0, "timeperf/train_step": 40.0}


def steps_of(values, more=None, steps=12):
    return [values | ((more or {}) if step % 3 == 0 else {}) for step in range(1, steps + 1)]


LOGS = {
    ("slime", "trainer-wait"): (steps_of(SLIME | {"perf/rollout_time": 90.0}), "--rollout-num-gpus"),
    ("slime", "generation-tail"): (
        steps_of(SLIME | {
            "perf/rollout_time": 55.0, "rollout/response_len/mean": 200.0, "rollout/response_len/max": 1000.0
        }),
        "--rollout-max-response-len, --over-sampling-batch-size, --partial-rollout",
    ),
    ("trl", "trainer-wait"): (
        steps_of({"step_time": 100.0, "queue_wait_time_s": 40.0, "completions/mean_length": 9.0}),
        "max_staleness, max_inflight_tasks",
    ),
    ("slime", "weight-sync"): (
        steps_of(SLIME | {"perf/update_weights_time": 12.0}), "--update-weight-buffer-size, --update-weight-transport"
    ),
    ("trl", "weight-sync"): (
        steps_of({"step_time": 100.0, "weight_sync_time_s": 15.0, "completions/mean_length": 9.0}), "weight_sync_steps"
    ),
    ("areal", "checkpoint"): (steps_of(AREAL, {"timeperf/save": 30.0}), "saver.freq_steps"),
    ("areal", "validation"): (steps_of(AREAL, {"timeperf/eval": 30.0}), "evaluator.freq_steps"),
    ("areal", "weight-sync"): (steps_of(AREAL | {"timeperf/update_weights": 10.0}), "actor.weight_update_mode"),
    ("roll", "weight-sync"): (
        steps_of({"time/step_total": 100.0, "time/step_generate": 50.0, "time/step_train": 30.0,
            "time/step_model_update": 15.0}),
        "model_update_buffer_size_mb",
    ),
    ("openrlhf", "weight-sync"): (
        steps_of({"timing/step_total": 100.0, "timing/make_experience": 50.0, "timing/ppo_train": 30.0,
            "timing/broadcast": 15.0}),
        "--vllm_sync_backend",
    ),
}  # fmt: skip
"""By framework and topic: the values of a log that fires the rule of the topic, and the settings named."""

CHORES = dict.fromkeys(("checkpoint", "validation"), "logged-chores")


def advise(folder, case):
    rows, _ = LOGS[case]
    lines = [json.dumps({"step": step, "data": data}) for step, data in enumerate(rows, 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (found,) = [finding for finding in analyze(folder).findings if finding.rule == CHORES.get(case[1], case[1])]
    return found.advice


@pytest.mark.parametrize("case", LOGS)
def test_advice_names_the_settings_of_the_framework(tmp_path, case):
    advice = advise(tmp_path, case)
    assert f"({LOGS[case][1]})" in advice
    others = {key for framework, topics in ADVISED_SETTINGS.items() for keys in topics.values() for key in keys
              if framework != case[0]}  # fmt: skip
    named = {key for topics in [ADVISED_SETTINGS[case[0]]] for keys in topics.values() for key in keys}
    assert not [key for key in others - named if key in advice]
    assert "trainer." not in advice
    assert "actor_rollout_ref" not in advice


def test_a_run_of_areal_has_a_proposed_value(tmp_path):
    """10 s per step of 90 + 10 s: 10 · 0.95 / (0.05 · 90) = 2.11 times as rarely, every 7th step instead of every third."""
    (tmp_path / "config.yaml").write_text("saver:\n  freq_steps: 3\n")
    assert "; try saver.freq_steps=7 (now 3 in config.yaml)" in advise(tmp_path, ("areal", "checkpoint"))


def test_all_settings_of_the_registry_can_appear():
    assert set(LOGS) == {(framework, topic) for framework, topics in ADVISED_SETTINGS.items() for topic in topics}


def test_a_step_that_is_not_timed_is_the_sum_of_its_timers(tmp_path):
    """10 s of 50 + 40 + 10 s."""
    rows, _ = LOGS["areal", "weight-sync"]
    lines = [json.dumps({"step": step, "data": data}) for step, data in enumerate(rows, 1)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (found,) = [finding for finding in analyze(tmp_path).findings if finding.rule == "weight-sync"]
    assert found.claim == "weight sync takes 10 % of the step, as the driver timed it"
    assert "the log does not time the whole step: the share is of the sum of its timers" in found.caveats


def test_the_registry_names_known_frameworks_and_topics():
    assert set(ADVISED_SETTINGS) <= {framework.code for framework in FRAMEWORKS}
    for topics in ADVISED_SETTINGS.values():
        assert set(topics) <= set(TOPICS)
        assert all(keys and len(set(keys)) == len(keys) for keys in topics.values())
