"""Tables queryable by name, and their rows: raw tables read from every source, and measured tables as in `analyze`.

A raw table starts with the keys of its process, and has the step of each row; `args` has a row per recorded argument.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from tracekit.analyses import list_measured_tables
from tracekit.discover.arguments import split_label
from tracekit.engine import Advance, local
from tracekit.engine.progress import show_progress_line
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.sources import ON_REQUEST, Failure, Fault, Source
from tracekit.model.records import dataclass
from tracekit.model.tables import ARGS, KEYS, RAW, TABLES, Column, Table, concatenate_table_parts
from tracekit.model.tables.arrays import Array, Coded, Columns, Nullable, repeat_number, repeat_text
from tracekit.model.tables.columns import STEP
from tracekit.model.trace import SparseColumn, Trace, Want
from tracekit.pipeline import run
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.measure_source import add_content_digest, read_parts
from tracekit.pipeline.options import Options, parse_optional_numbers
from tracekit.process import slice_trace
from tracekit.process.device.placement import Placement, place_device_ops
from tracekit.process.steps.windows import StepsAndStages, find_steps_and_stages

PROCESS_COLUMN = Column("category", "Process in its file: rows of raw tables are of one process where this is equal.")
"""Joins raw tables: ids such as `correlation` are unique only within a process."""

ROW_NUMBER_COLUMN = Column("int32", "Number of the row among those that were read of its file.")
"""The column `id` of tables read by name; another read of the file may number the rows differently."""

RAW_NAMES = frozenset(table.name for table in (*RAW, ARGS))

_STEP_TABLES = frozenset({"host_ops", "device_ops", "device_ranges", "threads"})
"""The raw tables that determine the step of a row."""


@dataclass(frozen=True, slots=True)
class QueriedRows:
    """Rows of tables by name, without empty tables; also the failures to read or measure."""

    tables: Mapping[str, Columns]
    failures: tuple[Failure, ...] = ()
    faults: tuple[Fault, ...] = ()


@cache
def list_queryable_tables() -> tuple[Table, ...]:
    """List all queryable tables: the raw ones with their keys and steps, then the measured ones."""
    return (*(_add_process_keys(table) for table in (*RAW, ARGS)), *list_measured_tables())


def _add_process_keys(table: Table) -> Table:
    """Add the keys of the process and the step to a raw table, where it has no columns of these names."""
    keys = {**KEYS, "process": PROCESS_COLUMN, "step": STEP}
    before = {name: column for name, column in keys.items() if name not in table.columns}
    own = dict(table.columns)
    if table is ARGS:
        del before["step"]  # an argument has no step of its own, only its row
    elif "id" in own:
        own["id"] = ROW_NUMBER_COLUMN
    return Table(table.name, table.row, {**before, **own})


def query_rows(
    names: Collection[str], paths: Sequence[str], options: Options, *, with_step: bool = True
) -> QueriedRows:
    """Read the rows of these tables from files, directories or globs, or from saved measurements.

    Reads and measures only their inputs. Raises `TracekitError` for a raw table of saved measurements.
    """
    raw = [name for name in names if name in RAW_NAMES]
    measured = tuple(name for name in names if name not in RAW_NAMES)
    rows = QueriedRows({})
    if raw:
        rows = _read_raw_rows(raw, paths, options, with_step=with_step)
    if measured:
        asked = run.measure_all(paths, replace(options, questions=(), tables=measured))
        filled = {name: asked.arrays[name] for name in measured if name in asked.arrays}
        failures = rows.failures or asked.failures
        faults = tuple(f for f in asked.faults if not set(measured).isdisjoint(f.tables))
        rows = QueriedRows({**rows.tables, **filled}, failures, faults)
    return rows


def _read_raw_rows(names: Sequence[str], paths: Sequence[str], options: Options, *, with_step: bool) -> QueriedRows:
    """Read the rows of raw tables."""
    _refuse_saved_for_raw(names[0], paths)
    sources, runs, failures_before = _find_counted_sources(paths, options)
    work = partial(
        read_raw_tables,
        names=tuple(names),
        with_step=with_step,
        ranks=parse_optional_numbers(options.ranks),
        steps=parse_optional_numbers(options.steps),
        stages=options.stages,
    )
    parts: dict[str, list[Columns]] = {}
    failures: list[Failure] = []
    with show_progress_line(sys.stderr, "reading", enabled=options.progress) as on_progress:
        # Read one file in this process, which avoids copying its rows from a worker.
        where: local.Where | None = "here" if len(sources) == 1 else None
        for outcome in local.run_locally(work, sources, jobs=options.jobs, on_progress=on_progress, where=where):
            if outcome.failure is not None:
                failures.append(outcome.failure)
            for name, columns in outcome.value or ():
                in_run = _set_run_name(columns, runs.get(outcome.source.name))
                parts.setdefault(name, []).append(in_run)
    if failures and len(failures) == len(sources):
        raise run.make_unreadable_error(failures)
    by_name = {table.name: table for table in list_queryable_tables()}
    rows = {name: _concat_with_step(by_name[name], of_name) for name, of_name in parts.items()}
    return QueriedRows(rows, (*failures_before, *failures))


def _refuse_saved_for_raw(name: str, paths: Sequence[str]) -> None:
    """Raise `TracekitError` if a path is saved measurements, which contain no raw tables."""
    for path in paths:
        if saved_measurements.sniff_saved_form(split_label(path)[1]) == "measurements":
            raise TracekitError(
                f"{path}: saved measurements contain no raw tables such as {name}",
                "ask the profiles; or a measured table (tracekit tables lists both)",
            )


def _find_counted_sources(
    paths: Sequence[str], options: Options
) -> tuple[tuple[Source, ...], Mapping[str, str], tuple[Failure, ...]]:
    """Find (the sources that count, the run of each by source name, the failures).

    With several files this requires measuring all of them; the cache keeps the result.
    """
    sources = run.discover_sources(list(paths), options).sources
    if len(sources) < 2:
        return sources, {}, ()
    options = replace(options, questions=(), tables=("captures",), progress=False)
    measured = run.measure_all(paths, options)
    runs = {source.name: source.run for source in measured.sources}
    return tuple(s for s in sources if s.name in runs), runs, measured.failures


def _concat_with_step(table: Table, parts: Sequence[Columns]) -> Columns:
    """Concatenate the parts of a table, which may lack the column `step`."""
    present = {n: c for n, c in table.columns.items() if n in parts[0].arrays}
    return concatenate_table_parts(Table(table.name, table.row, present), parts)


def _set_run_name(columns: Columns, name: str | None) -> Columns:
    """Set the run name of all rows."""
    if name is None or not len(columns):
        return columns
    return Columns(len(columns), {**columns.arrays, "run": repeat_text(name, len(columns))})


def read_raw_tables(
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
        wanted |= _STEP_TABLES
    if steps is not None or stages:
        wanted |= slice_trace.READS
    want = Want(tables=wanted, args=None if ARGS.name in names else (), python="python_calls" in names)
    rows: list[tuple[str, Columns]] = []
    source = add_content_digest(source)
    parts = read_parts(source, advance, want, ranks=ranks, steps=steps, stages=stages)
    for number, (_, trace, following) in enumerate(parts):
        is_alone = number + following == 0
        for name in names:
            if trace is None or not (trace.has(name) or (name == ARGS.name and trace.sparse)):
                continue
            process = _name_raw_process(trace.source, None if is_alone else number)
            own = _get_raw_columns(trace, name, with_step=with_step)
            rows.append((name, _prepend_process_keys(trace.source, own, process)))
        del trace
    return rows


def _name_raw_process(source: Source, number: int | None) -> str:
    """Name a process by run and file, plus its pid or number if the file has several."""
    file = f"{source.run}/{source.name}"
    if number is None:
        return file
    return f"{file}:{number if source.pid is None else source.pid}"


def _get_raw_columns(trace: Trace, name: str, *, with_step: bool) -> dict[str, Array]:
    """Get the columns of one raw table, with the step of each row."""
    if name == ARGS.name:
        return list_recorded_args(trace.sparse)
    own: dict[str, Array] = {n: trace.array(name, n) for n in TABLES[name].columns}
    if with_step and "step" not in own:
        own = {"step": _assign_row_steps(trace, name, len(next(iter(own.values())))), **own}
    return own


def _prepend_process_keys(source: Source, columns: Mapping[str, Array], process: str) -> Columns:
    """Prepend the keys of the process to the columns of a raw table."""
    length = len(next(iter(columns.values())))
    before: dict[str, Array] = {}
    for key, column in KEYS.items():
        value = getattr(source, "name" if key == "source" else key)
        repeated = repeat_text if column.dtype == "category" else repeat_number
        before[key] = repeated(value, length)
    before["process"] = repeat_text(process, length)
    return Columns(length, {**{n: a for n, a in before.items() if n not in columns}, **columns})


def _assign_row_steps(trace: Trace, name: str, length: int) -> Array:
    """Assign a step to each row: device work belongs to the step that launched it."""
    if "ts_ns" not in TABLES[name].columns or trace.source.tool not in ("torch", "nsys"):
        return repeat_number(trace.source.step, length)
    recorded: StepsAndStages = trace.derived(find_steps_and_stages)
    if name != "device_ops":
        array = trace.array(name, "ts_ns")
        assert isinstance(array, np.ndarray), "what profilers record has its time"
        return recorded.step_rows.number_at(array)
    placed: Placement = trace.derived(place_device_ops)
    numbers = recorded.step_rows.number_at(placed.ts_ns)
    return Nullable(numbers.values, numbers.missing | ~placed.is_placed)


def list_recorded_args(by_key: Mapping[str, SparseColumn]) -> dict[str, Array]:
    """List the columns of `args`: one row per value of each key. Needs at least one key."""
    keys = sorted(by_key)
    columns = [by_key[key] for key in keys]
    counts = [len(column.rows) for column in columns]
    numbers = np.zeros(sum(counts), np.float64)
    is_text = np.ones(sum(counts), np.bool_)
    codes = np.zeros(sum(counts), np.int64)
    texts: list[str] = []
    end = 0
    for column, count in zip(columns, counts, strict=True):
        start, end = end, end + count
        if column.categories is None:
            distinct, code = np.unique(column.values, return_inverse=True)
            numbers[start:end] = column.values
            is_text[start:end] = False
            of_column = [str(value) for value in distinct.tolist()]
        else:
            code, of_column = column.values, [_format_arg_value(value) for value in column.categories]
        codes[start:end] = code + len(texts)
        texts += of_column
    code_of = {text: code for code, text in enumerate(dict.fromkeys([*texts, ""]))}
    place = np.array([code_of[text] for text in texts], np.int32)
    return {
        "id": np.concatenate([column.rows for column in columns]).astype(np.int32),
        "key": Coded(np.repeat(np.arange(len(keys), dtype=np.int32), counts), tuple(keys)),
        "value": Coded(place[codes], tuple(code_of)),
        "number": Nullable(numbers, is_text),
    }


def _format_arg_value(value: object) -> str:
    """Format a value as JSON; texts stay as they are.

    >>> _format_arg_value(True), _format_arg_value(None), _format_arg_value("a")
    ('true', 'null', 'a')
    """
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)
