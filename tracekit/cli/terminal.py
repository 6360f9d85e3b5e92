"""What a command prints: results to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import click

from tracekit.model.cache import listeners
from tracekit.model.errors import TracekitError
from tracekit.model.escape import Lines, visible_lines
from tracekit.model.installed import DISTRIBUTION
from tracekit.model.labels import shown

if TYPE_CHECKING:
    from tracekit.model.trace import Failure

_HINT_AT = "          try: "
_VERBOSE = "tracekit.verbose"
_SHOWN_FAILURES = 10
_stopped: list[str] = []
"""The token by which commands of GitHub's log are resumed, while they are stopped."""


def prepare() -> None:
    """Nothing; lets both streams show characters that their encoding does not have as `?`."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="replace")
    listeners[:] = [lambda problem, hint: tell_problem(f"{problem}; {hint}", "")]


def say(text: str | bytes) -> None:
    """Nothing; writes to standard output: text for people without anything that acts on their screen, bytes as they are.

    A reader that has gone (`| head`) is no error: the rest is dropped, and the command goes on to write
    its files and to find its status. A full disk is one.
    """
    if sys.stdout is None:
        return
    if text:
        stop_commands()
    try:
        if isinstance(text, bytes):
            sys.stdout.flush()
            sys.stdout.buffer.write(text)
        else:
            sys.stdout.write(visible_lines(text, keeps_color=page()[1]))
        sys.stdout.flush()
    except BrokenPipeError:
        mute(sys.stdout)
    except OSError as error:
        mute(sys.stdout)
        reason = error.strerror or str(error)
        raise TracekitError(
            f"standard output: cannot be written: {reason}", "write to a file elsewhere with -o"
        ) from error


def fetching(text: str, number: int, total: int) -> None:
    """Nothing; counts the files that are fetched from an address, on a line of a terminal that is written over."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    end = "\r\x1b[K" if number == total else ""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"\r\x1b[Kfetching {shown(text)[:60]}: {number:,} of {total:,} files{end}")
        sys.stderr.flush()


def tell(line: str) -> None:
    """Nothing; writes a line (or a few) to standard error, if anybody listens there."""
    stop_commands()
    _write_error(visible_lines(line))


def tell_command(line: Lines) -> None:
    """Write a command that GitHub is to run to standard error; `render.github` makes them."""
    resume_commands()
    _write_error(line)


def stop_commands() -> None:
    """Let GitHub run no commands until `resume_commands`: names of a profile follow. Elsewhere do nothing.

    The token is on standard error, where commands of ours are too: one stream keeps its order.
    """
    if in_github() and not _stopped:
        _stopped.append(secrets.token_hex(16))
        _write_error(Lines(f"::stop-commands::{_stopped[0]}"))


def resume_commands() -> None:
    """Let GitHub run commands again."""
    if _stopped:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        _write_error(Lines(f"::{_stopped.pop()}::"))


def in_github() -> bool:
    """Whether this runs in a job of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _write_error(lines: Lines) -> None:
    """Write lines to standard error."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{lines}\n")
        sys.stderr.flush()


def mute(stream: TextIO) -> None:
    """Nothing; sends what is still written to `stream` nowhere, so that leaving does not fail on it."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(descriptor, stream.fileno())
        finally:
            os.close(descriptor)


def tell_error(error: Exception, *, stack: bool = False) -> None:
    """Nothing; writes what is wrong and what to try, in two lines, and the stack if that is wanted."""
    problem, hint = described(error)
    tell_problem(problem, hint)
    if stack and not isinstance(error, click.ClickException):
        tell("".join(traceback.format_exception(error)).rstrip())


def tell_problem(problem: str, hint: str) -> None:
    """Nothing; writes one problem and its hint in the form of all errors."""
    from tracekit.render.escape import printable

    tell(f"tracekit: {printable(problem)}")
    if hint:
        tell(_HINT_AT + printable(hint))


def tell_failures(failures: Sequence[Failure], *, where_all: str = "") -> None:
    """Nothing; names the first files that could not be read, and `where_all` of them are named."""
    for failure in failures[:_SHOWN_FAILURES]:
        tell_problem(f"{failure.source}: {failure.problem}", failure.hint)
    more = len(failures) - _SHOWN_FAILURES
    if more > 0:
        tell(f"tracekit: {more:,} more files could not be read{where_all}")


def described(error: Exception) -> tuple[str, str]:
    """The problem and the hint of anything that a command may raise."""
    if isinstance(error, TracekitError):
        return str(error), error.hint
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", "tracekit")
        return _misused(error), f"{command} --help"
    if isinstance(error, MemoryError):
        remedy = "read fewer at once (--jobs 1), or fewer files (--exclude, --steps)"
        return "memory ran out", remedy
    if isinstance(error, OSError) and error.errno is not None:
        subject = f"{error.filename}: " if error.filename else ""
        remedies = {errno.ENOSPC: "free some space"}
        remedy = remedies.get(error.errno, "check the path and permissions")
        return f"{subject}{error.strerror}", remedy
    place = f"report this line and your command{_issues()}; -v shows the stack"
    return f"internal error: {type(error).__name__}: {error}", place


def _misused(error: click.ClickException) -> str:
    """What click found wrong, in one line and in the same words whatever its version."""
    if isinstance(error, click.NoSuchOption):
        from tracekit.model.labels import did_you_mean

        near = did_you_mean(error.option_name, error.possibilities or ())
        return f"no option {error.option_name!r}{near}"
    return " ".join(error.format_message().split())


def _issues() -> str:
    """Where to report faults, as the installed package says; empty if it does not."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata(DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    for entry in urls:
        name, _, url = entry.partition(", ")
        if name.lower() == "issues":
            return f" at {url}"
    return ""


def page() -> tuple[int | None, bool]:
    """The width of the terminal on standard output, and whether to use colour.

    Where it is none the width is that of `COLUMNS`, or None.
    """
    if sys.stdout is None or not sys.stdout.isatty():
        columns = os.environ.get("COLUMNS", "")
        is_width = columns.isdecimal() and len(columns) < 5
        return int(columns) if is_width else None, False
    color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return shutil.get_terminal_size().columns, color


def set_verbose(ctx: click.Context, _parameter: click.Parameter, verbose: bool) -> bool:
    """The flag as given; remembered where the last resort for errors finds it, and the log is shown."""
    if verbose and not ctx.resilient_parsing:
        import logging

        ctx.meta[_VERBOSE] = True
        told = logging.Handler()
        told.emit = lambda record: tell(told.format(record))  # type: ignore[method-assign]
        logging.basicConfig(handlers=[told], level=logging.INFO, format="%(message)s")
        logging.getLogger("tracekit").setLevel(logging.DEBUG)
    return verbose


def is_verbose(ctx: click.Context) -> bool:
    """Whether -v was given to any command of `ctx`."""
    return bool(ctx.meta.get(_VERBOSE))
