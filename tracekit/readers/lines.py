"""Lines of a text file of any size, compressed or not; overlong lines are skipped, not an error."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tracekit.model.errors import make_os_read_error
from tracekit.model.trace import Note, NoteSeverity
from tracekit.readers import unpack
from tracekit.readers.loss import DataLoss

Log = TypeVar("Log")

MAX_LINE_BYTES = 2**20
"""Longest line read, in bytes: the metrics of a step need less."""


def read_bounded_lines(
    path: Path, losses: list[DataLoss], *, careful: bool, on_bytes: Callable[[int], None] | None = None
) -> Iterator[tuple[int, str | None]]:
    """Yield (line number from 1, text); the text is None for a line over the size limit.

    Only a line feed ends a line. A byte-order mark before the first line is not part of it.
    """
    number, tail, skipping = 0, b"", False
    for block in unpack.unpack_blocks(path, losses, careful=careful, on_bytes=on_bytes):
        *complete, tail = (tail + block).split(b"\n")
        for line in complete:
            number += 1
            long = skipping or len(line) > MAX_LINE_BYTES
            yield number, None if long else _decode_line(line, number)
            skipping = False
        if len(tail) > MAX_LINE_BYTES:
            tail, skipping = b"", True
    if skipping:
        yield number + 1, None
    elif tail:
        yield number + 1, _decode_line(tail, number + 1)


def read_log(
    path: Path,
    make_log: Callable[[], Log],
    add_lines: Callable[[Iterator[tuple[int, str | None]], Log], None],
    on_bytes: Callable[[int], None] | None,
) -> tuple[Log, list[DataLoss]]:
    """Read the lines of a file into a log: (the log, faults of the file's compression).

    Raises only `TraceFormatError`.
    """
    for careful in (False, True):
        log, losses = make_log(), list[DataLoss]()
        try:
            add_lines(read_bounded_lines(path, losses, careful=careful, on_bytes=on_bytes), log)
            break
        except unpack.Unproven:
            continue
        except OSError as error:
            raise make_os_read_error(path, error) from error
    return log, losses


def _decode_line(line: bytes, number: int) -> str:
    """Decode one line; bytes that are not UTF-8 become U+FFFD."""
    if number == 1:
        line = line.removeprefix(BOM_UTF8)
    return line.decode("utf-8", "replace")


def note_log_losses(
    losses: Sequence[DataLoss], counts: Sequence[tuple[NoteSeverity, str, str, int]], source: str
) -> Iterator[Note]:
    """Yield notes on damage to a log, then one per (severity, code, text, count) with a count above 0."""
    for loss in losses:
        message = unpack.LOSSES[loss.kind]
        yield Note("data_loss", loss.kind, message, source, loss.count, loss.offset)
    for severity, code, message, count in counts:
        if count:
            yield Note(severity, code, message, source, count)
