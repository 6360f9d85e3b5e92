"""The work of a command in a child process: a signal ends it at once, in whatever library it is.

DuckDB runs for minutes without a look at Python's signals, and makes an error of its own of one that it notices.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tracekit.cli import leaving, terminal
from tracekit.model.errors import TracekitError
from tracekit.model.lifetime import die_with, leave_at_once

_GRACE_S = 1.0
"""How long the child may take to remove its temporary files before it is killed."""

_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


class Statements:
    """Which statement of a shell runs, as its parent sees it: 0 while none does."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)
        self._count = 0

    @property
    def running(self) -> int:
        """The number of the running statement."""
        return int.from_bytes(self._shared[:8], "little")

    def __enter__(self) -> None:
        self._count += 1
        self._shared[:8] = self._count.to_bytes(8, "little")

    def __exit__(self, *_: object) -> None:
        self._shared[:8] = bytes(8)


def run(work: Callable[[], int], is_verbose: bool, statements: Statements | None = None) -> int:
    """The status of `work`, run in a child where this process can be forked, else here.

    SIGINT and SIGTERM end the child, and are then raised here; a second one kills it. With `statements` the
    child is a shell: SIGINT reaches it too, interrupts the statement, and ends it only when it comes twice
    during one statement.
    """
    if not _can_fork():
        return work()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    waited = {*_SIGNALS, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _work(work, is_verbose, parent, mask, is_shell=statements is not None)
        status, received = _wait(child, waited, statements)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if received == signal.SIGINT:
        raise KeyboardInterrupt
    if received == signal.SIGTERM:
        leaving.terminate()
    if status < 0:
        name = signal.Signals(-status).name
        cause = ", usually by the OOM killer" if -status == signal.SIGKILL else ""
        raise TracekitError(
            f"the process that ran the statement was killed ({name}{cause})",
            "limit its memory: --memory 2GiB",
        )
    return status


def _can_fork() -> bool:
    """Whether a copy of this process would do the same: it has one thread, and writes to its own streams."""
    tasks = Path("/proc/self/task")
    return (
        sys.platform == "linux"
        and tasks.is_dir()
        and len(list(tasks.iterdir())) == 1
        and sys.stdout is sys.__stdout__
        and sys.stderr is sys.__stderr__
        and sys.stdout is not None
        and sys.stderr is not None
    )


def _work(
    work: Callable[[], int],
    is_verbose: bool,
    parent: int,
    mask: set[int | signal.Signals],
    *,
    is_shell: bool,
) -> NoReturn:
    """Do the work in the child, and leave with its status; once asked to leave, say nothing more."""
    is_asked = threading.Event()

    def leave(*_: object) -> None:
        if is_asked.is_set():
            return  # a terminal or a scheduler signals the whole group, and the parent passes it on
        is_asked.set()
        leaving.terminate()

    def tried() -> int:
        try:
            return work()
        except BaseException:
            if is_asked.is_set():
                leave_at_once(leaving.TERMINATED)
            raise

    status = leaving.FAILED
    try:
        die_with(parent)
        signal.signal(signal.SIGTERM, leave)
        signal.signal(signal.SIGINT, signal.default_int_handler if is_shell else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        status = leaving.status_of(tried, lambda: is_verbose)
    finally:
        terminal.resume_commands()
        leave_at_once(status)


def _wait(
    child: int, waited: set[signal.Signals], statements: Statements | None
) -> tuple[int, int | None]:
    """(the status of the child once it has ended, the signal that ended it); signals of `waited` are blocked."""
    interrupted, received, deadline = 0, None, None
    while True:
        remaining = 3600.0 if deadline is None else max(0.0, deadline - time.monotonic())
        got = signal.sigtimedwait(waited, remaining)
        pid, ended = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(ended), received
        if got is None:
            if deadline is not None:
                os.kill(child, signal.SIGKILL)
            continue
        if got.si_signo == signal.SIGCHLD:  # it was stopped or goes on
            continue
        if statements is not None and got.si_signo == signal.SIGINT and received is None:
            running = statements.running
            if not running or running != interrupted:
                interrupted = running
                continue
        os.kill(child, signal.SIGTERM if received is None else signal.SIGKILL)
        if received is None:
            received, deadline = got.si_signo, time.monotonic() + _GRACE_S
