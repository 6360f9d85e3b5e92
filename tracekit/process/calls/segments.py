"""Pieces of time on host threads, and one axis for the times of all threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.keys import distinct
from tracekit.model.records import dataclass

Ints = npt.NDArray[np.int64]


class Segments(NamedTuple):
    """Pieces of time that do not overlap, each on a thread (-1: none), in order; `origin` tells of what each is a piece."""

    start: Ints
    end: Ints
    thread: Ints
    origin: Ints


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis on which threads follow one another without touching; `points` where their sum would not fit in 64 bits.

    On that of points each has a place, and so has what lies between two of them.
    """

    low: int
    span: int
    points: Ints | None

    def lift(self, thread: Ints, ts_ns: Ints) -> Ints:
        """The place of each instant on the axis."""
        lanes = thread.astype(np.int64) + 1
        if self.points is None:
            within: Ints = np.minimum(np.maximum(ts_ns, self.low), self.low + self.span - 1)
            return lanes * self.span + (within - self.low)
        before = np.searchsorted(self.points, ts_ns)
        until = np.searchsorted(self.points, ts_ns, side="right")
        return lanes * (2 * len(self.points) + 1) + before + until

    def times(self, thread: Ints, places: Ints) -> Ints:
        """The instants that have these places on a thread, of which each is that of a row's start or end."""
        if self.points is None:
            return places - (thread.astype(np.int64) + 1) * self.span + self.low
        return self.points[places % (2 * len(self.points) + 1) // 2]

    @staticmethod
    def of(times: Sequence[Ints], threads: int) -> Axis:
        """The axis of all these times on so many threads; what is earlier or later has a place of its own."""
        several = list(filter(len, times))
        if not several:
            return Axis(0, 1, None)
        low = min(int(part.min()) for part in several) - 1
        high = max(int(part.max()) for part in several) + 1
        span = high - low + 1
        fits = span * (threads + 2) < 2**62
        return Axis(low, span, None if fits else distinct(np.concatenate(several)))
