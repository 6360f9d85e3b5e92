"""Pieces of time on host threads, and one axis for the times of all threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.keys import distinct

Ints = npt.NDArray[np.int64]


class Segments(NamedTuple):
    """Pieces of time that do not overlap, each on a thread (-1: none), in order; `origin` tells of what each is a piece."""

    start: Ints
    end: Ints
    thread: Ints
    origin: Ints


def divided(start: Ints, place: Ints, inner: Ints) -> tuple[Ints, Ints]:
    """(the start of each piece, what it is a piece of) of what begins at `start` and is divided at `inner`.

    Those lie within the pieces `place`, of which both ascend.

    >>> [each.tolist() for each in divided(np.array([0, 10]), np.array([0, 0]), np.array([3, 5]))]
    [[0, 3, 5, 10], [0, 0, 0, 1]]
    """
    number = np.arange(len(start))
    if not len(place):
        return start, number
    inside = np.bincount(place, minlength=len(start))
    piece = np.repeat(number, inside + 1)
    starts = np.empty(len(piece), np.int64)
    starts[number + np.cumsum(inside) - inside] = start
    starts[place + 1 + np.arange(len(place))] = inner
    return starts, piece


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis on which threads follow one another without touching; `points` where their sum would not fit in 64 bits.

    On that of points each has a place, and so has what lies between two of them.
    """

    low: int
    span: int
    points: Ints | None

    def lift(self, thread: npt.NDArray[np.integer[Any]], ts_ns: Ints) -> Ints:
        """The place of each instant on the axis."""
        lanes: Ints = thread.astype(np.int64) + 1
        if self.points is None:
            lanes *= self.span
            instants: Ints = ts_ns
            if len(ts_ns) and (ts_ns.min() < self.low or ts_ns.max() >= self.low + self.span):
                instants = np.clip(ts_ns, self.low, self.low + self.span - 1)
            lanes += instants
            lanes -= self.low
            return lanes
        before = np.searchsorted(self.points, ts_ns)
        until = np.searchsorted(self.points, ts_ns, side="right")
        return lanes * (2 * len(self.points) + 1) + before + until

    def times(self, places: Ints) -> Ints:
        """The instants that have these places, of which each is that of a row's start or end."""
        if self.points is None:
            return self.low + places % self.span
        return self.points[places % (2 * len(self.points) + 1) // 2]

    @staticmethod
    def of(times: Ints, threads: int) -> Axis:
        """The axis of all these times on so many threads; what is earlier or later has a place of its own."""
        if not len(times):
            return Axis(0, 1, None)
        low, high = int(times.min()) - 1, int(times.max()) + 1
        span = high - low + 1
        return Axis(low, span, None if span * (threads + 2) < 2**62 else distinct(times))
