"""Terminal output: results to standard output, everything else to standard error."""

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

from tracekit.model.errors import TracekitError
from tracekit.model.system.cache import listeners
from tracekit.model.system.installed import DISTRIBUTION
from tracekit.model.text.escape import Lines, escape_lines
from tracekit.model.text.labels import make_displayable

if TYPE_CHECKING:
    from tracekit.model.trace import Failure

_HINT_PREFIX = "          try: "
_VERBOSE = "tracekit.verbose"
_MAX_LISTED_FAILURES = 10
_stopped: list[str] = []
"""The token that resumes GitHub's workflow commands, while they are stopped."""


def prepare_streams() -> None:
    """Make both streams replace characters that they cannot encode by `?`, and print problems of the cache."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="replace")
    listeners[:] = [lambda problem, hint: print_problem(f"{problem}; {hint}", "")]


def write_output(text: str | bytes) -> None:
    """Write to standard output: text with control characters made visible, bytes unchanged.

    A closed pipe (`| head`) is not an error: the rest is dropped, and the command still writes its files and gets its
    status. A full disk raises `TracekitError`.
    """
    if sys.stdout is None:
        return
    if text:
        stop_workflow_commands()
    try:
        if isinstance(text, bytes):
            sys.stdout.flush()
            sys.stdout.buffer.write(text)
        else:
            sys.stdout.write(escape_lines(text, keeps_color=get_page_width()[1]))
        sys.stdout.flush()
    except BrokenPipeError:
        mute_stream(sys.stdout)
    except OSError as error:
        mute_stream(sys.stdout)
        reason = error.strerror or str(error)
        raise TracekitError(
            f"standard output: cannot be written: {reason}", "write to a file elsewhere with -o"
        ) from error


def show_fetching(text: str, number: int, total: int) -> None:
    """Show the progress of files fetched from an address, on one line of the terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    end = "\r\x1b[K" if number == total else ""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"\r\x1b[Kfetching {make_displayable(text)[:60]}: {number:,} of {total:,} files{end}")
        sys.stderr.flush()


def print_message(line: str) -> None:
    """Print a line (or several) to standard error, if it is open."""
    stop_workflow_commands()
    _write_stderr(escape_lines(line))


def print_workflow_command(line: Lines) -> None:
    """Print a GitHub workflow command to standard error; see `render.ci.gates`."""
    resume_workflow_commands()
    _write_stderr(line)


def stop_workflow_commands() -> None:
    """Stop GitHub's workflow commands until `resume_workflow_commands`, because profile names follow. Does nothing elsewhere.

    The token is written to standard error, like our own commands: a single stream keeps its order.
    """
    if is_github_job() and not _stopped:
        _stopped.append(secrets.token_hex(16))
        _write_stderr(Lines(f"::stop-commands::{_stopped[0]}"))


def resume_workflow_commands() -> None:
    """Resume GitHub's workflow commands."""
    if _stopped:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        _write_stderr(Lines(f"::{_stopped.pop()}::"))


def is_github_job() -> bool:
    """Check whether this runs in a GitHub Actions job."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _write_stderr(lines: Lines) -> None:
    """Write lines to standard error; ignores a closed stream."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{lines}\n")
        sys.stderr.flush()


def mute_stream(stream: TextIO) -> None:
    """Discard further output of `stream`, which keeps the exit from failing on it."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(descriptor, stream.fileno())
        finally:
            os.close(descriptor)


def print_error(error: Exception, *, stack: bool = False) -> None:
    """Print an error and its hint on two lines, plus the stack trace if requested."""
    problem, hint = describe_error(error)
    print_problem(problem, hint)
    if stack and not isinstance(error, click.ClickException):
        print_message("".join(traceback.format_exception(error)).rstrip())


def print_problem(problem: str, hint: str) -> None:
    """Print a problem and its hint in the form of all errors."""
    from tracekit.render.escape import make_printable

    print_message(f"tracekit: {make_printable(problem)}")
    if hint:
        print_message(_HINT_PREFIX + make_printable(hint))


def print_failures(failures: Sequence[Failure], *, where_all: str = "") -> None:
    """Print the first unreadable files; `where_all` names the place that lists all."""
    for failure in failures[:_MAX_LISTED_FAILURES]:
        print_problem(f"{failure.source}: {failure.problem}", failure.hint)
    more = len(failures) - _MAX_LISTED_FAILURES
    if more > 0:
        print_message(f"tracekit: {more:,} more files could not be read{where_all}")


def describe_error(error: Exception) -> tuple[str, str]:
    """Describe any error of a command as (problem, hint)."""
    if isinstance(error, TracekitError):
        return str(error), error.hint
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", "tracekit")
        return _describe_usage_error(error), f"{command} --help{_describe_missing_option(error)}"
    if isinstance(error, MemoryError):
        remedy = "read fewer at once (--jobs 1), or fewer files (--exclude, --steps)"
        return "memory ran out", remedy
    if isinstance(error, OSError) and error.errno is not None:
        subject = f"{error.filename}: " if error.filename else ""
        remedies = {errno.ENOSPC: "free some space"}
        remedy = remedies.get(error.errno, "check the path and permissions")
        return f"{subject}{error.strerror}", remedy
    place = f"report this line and your command{_find_issue_url()}; -v shows the stack"
    return f"internal error: {type(error).__name__}: {error}", place


def _describe_usage_error(error: click.ClickException) -> str:
    """Describe click's usage error on one line, independent of click's version."""
    if isinstance(error, click.NoSuchOption):
        from tracekit.model.text.labels import did_you_mean

        near = did_you_mean(error.option_name, error.possibilities or ())
        return f"no option {error.option_name!r}{near}"
    return " ".join(error.format_message().split())


def _describe_missing_option(error: click.ClickException) -> str:
    """Describe the option that a command needs, with its value and meaning; empty for any other error."""
    option = error.param if isinstance(error, click.MissingParameter) else None
    if not isinstance(option, click.Option) or not option.help:
        return ""
    value = option.metavar or option.type.name.upper()
    return f"; {option.opts[0]} {value}: {option.help.partition('. ')[0].rstrip('.')}"


def _find_issue_url() -> str:
    """Find the URL for bug reports in the package metadata; empty if there is none."""
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


def get_page_width() -> tuple[int | None, bool]:
    """Get the width of the terminal on standard output, and whether to use color.

    Without a terminal, the width is that of `COLUMNS`, or None.
    """
    if sys.stdout is None or not sys.stdout.isatty():
        columns = os.environ.get("COLUMNS", "")
        is_width = columns.isdecimal() and len(columns) < 5
        return int(columns) if is_width else None, False
    color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return shutil.get_terminal_size().columns, color


def set_verbose(ctx: click.Context, _parameter: click.Parameter, verbose: bool) -> bool:
    """Store the -v flag for error handling, and enable the log."""
    if verbose and not ctx.resilient_parsing:
        import logging

        ctx.meta[_VERBOSE] = True
        handler = logging.Handler()
        handler.emit = lambda record: print_message(handler.format(record))  # type: ignore[method-assign]
        logging.basicConfig(handlers=[handler], level=logging.INFO, format="%(message)s")
        logging.getLogger("tracekit").setLevel(logging.DEBUG)
    return verbose


def is_verbose(ctx: click.Context) -> bool:
    """Check whether -v was given to any command of `ctx`."""
    return bool(ctx.meta.get(_VERBOSE))
