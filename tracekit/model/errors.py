"""Exceptions that tracekit raises deliberately."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tracekit.model.inputs.note_codes import NO_DATA, UNREADABLE, Data, Reason, explain_os_error
from tracekit.model.text.labels import did_you_mean
from tracekit.model.text.redaction import redact


class TracekitError(Exception):
    """An error for the user: the problem and a hint what to do.

    The command line prints it without a stack; in Python the hint is an exception note.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        problem, hint = redact(problem), redact(hint)
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        if hint:
            self.add_note(f"try: {hint}")

    def __str__(self) -> str:
        return self.problem


class UnknownNameError(TracekitError, KeyError):
    """A mapping has nothing of this name; its text suggests the nearest."""


def make_unknown_name_error(thing: str, name: object, where: str, names: Iterable[str]) -> UnknownNameError:
    """Build the error for a name that a mapping lacks, with the nearest name and a list of all.

    >>> print(make_unknown_name_error("no table", "kernel", "in the report", ["kernels"]))
    no table 'kernel' in the report; did you mean 'kernels'?
    """
    names = list(names)
    near = did_you_mean(str(name), names)
    return UnknownNameError(f"{thing} {name!r} {where}{near}", f"there are: {', '.join(names) or 'none'}")


class TraceFormatError(TracekitError):
    """A file that its reader cannot read; the only exception a reader raises, whatever the bytes.

    `code` is one of `codes.CODES`, and `data` contains what that list declares for it.
    """

    def __init__(
        self,
        path: Path | str,
        problem: str,
        hint: str = "",
        where: str = "",
        *,
        code: str = UNREADABLE,
        data: Data = NO_DATA,
    ) -> None:
        super().__init__(problem, hint)
        self.path = redact(str(path))
        self.where = where
        self.code = code
        self.data = data

    def __str__(self) -> str:
        place = f"{self.path}:{self.where}" if self.where else self.path
        return f"{place}: {self.problem}"

    def __reduce__(self) -> tuple[Callable[..., TraceFormatError], tuple[str | Data, ...]]:
        """Pickle all fields, to send the error between processes; exceptions otherwise lose all but their message."""
        return _rebuild_format_error, (self.path, self.problem, self.hint, self.where, self.code, self.data)


def _rebuild_format_error(path: str, problem: str, hint: str, where: str, code: str, data: Data) -> TraceFormatError:
    """Rebuild a pickled error."""
    return TraceFormatError(path, problem, hint, where, code=code, data=data)


def make_format_error(path: Path | str, reason: Reason, hint: str = "", where: str = "") -> TraceFormatError:
    """Build the error for a file that cannot be read for this reason."""
    return TraceFormatError(path, reason.text, hint, where, code=reason.code, data=reason.data)


def make_os_read_error(path: Path | str, error: OSError, hint: str = "") -> TraceFormatError:
    """Build the error for a file that the system does not let us read, or that uses an unsupported compression."""
    return make_format_error(path, explain_os_error(error), hint)


class UnwritableError(TracekitError):
    """An output that cannot be written; never caused by an input file."""


class SchemaError(TracekitError):
    """A table that violates its schema; always a bug of tracekit, never of the file."""


class NothingComparableError(TracekitError):
    """A comparison in which one side was read but has no comparable step."""
