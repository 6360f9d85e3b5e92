"""Other users of torch.profiler in this process: torch supports one at a time, and two crash the process.

So a capture does not start while another profile runs, and ends when one starts: the user's profile has priority.
torch has no notification, so its two methods are wrapped, in processes that have a capture to lose.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

_local = threading.local()
_running: dict[int, Any] = {}
"""Profiles of other users that are prepared or running, by identity."""


def watch(give_way: Callable[[], None]) -> None:
    """Track the profiles of other users from now on; `give_way` is called before one of them starts."""
    try:
        from torch.autograd.profiler import profile

        prepare, leave = profile._prepare_trace, profile.__exit__  # noqa: SLF001 - torch has no public hook
    except (ImportError, AttributeError):  # a torch version that has them elsewhere
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
    """Check whether another profile runs in this process, or on this thread since before `watch`."""
    if _running:
        return True
    try:
        from torch.autograd import _profiler_enabled
    except ImportError:
        return False
    return bool(_profiler_enabled())


def run_own_profile_action(action: Callable[[], object]) -> None:
    """Run an action on a capture's own profile, which does not count as another user."""
    before, _local.ours = getattr(_local, "ours", False), True
    try:
        action()
    finally:
        _local.ours = before


def forget() -> None:
    """Forget the profiles of the parent process after a fork."""
    _running.clear()
