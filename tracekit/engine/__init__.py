"""Types that every engine (local, Ray) shares. An engine runs one function over many sources.

An engine is a function with the parameters `(function, sources, *, jobs, on_progress)`: `run_locally`, `run_on_ray`. It yields one `Outcome` per source, in the
order of the sources, whatever order they finish in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tracekit.model.records import dataclass
from tracekit.model.trace import Failure, Source

R = TypeVar("R")

Advance = Callable[[int], None]
"""Callback that reports more bytes of a source's file as done. Work may report fractions of a byte's work."""

Work = Callable[[Source, Advance], R]
"""The function to run on each source. It must be importable by name, and its result picklable and small."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """The result of one source: its value, or its failure with the stack trace."""

    source: Source
    value: R | None = None
    failure: Failure | None = None
    stack: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run: finished sources (including failed ones) and bytes of their files done."""

    file_count: int
    byte_count: int
    files_done: int = 0
    bytes_done: int = 0
    failure_count: int = 0


OnProgress = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    """Report no progress."""
