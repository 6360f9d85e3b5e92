"""Projection: the number of steps in which growing memory fills its device, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.job.memory.device_size import UNKNOWN
from tracekit.job.memory.survivors import KeptStack
from tracekit.job.memory.trend import Series
from tracekit.model.records import dataclass
from tracekit.model.report import Metric
from tracekit.model.stats.trend import GROWS, Label, Slope, compute_theil_sen
from tracekit.model.units import format_quantity

NO_GROWTH: dict[Label, str] = {
    "flat": "all memory together is flat",
    "none": "all memory together shows no steady growth",
    "saturating": "all memory together levels off",
    "shift": "all memory together shows one jump",
    "filling": "all memory together grows more and more slowly",
}
"""Labels without a projection, in words."""

SLOWING = "not projected: growth slows down"


@dataclass(frozen=True, slots=True)
class Projection:
    """The device is full in `steps`, at the earliest `soonest`, at the latest `latest` (None: never).

    `steps` is None without a projection. `why` gives the reason, or the basis of the numbers.
    """

    steps: int | None = None
    soonest: int | None = None
    latest: int | None = None
    why: str = ""

    def evidence(self, unit: str = "step") -> tuple[Metric, ...]:
        """Return the number of steps (or another `unit`) with its interval, if there is one."""
        if self.steps is None:
            return ()
        label = f"{unit}s until the GPU is full"
        return (Metric("steps_left", self.steps, "count", "higher", self.soonest, self.latest, label),)

    def claim(self, unit: str = "step") -> str:
        """Return the end of a claim, `; the GPU is full in 211 steps (180–250)`; empty without a projection."""
        if self.steps is None:
            return ""
        claim = f"; the GPU is full in {self.steps:,} {unit}s"
        if self.latest is None:
            return f"{claim} ({self.soonest:,} or more)"
        if self.soonest == self.latest:
            return claim
        return f"{claim} ({self.soonest:,}–{self.latest:,})"


def project_trend(item: Series, answer: Label | None) -> Projection:
    """Project a series that grows; any other, and host memory, has no projection."""
    if item.of.kind == "CPU":
        return Projection()
    if answer == "filling":
        return Projection(why=SLOWING)
    if answer not in GROWS:
        return Projection(why="not projected: alone it does not clearly grow")
    assert item.found.slope is not None, "what grows has a slope"
    return _project_full(item, item.found.slope)


def project_stacks(
    leaks: Sequence[KeptStack], files: KeptStack, item: Series | None, answer: Label | None
) -> Projection:
    """Project the memory that the stacks of `leaks` in the process and files of `files` keep together.

    `item` is the series of all memory of that process, and `answer` its label: if it grows its slope counts,
    which includes memory without a stack; if it does not grow there is no projection.
    """
    if item is None:
        return Projection(why="not projected: the device's total memory use is unknown")
    if answer in GROWS:
        return project_trend(item, answer)
    if answer in NO_GROWTH:
        return Projection(why=f"not projected: {NO_GROWTH[answer]}")
    slopes = [
        slope
        for stack in leaks
        if (stack.process, stack.basis, stack.at) == (files.process, files.basis, files.at)
        and (slope := compute_theil_sen(stack.at, stack.levels)) is not None
    ]
    low, middle, high = (sum(getattr(slope, end) for slope in slopes) for end in ("low", "per_x", "high"))
    return _project_full(item, Slope(middle, low, high, len(files.at)))


def _project_full(item: Series, slope: Slope) -> Projection:
    """Divide the room left on the device, its size less the most that was taken, by the slope."""
    if item.relative:
        return Projection(why="not projected: levels are relative to the start of the recording")
    if item.card is None:
        return Projection(why=f"not projected: {UNKNOWN}")
    room = item.card.size_bytes - item.taken_bytes
    if room < 0:
        basis = format_quantity(item.taken_bytes, "bytes")
        return Projection(why=f"not projected: {basis} exceed GPU memory ({item.card.description})")
    if slope.per_x <= 0:
        return Projection(why="not projected: it does not grow from pair to pair")
    basis = "peak reserved" if item.cached else "peak in use, because reserved memory is unknown"
    why = (
        f"room left: GPU memory ({item.card.description}) less the {basis} ({format_quantity(item.taken_bytes, 'bytes')}); "
        "full sooner if other users of the device grow or free pieces are too small, later if cached memory is reused"
    )
    latest = int(room / slope.low) if slope.low > 0 else None
    return Projection(int(room / slope.per_x), int(room / slope.high), latest, why)
