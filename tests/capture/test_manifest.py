"""What a process says of its own profile is what tracekit reads of it."""

import functools
import json
import os
import socket
import subprocess
import sys
import types

import profiled_worker
import pytest

from capture.cores import list_cores
from tracekit.discover import discover
from tracekit.readers.loading import sniff

Worker = functools.partial(profiled_worker.Worker, role="actor_rollout_ref", rank=1)


def read(folder):
    (path,) = folder.glob("capture_*.manifest")
    return path.name, json.loads(path.read_text())


@pytest.fixture
def group(monkeypatch):
    """This process is rank 1 of 2."""
    module = types.ModuleType("torch.distributed")
    vars(module).update(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 2
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", module)


def test_it_says_who_captured_what_and_when(tmp_path, group, monkeypatch):
    monkeypatch.setenv("CAPTURE_RUN_ID", "run 7")
    worker = Worker(tmp_path)
    worker.step(1)
    worker.step(4)
    name, told = read(tmp_path)
    assert name == f"capture_torch_actor-rollout-ref_rank1_pid{os.getpid()}.manifest"
    expected = {
        "schema": "capture/2",
        "run_id": "run 7",
        "role": "actor-rollout-ref",
        "rank": 1,
        "world_size": 2,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cores": list_cores(),
        "tool": "torch",
        "steps": [1, 4],
        "stages": ["actor_update"],
        "status": "closed",
    }
    assert {key: told[key] for key in expected} == expected
    assert told["versions"]["torch"] == "2.13.0"
    assert [(one["step"], one["stage"]) for one in told["files"]] == [(1, "train"), (4, "train")]
    assert {one["path"] for one in told["files"]} == {path.name for path in tmp_path.glob("*.gz")}
    times = [one[key] for one in told["files"] for key in ("start_unix_ns", "stop_unix_ns")]
    assert times == sorted(times)
    assert times[-1] <= told["clock"]["unix_ns"] < times[0] + 60 * 10**9
    assert [(one["step"], one["scope"]) for one in told["captures"]] == [(1, "train"), (4, "train")]
    for clock in ("unix_ns", "monotonic_ns"):
        moments = [one[end][clock] for one in told["captures"] for end in ("start", "stop")]
        assert moments == sorted(moments)
    assert told["asked"] == {
        "tool": "torch",
        "all_ranks": True,
        "ranks": [],
        "tool_config": {
            "contents": [],
            "discrete": False,
            "profile_token_start": None,
            "profile_token_end": None,
            "schedule": None,
            "name": "torch",
        },
        "global_tool_config": None,
        "relocate_results": False,
    }
    assert (told["ignored"], told["problems"], told["in_place_of"]) == ([], [], None)


def test_what_the_log_is_told_stands_in_it(tmp_path, monkeypatch):
    worker = Worker(tmp_path)
    worker.profiler.start(profile_step=1)
    worker.profiler.start(profile_step=1)
    monkeypatch.setattr("capture.run_config.without_effect", ["critic: relocate_results: nothing to move"])
    worker.profiler.stop()
    told = read(tmp_path)[1]
    assert told["problems"] == ["start: a step is being profiled already"]
    assert told["ignored"] == ["critic: relocate_results: nothing to move"]
    notes = {note.code: note.message for note in discover(tmp_path, sniff=sniff).notes}
    assert notes["no-effect"] == "critic: relocate_results: nothing to move"
    assert notes["capture"].endswith("start: a step is being profiled already")


def test_two_tools_of_one_worker_have_a_manifest_each(tmp_path):
    for tool in ("torch", "torch_memory"):
        Worker(tmp_path, tool=tool).step(1)
    assert {json.loads(path.read_text())["tool"] for path in tmp_path.glob("*.manifest")} == {"torch", "torch_memory"}


def test_it_is_open_from_the_start_on(tmp_path):
    worker = Worker(tmp_path)
    worker.profiler.start(profile_step=3)
    told = read(tmp_path)[1]
    assert (told["status"], told["steps"], told["files"]) == ("open", [3], [])
    worker.profiler.stop()
    assert read(tmp_path)[1]["status"] == "closed"


def test_two_profilers_of_one_worker_and_rank_share_it(tmp_path):
    one, other = Worker(tmp_path), Worker(tmp_path)
    one.profiler.start(profile_step=1)
    other.profiler.start(profile_step=1)
    other.profiler.stop()
    assert read(tmp_path)[1]["status"] == "open"
    one.profiler.stop()
    assert read(tmp_path)[1]["status"] == "closed"


@pytest.mark.parametrize("discrete", [False, True])
def test_tracekit_finds_role_rank_step_and_stage(tmp_path, group, discrete):
    worker = Worker(tmp_path, discrete=discrete)
    worker.step(1)
    worker.step(2)
    found = discover(tmp_path, sniff=sniff)
    assert len(found.sources) == 2
    assert {(s.role, s.rank, s.world_size, s.pid, s.host, s.cores) for s in found.sources} == {
        ("actor-rollout-ref", 1, 2, os.getpid(), socket.gethostname(), list_cores())
    }
    stage = "actor_update" if discrete else "train"
    assert [(s.step, s.scope) for s in found.sources] == [(1, stage), (2, stage)]
    notes = [note for source in found.sources for note in source.notes]
    assert {note.code for note in (*notes, *found.notes)} == {"manifest"}


def test_tracekit_finds_what_a_snapshot_was_of(tmp_path):
    worker = Worker(tmp_path, tool="torch_memory", memory_snapshot_num_steps=2)
    worker.step(1)
    worker.step(2)
    told = read(tmp_path)[1]
    assert [(one["path"], one["step"]) for one in told["files"]] == [
        (f"steps1-2/torch_memory_rank1_pid{os.getpid()}.pickle", 1)
    ]


def test_a_worker_killed_while_it_is_profiled_is_named(tmp_path):
    Worker(tmp_path, rank=0).step(1)
    code = (
        "import os, signal, sys, pathlib\n"
        "from capture.manifest import manifest_of\n"
        "manifest = manifest_of(pathlib.Path(sys.argv[1]), 'torch', 1, 'actor_rollout_ref')\n"
        "manifest.begin(1)\n"
        "manifest.save()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert killed.returncode == -9
    found = discover(tmp_path, sniff=sniff)
    assert [source.rank for source in found.sources] == [0]
    (note,) = [note for note in found.notes if note.code == "open"]
    assert note.message.startswith("actor-rollout-ref rank 1 (pid ")
    assert "never finished profiling" in note.message


@pytest.mark.parametrize("context", [None, ("session_2026-01-01_1", "02000000", "0cbb")])
def test_the_run_and_the_worker_are_told_by_ray_where_nobody_named_the_run(tmp_path, monkeypatch, context):
    def runtime_context():
        if context is None:
            raise RuntimeError("ray.init has not been called")
        names = ("get_session_name", "get_job_id", "get_worker_id")
        return types.SimpleNamespace(
            **{name: lambda value=value: value for name, value in zip(names, context, strict=True)}
        )

    ray = types.SimpleNamespace(get_runtime_context=runtime_context, is_initialized=lambda: context is not None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    Worker(tmp_path).step(1)
    expected = (None, None) if context is None else ("/".join(context[:2]), context[2])
    told = read(tmp_path)[1]
    assert (told["run_id"], told["ray_worker"]) == expected
