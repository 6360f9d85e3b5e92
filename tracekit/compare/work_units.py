"""Unit of work by which two recordings without step marks are compared.

The length of a recording does not describe the program. Units that recur on both sides do: a count given by
the user, an annotated range, a stage, a kernel.
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
"""Tolerance within which cadences share a rhythm; at least two recurrences of the rarer side."""

HINT = "mark steps (ProfilerStep, an NVTX range 'step 1'), or say how much work each recording holds: --samples N,N"


_COUNTED = {
    RANGE_CADENCE: ("recurrence", "recurrences"),
    LAUNCH_CADENCE: ("launch", "launches"),
    STAGE_TIME: ("time", "times"),
    WINDOW: ("recording", "recordings"),
}
"""Names of the samples of a headline that is not a step."""


def without_steps(side: Side) -> bool:
    """Check whether a side consists of recordings without step marks."""
    return WINDOW_KEY in side.samples and (STEP_TIME, None, None) not in side.samples


def unit_key(base: Side, opt: Side) -> Key | str:
    """Choose the unit that compares two sides without step marks, or the reason why there is none."""
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
    """Find the unit that lasts longest, which is nearest to a step."""
    return max(
        keys, key=lambda key: mean_of_runs(base.samples[key]) + mean_of_runs(opt.samples[key])
    )


def counted_as(name: str, number: int = 2) -> str:
    """Name a number of samples of the headline.

    >>> counted_as("step_time"), counted_as("launch_cadence", 1)
    ('steps', 'launch')
    """
    return plural(number, *_COUNTED.get(name, ("step", "steps")))


def reading(side: Side) -> Iterator[str]:
    """Describe recordings without step marks."""
    recordings = side.samples.get(WINDOW_KEY)
    if recordings is None or not without_steps(side):
        return
    lengths = list(chain.from_iterable(recordings.values))
    shortest, longest = show(min(lengths), "ns"), show(max(lengths), "ns")
    span = shortest if shortest == longest else f"{shortest} to {longest}"
    runs = len(recordings.runs)
    yield f"{side.name}: {runs} {plural(runs, 'run')}, {span} recorded without step marks"


def of_whole_recording(key: Key, side: Side) -> bool:
    """Check whether a metric is a sum over recordings without step marks, not per unit of work."""
    kind = METRICS.get(key[0])
    never = key[0] in (OUT_OF_MEMORY, STAGE_TIME, STEP_TIME)
    if never or kind is None or kind.pieces != "sum" or WINDOW_KEY not in side.samples:
        return False
    samples = side.samples.get(key)
    if samples is None:
        return False
    return None in map(itemgetter(1), chain.from_iterable(samples.steps))


def _in_one_rhythm(keys: Sequence[Key], base: Side, opt: Side) -> list[Key]:
    """Select the keys whose cadence changed alike; empty if they are not the majority."""
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
    """Get the largest distance between changes, on the log scale, from that of a key with few recurrences."""
    before, after = base.samples[key].values, opt.samples[key].values
    fewest = min(sum(map(len, before)), sum(map(len, after)))
    return log1p(max(ALIKE, 2 / fewest))
