"""Start a program in a session of its own, send it a signal, and list what it left behind: processes, open pipes, files.

Everything that a program starts inherits a mark in its environment. Only processes with that mark, or that
descend from the program, are ever looked at or ended.
"""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 10.0
"""A program that was signalled, and all it started, must have ended after this time."""

_MARK = "TRACEKIT_TEST_MARK"
_PROC = Path("/proc")


@dataclass
class Ending:
    """How a program ended after its signal."""

    status: int | None
    output: bytes
    errors: bytes
    is_closed: bool
    """Whether all ends of its output pipes were closed within the limit."""
    survivors: dict[int, str]
    """Command lines of processes that outlived the limit, by their ids; they are dead now."""


class Program:
    """A running program in a session of its own, with pipes to all its standard streams."""

    def __init__(self, command, folder, *, given=None, environment=None):
        self.mark = uuid.uuid4().hex
        self._seen = {}
        variables = {**os.environ, **(environment or {}), _MARK: self.mark}
        variables = {name: value for name, value in variables.items() if value is not None}
        self.process = subprocess.Popen(
            list(map(str, command)),
            env=variables,
            cwd=folder,
            stdin=subprocess.PIPE if given is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if given:
            self.process.stdin.write(given)
            self.process.stdin.flush()

    def finish(self, timeout_s=120.0):
        """The ending of the program without a signal."""
        output, errors = self.process.communicate(timeout=timeout_s)
        return Ending(self.process.returncode, output, errors, True, self._end_survivors())

    def signal(self, number, *, whole_group=False):
        """Send a signal to the program, or to its whole group as a terminal does."""
        self._seen.update(self._descendants())
        if self.process.poll() is None:
            (os.killpg if whole_group else os.kill)(self.process.pid, number)

    def catches(self, number):
        """Whether the program handles a signal now; also if it has ended."""
        try:
            status = (_PROC / str(self.process.pid) / "status").read_text()
        except OSError:
            return True
        caught = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
        return not caught or bool(int(caught[0], 16) >> (number - 1) & 1)

    def ending(self):
        """The ending of the program, which has been signalled; its input stays open until then."""
        given, self.process.stdin = self.process.stdin, None
        deadline = time.monotonic() + LIMIT_S
        try:
            output, errors = self.process.communicate(timeout=LIMIT_S)
            is_closed = True
        except subprocess.TimeoutExpired as late:
            output, errors, is_closed = late.output or b"", late.stderr or b"", False
        while self._living() and time.monotonic() < deadline:
            time.sleep(0.02)
        status = self.process.poll()
        survivors = self._end_survivors()
        if not is_closed:
            output, errors = self.process.communicate()
        if given is not None:
            with contextlib.suppress(OSError):
                given.close()
        return Ending(status, output, errors, is_closed, survivors)

    def _end_survivors(self):
        """Kill what still lives, and give its command lines."""
        living = self._living()
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return living

    def _living(self):
        """The command lines of living processes of the program, by their ids."""
        mark = f"{_MARK}={self.mark}".encode()
        living = {}
        for entry in _PROC.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                state, _, _, started = _status(entry)
                of_program = mark in (entry / "environ").read_bytes() or self._seen.get(int(entry.name)) == started
                if of_program and state not in "ZX":
                    command = (entry / "cmdline").read_bytes()
                    living[int(entry.name)] = command.replace(b"\0", b" ").decode()[:200]
            except (OSError, IndexError):  # it has just ended
                continue
        return living

    def _descendants(self):
        """When each process that descends from the program was started, by its id."""
        parents, times = {}, {}
        for entry in _PROC.iterdir():
            if entry.name.isdigit():
                try:
                    _, parent, _, started = _status(entry)
                except (OSError, IndexError):
                    continue
                parents[int(entry.name)], times[int(entry.name)] = parent, started
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return {pid: times[pid] for pid in found if pid in times}


def _status(entry):
    """(state, id of the parent, session, time of start) of a process."""
    words = (entry / "stat").read_text().rpartition(")")[2].split()
    return words[0], int(words[1]), int(words[3]), words[19]


def wait_until(is_true, limit_s=60.0):
    """Wait until `is_true()` is; fails after the limit."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
