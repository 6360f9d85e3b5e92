"""A driver starts and stops its workers, whichever of them still lives, and tells nsys how many captures come."""

import logging
import socket
import sys
import types

import pytest

import capture.ray
from capture import ProfilerConfig
from capture.ray import Unreached, nsight_runtime_env, profiled, profiling
from capture.steps import StepPlan


class DeadError(Exception):
    """As Ray's RayActorError."""


class Handle:
    """As a handle of an actor: a method's `remote` gives a reference to its answer."""

    def __init__(self, log, number, state="alive"):
        self.log, self.number, self.state = log, number, state

    def __getattr__(self, name):
        if name not in ("start_profile", "stop_profile"):
            raise AttributeError(name)

        def remote(**arguments):
            if self.state == "gone":
                raise DeadError("the actor is dead")
            self.log.append((self.number, name, arguments))
            return f"{self.state} {self.number}"

        return types.SimpleNamespace(remote=remote)


@pytest.fixture(autouse=True)
def ray(monkeypatch):
    """A Ray whose references say what becomes of them."""

    def wait(refs, num_returns, timeout):
        assert num_returns == len(refs)
        late = [ref for ref in refs if ref.startswith("late")]
        return [ref for ref in refs if ref not in late], late

    def get(ref):
        if ref.startswith("dies"):
            raise DeadError("killed\nwith a long story")

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(wait=wait, get=get))
    capture.ray._log_driver_process.cache_clear()


def workers(*states):
    log = []
    return log, [Handle(log, number, state) for number, state in enumerate(states)]


def test_every_worker_is_told_the_step_and_the_scope(caplog):
    log, handles = workers("alive", "alive")
    with caplog.at_level(logging.INFO, "capture"):
        assert capture.ray.start(handles, 3) == []
    assert capture.ray.stop(handles, run_command=False) == []
    assert log == [
        *[(n, "start_profile", {"role": "train", "profile_step": 3}) for n in (0, 1)],
        *[(n, "stop_profile", {"run_command": False}) for n in (0, 1)],
    ]
    assert socket.gethostname() in caplog.text


def test_a_worker_that_died_or_hangs_is_named_and_the_others_go_on(caplog):
    log, handles = workers("alive", "gone", "late", "dies")
    found = capture.ray.stop(handles, timeout_s=2)
    assert found == [
        Unreached(1, "DeadError: the actor is dead"),
        Unreached(2, "no answer within 2 s"),
        Unreached(3, "DeadError: killed"),
    ]
    assert [number for number, *_ in log] == [0, 2, 3]
    assert "worker 2: stop_profile" in caplog.text
    assert capture.ray.stop([]) == []


def test_an_actor_without_the_methods_is_named(caplog):
    assert "AttributeError" in capture.ray.start([types.SimpleNamespace()])[0].problem


def test_a_worker_group_of_verl_calls_the_methods_by_its_own_names():
    called = []

    class Group:
        workers = ("w0", "w1")

        def _execute_remote_single_worker(self, worker, method, **arguments):
            called.append((worker, method, arguments))
            return "alive"

    assert capture.ray.stop(Group()) == []
    assert called == [(name, "stop_profile", {"run_command": True}) for name in ("w0", "w1")]


def test_roles_that_share_a_worker_call_the_methods_by_the_names_they_have_there():
    called = []
    worker = types.SimpleNamespace(actor_start_profile=None, critic_start_profile=None)

    class Group:
        workers = (worker,)
        start_profile = type("critic_start_profile", (), {})()  # as verl names its functions

        def _execute_remote_single_worker(self, worker, method, **arguments):
            called.append(method)
            return "alive"

    assert capture.ray.start(Group(), 3) == []
    assert called == ["critic_start_profile"]


def test_a_step_of_the_plan_is_profiled_and_consecutive_ones_together():
    plan, (log, handles) = StepPlan.of([2, 3, 6], continuous=True), workers("alive")
    for step in range(1, 7):
        with profiling(handles, step, plan, last=step == 6):
            log.append(step)
    told = [entry if isinstance(entry, int) else (entry[1], *entry[2].values()) for entry in log]
    assert told == [
        *[1, ("start_profile", "train", 2), 2, 3, ("stop_profile", False), 4, 5],
        *[("start_profile", "train", 6), 6, ("stop_profile", True)],
    ]


def test_a_step_that_raises_closes_what_would_have_gone_on():
    log, handles = workers("alive")
    with pytest.raises(ZeroDivisionError), profiling(handles, 2, StepPlan.of([2, 3], continuous=True)):
        raise ZeroDivisionError
    assert [name for _, name, _ in log] == ["start_profile", "stop_profile"]
    with pytest.raises(ZeroDivisionError), profiling(handles, 5, StepPlan.of([2])):
        raise ZeroDivisionError
    assert len(log) == 2


def test_without_a_plan_the_step_is_profiled():
    log, handles = workers("alive")
    with profiling(handles, 4):
        pass
    assert [name for _, name, _ in log] == ["start_profile", "stop_profile"]


def test_a_class_gets_a_profiler_and_what_starts_it(tmp_path, monkeypatch, caplog):
    config = ProfilerConfig(tool="torch", enable=True, all_ranks=True, save_path=str(tmp_path), tool_config={})

    @profiled(config, role="policy")
    class Worker:
        """Its own words."""

        def __init__(self, rank=None, own=None):
            self.given = own
            if rank is not None:
                self.rank = rank

        def stop_profile(self, run_command=True):
            """Its own way."""
            return "own"

    worker = Worker(2, own="kept")
    assert (worker.given, worker.profiler.rank, Worker.__doc__) == ("kept", 2, "Its own words.")
    worker.start_profile(role="train", profile_step=1)
    assert worker.stop_profile() == "own"
    worker.__ray_shutdown__()
    assert [path.name[:25] for path in tmp_path.glob("*.gz")] == ["policy_train_step1_rank2_"]
    monkeypatch.setenv("RANK", "4")
    assert Worker().profiler.rank == 4
    monkeypatch.delenv("RANK")
    assert Worker().profiler.rank == 0
    assert "has no rank and counts as rank 0" in caplog.text


NSYS = {"t": "cuda,nvtx", "capture-range": "cudaProfilerApi", "capture-range-end": None, "kill": "none"}  # fmt: skip


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """An nsys and this python on the PATH."""
    for name in ("nsys", "python"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    return tmp_path


@pytest.mark.parametrize(("continuous", "stages", "count"), [(False, None, 3), (True, None, 2), (True, 4, 12)])
def test_nsys_is_told_how_many_ranges_come_and_nothing_without_a_value(nsys, caplog, continuous, stages, count):
    plan = StepPlan.of([1, 2, 5], continuous=continuous)
    assert nsight_runtime_env(NSYS, plan, stages=stages) == {
        "nsight": {
            "t": "cuda,nvtx",
            "capture-range": "cudaProfilerApi",
            "kill": "none",
            "capture-range-end": f"repeat-shutdown:{count}",
        }
    }
    assert caplog.text == ""


def test_an_end_that_was_given_stays_and_the_controller_gets_none(nsys):
    plan = StepPlan.of([1])
    given = nsight_runtime_env(NSYS | {"capture-range-end": "stop"}, plan)
    assert given["nsight"]["capture-range-end"] == "stop"
    assert nsight_runtime_env({"trace": "nvtx", "x": None}) == {"nsight": {"trace": "nvtx"}}
    # Ray gives nsys `-o` in any case, and nsys starts nothing with both.
    assert nsight_runtime_env({"output": "/data/mine_%p"}) == {"nsight": {"o": "mine_%p"}}
    assert nsight_runtime_env(NSYS, StepPlan()) == {}


def test_without_nsys_processes_start_without_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nsight_runtime_env(NSYS, StepPlan.of([1])) == {}
    assert "nsys is not on the PATH" in caplog.text


def test_another_python_on_the_path_is_told(nsys, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/elsewhere/bin/python")
    assert nsight_runtime_env(NSYS, StepPlan.of([1]))
    assert "not with /elsewhere/bin/python" in caplog.text
