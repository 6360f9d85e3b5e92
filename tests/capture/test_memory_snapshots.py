"""The tool `torch_memory` writes the snapshots that verl 0.9.1 writes, and none for ranks that are not profiled."""

import json
import os
import sys

import pytest

from capture import DistProfiler, ProfilerConfig
from capture.endings import close_all

ALL = {"context": "all", "stacks": "python", "max_entries": 100_000}
BEGIN = [("history", "all", ALL), "reset peaks"]
DUMP = ["synchronize", "dump", ("history", None, {}), *BEGIN]


def profiler(folder, rank=0, shared=None, **changes):
    config = {"enable": True, "save_path": str(folder), "tool_config": {}, **changes}
    return DistProfiler(rank, ProfilerConfig(tool="torch_memory", global_tool_config=shared, **config))


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.pickle"))


def steps(profiler, *numbers):
    for number in numbers:
        profiler.start(role="train", profile_step=number)
        profiler.stop()


def test_a_snapshot_is_written_after_every_step_and_a_new_history_begun(tmp_path, torch):
    steps(profiler(tmp_path), 1, 2)
    assert torch.log == [*BEGIN, *DUMP, *DUMP]
    name = f"torch_memory_rank0_pid{os.getpid()}.pickle"
    assert files(tmp_path) == [f"step1/{name}", f"step2/{name}"]


def test_a_depth_of_stacks_reaches_a_torch_that_has_one_and_else_the_log(tmp_path, torch, monkeypatch, caplog):
    wanted = {"tool_config": {"torch_memory": {"stack_depth": 8}}}
    deep = profiler(tmp_path, **wanted)
    assert torch.log == BEGIN
    steps(deep, 1)
    (manifest,) = map(json.loads, (path.read_text() for path in tmp_path.glob("*manifest*")))
    assert manifest["ignored"] == ["stack_depth 8 has no effect: this torch keeps whole stacks"]
    assert manifest["problems"] == []
    torch.log[:] = BEGIN
    assert caplog.text.count("stack_depth 8 has no effect: this torch keeps whole stacks") == 1

    def record(enabled="all", *, stack_depth=0, **arguments):
        torch.log.append((enabled, stack_depth))

    monkeypatch.setattr("capture.memory_snapshots.MemorySnapshots.recording", False)
    monkeypatch.setattr(sys.modules["torch.cuda.memory"], "_record_memory_history", record)
    torch.log.clear()
    profiler(tmp_path, **wanted)
    assert torch.log[0] == ("all", 8)


def test_two_workers_of_one_process_do_not_replace_each_others_snapshot(tmp_path):
    actor, critic = profiler(tmp_path), profiler(tmp_path)
    steps(actor, 1)
    steps(critic, 1)
    steps(actor, 1)
    name = f"torch_memory_rank0_pid{os.getpid()}"
    assert files(tmp_path) == [f"step1/{name}{part}.pickle" for part in ("", "_part1", "_part2")]


def test_the_rank_is_the_environments_as_in_verl_and_else_the_workers_own(tmp_path, monkeypatch):
    steps(profiler(tmp_path / "a", 3, all_ranks=True), 1)
    monkeypatch.setenv("RANK", "5")
    steps(profiler(tmp_path / "b", 3, all_ranks=True), 1)
    names = [name for folder in "ab" for name in files(tmp_path / folder)]
    assert [name.split("_")[2] for name in names] == ["rank3", "rank5"]


@pytest.mark.parametrize("changes", [{"enable": False}, {"ranks": [1]}])
def test_no_history_is_recorded_where_nothing_is_profiled(tmp_path, torch, changes):
    # verl records on every rank and when disabled: a cost without a snapshot.
    steps(profiler(tmp_path, **changes), 1)
    assert torch.log == []
    assert list(tmp_path.iterdir()) == []


def test_a_window_of_steps_is_one_snapshot_and_what_remains_is_written_at_the_end(tmp_path, torch):
    taken = profiler(tmp_path, tool_config={"memory_snapshot_num_steps": 2})
    steps(taken, 1, 2, 5)
    name = f"torch_memory_rank0_pid{os.getpid()}.pickle"
    assert files(tmp_path) == [f"steps1-2/{name}"]
    close_all()
    assert files(tmp_path) == [f"step5/{name}", f"steps1-2/{name}"]


def test_the_global_block_decides_what_a_history_holds(tmp_path, torch):
    own = {"context": "alloc", "stacks": "python", "kw_args": {"clear_history": True}}
    profiler(tmp_path, shared={"torch_memory": own}, tool_config={"trace_alloc_max_entries": 50})
    expected = {"context": "alloc", "stacks": "python", "max_entries": 50, "clear_history": True}
    assert torch.log[0] == ("history", "all", expected)


@pytest.mark.parametrize(
    ("block", "stacks"),
    [
        ({}, "python"),
        ({"context": "all", "stacks": "all", "kw_args": {}}, "python"),  # verl's own, untouched
        ({"context": "all", "stacks": "all", "kw_args": {"stacks": "all"}}, "all"),
        ({"stacks": "all"}, "all"),
        ({"context": "alloc", "stacks": "all", "kw_args": {}}, "all"),
        ({"stacks": "cpp"}, "cpp"),
    ],
)
def test_stacks_are_those_of_python_unless_others_are_asked_for(tmp_path, torch, block, stacks):
    profiler(tmp_path, shared={"torch_memory": block})
    assert torch.log[0][2]["stacks"] == stacks


def request(folder, **changes):
    return {"tool": "torch_memory", "folder": str(folder), "ranks": None, **changes}


def on_demand(profiler, step, **changes):
    profiler.start(role="train", profile_step=step, on_demand=request(**changes))
    profiler.stop()


OFF = ("history", None, {})


def test_a_request_ends_its_history_and_follows_the_settings_of_the_run(tmp_path, torch):
    block = {"context": "state", "stacks": "cpp", "trace_alloc_max_entries": 70}
    config = ProfilerConfig(tool=None, save_path=None, tool_config=None, global_tool_config={"torch_memory": block})
    worker = DistProfiler(0, config)
    on_demand(worker, 3, folder=tmp_path)
    expected = {"context": "state", "stacks": "cpp", "max_entries": 70}
    begun = [("history", "all", expected), "reset peaks"]
    assert torch.log == [*begun, "synchronize", "dump", OFF]
    on_demand(worker, 4, folder=tmp_path, tool_config={"trace_alloc_max_entries": 5})
    assert torch.log[5] == ("history", "all", expected | {"max_entries": 5})
    assert torch.log[-1] == OFF
    assert len(files(tmp_path)) == 2
    torch.observer(0, 1_000, 80_000, 10)
    assert len(files(tmp_path)) == 2, "nobody records: there is no history to write"


def test_a_request_leaves_the_history_of_the_run_as_it_is(tmp_path, torch):
    taken = profiler(tmp_path / "own")
    on_demand(taken, 1, folder=tmp_path / "asked")
    assert torch.log == [*BEGIN, "synchronize", "dump"]
    steps(taken, 2)
    assert torch.log[4:] == DUMP
    torch.observer(0, 1_000, 80_000, 10)
    assert len(files(tmp_path / "own")) == 2


def test_a_request_of_a_run_with_windows_of_steps_is_written_after_its_own_step(tmp_path, torch):
    taken = profiler(tmp_path / "own", tool_config={"memory_snapshot_num_steps": 3})
    on_demand(taken, 1, folder=tmp_path / "asked")
    assert len(files(tmp_path / "asked")) == 1


def test_a_failed_snapshot_of_a_request_ends_its_history_all_the_same(tmp_path, torch, caplog):
    torch.dump = OSError(28, "No space left on device")
    on_demand(DistProfiler(0), 1, folder=tmp_path)
    assert torch.log[-1] == OFF
    assert "No space left" in caplog.text


def test_a_profiler_that_was_built_during_a_request_records_from_its_first_step(tmp_path, torch):
    worker = DistProfiler(0)
    worker.start(profile_step=1, on_demand=request(tmp_path / "asked"))
    taken = profiler(tmp_path / "own")
    worker.stop()
    torch.log.clear()
    taken.start(profile_step=2)
    assert torch.log == BEGIN
    taken.stop()


def test_a_snapshot_is_written_when_memory_runs_out(tmp_path, torch, caplog):
    taken = profiler(tmp_path)
    other = profiler(tmp_path)  # the allocator takes one observer
    taken.start(profile_step=4)
    torch.observer(0, 1_000, 80_000, 10)
    (name,) = files(tmp_path)
    folder, file = name.split("/")
    assert folder.startswith("oom_20")
    assert file == f"torch_memory_oom_rank0_pid{os.getpid()}.pickle"
    assert "1000 bytes requested, 10 of 80000 free" in caplog.text
    assert "synchronize" not in torch.log
    torch.dump = RuntimeError("the device is lost")
    torch.observer(0, 1_000, 80_000, 10)
    assert len(files(tmp_path)) == 1
    del other


def test_a_snapshot_that_fails_leaves_no_half_of_it(tmp_path, torch, caplog):
    torch.dump = OSError(28, "No space left on device")
    taken = profiler(tmp_path)
    steps(taken, 1)
    assert [path.name for path in (tmp_path / "step1").iterdir()] == []
    assert "No space left" in caplog.text
    torch.dump = None
    steps(taken, 2)
    assert len(files(tmp_path)) == 1


def test_without_cuda_it_says_so_once_and_makes_no_directories(tmp_path, torch, caplog):
    torch.cuda_available = False
    taken = profiler(tmp_path)
    steps(taken, 1, 2)
    assert caplog.text.count("needs CUDA") == 1
    assert [path.suffix for path in tmp_path.iterdir()] == [".manifest"]
