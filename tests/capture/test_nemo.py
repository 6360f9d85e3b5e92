"""NeMo-RL's variables mean what they mean in NeMo-RL, and are read when they are needed."""

import pytest

from capture import nemo
from capture.nemo import maybe_gpu_profile_step, nsight_config, step_range, vllm_tp_nsight_config, wrap_with_nvtx_name


def variables(steps="2:4", patterns="*policy*,vllm_generation_worker", extra=None):
    found = {nemo.RANGE: steps, nemo.PATTERNS: patterns, nemo.EXTRA: extra}
    return {name: value for name, value in found.items() if value is not None}


class Policy:
    def __init__(self, log, error=None):
        self.log, self.error = log, error

    def start_gpu_profiling(self):
        self.log.append("start")
        if self.error:
            raise self.error

    def stop_gpu_profiling(self):
        self.log.append("stop")
        if self.error:
            raise self.error


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    monkeypatch.setattr(nemo, "_profiled", [])


def test_the_stop_is_not_profiled():
    assert step_range(variables()) == range(2, 4)
    assert step_range({}) is None
    assert step_range(variables("", "")) is None


@pytest.mark.parametrize(
    ("environment", "error", "message"),
    [
        (variables(patterns=None), AssertionError, "set both"),
        (variables(steps=None), AssertionError, "set both"),
        (variables("0:2"), AssertionError, "1 <= start < stop"),
        (variables("3:3"), AssertionError, "1 <= start < stop"),
        (variables("1-10"), ValueError, "must be start:stop"),
        (variables("1:2:3"), ValueError, "must be start:stop"),
        (variables("a:b"), ValueError, "must be start:stop"),
    ],
)
def test_what_nemo_refuses_is_refused(environment, error, message):
    with pytest.raises(error, match=message):
        step_range(environment)


@pytest.mark.parametrize(
    ("worker", "matches"),
    [("dtensor_policy_worker", True), ("vllm_generation_worker", True), ("vllm_async_generation_worker", False)],
)
def test_workers_are_chosen_by_their_names(worker, matches):
    found = nsight_config(worker, variables())
    expected = {
        "t": "cuda,nvtx",
        "o": f"'{worker}_2:4_%p'",
        "stop-on-exit": "true",
        "s": "none",
        "capture-range": "cudaProfilerApi",
        "capture-range-end": "stop",
        "cuda-graph-trace": "node",
    }
    assert found == ({"nsight": expected} if matches else {})
    assert nsight_config(worker, {}) == {}


def test_extra_options_go_over_the_others():
    extra = '{"s": "cpu", "gpu-metrics-devices": "all", "x": null}'
    found = nsight_config("policy", variables(extra=extra))["nsight"]
    assert (found["s"], found["gpu-metrics-devices"], found["t"]) == ("cpu", "all", "cuda,nvtx")
    assert "x" not in found
    for wrong in ("[]", "{"):
        with pytest.raises(ValueError, match=nemo.EXTRA):
            nsight_config("policy", variables(extra=wrong))


def test_the_range_opens_before_its_first_step_and_closes_after_its_last(monkeypatch):
    log = []
    policy = Policy(log)
    maybe_gpu_profile_step(policy, 2)
    assert log == []
    for name, value in variables().items():  # after the import: NeMo-RL would not see them
        monkeypatch.setenv(name, value)
    for step in range(1, 6):
        maybe_gpu_profile_step(policy, step)
        log.append(step)
    assert log == [1, "start", 2, 3, "stop", 4, 5]
    nemo._close_open_policies()
    assert log[-1] == 5


def test_a_range_that_training_ended_in_is_closed_once_at_the_end(monkeypatch):
    log = []
    for name, value in variables().items():
        monkeypatch.setenv(name, value)
    maybe_gpu_profile_step(Policy(log), 3)
    nemo._close_open_policies()
    nemo._close_open_policies()
    assert log == ["start", "stop"]


def test_a_policy_that_raises_does_not_stop_the_training(monkeypatch, caplog):
    log = []
    for name, value in variables().items():
        monkeypatch.setenv(name, value)
    policy = Policy(log, RuntimeError("no CUDA"))
    for step in (2, 3, 4, 5):
        maybe_gpu_profile_step(policy, step)
    assert log == ["start", "stop"]
    assert caplog.text.count("no CUDA") == 2


def test_a_wrapped_method_is_a_range_that_closes_when_it_raises(nvtx):
    @wrap_with_nvtx_name("dtensor_policy_worker/train")
    def train(value):
        """Its own words."""
        raise ValueError(value)

    with pytest.raises(ValueError, match="3"):
        train(3)
    assert [entry[:2] for entry in nvtx] == [
        ("start", "dtensor_policy_worker/train"),
        ("end", "dtensor_policy_worker/train"),
    ]
    assert (train.__name__, train.__doc__) == ("train", "Its own words.")


def test_workers_that_vllm_starts_wait_for_the_capture_range_and_end_with_it():
    options = vllm_tp_nsight_config(variables(extra='{"t": "cuda-sw,nvtx", "x": null}'))["nsight"]
    assert options == {
        "t": "cuda-sw,nvtx",
        "o": "'vllm_tp_worker_2:4_%p'",
        "stop-on-exit": "true",
        "s": "none",
        "capture-range": "cudaProfilerApi",
        "wait": "primary",
        "capture-range-end": "stop",
    }
    assert vllm_tp_nsight_config({}) == {}
    with pytest.raises(ValueError, match="is not JSON"):
        vllm_tp_nsight_config(variables(extra="{"))
    with pytest.raises(AssertionError, match="set both"):
        vllm_tp_nsight_config(variables(patterns=None))
