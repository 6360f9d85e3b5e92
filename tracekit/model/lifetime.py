"""How a process ends: no later than the one that started it, and with its own status when a signal asked for it."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""

_LOOK_EVERY_S = 1.0


def die_with(parent: int) -> None:
    """Have this process killed when `parent`, which started it, ends.

    On Linux the kernel does it, in any state this process is in, once the *thread* that started it ends: so
    only for what the main thread starts, or a thread that waits for it. Elsewhere a thread looks every second.
    """
    if not _set_death_signal():
        threading.Thread(target=_die_after, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before it was watched
        os._exit(128 + signal.SIGTERM)


def leave_at_once(status: int) -> NoReturn:
    """Exit with this status after the exit handlers and nothing else.

    The interpreter's own way out can wait for threads, and ends by SIGINT where a KeyboardInterrupt has passed
    through code that was compiled from a text, whatever became of it afterwards.
    """
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 - there is no public way
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
    finally:
        os._exit(status)


def processes_below(pid: int) -> dict[int, str]:
    """When each process that descends from `pid` was started, by its id; none where the system does not list them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        fields = _fields(entry)
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    below: dict[int, str] = {}
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(), []):
            below[child] = start_of(child)
            pending.append(child)
    return below


def start_of(pid: int) -> str:
    """When a process was started, in the system's own count, which tells it from a later one with its id; empty if it has ended."""
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return fields[19] if fields else ""


def _fields(path: Path) -> list[str]:
    """What the system says of a process, from its state on; nothing of one that has ended."""
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _set_death_signal() -> bool:
    """Whether the kernel kills this process when the thread that started it ends."""
    if sys.platform != "linux":
        return False
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(_DEATH_SIGNAL, signal.SIGKILL) == 0)
    except (OSError, AttributeError):
        return False


def _die_after(parent: int) -> None:
    """Kill this process once it is no child of `parent` any more."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)
