"""Unit of work by which two recordings without step marks are compared.

The length of a recording does not describe the program. Units that recur on both sides do: a count given by
the user, an annotated range, a stage, a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import log, log1p

from tracekit.compare.sides import ComparedSide, average_runs
from tracekit.job.steps.metric_samples import Key
from tracekit.model.metrics import (
    ENGINE_METRICS,
    LAUNCH_CADENCE,
    METRICS,
    OUT_OF_MEMORY,
    PER_WORK,
    RANGE_CADENCE,
    RAY_SPAN,
    STAGE_TIME,
    STEP_TIME,
    WINDOW,
)
from tracekit.model.text.labels import choose_plural
from tracekit.model.units import format_quantity

WINDOW_KEY: Key = (WINDOW, None, None)

SAME_RHYTHM_TOLERANCE = 0.05
"""Tolerance within which cadences share a rhythm; at least two recurrences of the rarer side."""

STEP_MARK_HINT = "mark steps (ProfilerStep, an NVTX range 'step 1'), or give the work of each recording: --samples N,N"


_COUNTED = {
    RANGE_CADENCE: ("recurrence", "recurrences"),
    LAUNCH_CADENCE: ("launch", "launches"),
    STAGE_TIME: ("time", "times"),
    WINDOW: ("recording", "recordings"),
    ENGINE_METRICS[0]: ("window", "windows"),
    RAY_SPAN: ("timeline", "timelines"),
}
"""Names of the samples of a headline that is not a step."""


def has_no_steps(side: ComparedSide) -> bool:
    """Check whether a side consists of recordings without step marks."""
    return WINDOW_KEY in side.samples and (STEP_TIME, None, None) not in side.samples


def choose_work_unit(base: ComparedSide, opt: ComparedSide) -> Key | str:
    """Choose the unit that compares two sides without step marks, or the reason why there is none."""
    if not (has_no_steps(base) and has_no_steps(opt)):
        marked, unmarked = (opt, base) if has_no_steps(base) else (base, opt)
        return f"{unmarked.name}: no step marks, but {marked.name} has steps"
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
            units = _select_common_rhythm(keys, base, opt)
        if not units:
            return "the ranges that recur on both sides changed in different proportions: the recordings contain different work"
        return _find_longest_unit(units, base, opt)
    return "no step marks, and nothing recurs on both sides that could serve as the unit"


def _find_longest_unit(keys: Sequence[Key], base: ComparedSide, opt: ComparedSide) -> Key:
    """Find the unit that lasts longest, which is nearest to a step."""
    return max(keys, key=lambda key: average_runs(base.samples[key]) + average_runs(opt.samples[key]))


def name_samples(name: str, number: int = 2) -> str:
    """Name a number of samples of the headline.

    >>> name_samples("step_time"), name_samples("launch_cadence", 1)
    ('steps', 'launch')
    """
    return choose_plural(number, *_COUNTED.get(name, ("step", "steps")))


def describe_unmarked_recordings(side: ComparedSide) -> Iterator[str]:
    """Describe recordings without step marks."""
    recordings = side.samples.get(WINDOW_KEY)
    if recordings is None or not has_no_steps(side):
        return
    lengths = list(chain.from_iterable(recordings.values))
    shortest, longest = format_quantity(min(lengths), "ns"), format_quantity(max(lengths), "ns")
    span = shortest if shortest == longest else f"{shortest} to {longest}"
    runs = len(recordings.runs)
    yield f"{side.name}: {runs} {choose_plural(runs, 'run')}, {span} recorded without step marks"


def is_whole_recording_sum(key: Key, side: ComparedSide) -> bool:
    """Check whether a metric is a sum over recordings without step marks, not per unit of work."""
    kind = METRICS.get(key[0])
    never = key[0] in (OUT_OF_MEMORY, STAGE_TIME, STEP_TIME)
    if never or kind is None or kind.pieces != "sum" or WINDOW_KEY not in side.samples:
        return False
    samples = side.samples.get(key)
    if samples is None:
        return False
    return any(step is None for steps in samples.steps for _, step, _ in steps)


def _select_common_rhythm(keys: Sequence[Key], base: ComparedSide, opt: ComparedSide) -> list[Key]:
    """Select the keys whose cadence changed alike; empty if they are not the majority."""
    changes = {}
    for key in keys:
        before, after = average_runs(base.samples[key]), average_runs(opt.samples[key])
        changes[key] = log(after) - log(before)
    largest: list[Key] = []
    for key in keys:
        limit = _get_rhythm_tolerance(key, base, opt)
        rhythm = [other for other in keys if abs(changes[other] - changes[key]) <= limit]
        if len(rhythm) > len(largest):
            largest = rhythm
    return largest if 2 * len(largest) > len(keys) else []


def _get_rhythm_tolerance(key: Key, base: ComparedSide, opt: ComparedSide) -> float:
    """Get the largest distance between changes, on the log scale, from that of a key with few recurrences."""
    before, after = base.samples[key].values, opt.samples[key].values
    fewest = min(sum(len(steps) for steps in before), sum(len(steps) for steps in after))
    return log1p(max(SAME_RHYTHM_TOLERANCE, 2 / fewest))
