"""Two recordings without step marks: per which unit of work, that both hold, they can be compared.

How long somebody recorded says nothing of the program. What recurs on both sides does: a count that a person gave,
an annotated range, a stage, a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import log, log1p

from tracekit.compare.sides import Side
from tracekit.job.metric_kinds import (
    LAUNCH_CADENCE,
    METRICS,
    OUT_OF_MEMORY,
    PER_WORK,
    RANGE_CADENCE,
    STAGE_TIME,
    STEP_TIME,
    WINDOW,
)
from tracekit.job.samples import Key, Samples
from tracekit.model.units import show

WINDOW_KEY: Key = (WINDOW, None, None)

ALIKE = 0.05
"""Cadences belong to one rhythm where they changed alike to so much, or to two recurrences of the rarer side."""

HINT = "mark steps (ProfilerStep, an NVTX range 'step 1'), or say how much work each recording holds: --samples N,N"


def without_steps(side: Side) -> bool:
    """Whether a side is recordings in which nothing marks a step."""
    return WINDOW_KEY in side.samples and (STEP_TIME, None, None) not in side.samples


def unit_key(base: Side, opt: Side) -> Key | str:
    """What two sides without step marks can be compared by, or why there is nothing."""
    if not (without_steps(base) and without_steps(opt)):
        marked, unmarked = (opt, base) if without_steps(base) else (base, opt)
        return f"{unmarked.name}: nothing marks its steps, and {marked.name} has steps"
    both = base.samples.keys() & opt.samples.keys()
    for per_one, _ in PER_WORK.values():
        if (per_one, None, None) in both:
            return (per_one, None, None)
    for name in (RANGE_CADENCE, STAGE_TIME, LAUNCH_CADENCE):
        keys = sorted((key for key in both if key[0] == name), key=str)
        if not keys:
            continue
        alike = keys if name == STAGE_TIME else _in_one_rhythm(keys, base, opt)
        if not alike:
            return "what recurs on both sides does so in other proportions: the recordings hold other work"
        # The coarsest is nearest to a step.
        return max(alike, key=lambda key: _mean(base.samples[key]) + _mean(opt.samples[key]))
    return "nothing marks their steps, and nothing recurs on both sides that could stand for one"


def counted_as(name: str, number: int = 2) -> str:
    """What so many samples of the answer are called.

    >>> counted_as("step_time"), counted_as("launch_cadence", 1)
    ('steps', 'launch')
    """
    one, several = _COUNTED.get(name, ("step", "steps"))
    return one if number == 1 else several


def reading(side: Side) -> Iterator[str]:
    """How recordings without steps were understood."""
    found = side.samples.get(WINDOW_KEY)
    if found is None or not without_steps(side):
        return
    lengths = sorted(value for run in found.values for value in run)
    much = show(lengths[0], "ns")
    much += f" to {show(lengths[-1], 'ns')}" if show(lengths[-1], "ns") != much else ""
    runs = len(found.runs)
    yield f"{side.name}: {runs} {'run' if runs == 1 else 'runs'}, {much} recorded without step marks"


def of_whole_recording(key: Key, side: Side) -> bool:
    """Whether a metric of a side is a sum over recordings without step marks: of no unit of work."""
    kind = METRICS.get(key[0])
    apart = key[0] in (OUT_OF_MEMORY, STAGE_TIME, STEP_TIME)
    if apart or kind is None or kind.pieces != "sum":
        return False
    found = side.samples.get(key)
    numbers: Iterable[int | None] = (s[1] for ids in (found.steps if found else ()) for s in ids)
    return WINDOW_KEY in side.samples and any(number is None for number in numbers)


def _in_one_rhythm(keys: Sequence[Key], base: Side, opt: Side) -> list[Key]:
    """Those that became slower or faster alike; none where they are not the most."""
    changed = {key: log(_mean(opt.samples[key])) - log(_mean(base.samples[key])) for key in keys}
    groups = [
        [key for key in keys if abs(changed[key] - changed[one]) <= _limit(one, base, opt)]
        for one in keys
    ]
    largest = max(groups, key=len)
    return largest if 2 * len(largest) > len(keys) else []


def _limit(key: Key, base: Side, opt: Side) -> float:
    """How far apart changes may be on the log scale beside that of one that recurs so seldom."""
    fewest = min(sum(map(len, side.samples[key].values)) for side in (base, opt))
    return log1p(max(ALIKE, 2 / fewest))


_COUNTED = {
    RANGE_CADENCE: ("recurrence", "recurrences"),
    LAUNCH_CADENCE: ("launch", "launches"),
    STAGE_TIME: ("time", "times"),
    WINDOW: ("recording", "recordings"),
}


def _mean(found: Samples) -> float:
    """The mean over runs of their means."""
    return sum(sum(run) / len(run) for run in found.values) / len(found.values)
