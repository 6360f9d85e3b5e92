"""Two recordings without step marks: per which unit of work, that both hold, they can be compared.

How long somebody recorded says nothing of the program. What recurs on both sides does: a count that a person gave,
an annotated range, a stage, a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import log, log1p
from operator import itemgetter

from tracekit.compare.sides import Side, mean_of_runs
from tracekit.job.steps.metric_samples import Key
from tracekit.model.labels import plural
from tracekit.model.metrics import (
    LAUNCH_CADENCE,
    METRICS,
    OUT_OF_MEMORY,
    PER_WORK,
    RANGE_CADENCE,
    STAGE_TIME,
    STEP_TIME,
    WINDOW,
)
from tracekit.model.units import show

WINDOW_KEY: Key = (WINDOW, None, None)

ALIKE = 0.05
"""Cadences belong to one rhythm where they changed alike to so much, or to two recurrences of the rarer side."""

HINT = "mark steps (ProfilerStep, an NVTX range 'step 1'), or say how much work each recording holds: --samples N,N"


_COUNTED = {
    RANGE_CADENCE: ("recurrence", "recurrences"),
    LAUNCH_CADENCE: ("launch", "launches"),
    STAGE_TIME: ("time", "times"),
    WINDOW: ("recording", "recordings"),
}
"""What samples of an answer that is not of steps are called."""


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
        units = keys
        if name != STAGE_TIME:
            units = _in_one_rhythm(keys, base, opt)
        if not units:
            return "what recurs on both sides does so in other proportions: the recordings hold other work"
        return _coarsest(units, base, opt)
    return "nothing marks their steps, and nothing recurs on both sides that could stand for one"


def _coarsest(keys: Sequence[Key], base: Side, opt: Side) -> Key:
    """The unit that lasts longest, which is nearest to a step."""
    return max(
        keys, key=lambda key: mean_of_runs(base.samples[key]) + mean_of_runs(opt.samples[key])
    )


def counted_as(name: str, number: int = 2) -> str:
    """What so many samples of the answer are called.

    >>> counted_as("step_time"), counted_as("launch_cadence", 1)
    ('steps', 'launch')
    """
    return plural(number, *_COUNTED.get(name, ("step", "steps")))


def reading(side: Side) -> Iterator[str]:
    """How recordings without steps were understood."""
    recordings = side.samples.get(WINDOW_KEY)
    if recordings is None or not without_steps(side):
        return
    lengths = list(chain.from_iterable(recordings.values))
    shortest, longest = show(min(lengths), "ns"), show(max(lengths), "ns")
    span = shortest if shortest == longest else f"{shortest} to {longest}"
    runs = len(recordings.runs)
    yield f"{side.name}: {runs} {plural(runs, 'run')}, {span} recorded without step marks"


def of_whole_recording(key: Key, side: Side) -> bool:
    """Whether a metric of a side is a sum over recordings without step marks: of no unit of work."""
    kind = METRICS.get(key[0])
    never = key[0] in (OUT_OF_MEMORY, STAGE_TIME, STEP_TIME)
    if never or kind is None or kind.pieces != "sum" or WINDOW_KEY not in side.samples:
        return False
    samples = side.samples.get(key)
    if samples is None:
        return False
    return None in map(itemgetter(1), chain.from_iterable(samples.steps))


def _in_one_rhythm(keys: Sequence[Key], base: Side, opt: Side) -> list[Key]:
    """Those that became slower or faster alike; none where they are not the most."""
    changes = {}
    for key in keys:
        before, after = mean_of_runs(base.samples[key]), mean_of_runs(opt.samples[key])
        changes[key] = log(after) - log(before)
    largest: list[Key] = []
    for key in keys:
        limit = _limit(key, base, opt)
        rhythm = [other for other in keys if abs(changes[other] - changes[key]) <= limit]
        if len(rhythm) > len(largest):
            largest = rhythm
    return largest if 2 * len(largest) > len(keys) else []


def _limit(key: Key, base: Side, opt: Side) -> float:
    """How far apart changes may be on the log scale beside that of one that recurs so seldom."""
    before, after = base.samples[key].values, opt.samples[key].values
    fewest = min(sum(map(len, before)), sum(map(len, after)))
    return log1p(max(ALIKE, 2 / fewest))
