"""Handle SIGUSR2 as a request for a profile; without a handler it would end the process.

The process that runs the training steps writes a request to its watched directory. In a verl run this is a Ray actor,
but users know the driver (`python -m verl.trainer.main_ppo`). So the actor announces its directory in Ray's key-value
store, and the driver writes the request there. Other processes ignore the signal. A program's own handler stays.
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
"""Environment variable with the run's driver, for processes that Ray starts: `<pid> on <host>`."""

_folder: Path | None = None
_owner: int | None = None
"""Process that installed the handler; forked children inherit the handler and ignore the signal."""


def install() -> None:
    """Handle SIGUSR2, unless it has a handler or this is not the main thread."""
    global _owner  # noqa: PLW0603 - one handler for the process
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR2, _handle)
        _owner = os.getpid()


def uninstall() -> None:
    """Restore the default action of SIGUSR2."""
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and signal.getsignal(signal.SIGUSR2) is _handle:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def watch(folder: Path) -> None:
    """Write requests of the signal to this directory, which this process watches."""
    global _folder  # noqa: PLW0603 - as above
    _folder = folder
    install()


def driver_name() -> str:
    """Name the process to signal: the run's driver, or this process without a driver."""
    return os.environ.get(DRIVER) or own_name()


def own_name() -> str:
    """Name this process as `<pid> on <host>`."""
    return f"{os.getpid()} on {socket.gethostname()}"


def announce_watched_folder(folder: Path) -> None:
    """Announce the watched directory to the driver, and log how to ask for a profile. Never raises."""
    pid, _, host = driver_name().partition(" on ")
    warn("to profile a step of this run: python -m capture.trigger %s, or on %s: kill -USR2 %s", *(folder, host, pid))
    try:
        ray = _started_ray()
        if ray is not None:
            place = {"folder": str(folder), "node": ray.get_runtime_context().get_node_id()}
            ray.experimental.internal_kv._internal_kv_put(_key(ray), json.dumps(place))  # noqa: SLF001 - Ray has no other
    except Exception as error:  # noqa: BLE001 - the driver then reports that no process watches
        message = "SIGUSR2 to the driver has no effect, use python -m capture.trigger: %s: %s"
        warn(message, type(error).__name__, error)


def _handle(number: int, frame: Any) -> None:
    del number, frame
    if os.getpid() != _owner:
        return
    if _folder is not None:
        _leave_request(_leave)
    elif not _is_of_ray():
        # On a thread, because the main one may be inside Ray.
        threading.Thread(target=_leave_request, args=(_forward,), name="capture-signal", daemon=True).start()


def _is_of_ray() -> bool:
    """Whether this is a Ray worker; a driver that a worker starts also inherits the variable."""
    ray = _started_ray()
    try:
        return bool(ray and ray.get_runtime_context().worker.mode == ray.WORKER_MODE)
    except AttributeError:  # a Ray version that stores it elsewhere
        return False


def _started_ray() -> Any:
    """Return Ray if it is started, else None: asking for its context would start a cluster."""
    ray: Any = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def _leave_request(leave: Callable[[], bool]) -> None:
    """Write a request with `leave`, and log a failure. Never raises."""
    try:
        if not leave():
            warn("SIGUSR2 ignored: no step has begun; send it again after the first step")
    except Exception as error:  # noqa: BLE001 - a full disk, a cluster that has ended
        message = "SIGUSR2: cannot leave a request, use python -m capture.trigger: %s: %s"
        warn(message, type(error).__name__, error)


def _leave() -> bool:
    """Write a request to the directory that this process watches."""
    assert _folder is not None
    trigger(_folder)
    return True


def _forward() -> bool:
    """Write a request to the directory announced by this run; return whether one was announced."""
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
