"""What readers return and measuring consumes: `Source`, `Note`, `Trace`; what judging consumes: `Measurements`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.codes import NO_DATA, UNKNOWN, Data
from tracekit.model.errors import TracekitError
from tracekit.model.facts import Facts
from tracekit.model.keys import place_of
from tracekit.model.metrics import described
from tracekit.model.tables import KEYS, TABLES, Table
from tracekit.model.tables.arrays import Array, Coded, Columns, Frames, Nullable, bare
from tracekit.model.tables.table import FEW_ROWS, Column, Dtype

T = TypeVar("T")
Tool = Literal["torch", "nsys", "torch_memory", "log"]
NoteSeverity = Literal["info", "warning", "data_loss", "error"]


@dataclass(frozen=True, slots=True)
class Note:
    """Something about a source that limits what can be concluded from it; the report shows it.

    `code` is one of `codes.CODES` with its `data`; `message` says the same to people.
    """

    severity: NoteSeverity
    code: str
    message: str
    source: str = ""
    count: int = 1
    offset: int | None = None
    data: Data = NO_DATA


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a process said it captured: the step, and from when to when; None is unknown, or not over."""

    step: int | None
    scope: str | None = None
    start_unix_ns: int | None = None
    stop_unix_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """What a process says of itself and its captures, in the manifest of this name; `discrete`: one a stage.

    Without a name it is of a process that says nothing, and `captures` are those of the others of its job.
    """

    name: str
    pid: int | None
    host: str | None = None
    role: str | None = None
    rank: int | None = None
    world_size: int | None = None
    captures: tuple[Recorded, ...] = ()
    discrete: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """One file and what is known about it: from names and manifests at first, completed by its reader.

    `name` is the path as shown (relative to the directory given). `scope` is the part of a run that the
    file says it covers, as recorded (`train`, `e2e`, `actor-update`); `part` the piece of it (`mb1`,
    `part2`). `node` is the id of the node of a cluster that the file lies on: here, or not known any more, if
    None. `content` is the digest of what the file holds (`contents.content_digest`), made where it is measured.
    `accounts` are those of processes that this may be a file of. None is unknown, never 0.
    """

    path: Path
    name: str
    reader: str
    tool: Tool = "torch"
    run: str = ""
    role: str | None = None
    scope: str | None = None
    step: int | None = None
    rank: int | None = None
    world_size: int | None = None
    replica: int | None = None
    topology: str | None = None
    part: str | None = None
    host: str | None = None
    pid: int | None = None
    size_bytes: int = 0
    notes: tuple[Note, ...] = ()
    node: str | None = None
    content: str | None = None
    accounts: tuple[Account, ...] = ()

    def with_note(
        self, severity: NoteSeverity, code: str, message: str, data: Data = NO_DATA
    ) -> Source:
        """This source with one note more."""
        note = Note(severity, code, message, self.name, data=data)
        return replace(self, notes=(*self.notes, note))


@dataclass(frozen=True, slots=True)
class Want:
    """What to read of a source: a light question reads little.

    `tables` None means all that is cheap (everything but `flows` and `python_calls`); `args` None means every key. `columns`
    are the nullable columns that are needed: a reader may leave the others <NA> (None: all). `modules`
    are those Python functions that are calls of a model's modules; `python` means all of them.
    """

    tables: frozenset[str] | None = None
    args: tuple[str, ...] | None = None
    columns: frozenset[str] | None = None
    python: bool = False
    stacks: bool = False
    modules: bool = True

    def table(self, name: str) -> bool:
        """Whether `name` is wanted."""
        if self.tables is None:
            return name not in ("flows", "python_calls")
        return name in self.tables

    def column(self, name: str) -> bool:
        """Whether a nullable column is needed."""
        return self.columns is None or name in self.columns


class SparseColumn(Protocol):
    """A recorded argument: `values[i]` (or `categories[values[i]]`) belongs to element `rows[i]`; rows ascend."""

    @property
    def rows(self) -> npt.NDArray[np.int32]: ...  # noqa: D102
    @property
    def values(self) -> npt.NDArray[Any]: ...  # noqa: D102
    @property
    def categories(self) -> list[Any] | None: ...  # noqa: D102


@dataclass(frozen=True)
class Trace:
    """The tables of one process from one source file. `trace["device_ops"]` is a pandas frame.

    A table that the source did not record is absent, not empty. `meta` holds file-level facts as
    recorded (`distributedInfo`, `deviceProperties`, versions …), `notes` what was lost or looks odd.
    """

    source: Source
    tables: Mapping[str, pd.DataFrame]
    notes: tuple[Note, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sparse: Mapping[str, SparseColumn] = field(default_factory=dict[str, SparseColumn], repr=False)
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _arrays: dict[tuple[str, str], Array] = field(
        default_factory=dict[tuple[str, str], Array], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Check every table against its schema and freeze the mapping."""
        if not isinstance(self.tables, Frames):
            object.__setattr__(self, "tables", Frames(self.tables))
        assert isinstance(self.tables, Frames), "a trace holds its tables so"
        for name, table in self.tables.as_given().items():
            if isinstance(table, Columns):
                TABLES[name].fits(table)
            else:
                TABLES[name].check(table)

    def has(self, *names: str) -> bool:
        """Whether the source recorded all of these tables."""
        return all(name in self.tables for name in names)

    def __getitem__(self, name: str) -> pd.DataFrame:
        """The frame of one table; `TracekitError` lists the tables when it is absent."""
        if name not in self.tables:
            raise TracekitError(
                f"{self.source.name}: no table {name!r} was recorded",
                f"recorded: {', '.join(sorted(self.tables)) or 'none'}",
            )
        return self.tables[name]

    def get(self, name: str) -> pd.DataFrame:
        """The frame of one table, the empty table when it was not recorded."""
        return self.tables[name] if name in self.tables else TABLES[name].empty()

    def array(self, table: str, column: str) -> Array:
        """The bare array of a column (`model.tables.arrays`), made once: without a row where the table was not recorded.

        A frame takes longer to be asked for a column than most small ones take to be worked on.
        """
        place = table, column
        if place not in self._arrays:
            assert isinstance(self.tables, Frames), "a trace holds its tables so"
            columns = self.tables.as_given().get(table, TABLES[table].no_rows())
            self._arrays[place] = bare(getattr(columns[column], "array", columns[column]))
        return self._arrays[place]

    def numbers(self, table: str, column: str) -> npt.NDArray[Any]:
        """The values of a column of numbers that no row lacks."""
        array = self.array(table, column)
        assert isinstance(array, np.ndarray), f"{table}.{column}: no row lacks it"
        return array

    def texts(self, table: str, column: str) -> Coded:
        """The texts of a column, by their codes."""
        array = self.array(table, column)
        assert isinstance(array, Coded), f"{table}.{column}: texts"
        return array

    def nullable(self, table: str, column: str) -> Nullable:
        """The numbers of a column that rows may lack."""
        array = self.array(table, column)
        assert isinstance(array, Nullable), f"{table}.{column}: rows may lack it"
        return array

    def arg(self, key: str, table: str | None = None) -> pd.Series[Any]:
        """The recorded values of one `args` key: for the rows of `table`, missing as NA; else by element `id`.

        Whole numbers are `Int64` or `UInt64`, numbers `Float64`; text, and JSON text of lists and
        objects, is `object`. Raises `TracekitError` for a key that the file does not have.
        """
        if key not in self.sparse:
            raise TracekitError(
                f"{self.source.name}: no argument {key!r} was read",
                f"read: {', '.join(sorted(self.sparse)) or 'none'}",
            )
        column = self.sparse[key]
        ids, index = column.rows, pd.Index(column.rows, name="id")
        if table is not None:
            ids, index = self[table]["id"].to_numpy(), self[table].index
        places, is_recorded = place_of(column.rows, ids)
        values = _nullable(column, places, ~is_recorded)
        # Said outright for text, which pandas from 3.0 on would otherwise take for `str`.
        dtype = object if column.categories is not None else values.dtype
        return pd.Series(values, index=index, name=key, dtype=dtype)

    def derived(self, function: Callable[[Trace], T]) -> T:
        """`function(self)`, computed once: what several analyses of one trace share."""
        if function not in self._derived:
            self._derived[function] = function(self)
        value: T = self._derived[function]
        return value

    def keep(self, function: Callable[[Trace], T], value: T) -> None:
        """Let `derived(function)` be `value`: for a trace made from one of which it was known."""
        self._derived[function] = value


def _nullable(column: SparseColumn, at: npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> Any:
    """The values at these positions as a nullable array of their kind."""
    values = column.values[at]
    if column.categories is not None:
        texts = np.array([*column.categories, None], object)[:-1][values]
        texts[missing] = None
        return texts
    if values.dtype.kind in "iu":
        return pd.arrays.IntegerArray(values, missing)
    return pd.arrays.FloatingArray(values, missing)


def labelled(table: Table, columns: Mapping[str, Any], source: Source) -> Columns:
    """Measured rows: `columns` with the key columns of `source` put before them."""
    length = len(next(iter(columns.values()), ()))
    if not length:
        return table.no_rows()
    if table.name == "metrics":
        columns = described(columns)
    of_source = dict(zip(KEYS, _KEYS_OF(source), strict=True))
    keys = {name: _same(column, of_source[name], length) for name, column in KEYS.items()}
    return table.cast({**keys, **columns}, length)


_KEYS_OF = attrgetter(*("name" if key == "source" else key for key in KEYS))


def _same(column: Column, value: str | int | None, length: int) -> Array:
    """A column with one value in all rows; the few rows of most tables share theirs."""
    if length > FEW_ROWS:
        return _filled(column.dtype, value, length)
    filled = _few_filled(column.dtype, value)
    if isinstance(filled, Coded):
        return Coded(filled.codes[:length], filled.texts)
    return Nullable(filled.values[:length], filled.missing[:length])


@lru_cache(1024)
def _few_filled(dtype: Dtype, value: str | int | None) -> Coded | Nullable:
    """A column of a few rows with one value, not to be written to."""
    filled = _filled(dtype, value, FEW_ROWS)
    of_column = (filled.codes,) if isinstance(filled, Coded) else (filled.values, filled.missing)
    for array in of_column:
        array.setflags(write=False)
    return filled


def _filled(dtype: Dtype, value: str | int | None, length: int) -> Coded | Nullable:
    """A column with one value in all rows; None is missing."""
    if dtype == "category":
        texts = () if value is None else (str(value),)
        return Coded(np.full(length, len(texts) - 1, np.int8), texts)
    return Nullable(np.full(length, value or 0, np.int64), np.full(length, value is None))


@dataclass(frozen=True)
class Failure:
    """A source that could not be read or measured: data, not an exception; `code` is one of `codes.CODES`."""

    source: str
    problem: str
    hint: str = ""
    code: str = UNKNOWN
    data: Data = NO_DATA


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of tracekit while it measured or folded what a question asks of one process in one source.

    The `tables` that the question should have written for that process are *failed*: neither absent, which
    is not recorded, nor empty, which is recorded without anything. `metrics` are the names of its rows in
    the table of that name, which several questions fill.
    """

    question: str
    action: Literal["measured", "folded"]
    error: str
    source: str
    pid: int | None
    tables: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    file: str = ""
    """The user's file that the question is from, whose error it is then."""


KEPT_ROWS = 150_000
"""The frame of a longer table is made anew for each question: its texts as objects take many times their memory."""


@dataclass(frozen=True)
class Measurements:
    """The measured tables of all sources, concatenated: all that judging sees.

    `sources` are as their readers completed them, in a fixed order; `failures` those that could not be
    read. A table that no source could fill is absent; those of `faults` are failed, not absent (see
    `tracekit.model.faults`). `check` is what a second tool recorded of the same steps, to be compared and never
    added.
    """

    tables: Mapping[str, Columns]
    sources: tuple[Source, ...]
    failures: tuple[Failure, ...] = ()
    notes: tuple[Note, ...] = ()
    facts: Facts = field(default_factory=Facts)
    check: Measurements | None = None
    faults: tuple[Fault, ...] = ()
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _frames: dict[str, pd.DataFrame] = field(
        default_factory=dict[str, pd.DataFrame], init=False, repr=False, compare=False
    )
    _looks: list[set[str]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every table against its schema and freeze the mapping."""
        for name, columns in self.tables.items():
            TABLES[name].fits(columns)
        object.__setattr__(self, "tables", MappingProxyType(dict(self.tables)))

    def has(self, *names: str) -> bool:
        """Whether any source filled all of these tables."""
        self._look(names)
        return all(name in self.tables for name in names)

    def __getitem__(self, name: str) -> pd.DataFrame:
        """A frame of one table, without rows when no source filled it; texts are objects, NaN where one is missing.

        Columns may be added to it and replaced; what they hold is shared, and not to be changed in place.
        """
        self._look((name,))
        if name in self._frames:
            return self._frames[name].copy(deep=False)
        frame = self.columns(name).judged()
        if len(frame) <= KEPT_ROWS:
            self._frames[name] = frame
        return frame.copy(deep=False)

    def columns(self, name: str) -> Columns:
        """The bare columns of one table, without rows when no source filled it."""
        self._look((name,))
        return self.tables[name] if name in self.tables else TABLES[name].no_rows()

    def row_count(self, name: str) -> int:
        """How many rows a table has, none where no source filled it: asked before a frame of none is made."""
        return len(self.columns(name))

    def derived(self, function: Callable[[Measurements], T]) -> T:
        """`function(self)`, computed once: what several judgements share; not to be changed in place."""
        if function not in self._derived:
            with self.watched() as tables:
                value: T = function(self)
            self._derived[function] = value, tables
        value, tables = self._derived[function]
        self._look(tables)
        return value

    @contextmanager
    def watched(self) -> Iterator[set[str]]:
        """The names of the tables that are looked at within it, also by what was derived before.

        Where it is left by an error they count as looked at by what is around it.
        """
        tables: set[str] = set()
        self._looks.append(tables)
        try:
            yield tables
        except BaseException:
            for outer in self._looks[-2:-1]:
                outer.update(tables)
            raise
        finally:
            self._looks.pop()

    def _look(self, names: Iterable[str]) -> None:
        if self._looks:
            self._looks[-1].update(names)
