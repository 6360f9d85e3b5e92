"""A progress line on a terminal; silent if the stream is not a terminal.

The line is redrawn in place with a carriage return. It needs no thread and no cursor control, leaves nothing to clean
up after a crash, and other output in between stays readable.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from tracekit.engine import OnProgress, Progress, ignore_progress
from tracekit.model.units import format_quantity

_REDRAW_EVERY_S = 0.1
_ESTIMATE_AFTER_S = 2.0
"""Run time after which the rate is reliable enough to estimate the time left."""


def _get_terminal_width() -> int:
    """Get the number of columns of the terminal."""
    return shutil.get_terminal_size().columns


@contextlib.contextmanager
def show_progress_line(
    stream: TextIO,
    doing: str = "reading",
    *,
    share: float = 1.0,
    enabled: bool = True,
    clock: Callable[[], float] = time.monotonic,
    width: Callable[[], int] = _get_terminal_width,
) -> Iterator[OnProgress]:
    """Yield an `on_progress` callback that updates one line of `stream`; erase the line at the end.

    `share` is the fraction of the whole run that reading the files makes up. Does nothing if `stream` is not a terminal,
    if TERM is "dumb", or with `enabled=False`.
    """
    if not (enabled and is_live_terminal(stream)):
        yield ignore_progress
        return
    started = clock()
    line = _TerminalLine(stream, clock, width)
    try:
        yield lambda progress: line.show(lambda now: format_progress(progress, now - started, doing, share))
    finally:
        line.erase()


@contextlib.contextmanager
def show_count_line(
    stream: TextIO,
    doing: str,
    total: int,
    *,
    enabled: bool = True,
    clock: Callable[[], float] = time.monotonic,
    width: Callable[[], int] = _get_terminal_width,
) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each of `total` work items; it updates a line like that of `show_progress_line`.

    `doing` contains a placeholder for the count: `judging {} questions`.
    """
    if not (enabled and is_live_terminal(stream)):
        yield lambda: None
        return
    line = _TerminalLine(stream, clock, width)
    done = itertools.count()

    def count() -> None:
        number = next(done)
        line.show(lambda _: doing.format(f"{number:,} of {total:,}"))

    count()
    try:
        yield count
    finally:
        line.erase()


class _TerminalLine:
    """One line of a terminal, redrawn in place a few times per second at most."""

    def __init__(self, stream: TextIO, clock: Callable[[], float], width: Callable[[], int]) -> None:
        self._stream, self._clock, self._width = stream, clock, width
        self._drawn_at = clock() - _REDRAW_EVERY_S
        self._drawn = 0

    def show(self, text: Callable[[float], str]) -> None:
        """Draw `text(now)`, unless the line was drawn less than 0.1 s ago."""
        now = self._clock()
        if now - self._drawn_at >= _REDRAW_EVERY_S:
            self._draw(text(now))
            self._drawn_at = now

    def erase(self) -> None:
        """Erase the line."""
        if self._drawn:
            self._draw("")

    def _draw(self, line: str) -> None:
        # A line of the full width would wrap, and the carriage return would not get back to its start.
        line = line[: max(0, self._width() - 1)]
        with contextlib.suppress(OSError, ValueError):  # a closed terminal must not end the run
            self._stream.write("\r" + line.ljust(self._drawn) + ("\r" if not line else ""))
            self._stream.flush()
        self._drawn = len(line)


def is_live_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that can redraw a line."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def format_progress(progress: Progress, elapsed_s: float, doing: str = "reading", share: float = 1.0) -> str:
    """Format the progress in one line, most important first: files, bytes, share, rate, time left.

    `share` is the fraction of the whole run that the files make up; the percentage and the time left refer to the whole.

    >>> format_progress(Progress(file_count=24, byte_count=3 << 30, files_done=12, bytes_done=1 << 30), 4.0)
    'reading  12 of 24 files  1.00 of 3.00 GiB  33 %  256 MiB/s  8 s left'
    """
    parts = [f"{doing}  {progress.files_done:,} of {progress.file_count:,} files"]
    if progress.failure_count:
        parts[0] += f" ({progress.failure_count:,} failed)"
    if progress.byte_count:
        done, total = (format_quantity(progress.bytes_done, "bytes"), format_quantity(progress.byte_count, "bytes"))
        if done.partition(" ")[2] == total.partition(" ")[2]:
            done = done.partition(" ")[0]
        parts.append(f"{done} of {total}")
        parts.append(format_quantity(share * progress.bytes_done / progress.byte_count, "ratio"))
    if progress.bytes_done and elapsed_s >= _ESTIMATE_AFTER_S:
        rate = progress.bytes_done / elapsed_s
        parts.append(f"{format_quantity(rate, 'bytes')}/s")
        left_s = (progress.byte_count / share - progress.bytes_done) / rate
        if left_s >= 1:
            parts.append(f"{_format_rough_duration(left_s)} left")
    return "  ".join(parts)


def _format_rough_duration(seconds: float) -> str:
    """Format a rough duration: `8 s`, `3 min`, `2 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
