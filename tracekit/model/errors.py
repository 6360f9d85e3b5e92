"""Everything tracekit raises on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracekit.model.codes import NO_DATA, UNREADABLE, Data, Reason, why_unread
from tracekit.model.redaction import redact


class TracekitError(Exception):
    """What is wrong, and what the user can do about it; the command line prints it without a stack, Python with the hint below."""

    def __init__(self, problem: str, hint: str = "") -> None:
        problem, hint = redact(problem), redact(hint)
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        if hint:
            self.add_note(f"try: {hint}")

    def __str__(self) -> str:
        return self.problem


class TraceFormatError(TracekitError):
    """A file that is not what its reader reads; the only thing a reader raises, for any bytes whatever.

    `code` is one of `codes.CODES`, and `data` what that list says of it.
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
        """How to send it between processes: exceptions otherwise forget all but their message."""
        return _remade, (self.path, self.problem, self.hint, self.where, self.code, self.data)


def _remade(
    path: str, problem: str, hint: str, where: str, code: str, data: Data
) -> TraceFormatError:
    """The error that another process raised."""
    return TraceFormatError(path, problem, hint, where, code=code, data=data)


def refused(path: Path | str, reason: Reason, hint: str = "", where: str = "") -> TraceFormatError:
    """The error for a file that cannot be read for this reason."""
    return TraceFormatError(path, reason.text, hint, where, code=reason.code, data=reason.data)


def unread(path: Path | str, error: OSError, hint: str = "") -> TraceFormatError:
    """The error for a file that the system does not let us read, or that is packed in another way."""
    return refused(path, why_unread(error), hint)


class UnwritableError(TracekitError):
    """An output that the system does not let us write: never the fault of a file that is read."""


class SchemaError(TracekitError):
    """A table that breaks its schema: always a fault of tracekit, never of the file."""


class NothingComparableError(TracekitError):
    """Two sides that could be read, of which one holds no step that counts."""
