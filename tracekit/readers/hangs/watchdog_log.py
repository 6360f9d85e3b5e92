"""Logs of ranks in which torch's watchdog of collectives reports a timeout, without training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tracekit.model.tables.arrays import Frames
from tracekit.model.trace import Note, NoteSeverity, Source, Trace, Want
from tracekit.readers import unpack
from tracekit.readers.hangs.file_text import add_named_process
from tracekit.readers.hangs.watchdog_lines import (
    MAX_LINES,
    WATCHDOG_MARKS,
    WatchdogLines,
    add_watchdog_line,
    has_watchdog_line,
)
from tracekit.readers.lines import note_log_losses, read_log
from tracekit.readers.loss import DataLoss

MAX_SEARCHED_BYTES = 64 * 2**20
"""Bytes of a log that are searched for the first line of the watchdog."""

_MARKS = tuple(mark.encode() for mark in WATCHDOG_MARKS)
_OVERLAP = max(map(len, _MARKS))


def sniff(head: bytes) -> bool:
    """Check whether the watchdog printed into a text.

    >>> sniff(b"[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41)")
    True
    """
    if not head or b"\0" in head or head.lstrip()[:1] in (b"{", b"<"):
        return False
    return has_watchdog_line(head.decode("utf-8", "replace"))


def has_watchdog_below(path: Path) -> bool:
    """Check whether the watchdog printed into the first `MAX_SEARCHED_BYTES` of a text file. Raises `OSError`."""
    read_bytes, before = 0, b""
    for block in unpack.unpack_blocks(path, [], careful=True):
        read_bytes += len(block)
        if b"\0" in block or read_bytes > MAX_SEARCHED_BYTES:
            return False
        text = before + block
        if any(mark in text for mark in _MARKS):
            return True
        before = text[-_OVERLAP:]
    return False


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the log as one Trace with the table `watchdog_lines`. Raises only `TraceFormatError`."""
    log, losses = read_log(Path(source.path), _RankLog, _add_rank_lines, on_bytes)
    tables = log.watchdog.make_tables() if want.table("watchdog_lines") else {}
    meta = {"element_count": len(log.watchdog.rows), "absolute_time": False}
    source = add_named_process(source)
    return [Trace(source, Frames(tables), tuple(_note_skipped_rank_lines(log, losses, source.name)), meta)]


class _RankLog:
    """Lines of the watchdog in one log, and the number of lines over the size limit."""

    def __init__(self) -> None:
        self.watchdog = WatchdogLines()
        self.too_long = 0


def _add_rank_lines(rows: Iterator[tuple[int, str | None]], log: _RankLog) -> None:
    """Add the watchdog's lines to the log."""
    for number, line in rows:
        if line is None:
            log.too_long += 1
        else:
            add_watchdog_line(line, number, log.watchdog)


def _note_skipped_rank_lines(log: _RankLog, losses: list[DataLoss], source: str) -> Iterator[Note]:
    """Yield notes on skipped lines."""
    counts: tuple[tuple[NoteSeverity, str, str, int], ...] = (
        ("warning", "log-long-line", "lines of over 1 MiB were passed over", log.too_long),
        (
            "warning",
            "log-cut",
            f"lines of the watchdog beyond the first {MAX_LINES:,} were left out",
            log.watchdog.over,
        ),
        ("info", "log-empty", "a log without any line of the watchdog", int(not log.watchdog.rows)),
    )
    return note_log_losses(losses, counts, source)
