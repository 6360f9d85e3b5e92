"""Steps that become slower during the recording (R36)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import UNIT, divide_or_none, phrase_run, summarize_step_walls
from tracekit.job.longer_steps import find_longer_pause, measure_device_walls
from tracekit.job.rank_groups import list_rank_groups
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import list_stage_or_step_runs, pick_instances
from tracekit.job.stages.periodic import sum_planned_stage_time
from tracekit.job.steps.steady_steps import drop_left_out_steps, list_incomplete_steps
from tracekit.job.stragglers.causes import find_slowdown_since
from tracekit.job.stragglers.collective_waits import sum_waits_for_last_rank
from tracekit.model.report import Finding, Metric, Place, Section, Verdict
from tracekit.model.tables.frame import Frame, sum_of
from tracekit.model.text.changes import write_change
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

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
    measured = drop_left_out_steps(measured, list_incomplete_steps(measured))
    findings: list[Finding] = []
    verdicts: list[Verdict] = []
    for units_of_run in measure_device_walls(measured, ()).group_by("run").frames():
        run, walls = units_of_run.values("run")[0], units_of_run.filter(~units_of_run.is_missing("step"))
        places = _list_rise_candidates(len(walls), limit["false_ratio"])
        if not places:
            reason = f"{len(walls)} of at least {_compute_min_drift_steps(limit['false_ratio'])} steps{phrase_run(measured, run)}"
            verdicts.append(Verdict("drift", "insufficient data", reason))
            continue
        # Remove waits for late ranks: one rank that is late from some step on is a straggler, not drift of all ranks.
        without = _compute_walls_without_waits(measured, walls)
        rise = _find_rise(without, places, limit["slower_ratio"])
        if rise is not None:
            findings += _find_drift(measured, run, rise, walls, thresholds)
    if not findings and not verdicts and not len(summarize_step_walls(measured).walls):
        return ANALYSIS.skipped("no step was recorded")
    return ANALYSIS.answered(findings=tuple(findings), verdicts=tuple(verdicts))


def _compute_walls_without_waits(measured: Measurements, walls: Frame) -> Floats:
    """Compute the walls of steps without waits for late ranks and without scheduled stages, in ns."""
    waits = sum_waits_for_last_rank(measured).group_by(*UNIT).agg(lost_ns=sum_of("lost_ns"))
    lost_ns = walls.join(waits, UNIT, how="left", optional=UNIT).integers("lost_ns")
    return walls.number("wall_ns") - lost_ns - sum_planned_stage_time(measured, walls)


def _list_rise_candidates(steps: int, level: float) -> list[int]:
    """List the step indexes to test for a rise: the middle ones, as many as the false-positive rate `level` allows.

    By chance the k longest of n steps come last in 1 of C(n, k) recordings.

    >>> _list_rise_candidates(5, 0.05), _list_rise_candidates(6, 0.05), _list_rise_candidates(8, 0.05)
    ([], [3], [3, 4, 5])
    """
    places: list[int] = []
    likely = 0.0
    for place in sorted(range(2, steps - 1), key=lambda place: (abs(2 * place - steps), place)):
        # 1 / C(n, k) through lgamma: for thousands of steps C(n, k) has thousands of digits.
        likely += math.exp(math.lgamma(place + 1) + math.lgamma(steps - place + 1) - math.lgamma(steps + 1))
        if likely > level * (1 + 1e-9):
            break
        places.append(place)
    return sorted(places)


def _compute_min_drift_steps(level: float) -> int:
    """Compute the minimum number of steps for the test."""
    steps = 4
    while not _list_rise_candidates(steps, level):
        steps += 1
    return steps


def _find_rise(walls: Floats, places: list[int], slower: float) -> Rise | None:
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


def _find_drift(
    measured: Measurements, run: str | None, rise: Rise, walls: Frame, thresholds: Thresholds
) -> Iterator[Finding]:
    """Report R36 for one run: the step where the rise begins, and its cause if known."""
    step, count = walls.values("step")[rise.place], len(walls)
    late_steps = walls.take(slice(rise.place, None))
    gain = (rise.after_ns - rise.before_ns) * (count - rise.place) / count
    share = divide_or_none(gain, summarize_step_walls(measured).select_run(run).step_ns)
    more = rise.after_ns / rise.before_ns
    pause = find_longer_pause(measured, walls, late_steps)
    if pause is not None and pause.more_ns < MIN_EXPLAINED_DRIFT_RATIO * (rise.after_ns - rise.before_ns):
        pause = None
    if pause is not None:
        why, stage, factor = f": {pause.words} in each", pause.stage, None
    else:
        why, stage, factor = _find_slower_work(measured, run, step)
    yield Finding(
        "drift",
        thresholds.severity(share),
        f"steps are {format_quantity(more - 1, 'ratio')} slower from step {step} on{why}{phrase_run(measured, run)}",
        PAUSE_ADVICE if pause else DRIFT_ADVICE,
        (
            Metric("before_ns", round(rise.before_ns), "ns", label=f"mean of {rise.place} steps before"),
            Metric("after_ns", round(rise.after_ns), "ns", label="mean of those after"),
            make_evidence_metric("gain_ns", round(gain), "of the mean step"),
        ),
        (Place(run=run, step=step, stage=stage),),
        round(gain),
        share,
        ("a temporary slowdown from outside looks the same",),
        changes=_write_drift_changes({int(number) for number in late_steps.values("step")}, factor),
        instances=pick_instances(list_stage_or_step_runs(measured, stage, run, step=set(late_steps.values("step")))),
    )


def _write_drift_changes(late_steps: set[int], factor: float | None) -> tuple[str, ...]:
    """Write the changes of the fix: kernels as fast as before, or all work as long as in the median of the steps before."""
    if factor is not None:
        return (write_change("scale", "device", step=late_steps, factor=1 / factor),)
    return tuple(write_change("equalise", on, step=late_steps, across="step") for on in ("device", "host"))


MIN_EXPLAINED_DRIFT_RATIO = 0.5
"""Minimum share of the rise that a longer host pause must cover to explain it."""

DRIFT_ADVICE = "check for changes at that step: clocks, temperature and power limit of the GPUs; other jobs; growing sequences; memory near its limit"
PAUSE_ADVICE = "record the host's activity there: with_stack=True, or ranges (NVTX)"


def _find_slower_work(measured: Measurements, run: str | None, step: int) -> tuple[str, str | None, float | None]:
    """Find the cause of a rise in kernels or stages: (end of the claim, stage with most of the added time, factor).

    The claim names the factor by which the same kernels are slower, else the stage.
    """
    factors: list[float] = []
    stages: list[str] = []
    for rank_group in list_rank_groups(measured):
        if rank_group.run == run:
            factor, stage = find_slowdown_since(measured, rank_group, step)
            factors += [factor] if factor else []
            stages += [stage] if stage else []
    stage = stages[0] if stages else None
    if factors:
        return f": the same kernels take {max(factors):.2f} times as long", stage, max(factors)
    return f", mostly in {stage}" if stage else "", stage, None


ANALYSIS = Analysis(
    id="drift",
    title="Do steps get slower during the recording?",
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
        }
    },
    measure=measure,
    judge=judge,
)
