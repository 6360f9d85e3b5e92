"""Tables queryable by name, and their rows: raw tables read from every source, and measured tables as in `analyze`.

A raw table starts with the keys of its process, and has the step of each row.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter

import numpy as np

from tracekit.analyses import measured_tables
from tracekit.discover.arguments import split_label
from tracekit.engine import Advance, local
from tracekit.engine.progress import progress_line
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.sources import ON_REQUEST, Failure, Fault, Source
from tracekit.model.tables import ARGS, KEYS, RAW, TABLES, Column, Table, concat
from tracekit.model.tables.arrays import Array, Columns, Nullable, repeated_number, repeated_text
from tracekit.model.tables.columns import STEP
from tracekit.model.trace import Trace, Want
from tracekit.pipeline import run
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.measure_source import read_parts, with_content
from tracekit.pipeline.options import Options, numbers_of
from tracekit.pipeline.recorded_args import arguments
from tracekit.pipeline.wire_format.worker_tables import light_text
from tracekit.process import slice_trace
from tracekit.process.device.placement import Placement, placement
from tracekit.process.steps.windows import Windows, windows

PROCESS = Column(
    "category", "Process in its file: rows of raw tables are of one process where this is equal."
)
"""Joins raw tables: ids such as `correlation` are unique only within a process."""

NUMBER = Column("int32", "Number of the row among those that were read of its file.")
"""The column `id` of tables read by name; another read of the file may number the rows differently."""

RAW_NAMES = frozenset(map(attrgetter("name"), (*RAW, ARGS)))

_TELL_STEPS = frozenset({"host_ops", "device_ops", "device_ranges", "threads"})
"""The raw tables that determine the step of a row."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of tables by name, without empty tables; also the failures to read or measure."""

    tables: Mapping[str, Columns]
    failures: tuple[Failure, ...] = ()
    faults: tuple[Fault, ...] = ()


@cache
def tables() -> tuple[Table, ...]:
    """List all queryable tables: the raw ones with their keys and steps, then the measured ones."""
    return (*map(_with_keys, RAW), _with_keys(ARGS), *measured_tables())


def _with_keys(table: Table) -> Table:
    """Add the keys of the process and the step to a raw table, where it has no columns of these names."""
    keys = {**KEYS, "process": PROCESS, "step": STEP}
    before = {name: column for name, column in keys.items() if name not in table.columns}
    own = dict(table.columns)
    if table is ARGS:
        del before["step"]  # an argument has no step of its own, only its row
    elif "id" in own:
        own["id"] = NUMBER
    return Table(table.name, table.row, {**before, **own})


def rows_of(
    names: Collection[str], paths: Sequence[str], options: Options, *, with_step: bool = True
) -> Rows:
    """Read the rows of these tables from files, directories or globs, or from saved measurements.

    Reads and measures only their inputs. Raises `TracekitError` for a raw table of saved measurements.
    """
    raw = [name for name in names if name in RAW_NAMES]
    measured = tuple(name for name in names if name not in RAW_NAMES)
    rows = Rows({})
    if raw:
        rows = _raw_rows(raw, paths, options, with_step=with_step)
    if measured:
        asked = run.measured_all(paths, replace(options, questions=(), tables=measured))
        filled = {name: asked.arrays[name] for name in measured if name in asked.arrays}
        failures = rows.failures or asked.failures
        faults = tuple(f for f in asked.faults if not set(measured).isdisjoint(f.tables))
        rows = Rows({**rows.tables, **filled}, failures, faults)
    return rows


def _raw_rows(
    names: Sequence[str], paths: Sequence[str], options: Options, *, with_step: bool
) -> Rows:
    """Read the rows of raw tables."""
    _refuse_saved(names[0], paths)
    sources, runs, failures_before = _counted(paths, options)
    work = partial(
        read_tables,
        names=tuple(names),
        with_step=with_step,
        ranks=numbers_of(options.ranks),
        steps=numbers_of(options.steps),
        stages=options.stages,
    )
    parts: dict[str, list[Columns]] = {}
    failures: list[Failure] = []
    with progress_line(sys.stderr, "reading", enabled=options.progress) as on_progress:
        # Read one file in this process, which avoids copying its rows from a worker.
        where: local.Where | None = "here" if len(sources) == 1 else None
        for outcome in local.run(
            work, sources, jobs=options.jobs, on_progress=on_progress, where=where
        ):
            if outcome.failure is not None:
                failures.append(outcome.failure)
            for name, columns in outcome.value or ():
                in_run = _in_run(columns, runs.get(outcome.source.name))
                parts.setdefault(name, []).append(in_run)
    if failures and len(failures) == len(sources):
        raise run.unreadable(failures)
    by_name = {table.name: table for table in tables()}
    rows = {name: _concat(by_name[name], of_name) for name, of_name in parts.items()}
    return Rows(rows, (*failures_before, *failures))


def _refuse_saved(name: str, paths: Sequence[str]) -> None:
    """Raise `TracekitError` if a path is saved measurements, which contain no raw tables."""
    for path in paths:
        if saved_measurements.saved_form(split_label(path)[1]) == "measurements":
            raise TracekitError(
                f"{path}: saved measurements hold no raw table, and {name} is one",
                "ask the profiles; or a measured table (tracekit tables lists both)",
            )


def _counted(
    paths: Sequence[str], options: Options
) -> tuple[tuple[Source, ...], Mapping[str, str], tuple[Failure, ...]]:
    """Find (the sources that count, the run of each by source name, the failures).

    With several files this requires measuring all of them; the cache keeps the result.
    """
    sources = run.discover(list(paths), options).sources
    if len(sources) < 2:
        return sources, {}, ()
    options = replace(options, questions=(), tables=("captures",), progress=False)
    measured = run.measured_all(paths, options)
    runs = {source.name: source.run for source in measured.sources}
    return tuple(s for s in sources if s.name in runs), runs, measured.failures


def _concat(table: Table, parts: Sequence[Columns]) -> Columns:
    """Concatenate the parts of a table, which may lack the column `step`."""
    present = {n: c for n, c in table.columns.items() if n in parts[0].arrays}
    return concat(Table(table.name, table.row, present), parts)


def _in_run(columns: Columns, name: str | None) -> Columns:
    """Set the run name of all rows."""
    if name is None or not len(columns):
        return columns
    return Columns(len(columns), {**columns.arrays, "run": repeated_text(name, len(columns))})


def read_tables(
    source: Source,
    advance: Advance,
    *,
    names: tuple[str, ...],
    with_step: bool,
    ranks: frozenset[int] | None,
    steps: frozenset[int] | None,
    stages: tuple[str, ...],
) -> list[tuple[str, Columns]]:
    """Read these raw tables from one source: a (name, rows) pair per table and process that recorded it."""
    wanted = frozenset(names)
    if not {"threads", ARGS.name}.isdisjoint(names):
        wanted |= RAW_NAMES - ON_REQUEST
    if with_step:
        wanted |= _TELL_STEPS
    if steps is not None or stages:
        wanted |= slice_trace.READS
    want = Want(
        tables=wanted, args=None if ARGS.name in names else (), python="python_calls" in names
    )
    rows: list[tuple[str, Columns]] = []
    with light_text():
        source = with_content(source)
        parts = read_parts(source, advance, want, ranks=ranks, steps=steps, stages=stages)
        for number, (_, trace, following) in enumerate(parts):
            is_alone = number + following == 0
            for name in names:
                if trace is None or not (trace.has(name) or (name == ARGS.name and trace.sparse)):
                    continue
                process = _process(trace.source, None if is_alone else number)
                own = _own_columns(trace, name, with_step=with_step)
                rows.append((name, _keyed(trace.source, own, process)))
            del trace
    return rows


def _process(source: Source, number: int | None) -> str:
    """Name a process by run and file, plus its pid or number if the file has several."""
    file = f"{source.run}/{source.name}"
    if number is None:
        return file
    return f"{file}:{number if source.pid is None else source.pid}"


def _own_columns(trace: Trace, name: str, *, with_step: bool) -> dict[str, Array]:
    """Get the columns of one raw table, with the step of each row."""
    if name == ARGS.name:
        return arguments(trace.sparse)
    own: dict[str, Array] = {n: trace.array(name, n) for n in TABLES[name].columns}
    if with_step and "step" not in own:
        own = {"step": _step(trace, name, len(next(iter(own.values())))), **own}
    return own


def _keyed(source: Source, own: Mapping[str, Array], process: str) -> Columns:
    """Prepend the keys of the process to the columns of a raw table."""
    length = len(next(iter(own.values())))
    before: dict[str, Array] = {}
    for key, column in KEYS.items():
        value = getattr(source, "name" if key == "source" else key)
        repeated = repeated_text if column.dtype == "category" else repeated_number
        before[key] = repeated(value, length)
    before["process"] = repeated_text(process, length)
    return Columns(length, {**{n: a for n, a in before.items() if n not in own}, **own})


def _step(trace: Trace, name: str, length: int) -> Array:
    """Assign a step to each row: device work belongs to the step that launched it."""
    if "ts_ns" not in TABLES[name].columns or trace.source.tool not in ("torch", "nsys"):
        return repeated_number(trace.source.step, length)
    recorded: Windows = trace.derived(windows)
    if name != "device_ops":
        array = trace.array(name, "ts_ns")
        assert isinstance(array, np.ndarray), "what profilers record has its time"
        return recorded.step_rows.number_at(array)
    placed: Placement = trace.derived(placement)
    numbers = recorded.step_rows.number_at(placed.ts_ns)
    return Nullable(numbers.values, numbers.missing | ~placed.known)
