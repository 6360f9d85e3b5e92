"""MLflow's SQLite store: the metrics of its latest run, with times."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from tracekit.model.errors import make_format_error
from tracekit.model.inputs.note_codes import Data, Reason
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
    is_table = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'metrics'").fetchone()
    if not is_table:
        return False
    return _METRICS.issubset(str(row[1]) for row in connection.execute("PRAGMA table_info(metrics)"))


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
            run, others = _find_latest_run(connection)
            _add_metrics(_query_metric_rows(connection, run), log)
    except (sqlite3.Error, ValueError, OverflowError) as error:
        reason = Reason("damaged-database", f"damaged SQLite database: {type(error).__name__}", Data())
        raise make_format_error(path, reason) from error
    (trace,) = make_log_trace(log, [], source, want)
    if others:
        message = "other runs in the same store were left out: the latest was read"
        trace = replace(trace, notes=(*trace.notes, Note("info", "log-other-runs", message, source.name, others)))
    return [trace]


def _make_call_limit() -> Callable[[], int]:
    """Make a progress handler that stops a query after a number of calls."""
    calls = iter(range(_MAX_CALLS))
    return lambda: next(calls, None) is None


def _find_latest_run(connection: sqlite3.Connection) -> tuple[object, int]:
    """Find the run with the latest metric: (its id, the number of other runs)."""
    runs = connection.execute(
        "SELECT run_uuid FROM metrics GROUP BY run_uuid ORDER BY max(timestamp) DESC, run_uuid LIMIT 10000"
    ).fetchall()
    return (runs[0][0], len(runs) - 1) if runs else (None, 0)


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
