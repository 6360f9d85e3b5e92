"""What travels from the workers, and how many small parts of it become few large ones."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import pandas as pd

from tracekit.analyses import Tables
from tracekit.discover.selection import Holding
from tracekit.engine import Outcome
from tracekit.model.tables import TABLES, concat
from tracekit.model.trace import Fault, Note, Source


@dataclass(frozen=True, slots=True)
class MeasuredSource:
    """What travels from a worker: measured tables by analysis, nothing of the trace itself."""

    source: Source
    tables: Mapping[str, Tables]
    notes: tuple[Note, ...]
    versions: Mapping[str, str]
    simulated: bool
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    holding: Holding | None = None
    """What its process holds, where only a part was asked for; not kept, it has no frames of its own."""
    faults: tuple[Fault, ...] = ()
    original: str | None = None
    """The source that holds as much or more of the same recording, and counts in place of this one."""


Measured = Outcome[tuple[MeasuredSource, ...]]

BATCH = 16
"""Sources whose tables are put together as they come."""


def together(outcomes: Iterable[Measured], folding: Collection[str]) -> Iterator[Measured]:
    """The outcomes in their order, the tables of every `BATCH` of them put together in the first that has any.

    A thousand sets of small tables take many times the memory of one large set. What the analyses
    `folding` measured stays apart: it is folded first.
    """
    every = iter(outcomes)
    while batch := list(islice(every, BATCH)):
        parts = [part for outcome in batch for part in outcome.value or ()]
        joined = put_together([t for p in parts for i, t in p.tables.items() if i not in folding])
        for outcome in batch:
            value = tuple(
                replace(p, tables={i: t for i, t in p.tables.items() if i in folding})
                for p in outcome.value or ()
            )
            if value and joined:
                value = (replace(value[0], tables={"": joined, **value[0].tables}), *value[1:])
                joined = {}
            yield replace(outcome, value=value if outcome.value else outcome.value)


def put_together(parts: Sequence[Tables]) -> Tables:
    """The tables of several sources as one of each name."""
    names = {name for part in parts for name in part}
    return {n: concat(TABLES[n], [p[n] for p in parts if n in p]) for n in sorted(names)}


def give_back() -> None:
    """Nothing; memory that is free goes back to the system, where the allocator can be asked for it (glibc).

    What was put together has left holes of a few hundred MB that what comes next does not fit into.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def light_text() -> AbstractContextManager[None]:
    """Column names and other small texts as Python's own: a third of judging was their conversion."""
    return pd.option_context("mode.string_storage", "python")
