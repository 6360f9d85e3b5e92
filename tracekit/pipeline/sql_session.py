"""A session of SQL over all tables that can be asked for, within the memory and the cores that are free."""

from __future__ import annotations

from tracekit.model.capacity import available_memory_bytes, core_count
from tracekit.pipeline import table_reading
from tracekit.sql.session import Load, Session


def opened(
    load: Load,
    memory: str | None = None,
    jobs: int | None = None,
    limit_s: float | None = None,
    most_bytes: int | None = None,
) -> Session:
    """A session whose rows `load` gives; a statement takes half of the free memory where `memory` says nothing, and `limit_s` at most.

    `most_bytes` bounds that half.
    """
    free = available_memory_bytes()
    bounds = [
        size for size in (None if free is None else free // 2, most_bytes) if size is not None
    ]
    if memory is None and bounds:
        memory = f"{max(min(bounds) >> 20, 64)}MiB"
    threads = jobs or core_count()
    tables = table_reading.tables()
    return Session(tables, load, table_reading.RAW_NAMES, memory, threads, limit_s)
