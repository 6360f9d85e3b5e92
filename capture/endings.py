"""Captures that nobody stops: they are written when the interpreter ends or is told to, and left alone by a forked child."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capture.profiler import DistProfiler

live: list[DistProfiler] = []
"""Every profiler of this process that has a tool."""


def close_all() -> None:
    """Write what is open, of every profiler of this process."""
    for profiler in [*live]:  # one that followed a request leaves the list
        profiler.close()


def mind_sigterm() -> None:
    """Have a SIGTERM write what is open, and then do what it always did.

    Only where nobody minds it yet, and on the main thread: elsewhere Python lets nobody.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def forget_sigterm() -> None:
    """Let SIGTERM be as it was, once nothing is being captured."""
    if threading.current_thread() is not threading.main_thread():
        return
    idle = not any(profiler.check_this_step() for profiler in live)
    if idle and signal.getsignal(signal.SIGTERM) is _terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminated(number: int, frame: Any) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
    close_all()
    os.kill(os.getpid(), number)


def _after_fork() -> None:
    """The parent's captures are its own: the child neither stops nor writes them."""
    for profiler in live:
        profiler.abandon()
    live.clear()
    for name in ("capture.torch_trace", "capture.nsys_ranges"):
        tool = sys.modules.get(name)
        if tool is not None:
            tool.forget()


atexit.register(close_all)
os.register_at_fork(after_in_child=_after_fork)
