"""Results of workers: their serialization, and merging many small tables into few large ones."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, replace
from itertools import chain, islice
from typing import Any

from tracekit.analyses import Tables
from tracekit.discover.selection import SelectableParts
from tracekit.engine import Outcome
from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.tables.arrays import Array, Columns, Keyed, SourceRows
from tracekit.model.trace import KEY_KINDS, Fault, Note, Source
from tracekit.pipeline.wire_format.array_blocks import ArrayCollector, BlockReader, collect_column, concatenate_arrays


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

    def __getstate__(self) -> list[Any]:
        """Pickle the tables as a few long arrays, in half the time of many small ones."""
        return [_pack_for_transfer(self.tables), *(getattr(self, name) for name in _STATE_FIELDS[1:])]

    def __setstate__(self, state: list[Any]) -> None:
        """Restore a pickled object."""
        for name, value in zip(_STATE_FIELDS, (_unpack_transferred(state[0]), *state[1:]), strict=True):
            object.__setattr__(self, name, value)


_STATE_FIELDS = ("tables", *(field.name for field in fields(MeasuredSource) if field.name != "tables"))


def _pack_for_transfer(tables: Mapping[str, Tables]) -> Any:
    """Pack tables as descriptions plus long arrays per dtype; unchanged if a column is not numeric."""
    arrays = ArrayCollector()
    descriptions: dict[str, dict[str, Any]] = {}
    try:
        for question, of_question in tables.items():
            descriptions[question] = {}
            for name, columns in of_question.items():
                sources, bare = _split_lazy_keys(columns.arrays)
                forms = [collect_column(array, arrays) for array in bare.values()]
                descriptions[question][name] = columns.length, sources, tuple(bare), forms
    except TypeError:
        return tables
    return descriptions, concatenate_arrays(arrays)


def _unpack_transferred(sent: Any) -> Mapping[str, Tables]:
    """Unpack the tables of a transfer."""
    if not isinstance(sent, tuple):
        tables: Mapping[str, Tables] = sent
        return tables
    descriptions, long = sent
    blocks = BlockReader(long)
    arrived: dict[str, Tables] = {}
    for question, of_question in descriptions.items():
        rows_of: dict[str, Columns] = {}
        for name, (length, sources, names, forms) in of_question.items():
            bare = dict(zip(names, blocks.columns(forms, length), strict=True))
            arrays = bare if sources is None else Keyed(KEY_KINDS, sources, bare)
            rows_of[name] = Columns(length, arrays)
        arrived[question] = rows_of
    return arrived


def _split_lazy_keys(arrays: Mapping[str, Array]) -> tuple[tuple[SourceRows, ...] | None, Mapping[str, Array]]:
    """Split (sources of all rows if the key columns are not built yet, the columns that are)."""
    return (arrays.sources, arrays.measured) if isinstance(arrays, Keyed) else (None, arrays)


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

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_ARRAY = 2**30, 2**30


def keep_freed_memory() -> None:
    """Make the allocator (glibc) keep freed memory in the process.

    Requesting it from the system again for every array takes a fifth of the work on a large file.
    """
    with suppress(AttributeError, OSError, TypeError):
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_MMAP_THRESHOLD, _LARGEST_ARRAY)
        allocator.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def release_freed_memory() -> None:
    """Return freed memory to the system (glibc).

    Merging leaves holes of a few hundred MB that later allocations do not fit into.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
