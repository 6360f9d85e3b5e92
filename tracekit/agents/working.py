"""Work on a request in its own process, which can be killed; any error becomes two lines."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TypeVar

from tracekit.model.errors import TracekitError
from tracekit.model.system.lifetime import die_with
from tracekit.render.escape import make_printable

T = TypeVar("T")

_watched: set[int] = set()
"""Id of the server that this process exits with, once known."""


def try_work(work: Callable[[], T], server: int | None = None) -> tuple[T | None, str]:
    """Run work: (result or None, problem). The process exits with `server`, which started it."""
    if server is not None and server not in _watched:
        _watched.add(server)
        die_with(server)
    try:
        return work(), ""
    except Exception as error:  # noqa: BLE001 - every error becomes a message
        return None, format_work_error(error)


def clean_up_worker() -> None:
    """Run the exit handlers, which remove temporary files, before the server kills this process."""
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public way


def format_work_error(error: Exception) -> str:
    """Format an error in two lines: problem and hint."""
    if isinstance(error, TracekitError):
        lines = [make_printable(str(error), 1_000), make_printable(error.hint, 1_000)]
    elif isinstance(error, MemoryError):
        lines = ["memory ran out", "ask for fewer ranks or steps"]
    elif isinstance(error, RecursionError):
        lines = ["an argument or a file is nested too deeply", "give the value itself, not its JSON text"]
    elif isinstance(error, OSError) and error.strerror:
        lines = [make_printable(f"{error.filename or 'a file'}: {error.strerror}", 1_000), ""]
    else:
        kind = type(error).__name__
        lines = [f"internal error: {kind}", "the same command of tracekit with -v shows more"]
    problem, hint = lines
    return f"{problem}\ntry: {hint}" if hint else problem
