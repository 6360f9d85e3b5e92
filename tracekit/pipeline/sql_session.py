"""SQL session over all queryable tables, within the free memory and cores."""

from __future__ import annotations

from tracekit.model.system.capacity import count_cores, read_available_memory
from tracekit.pipeline import table_reading
from tracekit.sql.session import Load, SqlSession


def open_sql_session(
    load: Load,
    memory: str | None = None,
    jobs: int | None = None,
    limit_s: float | None = None,
    most_bytes: int | None = None,
) -> SqlSession:
    """Open a session whose rows `load` provides; `limit_s` limits the time of a statement.

    A statement may use `memory`, by default half of the free memory and at most `most_bytes`.
    """
    free = read_available_memory()
    bounds = [size for size in (None if free is None else free // 2, most_bytes) if size is not None]
    if memory is None and bounds:
        memory = f"{max(min(bounds) >> 20, 64)}MiB"
    threads = jobs or count_cores()
    tables = table_reading.list_queryable_tables()
    return SqlSession(tables, load, table_reading.RAW_NAMES, memory, threads, limit_s)
