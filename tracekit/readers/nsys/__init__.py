"""Reader of Nsight Systems SQLite exports: one Trace per process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.readers.nsys.files import has_journal
from tracekit.readers.nsys.sqlite.opening import MAGIC

if TYPE_CHECKING:
    from tracekit.model.trace import Source, Trace, Want


def sniff(head: bytes) -> bool:
    """Check whether a file begins like an SQLite database, or like one whose first page was never written."""
    return head.startswith(MAGIC) or (len(head) >= 512 and not head[:512].strip(b"\0"))


def describe_dependencies(path: Path) -> tuple[str, ...] | None:
    """Report that nothing else is read with the file; None if an SQLite journal next to it may hold changes."""
    return None if has_journal(path) else ()


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the Traces of the file, one per process, with the tables of `want`. Raises only `TraceFormatError`.

    `on_bytes` is called with the bytes read so far. Processes are identified from the tables that are read.
    """
    return [trace for trace, _ in each(source, want, on_bytes)]


def each(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> Iterator[tuple[Trace, int]]:
    """Yield each Trace with the number of Traces that follow. Only one Trace is in memory at a time."""
    # Imported here because most callers only sniff the file.
    from tracekit.readers.nsys import traces

    return traces.yield_process_traces(source, want, on_bytes)
