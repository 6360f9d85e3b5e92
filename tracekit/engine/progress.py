"""A line on a terminal that says how far a run is; nothing where nobody watches.

It is redrawn in place with a carriage return: no thread, no cursor tricks, nothing to clean up after a
crash, and what others print in between stays readable.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from tracekit.engine import OnProgress, Progress
from tracekit.model.units import show

_REDRAW_EVERY_S = 0.1
_ESTIMATE_AFTER_S = 2.0
"""How long to work before the rate says anything about the time left."""


@contextlib.contextmanager
def progress_line(
    stream: TextIO,
    doing: str = "reading",
    *,
    share: float = 1.0,
    enabled: bool = True,
    clock: Callable[[], float] = time.monotonic,
    width: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
) -> Iterator[OnProgress]:
    """A function for `on_progress` that keeps one line of `stream` up to date, and erases it at the end.

    The files are this `share` of all that is to be done. It does nothing when `stream` is not a terminal, or a dumb one, or with `enabled=False`.
    """
    if not (enabled and is_live(stream)):
        yield lambda _: None
        return
    started = clock()
    line = _Line(stream, clock, width)
    try:
        yield lambda progress: line.show(
            lambda now: describe(progress, now - started, doing, share)
        )
    finally:
        line.erase()


@contextlib.contextmanager
def count_line(
    stream: TextIO,
    doing: str,
    total: int,
    *,
    enabled: bool = True,
    clock: Callable[[], float] = time.monotonic,
    width: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
) -> Iterator[Callable[[], None]]:
    """A function to call after each of `total` pieces of work; a line like that of `progress_line` counts them.

    `doing` holds a place for the count: `judging {} questions`.
    """
    if not (enabled and is_live(stream)):
        yield lambda: None
        return
    line = _Line(stream, clock, width)
    done = itertools.count()

    def count() -> None:
        number = next(done)
        line.show(lambda _: doing.format(f"{number:,} of {total:,}"))

    count()
    try:
        yield count
    finally:
        line.erase()


class _Line:
    """One line of a terminal, drawn anew in place a few times a second at most."""

    def __init__(
        self, stream: TextIO, clock: Callable[[], float], width: Callable[[], int]
    ) -> None:
        self._stream, self._clock, self._width = stream, clock, width
        self._drawn_at = clock() - _REDRAW_EVERY_S
        self._drawn = 0

    def show(self, text: Callable[[float], str]) -> None:
        """Draw what `text` makes of the time now, unless something was drawn just before."""
        now = self._clock()
        if now - self._drawn_at >= _REDRAW_EVERY_S:
            self._draw(text(now))
            self._drawn_at = now

    def erase(self) -> None:
        """Leave nothing of the line."""
        if self._drawn:
            self._draw("")

    def _draw(self, line: str) -> None:
        # A line as wide as the terminal would wrap, and the carriage return would not reach its start.
        line = line[: max(0, self._width() - 1)]
        with contextlib.suppress(OSError, ValueError):  # a closed terminal must not end the run
            self._stream.write("\r" + line.ljust(self._drawn) + ("\r" if not line else ""))
            self._stream.flush()
        self._drawn = len(line)


def is_live(stream: TextIO) -> bool:
    """Whether `stream` is a terminal on which a line can be redrawn."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def describe(
    progress: Progress, elapsed_s: float, doing: str = "reading", share: float = 1.0
) -> str:
    """The progress in one line: files, bytes, share, rate, time left; most telling first.

    The files are this `share` of the whole run, of which the per cent and the time left are.

    >>> describe(Progress(file_count=24, byte_count=3 << 30, files_done=12, bytes_done=1 << 30), 4.0)
    'reading  12 of 24 files  1.00 of 3.00 GiB  33 %  256 MiB/s  8 s left'
    """
    parts = [f"{doing}  {progress.files_done:,} of {progress.file_count:,} files"]
    if progress.failure_count:
        parts[0] += f" ({progress.failure_count:,} failed)"
    if progress.byte_count:
        done, total = show(progress.bytes_done, "bytes"), show(progress.byte_count, "bytes")
        if done.partition(" ")[2] == total.partition(" ")[2]:
            done = done.partition(" ")[0]
        parts.append(f"{done} of {total}")
        parts.append(show(share * progress.bytes_done / progress.byte_count, "ratio"))
    if progress.bytes_done and elapsed_s >= _ESTIMATE_AFTER_S:
        rate = progress.bytes_done / elapsed_s
        parts.append(f"{show(rate, 'bytes')}/s")
        left_s = (progress.byte_count / share - progress.bytes_done) / rate
        if left_s >= 1:
            parts.append(f"{_duration(left_s)} left")
    return "  ".join(parts)


def _duration(seconds: float) -> str:
    """A rough time: `8 s`, `3 min`, `2 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
