"""Segments of time on host threads, and one axis for the times of all threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.keys import find_distinct

Ints = npt.NDArray[np.int64]


class ThreadSegments(NamedTuple):
    """Segments of time in order, without overlap, each on a thread (-1: none); `origin` is their source."""

    start: Ints
    end: Ints
    thread: Ints
    origin: Ints


@dataclass(frozen=True, slots=True)
class ThreadAxis:
    """One axis on which threads follow one another without touching.

    `points` is set where the sum of spans would not fit in 64 bits: positions are then ranks among the
    points. Each point has a position, and so has each interval between two points.
    """

    low: int
    span: int
    points: Ints | None

    def lift(self, thread: Ints, ts_ns: Ints) -> Ints:
        """Map each instant of a thread to its position on the axis."""
        lanes = thread.astype(np.int64) + 1
        if self.points is None:
            within: Ints = np.minimum(np.maximum(ts_ns, self.low), self.low + self.span - 1)
            return lanes * self.span + (within - self.low)
        before = np.searchsorted(self.points, ts_ns)
        until = np.searchsorted(self.points, ts_ns, side="right")
        return lanes * (2 * len(self.points) + 1) + before + until

    def times(self, thread: Ints, places: Ints) -> Ints:
        """Map positions back to instants of a thread; each position must be the start or end of a row."""
        if self.points is None:
            return places - (thread.astype(np.int64) + 1) * self.span + self.low
        return self.points[places % (2 * len(self.points) + 1) // 2]

    @staticmethod
    def build(times: Sequence[Ints], threads: int) -> ThreadAxis:
        """Build the axis of some times on `threads` threads; earlier and later times map to its ends."""
        several = [part for part in times if len(part)]
        if not several:
            return ThreadAxis(0, 1, None)
        low = min(int(part.min()) for part in several) - 1
        high = max(int(part.max()) for part in several) + 1
        span = high - low + 1
        fits = span * (threads + 2) < 2**62
        return ThreadAxis(low, span, None if fits else find_distinct(np.concatenate(several)))
