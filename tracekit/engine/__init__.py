"""One function over many sources: the types that every engine (local, Ray) shares.

An engine is a function `run(function, sources, *, jobs, on_progress)` that yields one `Outcome` per
source, in the order of the sources, whatever order they finish in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tracekit.model.records import dataclass
from tracekit.model.trace import Failure, Source

R = TypeVar("R")

Advance = Callable[[int], None]
"""Tells the engine that so many more bytes of the source's file are done; work may count parts of a byte's work."""

Work = Callable[[Source, Advance], R]
"""What runs on each source: importable by name, its result picklable and small."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What became of one source: its value, or its failure and the stack for those who want to see it."""

    source: Source
    value: R | None = None
    failure: Failure | None = None
    stack: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: sources ended (failed ones too) and bytes of their files done."""

    file_count: int
    byte_count: int
    files_done: int = 0
    bytes_done: int = 0
    failure_count: int = 0


OnProgress = Callable[[Progress], None]
