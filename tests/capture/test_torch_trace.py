"""The tool `torch` writes the files that verl 0.9.1 writes, with the same ranges in them.

The expected names are those of files that verl 0.9.1 wrote for the same calls.
"""

import gzip
import json
import os
import re
import sys
import threading
import types
from datetime import datetime

import pytest

from capture import DistProfiler, ProfilerConfig, file_names, other_profiles, torch_trace
from capture.file_names import trace_stem

TIME = re.compile(r"_\d{17}")


class Worker:
    def __init__(self, profiler):
        self.profiler = profiler

    @DistProfiler.annotate(role="actor_compute_log_prob")
    def compute_log_prob(self):
        pass

    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    def update_actor(self, mini_batches):
        import torch.profiler

        for number in range(mini_batches):
            with torch.profiler.record_function(f"mini_batch{number}"):
                pass
            self.profiler.step()

    @DistProfiler.annotate()
    def plain(self):
        pass


def run(folder, mini_batches=3, *, steps=(1,), prefix="actor_rollout_ref", scope="train", **tool):
    """By name without time and process: the ranges of each trace of these steps."""
    config = ProfilerConfig(tool="torch", enable=True, save_path=str(folder), tool_config=tool)
    worker = Worker(DistProfiler(0, config, save_file_prefix=prefix))
    for step in steps:
        worker.profiler.start(role=scope, profile_step=step)
        worker.compute_log_prob()
        worker.update_actor(mini_batches)
        worker.plain()
        worker.profiler.stop()
    found = {}
    for path in folder.glob("*.json.gz"):
        ranges = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        name = TIME.sub("", path.name.removesuffix(".json.gz")).replace(f"_pid{os.getpid()}", "")
        found[name] = [event["name"] for event in ranges]
    return found


STANDING = ["20261231235959999", "20270101000000000", "20270101000000001"]
STAGES = ["actor_compute_log_prob", "actor_update", "mini_batch0", "mini_batch1", "mini_batch2", "plain"]  # fmt: skip


def test_a_step_is_one_trace(tmp_path):
    assert run(tmp_path, steps=(1, 5)) == {
        "actor-rollout-ref_train_step1_rank0": STAGES,
        "actor-rollout-ref_train_step5_rank0": STAGES,
    }


def test_a_worker_without_a_scope_or_a_name_has_none_in_its_files(tmp_path):
    assert run(tmp_path / "a", prefix="value_model", scope=None) == {"value-model_step1_rank0": STAGES}
    assert run(tmp_path / "b", prefix=None) == {"train_step1_rank0": STAGES}


def test_a_stage_has_a_trace_of_its_own_where_that_is_wanted(tmp_path):
    assert run(tmp_path, discrete=True) == {
        "actor-rollout-ref_actor-compute-log-prob_step1_rank0": STAGES[:1],
        "actor-rollout-ref_actor-update_step1_rank0": STAGES[1:5],
        "actor-rollout-ref_plain_step1_rank0": STAGES[5:],
    }


@pytest.mark.parametrize(
    ("schedule", "mini_batches", "windows"),
    [
        ({"active": 1, "wait": 1}, 4, {"_mb1": ["mini_batch1"], "_mb3": ["mini_batch3"]}),
        ({"skip_first": 1, "wait": 1, "active": 2}, 4, {"_mb2-3": ["mini_batch2", "mini_batch3"]}),
        ({"skip_first": 1, "wait": 1, "active": 4}, 3, {"_mb2": ["mini_batch2"]}),
        ({"active": 2, "repeat": 1}, 5, {"_mb0-1": ["actor_update", "mini_batch0", "mini_batch1"]}),
    ],
)
def test_a_schedule_keeps_windows_of_the_update_loop(tmp_path, schedule, mini_batches, windows):
    found = run(tmp_path, mini_batches, discrete=True, schedule=schedule)
    update = "actor-rollout-ref_actor-update_step1_rank0"
    assert {name: ranges for name, ranges in found.items() if "update" in name} == {
        update + suffix: ranges for suffix, ranges in windows.items()
    }
    assert found["actor-rollout-ref_actor-compute-log-prob_step1_rank0"] == STAGES[:1]


def test_a_window_that_had_just_begun_leaves_no_empty_trace(tmp_path):
    # verl 0.9.1 also writes an `_mb4` with nothing in it.
    found = run(tmp_path, 5, discrete=True, schedule={"skip_first": 1, "wait": 1, "active": 2})
    assert [name for name in found if "_mb" in name] == ["actor-rollout-ref_actor-update_step1_rank0_mb2-3"]


def test_the_range_of_a_stage_ends_with_the_window_it_was_recorded_in(tmp_path, torch):
    # Ended in the next window it would be written into freed memory: torch crashes then, now and again.
    run(tmp_path, 2, discrete=True, schedule={"active": 1})
    update = torch.log[torch.log.index("+actor_update") :]
    batches = ["+mini_batch0", "-mini_batch0", "-actor_update", "+mini_batch1", "-mini_batch1"]
    assert update == ["+actor_update", *batches, "+plain", "-plain"]


def test_a_scheduled_step_is_kept_up_to_its_window(tmp_path):
    first = run(tmp_path / "a", schedule={"active": 1})
    assert first == {"actor-rollout-ref_train_step1_rank0": STAGES[:3]}
    second = run(tmp_path / "b", schedule={"active": 1, "skip_first": 1})
    assert second == {"actor-rollout-ref_train_step1_rank0": ["mini_batch1"]}


@pytest.mark.parametrize(
    ("contents", "options"),
    [
        ([], (["cpu", "cuda"], False, False, False)),
        (["cpu"], (["cpu"], False, False, False)),
        (["cuda", "stack"], (["cpu", "cuda"], False, False, True)),
        (["memory", "shapes"], (["cpu"], True, True, False)),
    ],
)
def test_contents_decide_what_is_collected(tmp_path, torch, contents, options):
    config = ProfilerConfig(tool="torch", enable=True, save_path=str(tmp_path), tool_config={"contents": contents})
    profiler = DistProfiler(0, config)
    profiler.start()
    found = torch.running.options
    assert options == tuple(found[key] for key in ("activities", "record_shapes", "profile_memory", "with_stack"))
    profiler.stop()


def test_a_mini_batch_of_an_inner_worker_advances_the_capture_of_the_outer_one(tmp_path, torch):
    tool = {"schedule": {"active": 1}}
    config = ProfilerConfig(tool="torch", enable=True, save_path=str(tmp_path), tool_config=tool)
    outer, inner = DistProfiler(0, config), DistProfiler(0, config)
    inner.step()
    outer.start(profile_step=1)
    inner.step()
    assert torch.running.step_num == 1
    outer.stop()


def test_traces_that_begin_within_a_millisecond_do_not_replace_each_other(tmp_path, monkeypatch):
    class StandingClock(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 12, 31, 23, 59, 59, 999_500, tz)

    monkeypatch.setattr(file_names, "datetime", StandingClock)
    for _ in range(3):
        run(tmp_path, scope="train")
    times = sorted(path.name.split("_")[-1] for path in tmp_path.glob("*.json.gz"))
    assert times == [f"{time}.json.gz" for time in STANDING]


def test_names_tell_rank_and_place_where_they_are_known(monkeypatch):
    place = {"rank": 3, "world_size": 8, "tp": 1, "pp": 0, "dp": 2, "cp": 0}
    stem = TIME.sub("", trace_stem(0, "actor_update", "actor_rollout/ref", 7, place))
    assert stem == f"actor-rollout-ref_actor-update_step7_rank3-of-8_tp1-pp0-dp2-cp0_pid{os.getpid()}"
    assert TIME.sub("", trace_stem(3, place={})) == f"rank3_pid{os.getpid()}"
    group = types.ModuleType("torch.distributed")
    vars(group).update(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 2
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert trace_stem(0).startswith("rank1-of-2_pid")


@pytest.fixture
def users(monkeypatch):
    """The class of profiles that the user makes, and whether torch has one running on this thread already."""

    class Profile:
        def _prepare_trace(self):
            pass

        def __exit__(self, *error):
            pass

    autograd, module = types.ModuleType("torch.autograd"), types.ModuleType("torch.autograd.profiler")  # fmt: skip
    autograd.profiler, module.profile, autograd._profiler_enabled = module, Profile, lambda: False
    monkeypatch.setitem(sys.modules, "torch.autograd", autograd)
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", module)
    yield autograd
    other_profiles.forget()


def worker(folder, **tool):
    """A worker that is profiled."""
    config = ProfilerConfig(tool="torch", enable=True, save_path=str(folder), tool_config=tool)
    return Worker(DistProfiler(0, config))


@pytest.mark.parametrize("discrete", [False, True])
def test_while_the_user_profiles_nothing_is_captured_and_that_is_told_once(tmp_path, users, caplog, discrete):
    profiled = worker(tmp_path, discrete=discrete)
    own = users.profiler.profile()
    own._prepare_trace()
    for step in (1, 2, 3):
        if step == 3:
            own.__exit__(None, None, None)
        profiled.profiler.start(profile_step=step)
        profiled.plain()
        profiled.profiler.stop()
    (trace,) = tmp_path.glob("*.gz")
    assert "step3_" in trace.name
    assert caplog.text.count("another torch.profiler is running in this process") == 1


def test_a_profile_that_began_before_capture_was_there_is_respected_too(tmp_path, users):
    users._profiler_enabled = lambda: True
    profiled = worker(tmp_path)
    profiled.profiler.start(profile_step=1)
    profiled.profiler.stop()
    assert [*tmp_path.glob("*.gz")] == []


@pytest.mark.parametrize("discrete", [False, True])
def test_a_capture_ends_and_is_written_when_the_user_begins_to_profile(tmp_path, torch, users, caplog, discrete):
    class Profiling(Worker):
        @DistProfiler.annotate(role="profiles")
        def profile_it(self):
            own = users.profiler.profile()
            own._prepare_trace()
            assert torch.running is None
            self.plain()
            own.__exit__(None, None, None)

    profiled = Profiling(worker(tmp_path, discrete=discrete).profiler)
    profiled.profiler.start(profile_step=1)
    profiled.profile_it()
    profiled.profiler.stop()
    (trace,) = tmp_path.glob("*.gz")
    assert b"profiles" in gzip.decompress(trace.read_bytes())
    assert "this trace ends now" in caplog.text


def test_a_capture_that_the_user_s_thread_cannot_end_is_let_go(tmp_path, users, caplog):
    profiled = worker(tmp_path)
    profiled.profiler.start(profile_step=1)
    own = users.profiler.profile()
    thread = threading.Thread(target=own._prepare_trace)
    thread.start()
    thread.join()
    own.__exit__(None, None, None)
    profiled.profiler.stop()
    assert [*tmp_path.glob("*.gz")] == []
    assert "the trace of this step is lost" in caplog.text


def test_a_trace_that_is_cut_off_anywhere_is_told_from_a_whole_one(tmp_path):
    events = '{"name": "aten::mm", "args": {"Input Dims": [[2, 3], []]}},\n  {"name": "Record Window End", "s": "g"}'
    whole = f'{{"schemaVersion": 1,\n"traceEvents": [\n  {events}\n  ],"traceName": "a.json", "base": 1 }}\n'
    path = tmp_path / "trace.json"
    path.write_text(whole)
    assert torch_trace._has_its_end(path)
    for length in range(len(whole.rstrip())):
        path.write_text(whole[:length])
        assert not torch_trace._has_its_end(path), whole[:length]


def test_a_stage_on_another_thread_begins_no_trace_while_one_is_being_ended(tmp_path, torch, monkeypatch, caplog):
    profiled = worker(tmp_path, discrete=True)
    profiled.profiler.start(profile_step=1)
    stop = torch_trace._Capture.stop

    def stopped(capture):
        monkeypatch.setattr(torch_trace._Capture, "stop", stop)
        thread = threading.Thread(target=profiled.compute_log_prob)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
        stop(capture)

    monkeypatch.setattr(torch_trace._Capture, "stop", stopped)
    profiled.plain()
    profiled.plain()
    profiled.profiler.stop()
    assert caplog.text == ""
    assert sorted(path.name.split("_")[0] for path in tmp_path.glob("*.gz")) == ["plain", "plain"]
