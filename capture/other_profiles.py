"""Whoever else uses torch.profiler in this process: torch serves one at a time, and two of them end the process.

So a capture does not begin while another profile runs, and ends when one begins: what the user profiles is the user's.
torch tells nobody of either, so its two methods are listened to, in processes that have a capture to lose.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

_local = threading.local()
_running: dict[int, Any] = {}
"""The profiles of others that are prepared or running, by identity."""


def watch(give_way: Callable[[], None]) -> None:
    """From now on know of the profiles of others; `give_way` is called before one of them begins."""
    try:
        from torch.autograd.profiler import profile

        prepare, leave = profile._prepare_trace, profile.__exit__  # noqa: SLF001 - nobody is told otherwise
    except (ImportError, AttributeError):  # a torch that has them elsewhere
        return
    if hasattr(prepare, "__wrapped__"):
        return

    @functools.wraps(prepare)
    def prepared(self: Any) -> None:
        if not getattr(_local, "ours", False):
            give_way()
            _running[id(self)] = self
        prepare(self)

    @functools.wraps(leave)
    def left(self: Any, *error: Any) -> Any:
        _running.pop(id(self), None)
        return leave(self, *error)

    profile._prepare_trace, profile.__exit__ = prepared, left  # noqa: SLF001


def under_way() -> bool:
    """Whether somebody else profiles in this process now, or on this thread since before anybody watched."""
    if _running:
        return True
    try:
        from torch.autograd import _profiler_enabled
    except ImportError:
        return False
    return bool(_profiler_enabled())


def ours(action: Callable[[], object]) -> None:
    """Do what concerns a capture's own profile, which nobody has to give way to."""
    before, _local.ours = getattr(_local, "ours", False), True
    try:
        action()
    finally:
        _local.ours = before


def forget() -> None:
    """Forget the profiles of the parent process after a fork."""
    _running.clear()
