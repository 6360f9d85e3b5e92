"""SIGUSR2 asks a run for a profile, and ends none of its processes: unhandled, it would.

The process that takes the steps leaves a request in the directory it watches. A verl run takes its steps in an actor
of Ray, while users know the driver (`python -m verl.trainer.main_ppo`): the actor announces its directory in Ray's
key-value store, and the driver leaves the request there. Other processes ignore the signal. A program that handles it
itself goes on doing so.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capture.request import trigger
from capture.warn import warn

DRIVER = "CAPTURE_DRIVER"
"""The environment variable that names a run's driver to the processes that Ray starts: `<pid> on <host>`."""

_folder: Path | None = None
_owner: int | None = None
"""The process that installed the handler; a forked child inherits the handler and ignores the signal."""


def install() -> None:
    """Handle SIGUSR2, where nobody does and Python allows it: on the main thread."""
    global _owner  # noqa: PLW0603 - one handler for the process
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR2, _handle)
        _owner = os.getpid()


def uninstall() -> None:
    """Let SIGUSR2 do what it did before `install`."""
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and signal.getsignal(signal.SIGUSR2) is _handle:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def watch(folder: Path) -> None:
    """Let the signal leave requests in the directory that this process watches."""
    global _folder  # noqa: PLW0603 - as above
    _folder = folder
    install()


def driver_name() -> str:
    """The process to signal: the run's driver, or this one where it has none."""
    return os.environ.get(DRIVER) or own_name()


def own_name() -> str:
    """This process as users find it."""
    return f"{os.getpid()} on {socket.gethostname()}"


def announce(folder: Path) -> None:
    """Tell the driver which directory this process watches, and the log how to ask for a profile. Raises nothing."""
    pid, _, host = driver_name().partition(" on ")
    warn(
        "to profile a step of this run: python -m capture.trigger %s, or on %s: kill -USR2 %s",
        *(folder, host, pid),
    )
    try:
        ray = _started_ray()
        if ray is not None:
            place = {"folder": str(folder), "node": ray.get_runtime_context().get_node_id()}
            ray.experimental.internal_kv._internal_kv_put(_key(ray), json.dumps(place))  # noqa: SLF001 - Ray has no other
    except Exception as error:  # noqa: BLE001 - the driver then says that nobody watches
        message = "SIGUSR2 to the driver has no effect, use python -m capture.trigger: %s: %s"
        warn(message, type(error).__name__, error)


def _handle(number: int, frame: Any) -> None:
    del number, frame
    if os.getpid() != _owner:
        return
    if _folder is not None:
        _ask(_leave)
    elif not _is_of_ray():
        # On a thread: the main one may be inside of Ray.
        threading.Thread(target=_ask, args=(_forward,), name="capture-signal", daemon=True).start()


def _is_of_ray() -> bool:
    """Whether Ray started this process: a driver started by a worker has the variable of another run."""
    ray = _started_ray()
    try:
        return bool(ray and ray.get_runtime_context().worker.mode == ray.WORKER_MODE)
    except AttributeError:  # a Ray that keeps it elsewhere
        return False


def _started_ray() -> Any:
    """Ray, None where it is not started: asked for its context, it would start a cluster."""
    ray: Any = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def _ask(leave: Callable[[], bool]) -> None:
    """Leave a request where the steps are taken. Raises nothing."""
    try:
        if not leave():
            warn("SIGUSR2 ignored: no step has begun; send it again after the first step")
    except Exception as error:  # noqa: BLE001 - a full disk, a cluster that has ended
        message = "SIGUSR2: cannot leave a request, use python -m capture.trigger: %s: %s"
        warn(message, type(error).__name__, error)


def _leave() -> bool:
    """Leave a request in the directory that this process watches."""
    assert _folder is not None
    trigger(_folder)
    return True


def _forward() -> bool:
    """Leave a request in the directory that a process of this run has announced; whether there is one."""
    ray = _started_ray()
    if ray is None:
        return False
    text = ray.experimental.internal_kv._internal_kv_get(_key(ray))  # noqa: SLF001 - Ray has no other
    if text is None:
        return False
    place = json.loads(text)
    if place["node"] == ray.get_runtime_context().get_node_id():
        trigger(place["folder"])
        return True
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(place["node"], soft=False)
    task = ray.remote(trigger).options(num_cpus=0, scheduling_strategy=there)
    ray.get(task.remote(place["folder"]), timeout=60)
    return True


def _key(ray: Any) -> str:
    return f"capture/watched/{ray.get_runtime_context().get_job_id()}"
