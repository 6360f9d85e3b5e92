"""Results of workers: their serialization, and merging many small tables into few large ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from itertools import chain, islice
from typing import Any

from tracekit.analyses import Tables
from tracekit.discover.selection import SelectableParts
from tracekit.engine import Outcome
from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.tables.arrays import Columns
from tracekit.model.trace import Fault, GraphColumns, KeyLabels, Note, Source
from tracekit.pipeline.wire_format.table_blocks import (
    ArrayCollector,
    BlockReader,
    concatenate_arrays,
    pack_tables,
    unpack_tables,
)


@dataclass(frozen=True, slots=True)
class MeasuredSource:
    """Result of a worker for one process: measured tables by analysis, and nothing of the trace itself."""

    source: Source
    tables: Mapping[str, Tables]
    notes: tuple[Note, ...]
    versions: Mapping[str, str]
    simulated: bool
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    holding: SelectableParts | None = None
    """Description of the process if only a part was selected; without a selected part it has no tables."""
    faults: tuple[Fault, ...] = ()
    original: str | None = None
    """The source with as much or more of the same recording, which counts instead of this one."""
    graph: GraphColumns | None = None
    """Dependency graph, if it was asked for; its source is as the worker knew it."""
    page: bytes | None = None
    """Packed data of the explorer page, if it was asked for and there is any."""

    def __getstate__(self) -> list[Any]:
        """Pickle the tables as a few long arrays, in half the time of many small ones."""
        arrays = ArrayCollector()
        records = pack_tables(self.tables, arrays, KeyLabels(self.source))
        return [records, concatenate_arrays(arrays), *(getattr(self, name) for name in _STATE_FIELDS)]

    def __setstate__(self, state: list[Any]) -> None:
        """Restore a pickled object."""
        records, arrays, *values = state
        for name, value in zip(_STATE_FIELDS, values, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "tables", unpack_tables(records, BlockReader(arrays), KeyLabels(self.source)))


_STATE_FIELDS = tuple(field.name for field in fields(MeasuredSource) if field.name != "tables")

MeasuredOutcome = Outcome[tuple[MeasuredSource, ...]]

MERGE_BATCH = 64
"""Number of sources whose tables are merged at a time, as they arrive."""


def merge_outcome_tables(outcomes: Iterable[MeasuredOutcome], folding: Collection[str]) -> Iterator[MeasuredOutcome]:
    """Merge the tables of every `MERGE_BATCH` outcomes into the first outcome with any, and keep the order.

    A thousand sets of small tables take many times the memory of a large set. Tables of the analyses `folding` stay
    separate, because they are folded first.
    """
    remaining = iter(outcomes)
    while batch := list(islice(remaining, MERGE_BATCH)):
        values = merge_worker_tables([outcome.value or () for outcome in batch], folding)
        for outcome, value in zip(batch, values, strict=True):
            yield replace(outcome, value=value) if value else outcome


def merge_worker_tables(
    values: Sequence[tuple[MeasuredSource, ...]], folding: Collection[str]
) -> list[tuple[MeasuredSource, ...]]:
    """Merge the tables of all sources into the first process; those of `folding` stay separate."""
    joining: list[Tables] = []
    lighter: list[list[MeasuredSource]] = []
    for value in values:
        parts = []
        for part in value:
            folded: dict[str, Tables] = {}
            for name, tables in part.tables.items():
                if name in folding:
                    folded[name] = tables
                else:
                    joining.append(tables)
            parts.append(replace(part, tables=folded))
        lighter.append(parts)
    tables_of_all = concatenate_by_name(joining)
    first = next((parts for parts in lighter if parts), None)
    if first and tables_of_all:
        first[0] = replace(first[0], tables={"": tables_of_all, **first[0].tables})
    return [tuple(parts) for parts in lighter]


def concatenate_by_name(parts: Sequence[Tables]) -> Tables:
    """Concatenate the tables of several sources by table name."""
    by_name: dict[str, list[Columns]] = defaultdict(list)
    for tables in parts:
        for name, rows in tables.items():
            by_name[name].append(rows)
    return {name: concatenate_table_parts(TABLES[name], rows) for name, rows in sorted(by_name.items())}


def chain_attribute(parts: Iterable[object], name: str) -> Iterator[Any]:
    """Chain an iterable attribute of all parts."""
    return chain.from_iterable(getattr(part, name) for part in parts)


LARGE_FILE_BYTES = 16 * 2**20
"""From this size on, freed memory is kept for the next allocations: 60 MB of gzip are a gigabyte of text."""
