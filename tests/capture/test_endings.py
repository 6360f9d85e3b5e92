"""Captures that nobody stops in good order: threads, forks and signals, with the fake torch and the real one."""

import signal
import sys
import threading

import pytest
import verl_python

from capture import DistProfiler, ProfilerConfig, control
from tracekit.discover import discover
from tracekit.process.calls.activity import find_garbage_collections
from tracekit.readers.loading import load, sniff

WORKER = """
import os, signal, sys, threading, time
from capture import DistProfiler

class Worker:
    def __init__(self, folder):
        config = {"tool": "torch", "enable": True, "save_path": folder, "tool_config": {"torch": {"contents": ["cpu"]}}}
        self.profiler = DistProfiler(0, config, save_file_prefix="actor")

    @DistProfiler.annotate(role="work")
    def work(self):
        import torch
        return float(torch.ones(64, 64).mm(torch.ones(64, 64)).sum())

worker = Worker(sys.argv[1])
"""

HAMMER = """
import torch.profiler
import capture.torch_trace

class Hammered(Worker):
    @DistProfiler.annotate(role="work")
    def work(self):
        x = torch.ones(4, 4, requires_grad=True)
        (x @ x).sum().backward()
        return float(x.grad.sum())

torch.set_num_threads(1)
capture.torch_trace.export = lambda profiler, path: None  # writing takes most of the time
worker, over = Hammered(sys.argv[1]), threading.Event()

def loop():
    while not over.is_set():
        assert worker.work() == 128.0

def call(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()

threads = [threading.Thread(target=loop) for _ in range(4)]
for thread in threads:
    thread.start()
for step in range(60):
    call(lambda: worker.profiler.start(role="train", profile_step=step))
    time.sleep(0.02)
    call(worker.profiler.stop)
over.set()
for thread in threads:
    thread.join()
print("ends", over.is_set())
"""

FORKS = """
class Forking(Worker):
    @DistProfiler.annotate(role="work")
    def work(self, fork):
        import torch
        pid = os.fork() if fork else None
        torch.ones(4) + 1
        return pid

worker = Forking(sys.argv[1])
worker.profiler.start(role="train", profile_step=1)
pid = worker.work(moment == "in a stage")
if moment == "in a step":
    pid = os.fork()
if pid != 0:
    worker.profiler.stop()
if moment == "after the step":
    pid = os.fork()
if pid == 0:
    threading.Thread(target=worker.work, args=(False,)).start()
    print("child")
    sys.exit(7)
until = time.monotonic() + 30
while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < until:
    time.sleep(0.02)
if not ended[0]:
    os.kill(pid, signal.SIGKILL)
assert ended[0] and os.waitstatus_to_exitcode(ended[1]) == 7, ended
"""


def test_what_is_asked_of_the_control_thread_is_done_there_and_raises_here():
    there = control.run_on_control_thread(threading.get_ident)
    assert there != threading.get_ident()
    assert control.run_on_control_thread(lambda: control.run_on_control_thread(threading.get_ident)) == there
    with pytest.raises(ZeroDivisionError):
        control.run_on_control_thread(lambda: 1 / 0)


def test_a_process_that_imported_ray_and_did_not_start_it_starts_no_cluster(tmp_path, monkeypatch):
    import types

    asked = []
    ray = types.SimpleNamespace(is_initialized=lambda: False, get_runtime_context=lambda: asked.append(1))
    monkeypatch.setitem(sys.modules, "ray", ray)
    config = ProfilerConfig(tool="torch", enable=True, save_path=str(tmp_path), tool_config={})
    profiler = DistProfiler(0, config)
    profiler.start(profile_step=1)
    profiler.stop()
    assert asked == []


def test_a_child_that_is_forked_off_in_a_step_neither_stops_nor_writes(tmp_path, torch):
    config = ProfilerConfig(tool="torch", enable=True, save_path=str(tmp_path), tool_config={})
    profiler = DistProfiler(0, config)
    profiler.start(profile_step=1)
    profiler.abandon()
    profiler.stop()
    assert not profiler.check_this_step()
    assert list(tmp_path.glob("*.gz")) == []


if verl_python.PYTHON:

    def stages(folder):
        """The threads of the stages in the one trace of a folder."""
        (source,) = discover(folder, sniff=sniff).sources
        ops = load(source.path)["host_ops"]
        return ops[ops["name"] == "work"]

    @pytest.mark.slow
    def test_a_step_that_is_started_and_stopped_on_other_threads_holds_the_stages_of_all(tmp_path):
        code = WORKER + (
            "def on_thread(*calls):\n"
            "    threads = [threading.Thread(target=call) for call in calls]\n"
            "    [one.start() for one in threads]; [one.join() for one in threads]\n"
            "on_thread(lambda: worker.profiler.start(role='train', profile_step=1))\n"
            "on_thread(*[worker.work] * 4)\n"
            "on_thread(worker.profiler.stop)\n"
        )
        verl_python.run("-c", code, tmp_path)
        assert stages(tmp_path)["tid"].nunique() == 4

    @pytest.mark.slow
    def test_a_step_started_here_and_stopped_on_another_thread_is_written_at_the_end(tmp_path):
        code = WORKER + (
            "worker.profiler.start(role='train', profile_step=1)\n"
            "worker.work()\n"
            "thread = threading.Thread(target=worker.profiler.stop)\n"
            "thread.start(); thread.join()\n"
        )
        assert "only on the thread that started it" in verl_python.run("-c", code, tmp_path).stderr
        assert len(stages(tmp_path)) == 1

    @pytest.mark.slow
    def test_a_process_forked_off_in_a_step_ends_and_the_parent_s_trace_is_whole(tmp_path):
        code = WORKER + (
            "worker.profiler.start(role='train', profile_step=1)\n"
            "worker.work()\n"
            "import multiprocessing\n"
            "def job():\n"
            "    worker.profiler.stop(); worker.profiler.start(profile_step=2); sys.exit(7)\n"
            "child = multiprocessing.get_context('fork').Process(target=job)\n"
            "child.start(); child.join()\n"
            "assert child.exitcode == 7\n"
            "worker.profiler.stop()\n"
        )
        verl_python.run("-c", code, tmp_path, timeout=100)
        assert len(stages(tmp_path)) == 1

    @pytest.mark.slow
    def test_a_sigterm_in_a_step_leaves_the_trace_and_ends_the_process_as_ever(tmp_path):
        code = WORKER + (
            "worker.profiler.start(role='train', profile_step=1)\n"
            "worker.work()\n"
            "os.kill(os.getpid(), signal.SIGTERM)\n"
            "time.sleep(60)\n"
        )
        done = verl_python.run("-c", code, tmp_path, check=False, timeout=100)
        assert done.returncode == -signal.SIGTERM
        assert len(stages(tmp_path)) == 1

    @pytest.mark.slow
    def test_the_handler_of_a_sigterm_that_the_user_has_stays(tmp_path):
        code = WORKER + (
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
            "worker.profiler.start(role='train', profile_step=1)\n"
            "worker.work()\n"
            "os.kill(os.getpid(), signal.SIGTERM)\n"
        )
        assert verl_python.run("-c", code, tmp_path, check=False).returncode == 3
        assert len(stages(tmp_path)) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("contents", ["cpu", "stack"])
    def test_a_collection_in_a_step_is_in_its_trace_and_read_as_one(tmp_path, contents):
        code = WORKER.replace('["cpu"]', f'["{contents}"]') + (
            "import gc\n"
            "gc.disable()\n"
            "worker.profiler.start(role='train', profile_step=1)\n"
            "worker.work()\n"
            "gc.collect()\n"
            "worker.profiler.stop()\n"
        )
        verl_python.run("-c", code, tmp_path)
        (source,) = discover(tmp_path, sniff=sniff).sources
        trace = load(source.path, tables=["host_ops", "python_calls", "threads"])
        assert len(find_garbage_collections(trace).start) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("contents", ["cpu", "stack"])
    def test_threads_in_stages_survive_that_a_capture_of_all_of_them_ends(tmp_path, contents):
        code = WORKER.replace('["cpu"]', f'["{contents}"]') + HAMMER
        done = verl_python.run("-c", code, tmp_path, check=False, timeout=200)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "ends True")

    @pytest.mark.slow
    @pytest.mark.parametrize("moment", ["in a stage", "in a step", "after the step"])
    @pytest.mark.parametrize("contents", ["cpu", "stack"])
    def test_a_child_of_os_fork_ends_as_it_does_without_a_profile(tmp_path, moment, contents):
        code = WORKER.replace('["cpu"]', f'["{contents}"]') + f"moment = {moment!r}" + FORKS
        assert "child\n" in verl_python.run("-c", code, tmp_path, timeout=100).stdout
        assert len(stages(tmp_path)) == 1
