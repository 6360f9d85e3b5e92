"""Turn exceptions and signals of a command into a message and an exit status."""

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
    """SIGTERM arrived: clean up as after Ctrl-C, and exit with the status of SIGTERM."""


def get_exit_status(work: Callable[[], object], is_verbose: Callable[[], bool]) -> int:
    """Run `work`, print a message for its exception, and return the exit status; `is_verbose` adds stacks."""
    try:
        status = work()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except BrokenPipeError:
        terminal.mute_stream(sys.stdout)
        return 0
    except (KeyboardInterrupt, click.Abort, Terminated) as stop:
        is_interrupt = not isinstance(stop, Terminated)
        tell_end(is_interrupt=is_interrupt)
        return INTERRUPTED if is_interrupt else TERMINATED
    except Exception as error:  # noqa: BLE001 - the last place that can report it
        terminal.print_error(error, stack=is_verbose())
        return FAILED
    return status if isinstance(status, int) else 0


def tell_end(*, is_interrupt: bool) -> None:
    """Say that SIGINT or SIGTERM ended the command."""
    terminal.print_message(f"\ntracekit: {'interrupted' if is_interrupt else 'terminated'}")


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM within the context, unless the calling program handles that signal."""
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
    """Raise `Terminated`: its cleanup ends workers and removes temporary files."""
    raise Terminated(TERMINATED)
