"""End processes with the process that started them, and with their own status after a signal."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tracekit.model.system.signals import ignore_signals

_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""

_LOOK_EVERY_S = 1.0
_NOTE_EVERY_S, _STARTING_S, _GUARD_GRACE_S = 0.1, 20.0, 2.0
"""How often a guard notes new processes while most are started, how long that takes, and how long they may take to end."""


def die_with(parent: int) -> None:
    """Have this process killed when `parent`, which started it, ends.

    On Linux the kernel kills it in any state, when the *thread* that started it ends: call this only in processes
    started by the main thread, or by a thread that waits for them. Elsewhere a thread checks every second.
    """
    if not _set_death_signal():
        threading.Thread(target=_die_after, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before we watched it
        os._exit(128 + signal.SIGTERM)


def exit_at_once(status: int) -> NoReturn:
    """Run the exit handlers, then exit with this status.

    A normal exit waits for threads. It also ends by SIGINT after a KeyboardInterrupt in code compiled from a
    string, even if that exception was handled. From here on signals are ignored: one would interrupt a handler that
    removes temporary files.
    """
    ignore_signals()
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 - there is no public way
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
    finally:
        os._exit(status)


def find_descendants(*pids: int) -> dict[int, str]:
    """Start times of the descendants of processes, by process id; empty where the system has no `/proc`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        fields = _read_stat_fields(entry)
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    below: dict[int, str] = {}
    pending = list(pids)
    while pending:
        for child in children.pop(pending.pop(), []):
            below[child] = read_start_time(child)
            pending.append(child)
    return below


def find_marked_descendants(pid: int | Sequence[int], marks: Sequence[str]) -> dict[int, str]:
    """Return the descendants of processes with one of the `marks` in their command lines, as `find_descendants` does."""
    return {
        process: since
        for process, since in find_descendants(*([pid] if isinstance(pid, int) else pid)).items()
        if any(mark in _read_command_line(process) for mark in marks)
    }


def _read_command_line(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def read_start_time(pid: int) -> str:
    """Start time of a process in clock ticks, which differs for a later process with the same id; empty if it has ended."""
    fields = _read_stat_fields(Path(f"/proc/{pid}/stat"))
    return fields[19] if fields else ""


def _read_stat_fields(path: Path) -> list[str]:
    """Fields of `/proc/PID/stat` from the state on; empty if the process has ended."""
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def start_guard(marks: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start a process that, once this one has ended or closed the guard's input, ends processes started for this one.

    These are the groups that `entrust` named, and the descendants that a library started: those that begin after
    this call and have one of the `marks` in their command lines. The guard leaves all others alone. Linux only.
    """
    known = list(find_descendants(os.getpid())) if marks else []
    root = str(Path(__file__).parents[3])
    code = f"import sys; sys.path.append({root!r}); from tracekit.model.system.lifetime import guard; guard({os.getpid()}, {list(marks)!r}, {known!r})"
    return subprocess.Popen(  # noqa: S603 - this very Python
        [sys.executable, "-I", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def entrust(guard: subprocess.Popen[bytes], leader: int) -> None:
    """Name the leader of a process group to a guard, which ends the group once this process has ended."""
    assert guard.stdin is not None
    with contextlib.suppress(OSError):  # somebody killed the guard
        guard.stdin.write(f"{leader} {read_start_time(leader)}\n".encode())
        guard.stdin.flush()


@contextlib.contextmanager
def guarded_programs() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a `Popen` for programs that lead sessions of their own: if this process is killed, those sessions' groups end too.

    Off Linux, and where no guard can be started, the programs run without a guard.
    """
    guard = None
    if sys.platform == "linux" and sys.executable:
        with contextlib.suppress(OSError):
            guard = start_guard()
    if guard is None:
        yield _start_unguarded
        return
    try:
        yield partial(_start_guarded, guard)
    finally:
        guard.kill()
        guard.communicate()


def _start_unguarded(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own."""
    return subprocess.Popen(  # noqa: S603 - the program that the caller names
        arguments, stdin=subprocess.DEVNULL, start_new_session=True, **options
    )


_GATE = 'read -r _ && exec "$@" </dev/null'
"""Shell code that runs a program once a line arrives, and never if standard input closes without one."""


def _start_guarded(guard: subprocess.Popen[bytes], arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that begins only when the guard knows it, so that no moment is left to kill us between."""
    child = subprocess.Popen(  # noqa: S603 - the program that the caller names
        ["/bin/sh", "-c", _GATE, "sh", *arguments], stdin=subprocess.PIPE, start_new_session=True, **options
    )
    entrust(guard, child.pid)
    assert child.stdin is not None
    with contextlib.suppress(OSError):  # somebody killed the child
        child.stdin.write(b"\n")
        child.stdin.close()
    child.stdin = None
    return child


def guard(pid: int, marks: Sequence[str], ignored_pids: Sequence[int]) -> None:
    """Watch for new descendants of `pid` with one of the `marks` until standard input closes, then end them.

    They have a grace to end by themselves, but not if `pid` was killed. Groups that standard input names (`entrust`)
    have none.
    """
    began = time.monotonic()
    noted: dict[int, str] = {}
    named = b""
    while True:
        if marks:
            noted |= {p: t for p, t in find_marked_descendants(pid, marks).items() if p not in ignored_pids}
        pause_s = _NOTE_EVERY_S if time.monotonic() - began < _STARTING_S else _LOOK_EVERY_S
        if select.select([0], [], [], pause_s if marks else None)[0]:
            text = os.read(0, 4096)
            if not text:
                break
            named += text
    for line in named.decode().splitlines():
        leader, _, since = line.partition(" ")
        if _is_still_running(int(leader), since):
            with contextlib.suppress(OSError):
                os.killpg(int(leader), signal.SIGKILL)
    is_killed = os.getppid() != pid  # then nobody ends them in an orderly way
    deadline = time.monotonic() + (0 if is_killed else _GUARD_GRACE_S)
    while _list_running(noted) and time.monotonic() < deadline:
        _note_children(noted, marks)
        time.sleep(_NOTE_EVERY_S)
    _kill_all(noted, marks)


def _kill_all(noted: dict[int, str], marks: Sequence[str]) -> None:
    """Kill these processes and what they started: all are stopped first, so that none starts another meanwhile."""
    while running := _list_running(noted):
        _send_signal(running, signal.SIGSTOP)
        if not _note_children(noted, marks):
            _send_signal(running, signal.SIGKILL)
            return


def _note_children(noted: dict[int, str], marks: Sequence[str]) -> bool:
    """Note what the noted processes started, which is not below the program that has ended; return whether any is new."""
    before = len(noted)
    noted |= find_marked_descendants(_list_running(noted), marks)
    return len(noted) > before


def _list_running(noted: Mapping[int, str]) -> list[int]:
    """List the noted processes that still run."""
    return [process for process, since in noted.items() if _is_still_running(process, since)]


def _send_signal(processes: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes, as far as they still exist."""
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, number)


def _is_still_running(pid: int, since: str) -> bool:
    """Whether the process with this start time still runs."""
    return pid != os.getpid() and read_start_time(pid) == since


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
    """Kill this process when it is no longer a child of `parent`."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)
