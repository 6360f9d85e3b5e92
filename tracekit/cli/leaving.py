"""How a command ends: whatever it raises becomes a message and an exit status, and a signal ends it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import click

from tracekit.cli import terminal

FAILED, INTERRUPTED, TERMINATED = 2, 130, 143


class Terminated(SystemExit):
    """SIGTERM was received: leave as after Ctrl-C, through every cleanup, with the status of SIGTERM."""


def status_of(work: Callable[[], object], is_verbose: Callable[[], bool]) -> int:
    """The exit status of `work`, after any message; `is_verbose` tells whether an error shows its stack."""
    try:
        status = work()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except BrokenPipeError:
        terminal.mute(sys.stdout)
        return 0
    except (KeyboardInterrupt, click.Abort, Terminated) as stop:
        is_interrupt = not isinstance(stop, Terminated)
        tell_end(is_interrupt=is_interrupt)
        return INTERRUPTED if is_interrupt else TERMINATED
    except Exception as error:  # noqa: BLE001 - the last place where a person can be told
        terminal.tell_error(error, stack=is_verbose())
        return FAILED
    return status if isinstance(status, int) else 0


def tell_end(*, is_interrupt: bool) -> None:
    """Say that SIGINT or SIGTERM ended the command."""
    terminal.tell(f"\ntracekit: {'interrupted' if is_interrupt else 'terminated'}")


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM meanwhile, unless the program that calls us handles it itself."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def terminate(*_: object) -> NoReturn:
    """Leave through the exception, so that workers and temporary files are removed on the way out."""
    raise Terminated(TERMINATED)
