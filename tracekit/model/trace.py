"""`Trace`, which readers return, and `Measurements`, which rules consume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from functools import wraps
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tracekit.model.display import NamedFrames, import_display
from tracekit.model.errors import make_unknown_name_error
from tracekit.model.inputs.facts import Facts
from tracekit.model.inputs.graph_columns import GraphColumns
from tracekit.model.inputs.page_blocks import PackedPage
from tracekit.model.inputs.sources import (
    Account,
    Failure,
    Fault,
    Note,
    NoteSeverity,
    ReportedCapture,
    Source,
    Tool,
    Want,
)
from tracekit.model.metrics import fill_metric_units
from tracekit.model.records import dataclass
from tracekit.model.report import Heading, Sheet
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables import KEYS, TABLES, Table
from tracekit.model.tables.arrays import Array, Coded, Columns, Frames, Keyed, Nullable, make_bare
from tracekit.model.tables.frame import Frame
from tracekit.model.tables.keys import look_up_keys
from tracekit.model.tables.table import get_column_unit

__all__ = [
    "KEPT_ROWS",
    "Account",
    "Failure",
    "Fault",
    "GraphColumns",
    "Measurements",
    "Note",
    "NoteSeverity",
    "PackedPage",
    "ReportedCapture",
    "Source",
    "SparseColumn",
    "Tool",
    "Trace",
    "Want",
    "add_key_columns",
]

T = TypeVar("T")


class SparseColumn(Protocol):
    """A recorded argument: `values[i]` (or `categories[values[i]]`) belongs to element `rows[i]`; rows ascend."""

    @property
    def rows(self) -> npt.NDArray[np.int32]: ...  # noqa: D102
    @property
    def values(self) -> npt.NDArray[Any]: ...  # noqa: D102
    @property
    def categories(self) -> list[Any] | None: ...  # noqa: D102


@dataclass(frozen=True, eq=False, repr=False)
class Trace(NamedFrames):
    """The tables of one process from one source file, a mapping of pandas frames: `trace["device_ops"]`.

    A table that the source did not record is absent, not empty. `meta` contains file-level facts as recorded
    (`distributedInfo`, `deviceProperties`, versions …), `notes` lists lost or odd data.
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
        assert isinstance(self.tables, Frames), "a trace stores its tables this way"
        for name, table in self.tables.as_given().items():
            if isinstance(table, Columns):
                TABLES[name].fits(table)
            else:
                TABLES[name].check(table)

    def __repr__(self) -> str:
        """Summarize the source and the row count of each table."""
        facts = [self.source.name]
        if self.source.rank is not None:
            facts.append(f"rank {self.source.rank}")
        for name in self.tables:
            facts.append(f"{name} {self.row_count(name):,}")
        return f"<Trace {' · '.join(facts)}>"

    def _repr_html_(self) -> str:
        """Render the tables for a notebook: name, row count, and meaning of a row."""
        rows = [(name, self.row_count(name), TABLES[name].row) for name in self.tables]
        headings = (Heading("table", "table"), Heading("rows", "rows", "count"), Heading("row", "a row is"))
        return import_display().make_notebook_html(
            Sheet("trace", f"Trace of {self.source.name}", headings, tuple(rows))
        )

    def row_count(self, name: str) -> int:
        """Count the rows of a table without making its frame; 0 if it was not recorded."""
        assert isinstance(self.tables, Frames), "a trace stores its tables this way"
        return len(self.tables.as_given().get(name, ()))

    def has(self, *names: str) -> bool:
        """Whether the source recorded all of these tables."""
        return all(name in self.tables for name in names)

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Get a table as a frame; raise `UnknownNameError` that lists the recorded tables if it is absent."""
        if name not in self.tables:
            raise make_unknown_name_error(f"{self.source.name}: no table", name, "was recorded", sorted(self.tables))
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the recorded tables."""
        return iter(self.tables)

    def __len__(self) -> int:
        """Count the recorded tables."""
        return len(self.tables)

    def __contains__(self, name: object) -> bool:
        """Check whether a table was recorded, without making its frame."""
        return name in self.tables

    def get_or_empty(self, name: str) -> pd.DataFrame:
        """Get a table as a frame; an empty table if it was not recorded."""
        return self.tables[name] if name in self.tables else TABLES[name].empty()

    def array(self, table: str, column: str) -> Array:
        """Get the bare array of a column (see `model.tables.arrays`), cached; empty if the table was not recorded.

        Indexing a pandas frame takes longer than processing most small columns.
        """
        array = self._arrays.get((table, column))
        if array is None:
            assert isinstance(self.tables, Frames), "a trace stores its tables this way"
            columns = self.tables.as_given().get(table, TABLES[table].no_rows())
            array = make_bare(getattr(columns[column], "array", columns[column]))
            self._arrays[table, column] = array
        return array

    def numbers(self, table: str, column: str) -> npt.NDArray[Any]:
        """Get a numeric column without missing values."""
        array = self.array(table, column)
        assert isinstance(array, np.ndarray), f"{table}.{column}: no row lacks it"
        return array

    def texts(self, table: str, column: str) -> Coded:
        """Get a text column as codes and texts."""
        array = self.array(table, column)
        assert isinstance(array, Coded), f"{table}.{column}: texts"
        return array

    def nullable(self, table: str, column: str) -> Nullable:
        """Get a numeric column that may have missing values."""
        array = self.array(table, column)
        assert isinstance(array, Nullable), f"{table}.{column}: rows may lack it"
        return array

    def arg(self, key: str, table: str | None = None) -> pd.Series[Any]:
        """Get the recorded values of one `args` key: per row of `table` with NA where missing, or by element `id` without a table.

        Integers are `Int64` or `UInt64`, other numbers `Float64`. Text, and JSON text of lists and objects, is `object`.
        Raises `TracekitError` for a key that the file does not have.
        """
        if key not in self.sparse:
            raise make_unknown_name_error(f"{self.source.name}: no argument", key, "was read", sorted(self.sparse))
        column = self.sparse[key]
        ids, index = column.rows, pd.Index(column.rows, name="id")
        if table is not None:
            ids, index = self[table]["id"].to_numpy(), self[table].index
        places, is_recorded = look_up_keys(column.rows, ids)
        values = _take_nullable(column, places, ~is_recorded)
        # Explicit for text: pandas 3.0 and later would infer `str`.
        dtype = object if column.categories is not None else values.dtype
        return pd.Series(values, index=index, name=key, dtype=dtype)

    def derived(self, function: Callable[[Trace], T]) -> T:
        """Compute `function(self)` once and cache it for all analyses of this trace."""
        value: T
        try:
            value = self._derived[function]
        except KeyError:
            pass
        else:
            return value
        value = self._derived[function] = function(self)
        return value

    def forget(self, function: Callable[[Trace], T]) -> None:
        """Drop the cached `derived(function)` to free memory; a later call computes it again."""
        self._derived.pop(function, None)

    def keep(self, function: Callable[[Trace], T], value: T) -> None:
        """Store `value` as `derived(function)`, for a trace made from one where it was known."""
        self._derived[function] = value


def _take_nullable(column: SparseColumn, positions: npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> Any:
    """Take the values at these positions as a nullable array of the matching type."""
    values = column.values[positions]
    if column.categories is not None:
        texts = np.array([*column.categories, None], object)[:-1][values]
        texts[missing] = None
        return texts
    if values.dtype.kind in "iu":
        return pd.arrays.IntegerArray(values, missing)
    return pd.arrays.FloatingArray(values, missing)


def add_key_columns(table: Table, columns: Mapping[str, Any], source: Source) -> Columns:
    """Add the key columns of `source` before measured columns."""
    return KeyLabels(source).before(table, columns)


class KeyLabels:
    """The key-column values of one source, shared by all of its tables."""

    def __init__(self, source: Source) -> None:
        values: tuple[str | int | None, ...] = _KEYS_OF(source)
        self.values = values

    def before(self, table: Table, columns: Mapping[str, Any]) -> Columns:
        """Add the key columns before measured columns; units and directions are filled in for the table `metrics`."""
        length = len(next(iter(columns.values()), ()))
        if not length:
            return table.no_rows()
        if table.name == "metrics":
            columns = fill_metric_units(columns)
        if _KEYS.isdisjoint(columns):
            return self.keyed(length, table.cast_arrays(columns, length, _KEY_NAMES))
        return table.cast({**self.keyed(length, {}).arrays, **columns}, length)

    def keyed(self, length: int, measured: dict[str, Array]) -> Columns:
        """Build a table of `length` (at least one) rows with the key columns and columns of the declared types."""
        return Columns(length, Keyed(KEY_KINDS, ((self.values, length),), measured))


_KEYS_OF = attrgetter(*("name" if key == "source" else key for key in KEYS))
_KEY_NAMES = tuple(KEYS)
_KEYS = frozenset(KEYS)

KEY_KINDS: Mapping[str, str] = {name: column.dtype for name, column in KEYS.items()}
"""Dtypes of the key columns by name."""

KEPT_ROWS = 150_000
"""Row limit for caching a table's frame: texts as objects take many times their memory."""


@dataclass(frozen=True, eq=False, repr=False)
class Measurements(NamedFrames):
    """The measured tables of all sources, concatenated, as a mapping by name; the input of rules.

    Frames for users are in `tables`: typed, with missing values as `<NA>`, and documented.

    `sources` are as completed by their readers, in a fixed order; `failures` are those that could not be read. A table that
    no source could fill is absent; those of `faults` are failed, not absent (see `tracekit.model.failed_questions`). `check` contains
    the measurements of a second tool of the same steps, which are compared and never added. `recorded` contains the
    measurements of all steps, if some steps are excluded here. `graphs` are the dependency graphs of the sources, where
    they were asked for and built, and `pages` the data of the explorer page.
    """

    arrays: Mapping[str, Columns]
    sources: tuple[Source, ...]
    failures: tuple[Failure, ...] = ()
    notes: tuple[Note, ...] = ()
    facts: Facts = field(default_factory=Facts)
    check: Measurements | None = None
    faults: tuple[Fault, ...] = ()
    recorded: Measurements | None = None
    graphs: tuple[GraphColumns, ...] = ()
    pages: tuple[PackedPage, ...] = ()
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _frames: dict[str, pd.DataFrame] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)
    _looks: list[set[str]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every table against its schema and freeze the mapping."""
        for name, columns in self.arrays.items():
            TABLES[name].fits(columns)
        object.__setattr__(self, "arrays", MappingProxyType(dict(self.arrays)))

    def __repr__(self) -> str:
        """Summarize the number of sources and the tables."""
        facts = [f"{len(self.sources):,} sources"]
        for name, columns in self.arrays.items():
            facts.append(f"{name} {len(columns):,}")
        return f"<Measurements {' · '.join(facts)}>"

    def _repr_html_(self) -> str:
        """Render the tables for a notebook: name, row count, and meaning of a row."""
        rows = [(name, len(columns), TABLES[name].row) for name, columns in self.arrays.items()]
        headings = (Heading("table", "table"), Heading("rows", "rows", "count"), Heading("row", "a row is"))
        title = f"Measured of {len(self.sources):,} sources"
        return import_display().make_notebook_html(Sheet("measurements", title, headings, tuple(rows)))

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Every table as a frame for users, made on access: texts are categories, unknown values are missing.

        `attrs` of a frame contains `row` (the meaning of a row), and `units` and `docs` by column.
        """
        return _DocumentedFrames(self.arrays)

    def has(self, *names: str) -> bool:
        """Whether any source filled all of these tables."""
        self._look(names)
        return all(name in self.arrays for name in names)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the tables without cached values."""
        fields = (
            self.sources,
            self.failures,
            self.notes,
            self.facts,
            self.check,
            self.faults,
            self.recorded,
            self.graphs,
            self.pages,
        )
        return Measurements, (dict(self.arrays), *fields)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the tables that any source filled."""
        return iter(self.arrays)

    def __len__(self) -> int:
        """Count the tables that any source filled."""
        return len(self.arrays)

    def __contains__(self, name: object) -> bool:
        """Check whether any source filled a table."""
        return name in self.arrays

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Get a table as a frame, empty if no source filled it; texts are objects, NaN where missing.

        Columns may be added and replaced. Their data is shared and must not be modified in place.
        """
        self._look((name,))
        if name not in TABLES:
            raise make_unknown_name_error("no table", name, "was measured", self)
        if name in self._frames:
            return self._frames[name].copy(deep=False)
        frame = self.columns(name).judged()
        if len(frame) <= KEPT_ROWS:
            self._frames[name] = frame
        return frame.copy(deep=False)

    def columns(self, name: str) -> Columns:
        """Get the bare columns of a table, empty if no source filled it."""
        self._look((name,))
        return self.arrays[name] if name in self.arrays else TABLES[name].no_rows()

    def forget_key_columns(self) -> None:
        """Free the key columns of all tables, which are made again on access."""
        for columns in self.arrays.values():
            if isinstance(columns.arrays, Keyed):
                columns.arrays.forget()

    def frame(self, name: str) -> Frame:
        """Wrap one table for judging (`model.tables.frame`); it has no rows if no source filled it."""
        return Frame.from_columns(self.columns(name))

    def row_count(self, name: str) -> int:
        """Count the rows of a table without making its frame; 0 if no source filled it."""
        return len(self.columns(name))

    def derived(self, function: Callable[[Measurements], T]) -> T:
        """Compute `function(self)` once and cache it for all rules; the value must not be modified in place."""
        if function not in self._derived:
            with self.watched() as tables:
                value: T = function(self)
            self._derived[function] = value, tables
        value, tables = self._derived[function]
        self._look(tables)
        return value

    @contextmanager
    def watched(self) -> Iterator[set[str]]:
        """Record the names of the tables accessed within the context, including those behind cached values.

        If the context exits with an error, the tables count as accessed by the enclosing context.
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


class _DocumentedFrames(Frames):
    """Frames with documentation in `attrs`."""

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Get a table as a documented frame; raise `UnknownNameError` that lists the tables if it is absent."""
        if name not in self:
            raise make_unknown_name_error("no table", name, "was measured", self)
        frame = super().__getitem__(name)
        table = TABLES[name]
        frame.attrs = {
            "row": table.row,
            "units": {column: get_column_unit(column, kind) for column, kind in table.columns.items()},
            "docs": {column: described.doc for column, described in table.columns.items()},
        }
        return frame


def derive_once(function: Callable[[Measurements], T]) -> Callable[[Measurements], T]:
    """Decorate a function of the measurements: `Measurements.derived` computes its value once for all rules."""

    @wraps(function)
    def derive(measured: Measurements) -> T:
        return measured.derived(function)

    return derive
