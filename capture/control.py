"""The thread of the process that starts, advances and stops torch.profiler for all callers.

torch.profiler must be stopped on the thread that started it; otherwise the process dies of SIGSEGV (torch 2.13).
Ray's threaded actors answer every call on another thread. A process has one such thread, created at the first
capture; a forked child has none, and creates its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

_tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
_thread: threading.Thread | None = None
_lock = threading.Lock()


def run_on_control_thread(action: Callable[[], T]) -> T:
    """Run `action` on the control thread and return its result; raises what it raises."""
    if not _ready() or threading.current_thread() is _thread:
        return action()
    done = threading.Event()
    result: list[T] = []
    errors: list[BaseException] = []

    def task() -> None:
        try:
            result.append(action())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            errors.append(error)
        finally:
            done.set()

    _tasks.put(task)
    done.wait()
    if errors:
        raise errors[0]
    return result[0]


def _ready() -> bool:
    """Whether there is such a thread; at the end of the interpreter none can be made any more."""
    global _thread  # noqa: PLW0603 - one for the process
    with _lock:
        if _thread is None or not _thread.is_alive():
            thread = threading.Thread(target=_work, name="capture-control", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            _thread = thread
    return True


def _work() -> None:
    """Run the queued tasks one after the other, forever."""
    while True:
        _tasks.get()()


def _reset_control_thread() -> None:
    """Reset the thread in a forked child, which has its memory but not the thread."""
    global _tasks, _thread, _lock
    _tasks, _thread, _lock = SimpleQueue(), None, threading.Lock()


os.register_at_fork(after_in_child=_reset_control_thread)
