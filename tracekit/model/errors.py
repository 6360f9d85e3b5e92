"""Everything tracekit raises on purpose."""

from __future__ import annotations

from pathlib import Path


class TracekitError(Exception):
    """What is wrong, and what the user can do about it; the command line prints it without a stack."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return self.problem


class TraceFormatError(TracekitError):
    """A file that is not what its reader reads; the only thing a reader raises, for any bytes whatever."""

    def __init__(self, path: Path | str, problem: str, hint: str = "", where: str = "") -> None:
        super().__init__(problem, hint)
        self.path = str(path)
        self.where = where

    def __str__(self) -> str:
        place = f"{self.path}:{self.where}" if self.where else self.path
        return f"{place}: {self.problem}"

    def __reduce__(self) -> tuple[type[TraceFormatError], tuple[str, str, str, str]]:
        """How to send it between processes: exceptions otherwise forget all but their message."""
        return TraceFormatError, (self.path, self.problem, self.hint, self.where)


class UnwritableError(TracekitError):
    """An output that the system does not let us write: never the fault of a file that is read."""


class SchemaError(TracekitError):
    """A table that breaks its schema: always a fault of tracekit, never of the file."""


class NothingComparableError(TracekitError):
    """Two sides that could be read, of which one holds no step that counts."""
