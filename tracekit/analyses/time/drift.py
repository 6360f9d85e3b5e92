"""Steps that become slower during the recording (R36)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import UNIT, each_run, in_run, job, same_text, share_of
from tracekit.job.longer_steps import counted_elsewhere, device_walls, longer_pause
from tracekit.job.rank_groups import rank_groups
from tracekit.job.stages.periodic import planned_ns
from tracekit.job.steps.steady_steps import counted, incomplete_steps
from tracekit.job.stragglers.causes import slower_since
from tracekit.job.stragglers.collective_waits import savings
from tracekit.model.keys import places_of, summed
from tracekit.model.report import Finding, Metric, Place, Section, Verdict
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show

Floats = npt.NDArray[np.float64]


class Rise(NamedTuple):
    """A rise in step time: every step from index `place` on is longer than every step before.

    `before_ns` and `after_ns` are the mean walls of the two parts.
    """

    place: int
    before_ns: float
    after_ns: float


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads the walls of steps."""
    del trace
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Check whether all steps from some step on are longer than all steps before; judge R36."""
    limit = thresholds.of("drift")
    measured = counted(measured, incomplete_steps(measured))
    findings: list[Finding] = []
    verdicts: list[Verdict] = []
    for run, units_of_run in each_run(device_walls(measured, ())):
        walls = units_of_run[units_of_run["step"].notna()]
        places = _places(len(walls), limit["false_ratio"])
        if not places:
            reason = f"{len(walls)} of at least {_least(limit['false_ratio'])} steps{in_run(measured, run)}"
            verdicts.append(Verdict("drift", "insufficient data", reason))
            continue
        # Remove waits for late ranks: one rank that is late from some step on is a straggler, not drift of all ranks.
        without = _without_waits(measured, walls)
        rise = _rise(without, places, limit["slower_ratio"])
        if rise is not None:
            findings += _findings(measured, run, rise, walls, thresholds)
    if not findings and not verdicts and not len(job(measured).walls):
        return ANALYSIS.skipped("no step was recorded")
    return ANALYSIS.answered(findings=tuple(findings), verdicts=tuple(verdicts))


def _without_waits(measured: Measurements, walls: pd.DataFrame) -> Floats:
    """Compute the walls of steps without waits for late ranks and without scheduled stages, in ns."""
    saved = savings(measured)
    place = places_of(saved, walls, UNIT, optional=UNIT)
    lost = summed(place, saved["saved_ns"].to_numpy(np.int64), len(walls))
    return walls["wall_ns"].to_numpy(float) - lost - planned_ns(measured, walls)


def _places(steps: int, level: float) -> list[int]:
    """List the step indexes to test for a rise: the middle ones, as many as the false-positive rate `level` allows.

    By chance the k longest of n steps come last in 1 of C(n, k) recordings.

    >>> _places(5, 0.05), _places(6, 0.05), _places(8, 0.05)
    ([], [3], [3, 4, 5])
    """
    places: list[int] = []
    likely = 0.0
    for place in sorted(range(2, steps - 1), key=lambda place: (abs(2 * place - steps), place)):
        # 1 / C(n, k) through lgamma: for thousands of steps C(n, k) has thousands of digits.
        likely += math.exp(
            math.lgamma(place + 1) + math.lgamma(steps - place + 1) - math.lgamma(steps + 1)
        )
        if likely > level * (1 + 1e-9):
            break
        places.append(place)
    return sorted(places)


def _least(level: float) -> int:
    """Compute the minimum number of steps for the test."""
    steps = 4
    while not _places(steps, level):
        steps += 1
    return steps


def _rise(walls: Floats, places: list[int], slower: float) -> Rise | None:
    """Find the largest rise at these indexes.

    Returns None if no index separates shorter from longer steps, or if none of the rises reaches the share `slower`.
    """
    longest_before = np.maximum.accumulate(walls)
    shortest_after = np.minimum.accumulate(walls[::-1])[::-1]
    sums = np.cumsum(walls)
    place = np.array(places, np.int64)
    before = sums[place - 1] / place
    after = (sums[-1] - sums[place - 1]) / (len(walls) - place)
    is_rise = shortest_after[place] > longest_before[place - 1]
    rises = np.flatnonzero(is_rise & (after >= (1 + slower) * before))
    if not len(rises):
        return None
    with np.errstate(divide="ignore"):
        most = rises[np.argmax(after[rises] / before[rises])]
    return Rise(int(place[most]), float(before[most]), float(after[most]))


def _findings(
    measured: Measurements, run: Any, rise: Rise, walls: pd.DataFrame, thresholds: Thresholds
) -> Iterator[Finding]:
    """Report R36 for one run: the step where the rise begins, and its cause if known."""
    step, count = int(walls["step"].iloc[rise.place]), len(walls)
    late_steps = walls.iloc[rise.place :]
    gain = (rise.after_ns - rise.before_ns) * (count - rise.place) / count
    share = share_of(gain, job(measured).of(run).step_ns)
    more = rise.after_ns / rise.before_ns
    pause = longer_pause(measured, walls, late_steps)
    if pause is not None and pause.more_ns < HALF * (rise.after_ns - rise.before_ns):
        pause = None
    if pause is not None:
        why, stage = f": {pause.words} in each", pause.stage
    else:
        why, stage = _slower_work(measured, run, step)
    yield Finding(
        "drift",
        thresholds.severity(share),
        f"steps are {show(more - 1, 'ratio')} slower from step {step} on than before{why}"
        f"{in_run(measured, run)}",
        PAUSE_ADVICE if pause else DRIFT_ADVICE,
        (
            Metric(
                "before_ns", round(rise.before_ns), "ns", label=f"mean of {rise.place} steps before"
            ),
            Metric("after_ns", round(rise.after_ns), "ns", label="mean of those after"),
            evidence("gain_ns", round(gain), "of the mean step"),
            *counted_elsewhere(measured, late_steps, pause, count),
        ),
        (Place(step=step, stage=stage),),
        round(gain),
        share,
        ("a run that was slower for a while for a reason outside looks the same",),
    )


HALF = 0.5
"""Minimum share of the rise that a longer host pause must cover to explain it."""

DRIFT_ADVICE = (
    "look at what changed there: clocks, temperature and power limit of the GPUs; other jobs; "
    "sequences that grow; memory near its limit"
)
PAUSE_ADVICE = (
    "find what the host does there: record with with_stack=True, or mark it with ranges (NVTX)"
)


def _slower_work(measured: Measurements, run: Any, step: int) -> tuple[str, str | None]:
    """Find the cause of a rise in kernels or stages: (end of the claim, stage with most of the added time).

    The claim names the factor by which the same kernels are slower, else the stage.
    """
    factors: list[float] = []
    stages: list[str] = []
    for rank_group in rank_groups(measured):
        if same_text(pd.Series([rank_group.run]), run).all():
            factor, stage = slower_since(measured, rank_group, step)
            factors += filter(None, [factor])
            stages += filter(None, [stage])
    stage = stages[0] if stages else None
    if factors:
        return f": the same kernels take {max(factors):.2f} times as long", stage
    return f", most of it in {stage}" if stage else "", stage


ANALYSIS = Analysis(
    id="drift",
    title="Do steps become longer while they are recorded?",
    reads=(),
    rests_on=("arrivals", "collectives", "gpu_time", "segments", "slots"),
    rules=("drift",),
    every_step=True,
    thresholds={
        "drift": {
            # How often chance may put the longest steps last: with six steps only the last three can tell, with eight
            # the last three to five.
            "false_ratio": 0.05,
            # By how much they are longer: clocks of a GPU that runs hot fall by 5 to 15 %, steps of clean simulated jobs
            # whose lengths differ by 4.5 % were told apart by 0 of 28.
            "slower_ratio": 0.03,
        },
    },
    measure=measure,
    judge=judge,
)
