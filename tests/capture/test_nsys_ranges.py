"""The tool `nsys` opens exactly the capture ranges that are wanted, and closes each of them."""

import json
import os
import socket
import sys
import types

import pytest

from capture import DistProfiler, ProfilerConfig
from capture.nsys_ranges import RAY_NSIGHT_LOG_DIR, nsight_folder


class Worker:
    def __init__(self, folder, *, discrete=False, role="actor", **changes):
        config = ProfilerConfig(
            tool="nsys", enable=True, save_path=str(folder), tool_config={"discrete": discrete}, **changes
        )
        self.profiler = DistProfiler(0, config, save_file_prefix=role)

    @DistProfiler.annotate(color="olive", role="ref_compute_log_prob")
    def outer(self):
        return self.inner()

    @DistProfiler.annotate(message="named", color="red", domain="d", category="c")
    def inner(self):
        return 3


OUTER = ("start", "ref_compute_log_prob", 0x808000, None, None)
INNER = ("start", "named", "red", "d", "c")
RANGES = [OUTER, INNER, ("end", "named"), ("end", "ref_compute_log_prob")]


def test_a_step_is_one_capture_range_with_a_range_for_every_stage(tmp_path, torch, nvtx):
    worker = Worker(tmp_path)
    worker.outer()
    worker.profiler.start(profile_step=1)
    assert worker.outer() == 3
    worker.profiler.step()
    worker.profiler.stop()
    assert torch.log == ["open", "close"]
    assert nvtx == RANGES


def test_a_stage_is_a_capture_range_and_one_within_it_is_not_another(tmp_path, torch, nvtx):
    worker = Worker(tmp_path, discrete=True)
    worker.profiler.start(profile_step=1)
    worker.outer()
    worker.inner()
    worker.profiler.stop()
    assert torch.log == ["open", "close"] * 2
    assert nvtx == [*RANGES, INNER, ("end", "named")]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_range_of_two_workers_in_a_process_ends_with_the_last_of_them(tmp_path, torch, order):
    workers = [Worker(tmp_path), Worker(tmp_path)]
    for worker in workers:
        worker.profiler.start(profile_step=1)
    workers[order[0]].profiler.stop()
    assert torch.log == ["open"]
    workers[order[1]].profiler.stop()
    workers[order[1]].profiler.stop()
    assert torch.log == ["open", "close"]


@pytest.mark.parametrize("discrete", [False, True])
def test_without_cuda_the_nvtx_ranges_remain(tmp_path, torch, nvtx, caplog, discrete):
    torch.cuda_available = False
    worker = Worker(tmp_path, discrete=discrete)
    for step in (1, 2):
        worker.profiler.start(profile_step=step)
        assert worker.outer() == 3
        worker.profiler.stop()
    assert nvtx == RANGES * 2
    assert caplog.text.count("no capture range") == 1


def test_capture_ranges_are_those_of_verls_platform_where_a_process_has_one(tmp_path, torch, monkeypatch):
    log = []
    device = types.SimpleNamespace(profiler_start=lambda: log.append("open"), profiler_stop=lambda: log.append("close"))
    platform = types.SimpleNamespace(get_platform=lambda: device)
    monkeypatch.setitem(sys.modules, "verl.plugin.platform", platform)
    worker = Worker(tmp_path)
    worker.profiler.start(profile_step=1)
    assert log == ["open"]
    worker.profiler.stop()
    assert log == ["open", "close"]
    assert torch.log == []


def test_finished_reports_of_this_process_are_moved_out_of_rays_session(tmp_path, monkeypatch):
    session, folder = tmp_path / "session", tmp_path / "profile"
    node = types.SimpleNamespace(get_session_dir_path=lambda: str(session))
    worker = types.SimpleNamespace(_global_node=node)
    ray = types.SimpleNamespace(_private=types.SimpleNamespace(worker=worker))
    monkeypatch.setitem(sys.modules, "ray", ray)
    reports = session / "logs" / "nsight"
    reports.mkdir(parents=True)
    pid = os.getpid()
    mine = [f"worker_process_{pid}.1.nsys-rep", f"worker_process_{pid}.nsys-rep"]
    left = [f"worker_process_{pid}.2.nsys-rep", f"worker_process_{pid}1.nsys-rep", f"worker_process_{pid}.qdstrm"]  # fmt: skip
    for name in mine + left:
        (reports / name).write_bytes(b"" if ".2." in name else b"report")
    profiler = Worker(folder, relocate_results=True).profiler
    profiler.start(profile_step=1)
    profiler.stop()
    host = socket.gethostname()
    assert sorted(path.name for path in folder.glob("*.nsys-rep")) == [f"actor_{host}_{name}" for name in mine]
    account = f"capture_nsys_actor_rank0_pid{pid}.manifest"
    assert sorted(path.name for path in reports.iterdir()) == sorted([*left, account])
    # Where the reports are collected from lies whose they are.
    assert json.loads((reports / account).read_text())["steps"] == [1]


def test_without_a_session_of_its_own_the_latest_one_is_meant(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace())
    assert str(nsight_folder()) == RAY_NSIGHT_LOG_DIR
