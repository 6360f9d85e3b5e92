"""SQLite exports of Nsight Systems: one Trace a process, in the tables that every reader fills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.readers.nsys.files import has_journal
from tracekit.readers.nsys.opening import MAGIC

if TYPE_CHECKING:
    from tracekit.model.trace import Source, Trace, Want


def sniff(head: bytes) -> bool:
    """Whether a file begins like an SQLite database, or like one of which the first page was never written."""
    return head.startswith(MAGIC) or (len(head) >= 512 and not head[:512].strip(b"\0"))


def beside(path: Path) -> tuple[str, ...] | None:
    """Nothing is read beside the file, but a journal of changes that SQLite has not written to it yet."""
    return None if has_journal(path) else ()


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """The Traces of the file, one a process, with the tables of `want`. Raises `TraceFormatError`, nothing else.

    `on_bytes` is called with the bytes read so far. Processes are told apart by the tables that are read.
    """
    return [trace for trace, _ in each(source, want, on_bytes)]


def each(
    source: Source, want: Want, on_bytes: Callable[[int], None] | None = None
) -> Iterator[tuple[Trace, int]]:
    """The same, each when it is asked for, and how many follow it: beside what was read there is one at a time."""
    # Most who ask what a file is do not read it.
    from tracekit.readers.nsys import traces

    return traces.each(source, want, on_bytes)
