"""SIGUSR2 to any process of a run leaves a request where the steps are taken, or nothing; it ends none."""

import json
import os
import signal
import subprocess
import sys
import threading
import types

import pytest
import verl_python

from capture import on_signal


@pytest.fixture(autouse=True)
def usr2():
    """SIGUSR2 is as it was afterwards, and unhandled before."""
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGUSR2, before)


class Ray:
    """As much of Ray as the signal needs: a key-value store, a job, a node, and tasks that run here."""

    WORKER_MODE = 1

    def __init__(self, node="node-1"):
        self.store, self.node, self.tasks = {}, node, []
        self.worker = types.SimpleNamespace(mode=0)
        store = types.SimpleNamespace(_internal_kv_put=self.store.__setitem__, _internal_kv_get=self.store.get)
        self.experimental = types.SimpleNamespace(internal_kv=store)
        context = types.SimpleNamespace(get_job_id=lambda: "01", get_node_id=lambda: self.node, worker=self.worker)
        self.get_runtime_context = lambda: context

    def is_initialized(self):
        return True

    def remote(self, function):
        def options(**given):
            self.tasks.append(given["scheduling_strategy"])
            return types.SimpleNamespace(remote=function)

        return types.SimpleNamespace(options=options)

    def get(self, value, timeout):
        return value


@pytest.fixture
def ray(monkeypatch):
    made = Ray()
    monkeypatch.setitem(sys.modules, "ray", made)
    strategies = types.ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: (node, soft)
    monkeypatch.setitem(sys.modules, "ray.util", types.ModuleType("ray.util"))
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    return made


def signalled():
    """Signal this process and wait for what follows."""
    os.kill(os.getpid(), signal.SIGUSR2)
    for thread in threading.enumerate():
        if thread.name == "capture-signal":
            thread.join(10)


def requests(folder):
    return [*folder.glob(".capture/request")]


def test_a_signal_to_the_driver_before_the_first_step_is_ignored_with_a_word(ray, caplog):
    on_signal.install()
    signalled()
    assert "SIGUSR2 ignored: no step has begun" in caplog.text


def test_a_signal_to_the_driver_leaves_a_request_where_the_trainer_watches(tmp_path, ray, caplog):
    on_signal.announce_watched_folder(tmp_path)
    assert f"python -m capture.trigger {tmp_path}" in caplog.text
    assert f"kill -USR2 {os.getpid()}" in caplog.text
    on_signal.install()
    signalled()
    assert len(requests(tmp_path)) == 1
    assert ray.tasks == []


def test_a_trainer_on_another_node_is_reached_by_a_task_there(tmp_path, ray):
    on_signal.announce_watched_folder(tmp_path)
    ray.node = "node-2"
    on_signal.install()
    signalled()
    assert ray.tasks == [("node-1", False)]
    assert len(requests(tmp_path)) == 1


def test_a_worker_ignores_the_signal_and_names_the_driver(tmp_path, ray, monkeypatch, caplog):
    monkeypatch.setenv(on_signal.DRIVER, "4711 on head")
    ray.worker.mode = ray.WORKER_MODE
    on_signal.announce_watched_folder(tmp_path)
    assert "on head: kill -USR2 4711" in caplog.text
    on_signal.install()
    signalled()
    assert requests(tmp_path) == []


def test_a_ray_that_is_not_started_is_asked_for_nothing(tmp_path, ray, monkeypatch, caplog):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: pytest.fail("this starts a cluster"))
    on_signal.announce_watched_folder(tmp_path)
    on_signal.install()
    signalled()
    assert "SIGUSR2 ignored: no step has begun" in caplog.text
    assert ray.store == {}


def test_what_ray_raises_is_logged_and_ends_nothing(tmp_path, ray, monkeypatch, caplog):
    monkeypatch.setattr(ray.experimental, "internal_kv", None)
    on_signal.announce_watched_folder(tmp_path)
    on_signal.install()
    signalled()
    assert "SIGUSR2 to the driver has no effect, use python -m capture.trigger: AttributeError" in caplog.text
    assert "cannot leave a request, use python -m capture.trigger: AttributeError" in caplog.text


def test_a_handler_of_the_program_stays(tmp_path):
    seen = []
    own = lambda number, frame: seen.append(number)  # noqa: E731 - compared below
    signal.signal(signal.SIGUSR2, own)
    on_signal.install()
    on_signal.watch(tmp_path)
    signalled()
    on_signal.uninstall()
    assert seen == [signal.SIGUSR2]
    assert signal.getsignal(signal.SIGUSR2) is own


def test_uninstalling_leaves_the_signal_as_it_was():
    on_signal.install()
    assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL
    on_signal.uninstall()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_on_another_thread_nothing_is_installed():
    thread = threading.Thread(target=on_signal.install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_a_forked_child_ignores_it(tmp_path):
    code = (
        "import os, pathlib, signal, sys, time\n"
        "from capture import on_signal\n"
        "on_signal.watch(pathlib.Path(sys.argv[1]))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.kill(os.getpid(), signal.SIGUSR2); time.sleep(0.1); os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, env=verl_python.environment())  # fmt: skip
    assert requests(tmp_path) == []


def test_a_program_that_the_switch_runs_survives_the_signal_from_its_first_line_on(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import time\nprint('runs', flush=True)\ntime.sleep(1)\nprint('ends')\n")
    run = subprocess.Popen(
        [sys.executable, "-m", "capture.verl", "program"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=verl_python.environment(PYTHONPATH=os.pathsep.join((str(verl_python.ROOT), str(tmp_path)))),
    )
    assert run.stdout.readline() == "runs\n"
    run.send_signal(signal.SIGUSR2)
    assert run.communicate(timeout=30)[0] == "ends\n"
    assert run.returncode == 0


def test_the_announcement_is_json_that_names_folder_and_node(tmp_path, ray):
    on_signal.announce_watched_folder(tmp_path)
    ((key, text),) = ray.store.items()
    assert key == "capture/watched/01"
    assert json.loads(text) == {"folder": str(tmp_path), "node": "node-1"}
