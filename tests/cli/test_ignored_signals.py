"""Signals whose exception Python ignores still end the command."""

import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import os, sys, time, weakref
    from tracekit.cli import exit_status

    class Thing:
        if {finalizer}:
            def __del__(self):
                os.kill(os.getpid(), {number})
                time.sleep(0.001)

    def work():
        thing = Thing()
        seen = weakref.ref(thing, lambda _: None if {finalizer} else os.kill(os.getpid(), {number}))
        with exit_status.raise_on_signals():
            del thing
            print("ignored", flush=True)
            time.sleep(20)

    sys.exit(exit_status.get_exit_status(work, lambda: False))
    """
)


@pytest.mark.parametrize("finalizer", [False, True])
@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_that_python_ignored_comes_again(number, status, word, finalizer):
    program = PROGRAM.format(number=int(number), finalizer=finalizer)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=15, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (status, "ignored\n", f"\ntracekit: {word}\n")


def test_other_ignored_errors_are_shown_as_before():
    program = PROGRAM.format(number="1/0", finalizer=True).replace("time.sleep(20)", "")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=15, check=False)
    assert run.returncode == 0
    assert "ZeroDivisionError" in run.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_interrupt_the_handlers_of_a_program_that_ends(number):
    """They remove temporary files: the work is done, and so is the output."""
    code = (
        "import atexit, sys, time; from tracekit.cli import main\n"
        "def end(): print('ending', flush=True); time.sleep(0.5); print('ended', flush=True)\n"
        "atexit.register(end); sys.argv = ['tracekit', '--version']; main()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline().startswith("tracekit")
        assert program.stdout.readline() == "ending\n"
        program.send_signal(number)
        assert program.stdout.read() == "ended\n"
    assert program.returncode == 0
