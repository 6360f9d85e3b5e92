"""Ctrl-C at a statement of `tracekit sql`: always 130, at once when pressed twice, and a shell goes on after the first."""

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest
from killing import Program

import tracekit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="statements run in a child on Linux")

ROOT = Path(tracekit.__file__).parents[1]
EXAMPLE = ROOT / "examples" / "simulated_gpu"
ENDLESS = "SELECT sum(a.range * b.range) FROM range(1000000000) a, range(1000000000) b"
FOLDED = "SELECT length(repeat('x', 1000000000)) + length(md5(repeat('y', 2000000000)))"
"""DuckDB computes this while it plans, without a look at signals."""


TRACEKIT = (sys.executable, "-m", "tracekit")


def ending(folder, statement, number, after_s, presses=1, start=TRACEKIT):
    """How a statement ended after a signal, and after how many seconds."""
    command = [*start, "sql", EXAMPLE, statement]
    program = Program(command, folder, environment={"PYTHONPATH": str(ROOT)})
    time.sleep(after_s)
    began = time.monotonic()
    for _ in range(presses):
        program.signal(number, whole_group=True)
    return program.ending(), time.monotonic() - began


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("statement", [ENDLESS, FOLDED])
def test_a_signal_ends_a_statement_with_its_status(tmp_path, statement, number, status):
    ended, seconds = ending(tmp_path, statement, number, 2.5)
    assert (ended.status, ended.survivors, ended.is_closed) == (status, {}, True)
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert ended.errors.decode().strip() == f"tracekit: {word}"
    assert ended.output == b""
    assert seconds < 4


TWICE = """
import os, signal, sys, time
from tracekit.cli import child_process as child

leave = child.exit_at_once

def leave_after_another(status):
    os.kill(os.getpid(), signal.SIGTERM)  # the parent passes on what the whole group got
    leave(status)

def work():
    child.exit_at_once = leave_after_another
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)

sys.exit(child.run_in_child(work, False))
"""


def test_a_child_that_is_terminated_twice_says_nothing_and_has_one_status(tmp_path):
    program = Program([sys.executable, "-c", TWICE], tmp_path, environment={"PYTHONPATH": str(ROOT)})
    ended = program.ending()
    assert (ended.status, ended.errors, ended.output) == (143, b"", b"")


STUCK = """
import os, signal, sys, time
from tracekit.cli import child_process as child
from tracekit.model.system import cache, temporaries

def work():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with temporaries.new_file(cache.make_kind_folder("measured"), cache.PARTIAL):
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(30)

sys.exit(child.run_in_child(work, False))
"""


def test_a_child_that_had_to_be_killed_leaves_no_unfinished_entry_in_the_cache(tmp_path):
    kept = tmp_path / "kept"
    environment = {"PYTHONPATH": str(ROOT), "TRACEKIT_CACHE": str(kept)}
    ended = Program([sys.executable, "-c", STUCK], tmp_path, environment=environment).ending()
    assert b"KeyboardInterrupt" in ended.errors
    assert (kept / "measured").is_dir()
    assert [*(kept / "measured").iterdir()] == []


def test_a_second_interrupt_ends_a_statement_at_once(tmp_path):
    ended, seconds = ending(tmp_path, FOLDED, signal.SIGINT, 2.5, presses=2)
    assert (ended.status, ended.survivors) == (130, {})
    assert seconds < 2


WITHOUT_CHILD = """
import sys
from tracekit.cli import child_process as child, main
child._can_fork = lambda: False
sys.argv[0] = "tracekit"
main()
"""


@pytest.mark.parametrize(("statement", "presses"), [(ENDLESS, 1), (FOLDED, 1), (FOLDED, 2)])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_statement_where_no_child_can_run_it(tmp_path, statement, number, status, presses):
    start = [sys.executable, "-c", WITHOUT_CHILD]
    ended, seconds = ending(tmp_path, statement, number, 2.5, presses, start)
    assert ended.status == status
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert ended.errors.decode().strip() == f"tracekit: {word}"
    assert ended.output == b""
    assert seconds < 4


class Terminal:
    """A shell of `tracekit sql` on a terminal of its own."""

    def __init__(self, folder):
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ.update(PYTHONPATH=str(ROOT), TERM="dumb")
            os.execv(sys.executable, [sys.executable, "-m", "tracekit", "sql", str(EXAMPLE)])
        self.text = ""

    def type(self, text):
        os.write(self.descriptor, text.encode())

    def wait_for(self, text, limit_s=30.0):
        """Read until `text` has appeared since the last time."""
        deadline = time.monotonic() + limit_s
        while text not in self.text:
            remaining = deadline - time.monotonic()
            assert remaining > 0, self.text
            if select.select([self.descriptor], [], [], remaining)[0]:
                try:
                    self.text += os.read(self.descriptor, 4096).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"the shell has ended, status {self.status()}: {self.text}") from None
        self.text = self.text.partition(text)[2]

    def status(self):
        """The exit status, waited for."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        raise AssertionError("the shell still runs")


@pytest.fixture
def terminal(tmp_path):
    shell = Terminal(tmp_path)
    yield shell
    try:
        os.kill(shell.pid, signal.SIGKILL)
        os.waitpid(shell.pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    os.close(shell.descriptor)


CTRL_C, CTRL_D = "\x03", "\x04"


def test_a_shell_goes_on_after_one_interrupt_and_answers_the_next_statement(terminal):
    terminal.wait_for("sql> ")
    terminal.type("SELECT 41 + 1 AS before;\n")
    terminal.wait_for("42")
    terminal.wait_for("sql> ")
    for _ in range(8):
        terminal.type(f"{ENDLESS};\n")
        time.sleep(0.5)
        terminal.type(CTRL_C)
        terminal.wait_for("interrupted")
        terminal.wait_for("sql> ")
        terminal.type(CTRL_C)  # as soon as the prompt is there
        terminal.wait_for("sql> ", 5)
    terminal.type("SELECT 16 + 1 AS afterwards;\n")
    terminal.wait_for("17")
    terminal.wait_for("sql> ")
    terminal.type(CTRL_D)
    assert terminal.status() == 0


def test_a_second_interrupt_of_one_statement_ends_the_shell(terminal):
    terminal.wait_for("sql> ")
    terminal.type(f"{FOLDED};\n")
    time.sleep(1)
    terminal.type(CTRL_C)
    time.sleep(0.2)
    terminal.type(CTRL_C)
    terminal.wait_for("interrupted")
    assert terminal.status() == 130
