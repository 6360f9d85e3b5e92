"""Turn exceptions and signals of a command into a message and an exit status."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import click

from tracekit.cli import terminal

FAILED, INTERRUPTED, TERMINATED = 2, 130, 143

_AGAIN_S = 0.01
"""Time for a callback that ignored a signal to return."""


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
def raise_on_signals() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM within the context, unless the calling program handles that signal.

    Also deliver SIGINT and SIGTERM again that Python ignored: it does so in callbacks of weak references, which
    each import runs, and in `__del__`.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    hook, pending = sys.unraisablehook, list[threading.Timer]()

    def send_again(ignored: sys.UnraisableHookArgs) -> None:
        number = _get_signal(ignored.exc_type)
        if number is None:
            hook(ignored)
        else:
            again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            pending.append(again)

    sys.unraisablehook = send_again
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.unraisablehook = hook
        for again in pending:
            again.cancel()


def _get_signal(raised: type[BaseException]) -> signal.Signals | None:
    if issubclass(raised, Terminated):
        return signal.SIGTERM
    return signal.SIGINT if issubclass(raised, KeyboardInterrupt) else None


def terminate(*_: object) -> NoReturn:
    """Raise `Terminated`: its cleanup ends workers and removes temporary files."""
    raise Terminated(TERMINATED)
