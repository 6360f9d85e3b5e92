"""Run the work of a command in a child process, so a signal ends it at once inside any library.

DuckDB runs for minutes without checking Python's signals, and turns one that it notices into its own error.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from tracekit.cli import exit_status, terminal
from tracekit.model.errors import TracekitError
from tracekit.model.system import cache
from tracekit.model.system.lifetime import die_with, exit_at_once
from tracekit.model.system.temporaries import IN_TMPDIR, remove_abandoned_files

_GRACE_S = 1.0
"""Time for the child to remove its temporary files before it is killed."""

_LATE_NS = 100_000_000
"""How late the parent may see a signal, on a busy machine."""

_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
_DONE = 0
"""In place of a signal's number: the work is done."""


class Statements:
    """When the statement that a shell runs began, shared with its parent; 0 while none runs."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)

    def get_running(self) -> int:
        """Get when the running statement began; 0 if none runs, or if it has just begun.

        A Ctrl-C that the parent sees so early was meant for the prompt.
        """
        start_ns = int.from_bytes(self._shared[:8], "little")
        return start_ns if time.monotonic_ns() - start_ns >= _LATE_NS else 0

    def __enter__(self) -> None:
        self._shared[:8] = time.monotonic_ns().to_bytes(8, "little")

    def __exit__(self, *_: object) -> None:
        self._shared[:8] = bytes(8)


def run_in_child(work: Callable[[], int], is_verbose: bool, statements: Statements | None = None) -> int:
    """Run `work` in a child, or here where this process cannot fork, and return its status.

    SIGINT and SIGTERM end the child and are then raised here; a second one kills it. With `statements` the
    child is a shell: SIGINT interrupts the statement, and the second one during the same statement ends the shell.
    """
    if not _can_fork():
        with _leaving_on_signals() if statements is None else contextlib.nullcontext():
            return work()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    waited = {*_SIGNALS, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _run_child_work(work, is_verbose, parent, mask, is_shell=statements is not None)
        status, received = _wait(child, waited, statements)
        if status == -signal.SIGKILL:  # it had no time to remove what it had not finished
            cache.remove_unfinished_entries()
            _remove_abandoned_folders()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if received == signal.SIGINT:
        raise KeyboardInterrupt
    if received == signal.SIGTERM:
        exit_status.terminate()
    if status < 0:
        name = signal.Signals(-status).name
        cause = ", usually by the OOM killer" if -status == signal.SIGKILL else ""
        raise TracekitError(
            f"the process that ran the statement was killed ({name}{cause})", "limit its memory: --memory 2GiB"
        )
    return status


def _remove_abandoned_folders() -> None:
    """Remove the temporary folders of a child that was killed."""
    import tempfile

    remove_abandoned_files(Path(tempfile.gettempdir()), IN_TMPDIR)


@contextlib.contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """Without a child: exit from another thread when SIGINT or SIGTERM comes twice, or its grace is over.

    The main thread may be in DuckDB, where Python runs no handlers; a shell interrupts its statements itself.
    """
    if threading.current_thread() is not threading.main_thread() or not _owns_streams():
        yield
        return
    received, sent = socket.socketpair()
    sent.settimeout(0)
    before = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
    signals: list[int] = []
    watch = threading.Thread(target=_leave_on_signals, args=(received, signals), daemon=True)
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        sent.send(bytes([_DONE]))
        watch.join()
        if signals == [signal.SIGTERM]:  # DuckDB makes an error of its own of it
            exit_status.terminate()


def _leave_on_signals(received: socket.socket, signals: list[int]) -> None:
    """Exit with the first signal's status after its grace or a second signal, unless the work is done.

    Append the first signal to `signals`.
    """
    first = None
    try:
        while number := received.recv(1)[0]:
            if number in _SIGNALS:
                if first is not None:
                    break
                first = number
                signals.append(first)
                received.settimeout(_GRACE_S)
    except TimeoutError:
        pass
    if number == _DONE or first is None:
        return
    is_interrupt = first == signal.SIGINT
    exit_status.tell_end(is_interrupt=is_interrupt)
    terminal.resume_workflow_commands()
    # Without exit handlers: DuckDB's waits for the statement. The next run removes temporary files.
    os._exit(exit_status.INTERRUPTED if is_interrupt else exit_status.TERMINATED)


def _can_fork() -> bool:
    """Whether a fork can do the work of this process: on Linux, with one thread and streams of its own."""
    tasks = Path("/proc/self/task")
    return sys.platform == "linux" and tasks.is_dir() and len(list(tasks.iterdir())) == 1 and _owns_streams()


def _owns_streams() -> bool:
    """Whether the standard streams are those of this process, not replaced by a calling program."""
    return (
        sys.stdout is sys.__stdout__
        and sys.stderr is sys.__stderr__
        and sys.stdout is not None
        and sys.stderr is not None
    )


def _run_child_work(
    work: Callable[[], int], is_verbose: bool, parent: int, mask: set[int | signal.Signals], *, is_shell: bool
) -> NoReturn:
    """Do the work in the child and exit with its status; print nothing after SIGTERM."""
    is_asked = threading.Event()

    def leave(*_: object) -> None:
        if is_asked.is_set():
            return  # a terminal or a scheduler signals the whole group, and the parent passes it on
        is_asked.set()
        exit_status.terminate()

    def tried() -> int:
        try:
            return work()
        except BaseException:
            if is_asked.is_set():
                exit_at_once(exit_status.TERMINATED)
            raise

    status = exit_status.FAILED
    try:
        die_with(parent)
        signal.signal(signal.SIGTERM, leave)
        signal.signal(signal.SIGINT, signal.default_int_handler if is_shell else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        status = exit_status.get_exit_status(tried, lambda: is_verbose)
    finally:
        terminal.resume_workflow_commands()
        exit_at_once(status)


def _wait(child: int, waited: set[signal.Signals], statements: Statements | None) -> tuple[int, int | None]:
    """Wait for the child; return its status and the signal that ended it. The signals of `waited` are blocked."""
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
        if got.si_signo == signal.SIGCHLD:  # it was stopped or continued
            continue
        if statements is not None and got.si_signo == signal.SIGINT and received is None:
            running = statements.get_running()
            if not running or running != interrupted:
                interrupted = running
                continue
        os.kill(child, signal.SIGTERM if received is None else signal.SIGKILL)
        if received is None:
            received, deadline = got.si_signo, time.monotonic() + _GRACE_S
