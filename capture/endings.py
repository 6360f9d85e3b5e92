"""Write captures that are still open when the interpreter exits or gets SIGTERM; a forked child leaves them alone."""

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
    """Write the open captures of all profilers of this process."""
    for profiler in [*live]:  # copy: closing a request's profiler removes it from the list
        profiler.close()


def mind_sigterm() -> None:
    """Make SIGTERM write open captures before its default action.

    This needs the main thread, and leaves a handler of the program alone.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def forget_sigterm() -> None:
    """Restore SIGTERM when no capture is running."""
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


def _drop_parent_captures() -> None:
    """Drop the parent's captures in the child, which neither stops nor writes them."""
    for profiler in live:
        profiler.abandon()
    live.clear()
    for name in ("capture.torch_trace", "capture.nsys_ranges"):
        tool = sys.modules.get(name)
        if tool is not None:
            tool.forget()


atexit.register(close_all)
os.register_at_fork(after_in_child=_drop_parent_captures)
