"""Steps of a log that count: not those that warm up, validate, write a checkpoint or are profiled."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from tracekit.job.run_log.values import Floats, RunLog, name_logged_stage
from tracekit.model.records import dataclass
from tracekit.model.stages import VALIDATION

Mask = npt.NDArray[np.bool_]

LEAST_STEPS = 6
"""Fewest steady steps for any finding."""

PROFILED_S = 1.0
"""Least seconds of a call that starts or stops a profiler; drivers call both in every step."""

MOST_MARKED = 0.5
"""Largest share of marked steps; above it, what marks them is part of every usual step."""

PERIODIC = (VALIDATION, "save")
"""Stages that run in every k-th step."""

LEAST_CHORE = 0.05
"""Least time of a periodic stage that ran, as a share of its longest: drivers may time the call in every step."""
_PROFILER = ("timing_s/start_profile", "timing_s/stop_profile")


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """Masks over the rows of a log: `counted` without warm-up and profiled steps, `steady` also without validation and checkpoints.

    `profiled` are the steps with a profiler.
    """

    counted: Mask
    steady: Mask
    profiled: Mask

    @property
    def steady_count(self) -> int:
        """Number of steady steps."""
        return int(self.steady.sum())

    @property
    def is_enough(self) -> bool:
        """Whether there are enough steady steps for a finding."""
        return self.steady_count >= LEAST_STEPS


def choose_counted_steps(log: RunLog, profiled_steps: Collection[int] = ()) -> SteadySteps:
    """Choose the steps that count: without the first 3 after each start (2 of 7 to 9 steps, 1 of 6, none of fewer).

    `profiled_steps` are the numbers of steps that a profiler was set to record. Starting and stopping a profiler takes time
    in these steps; they count where they are more than half of all steps.
    """
    profiled = _mark_profiled_rows(log) | np.isin(log.step, list(profiled_steps))
    marked = _find_marked_rows(log)
    for mask in (profiled, marked):
        if mask.mean() > MOST_MARKED:
            mask[:] = False
    counted = ~_find_warm_up_rows(log) & ~profiled
    return SteadySteps(counted, counted & ~marked, profiled)


def _find_warm_up_rows(log: RunLog) -> Mask:
    """Find the first rows of each part, with the tries that ran again: these ran first, too."""
    part, step = log.part, log.step
    if log.first_tries is not None:
        part, step = np.append(part, log.first_tries.part), np.append(step, log.first_tries.step)
    order = np.lexsort((step, part))
    starts = np.flatnonzero(np.diff(part[order], prepend=-1) != 0)
    sizes = np.diff(starts, append=len(part))
    first = np.select([sizes >= 10, sizes >= 7, sizes >= LEAST_STEPS], [3, 2, 1], 0)
    place = np.empty(len(part), np.int64)
    place[order] = np.arange(len(part)) - np.repeat(starts, sizes)
    limit = np.empty(len(part), np.int64)
    limit[order] = np.repeat(first, sizes)
    return np.asarray(place < limit)[: len(log)]


def _find_marked_rows(log: RunLog) -> Mask:
    """Find the rows with a validation or a checkpoint."""
    marked = np.zeros(len(log), np.bool_)
    for name, values in log.series.items():
        label = log.framework.parse_timer(name)
        if label is not None and name_logged_stage(log.framework, name, label) in PERIODIC:
            rows = drop_idle_calls(values) > 0
            # A checkpoint of every step must not hide a validation of some.
            marked |= rows if rows.mean() <= MOST_MARKED else False
    return marked


def drop_idle_calls(seconds: Floats) -> Floats:
    """Drop the times of a periodic stage in the steps in which its call did nothing.

    >>> drop_idle_calls(np.array([0.001, 20.0, 0.001]))
    array([nan, 20., nan])
    """
    longest = float(np.nanmax(seconds, initial=0.0))
    return np.where(seconds >= LEAST_CHORE * longest, seconds, np.nan)


def _mark_profiled_rows(log: RunLog) -> Mask:
    """Mark the rows in which a profiler started or stopped."""
    profiled = np.zeros(len(log), np.bool_)
    for name in _PROFILER:
        if name in log.series:
            profiled |= log.series[name] > PROFILED_S
    return profiled
