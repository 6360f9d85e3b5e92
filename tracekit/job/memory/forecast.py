"""In how many steps memory that grows fills its device, and when nothing may be foretold."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from tracekit.job.memory.device_size import UNKNOWN
from tracekit.job.memory.survivors import Kept
from tracekit.job.memory.trend import Series
from tracekit.model.records import dataclass
from tracekit.model.report import Metric
from tracekit.model.stats.trend import GROWS, Label, Slope, theil_sen
from tracekit.model.units import show

NO_GROWTH: dict[Label, str] = {
    "flat": "all memory together is flat",
    "none": "all memory together shows no steady growth",
    "saturating": "all memory together levels off",
    "shift": "all memory together shows one jump",
    "filling": "all memory together grows by less and less",
}
"""Answers after which nothing is foretold, in words."""

SLOWING = "not projected: it grows by less and less"


@dataclass(frozen=True, slots=True)
class Projection:
    """In how many steps the device is full: `steps`, at the earliest `soonest`, at the latest `latest` (None: never).

    `steps` is None where nothing is foretold. `why` says that, or what the numbers rest on.
    """

    steps: int | None = None
    soonest: int | None = None
    latest: int | None = None
    why: str = ""

    def evidence(self, unit: str = "step") -> tuple[Metric, ...]:
        """The number with its interval, if there is one; `unit` is what is counted."""
        if self.steps is None:
            return ()
        label = f"{unit}s until the card is full"
        return (
            Metric("steps_left", self.steps, "count", "higher", self.soonest, self.latest, label),
        )

    def claim(self, unit: str = "step") -> str:
        """What a claim says of it after the growth: `; the card is full in 211 steps (180–250)`; nothing if there is none."""
        if self.steps is None:
            return ""
        claim = f"; the card is full in {self.steps:,} {unit}s"
        if self.latest is None:
            return f"{claim} ({self.soonest:,} or more)"
        if self.soonest == self.latest:
            return claim
        return f"{claim} ({self.soonest:,}–{self.latest:,})"


def of_trend(item: Series, answer: Label | None) -> Projection:
    """The projection of a series that grows; of any other, and of host memory, none."""
    if item.of.kind == "CPU":
        return Projection()
    if answer == "filling":
        return Projection(why=SLOWING)
    if answer not in GROWS:
        return Projection(why="not projected: alone it does not clearly grow")
    assert item.found.slope is not None, "what grows has a slope"
    return _full(item, item.found.slope)


def of_stacks(
    kept: Sequence[Kept], every: Kept, item: Series | None, answer: Label | None
) -> Projection:
    """The projection of what the stacks of `kept` in the process and files of `every` keep together.

    `one` is the series of all memory of that process, and `answer` what it shows: where it grows its slope counts,
    which holds what no stack tells; where it does not grow nothing is foretold.
    """
    if item is None:
        return Projection(why="not projected: nothing tells of all memory of the device")
    if answer in GROWS:
        return of_trend(item, answer)
    if answer in NO_GROWTH:
        return Projection(why=f"not projected: {NO_GROWTH[answer]}")
    slopes = [
        slope
        for stack in kept
        if (stack.process, stack.basis, stack.at) == (every.process, every.basis, every.at)
        and (slope := theil_sen(stack.at, stack.levels)) is not None
    ]
    low, middle, high = (sum(map(attrgetter(end), slopes)) for end in ("low", "per_x", "high"))
    return _full(item, Slope(middle, low, high, len(every.at)))


def _full(item: Series, slope: Slope) -> Projection:
    """The room that is left over the slope: what the device has less the most that was taken of it."""
    if item.relative:
        return Projection(why="not projected: levels count from the start of the recording")
    if item.card is None:
        return Projection(why=f"not projected: {UNKNOWN}")
    room = item.card.size_bytes - item.taken_bytes
    if room < 0:
        basis = show(item.taken_bytes, "bytes")
        return Projection(
            why=f"not projected: {basis} were held, more than the card has ({item.card.told})"
        )
    if slope.per_x <= 0:
        return Projection(why="not projected: it does not grow from pair to pair")
    basis = "most reserved" if item.cached else "most in use, as what is reserved is not known"
    why = (
        f"full means: the card ({item.card.told}) less the {basis} ({show(item.taken_bytes, 'bytes')}); "
        "sooner if others on the device grow or free pieces are too small, later if cached memory is used again"
    )
    latest = int(room / slope.low) if slope.low > 0 else None
    return Projection(int(room / slope.per_x), int(room / slope.high), latest, why)
