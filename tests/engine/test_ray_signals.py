"""SIGTERM during a call of Ray ends the run with its own status, although Ray turns exceptions of handlers into errors."""

import os
import signal
import time

import pytest

from tracekit.cli import exit_status
from tracekit.engine import ray_cluster


class RaysError(Exception):
    """Raised by Ray's calls for any SystemExit of a signal's handler (`check_signals` in `_raylet.pyx`)."""


def call_ray(number):
    """Receive a signal within a call, and treat its exception as Ray does."""
    try:
        os.kill(os.getpid(), number)
        time.sleep(5)
    except SystemExit as error:
        raise RaysError from error


def run(number):
    """Receive a signal where a failed task is tolerated, as `everywhere` does."""
    try:
        call_ray(number)
    except RaysError:
        return "the task failed"


def test_sigterm_within_ray_is_no_failed_task():
    with exit_status.raise_on_signals():
        handler = signal.getsignal(signal.SIGTERM)
        with pytest.raises(exit_status.Terminated), ray_cluster._sigterm_as_interrupt():
            run(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is handler


def test_ctrl_c_within_ray_stays_what_it_is():
    with pytest.raises(KeyboardInterrupt), ray_cluster._sigterm_as_interrupt():
        run(signal.SIGINT)


def test_a_program_without_a_handler_keeps_the_default():
    with ray_cluster._sigterm_as_interrupt():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
