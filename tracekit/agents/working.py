"""The work on a request, in a process of its own: it can be ended, and whatever goes wrong becomes two lines."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TypeVar

from tracekit.model.errors import TracekitError
from tracekit.model.lifetime import die_with
from tracekit.render.escape import printable

T = TypeVar("T")

_watched: set[int] = set()
"""The server that this process ends with, once it does."""


def tried(work: Callable[[], T], server: int | None = None) -> tuple[T | None, str]:
    """(what the work gives, or None; what went wrong with it); the process ends with `server`, which started it."""
    if server is not None and server not in _watched:
        _watched.add(server)
        die_with(server)
    try:
        return work(), ""
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return None, told(error)


def put_away() -> None:
    """Run the exit handlers of this process now, which remove its temporary files: the server kills it at its own end."""
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public way


def told(error: Exception) -> str:
    """What is wrong and what to do about it, in two lines."""
    if isinstance(error, TracekitError):
        lines = [printable(str(error), 1_000), printable(error.hint, 1_000)]
    elif isinstance(error, MemoryError):
        lines = ["memory ran out", "ask for fewer ranks or steps"]
    elif isinstance(error, RecursionError):
        lines = [
            "an argument or a file is nested too deeply",
            "give the value itself, not its JSON text",
        ]
    elif isinstance(error, OSError) and error.strerror:
        lines = [printable(f"{error.filename or 'a file'}: {error.strerror}", 1_000), ""]
    else:
        kind = type(error).__name__
        lines = [f"internal error: {kind}", "the same command of tracekit with -v shows more"]
    problem, hint = lines
    return f"{problem}\ntry: {hint}" if hint else problem
