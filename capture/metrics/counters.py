"""Durations of named pieces of code, over threads and repetitions."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger("capture")


@dataclass(slots=True)
class _Total:
    seconds: float = 0.0
    count: int = 0


class PerformanceCounter:
    """Adds up the time between `start` and `end` of each name; `measure` does both around a block.

    A name may be started again before it ends, and in several threads at once: each end belongs to
    the latest start in its thread. Time within a piece of the same name counts for both.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._totals: dict[str, _Total] = {}
        self._thread = threading.local()

    def start(self, name: str) -> None:
        """Begin a piece."""
        self._started(name).append(time.perf_counter())

    def end(self, name: str) -> None:
        """End the piece that started last; one that never started in this thread is logged and not counted."""
        stop, started = time.perf_counter(), self._started(name)
        if not started:
            log.warning("counter %s: ended without a start in this thread: not counted", name)
            return
        begun = started.pop()
        with self._lock:
            total = self._totals.setdefault(name, _Total())
            total.seconds += stop - begun
            total.count += 1

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Measure the body as a piece, even if it raises."""
        self.start(name)
        try:
            yield
        finally:
            self.end(name)

    def get_counter_stats(self, name: str) -> dict[str, float | int | None]:
        """`total_time` and `avg_time` in seconds, and `count`; `avg_time` is None where nothing ended yet."""
        with self._lock:
            total = self._totals.get(name) or _Total()
            mean = total.seconds / total.count if total.count else None
            return {"total_time": total.seconds, "count": total.count, "avg_time": mean}

    def get_all_stats(self) -> dict[str, dict[str, float | int | None]]:
        """Get the statistics of every name."""
        with self._lock:
            return {name: self.get_counter_stats(name) for name in self._totals}

    def reset(self) -> dict[str, float]:
        """Get the seconds of every name and reset them to zero, for a log by step."""
        with self._lock:
            totals, self._totals = self._totals, {}
        return {name: total.seconds for name, total in totals.items()}

    def _started(self, name: str) -> list[float]:
        """Start times of the open pieces of a name in this thread."""
        if not hasattr(self._thread, "started"):
            self._thread.started = defaultdict(list)
        starts: list[float] = self._thread.started[name]
        return starts
