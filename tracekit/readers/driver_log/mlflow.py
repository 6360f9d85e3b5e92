"""MLflow's SQLite store: the metrics of its latest run, with times.

A resumed trainer begins a new run of the same name in the same experiment, or a child of the same parent. The starts of one
run are read as its parts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from tracekit.model.errors import make_format_error
from tracekit.model.inputs.note_codes import Data, Reason
from tracekit.model.records import dataclass
from tracekit.model.trace import Note, Source, Trace, Want
from tracekit.readers.driver_log import make_log_trace
from tracekit.readers.driver_log.values import MAX_NAME, MAX_STEP, MAX_VALUES, LoggedValues
from tracekit.readers.nsys import describe_dependencies
from tracekit.readers.nsys.files import open_bounded_database

__all__ = ["describe_dependencies", "has_metrics", "read", "sniff"]

_METRICS = frozenset({"key", "value", "timestamp", "run_uuid", "step"})
_MAX_CALLS = 200_000
"""Calls of SQLite's progress handler, every 10,000 instructions, before a query is stopped."""


def sniff(head: bytes) -> bool:
    """Report that the first bytes do not identify the format: `has_metrics` identifies it by its tables."""
    del head
    return False


def has_metrics(path: Path) -> bool:
    """Check whether a database has MLflow's table of metrics."""
    try:
        with open_bounded_database(path) as connection:
            return _has_metric_columns(connection)
    except (sqlite3.Error, ValueError, OSError):
        return False


def _has_metric_columns(connection: sqlite3.Connection) -> bool:
    """Check whether the table `metrics` exists with MLflow's columns."""
    return _has_columns(connection, "metrics", _METRICS)


def _has_columns(connection: sqlite3.Connection, table: str, columns: Collection[str]) -> bool:
    """Check whether a table exists with these columns; views do not count."""
    named = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    if not named:
        return False
    return {*columns} <= {str(row[1]) for row in connection.execute("SELECT * FROM pragma_table_info(?)", (table,))}


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the latest run as one Trace with the table `log_values`, in which `line` is the number of the row.

    Raises only `TraceFormatError`.
    """
    del on_bytes
    path, log = Path(source.path), LoggedValues()
    try:
        with open_bounded_database(path) as connection:
            connection.set_progress_handler(_make_call_limit(), 10_000)
            if not _has_metric_columns(connection):
                raise make_format_error(path, Reason("no-format", "not a store of MLflow"))
            runs = _list_runs(connection)
            starts = _find_starts(runs)
            for start in starts:
                log.begin_part()
                _add_metrics(_query_metric_rows(connection, start.run), log)
    except (sqlite3.Error, ValueError, OverflowError) as error:
        reason = Reason("damaged-database", f"damaged SQLite database: {type(error).__name__}", Data())
        raise make_format_error(path, reason) from error
    (trace,) = make_log_trace(log, [], source, want)
    if len(starts) > 1:
        message = (
            f"{len(starts):,} runs of the store are starts of one run: joined as parts, the last of each step counts"
        )
        trace = replace(trace, notes=(*trace.notes, Note("info", "log-joined", message, source.name, len(starts))))
    others = len(runs) - len(starts)
    if others:
        message = "other runs in the same store were left out: the latest was read"
        trace = replace(trace, notes=(*trace.notes, Note("info", "log-other-runs", message, source.name, others)))
    return [trace]


def _make_call_limit() -> Callable[[], int]:
    """Make a progress handler that stops a query after a number of calls."""
    calls = iter(range(_MAX_CALLS))
    return lambda: next(calls, None) is None


@dataclass(frozen=True, slots=True)
class _StoredRun:
    """One run of a store: its first and last step and time, and the names that its restarts share."""

    run: object
    first_step: int
    last_step: int
    first_ms: int
    last_ms: int
    family: frozenset[tuple[object, ...]]

    def continues(self, before: _StoredRun) -> bool:
        """Check whether this run is the next start of one before it: named alike, later, and with mostly later steps."""
        if (
            self.family.isdisjoint(before.family)
            or self.first_ms < before.last_ms
            or self.first_step <= before.first_step
        ):
            return False
        repeated = max(before.last_step - self.first_step + 1, 0)
        fewest = min(before.last_step - before.first_step, self.last_step - self.first_step) + 1
        return repeated <= MOST_REPEATED * fewest


MOST_REPEATED = 0.5
"""Largest share of the steps of a run that its restart repeats."""


def _list_runs(connection: sqlite3.Connection) -> list[_StoredRun]:
    """List the runs with metrics, the one with the latest metric first."""
    rows = connection.execute(
        "SELECT run_uuid, min(step), max(step), min(timestamp), max(timestamp) FROM metrics "
        "WHERE typeof(step) = 'integer' AND typeof(timestamp) = 'integer' AND typeof(value) IN ('integer', 'real') "
        "GROUP BY run_uuid ORDER BY max(timestamp) DESC, run_uuid LIMIT 10000"
    ).fetchall()
    families = _map_families(connection)
    return [
        _StoredRun(run, first, last, first_ms, last_ms, families.get(run, frozenset()))
        for run, first, last, first_ms, last_ms in rows
    ]


def _find_starts(runs: Sequence[_StoredRun]) -> list[_StoredRun]:
    """Find the starts of the latest run, from the first to the last."""
    starts = list(runs[:1])
    for run in runs[1:]:
        if starts[0].continues(run):
            starts.insert(0, run)
    return starts


def _map_families(connection: sqlite3.Connection) -> dict[object, frozenset[tuple[object, ...]]]:
    """Map each run to its name and its parent, each within its experiment; a store of metrics alone names none."""
    names: list[tuple[Any, ...]] = []
    if _has_columns(connection, "runs", {"run_uuid", "name", "experiment_id"}):
        names += connection.execute(
            "SELECT run_uuid, 'name', experiment_id, name FROM runs WHERE name <> '' LIMIT 10000"
        )
        names += connection.execute("SELECT run_uuid, 'parent', experiment_id, run_uuid FROM runs LIMIT 10000")
        if _has_columns(connection, "tags", {"run_uuid", "key", "value"}):
            names += connection.execute(
                "SELECT run_uuid, 'parent', experiment_id, value FROM tags JOIN runs USING (run_uuid) "
                "WHERE key = 'mlflow.parentRunId' LIMIT 10000"
            )
    families: dict[object, set[tuple[object, ...]]] = {}
    for run, *family in names:
        families.setdefault(run, set()).add(tuple(family))
    return {run: frozenset(family) for run, family in families.items()}


def _query_metric_rows(connection: sqlite3.Connection, run: object) -> Iterable[tuple[Any, ...]]:
    """Select (step, timestamp, key, value) of a run in the order in which they were logged."""
    return connection.execute(
        "SELECT step, timestamp, substr(key, 1, ?), value FROM metrics WHERE run_uuid IS ? ORDER BY timestamp, rowid LIMIT ?",
        (MAX_NAME, run, MAX_VALUES + 1),
    )


def _add_metrics(rows: Iterable[tuple[Any, ...]], log: LoggedValues) -> None:
    """Add the metrics of one run. Rows of one step that follow each other are one record."""
    number = 0
    for step, of_step in groupby(_select_typed_rows(rows), key=lambda row: row[0]):
        values: dict[str, object] = {}
        ts_ns: int | None = None
        for _, time_ms, key, value in of_step:
            number += 1
            if key in values:
                log.add_record(number, step, values, ts_ns)
                values, ts_ns = {}, None
            values[key] = value
            ts_ns = ts_ns or time_ms * 1_000_000
        log.add_record(number, step, values, ts_ns)


def _select_typed_rows(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, int, str, float]]:
    """Yield the rows whose values have the declared types; SQLite stores any."""
    for step, time_ms, key, value in rows:
        is_typed = isinstance(step, int) and isinstance(time_ms, int) and isinstance(key, str)
        if is_typed and isinstance(value, int | float) and 0 <= step < MAX_STEP and 0 < time_ms < 10**13:
            yield step, time_ms, key, value
