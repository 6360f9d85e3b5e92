"""How a process ends: no later than the one that started it, and with its own status when a signal asked for it."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
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
