"""Interruptions of the steady steps of a run, by rule: compilation, graph capture, driver allocator calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracekit.job.frames import StepWalls, clear_redundant_parts, divide_or_none, name_stages, summarize_step_walls
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Bools, Frame
from tracekit.model.tables.keys import PROCESS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, derive_once

KIND_OF_RULE = {"allocator-calls": "allocator", "recompilation": "compilation", "graph-capture": "graph"}
"""Kind of interruption of each rule."""


@dataclass(frozen=True, slots=True)
class StepInterruptions:
    """Interruptions of one kind in the steady steps of one run; `calls`, `dur_ns` and `lost_ns` per step and process.

    `lost_ns` is the part of their time in which no device of the process worked; all of it without a recorded device.
    """

    rule: str
    rows: Frame
    steady: StepWalls
    calls: float
    dur_ns: float
    lost_ns: float

    @property
    def ratio(self) -> float | None:
        """Their time as a share of the step."""
        return divide_or_none(self.dur_ns, self.steady.step_ns)

    @property
    def lost_ratio(self) -> float | None:
        """Their lost time as a share of the step."""
        return divide_or_none(self.lost_ns, self.steady.step_ns)


@derive_once
def list_interruptions_by_stage(measured: Measurements) -> Frame:
    """List the interruptions by unit, with `canonical` and `lost_ns`: their idle time, else their time."""
    rows = clear_redundant_parts(measured.frame("interruptions"))
    lost_ns = np.where(rows.is_missing("idle_ns"), rows["dur_ns"], rows.integers("idle_ns"))
    return rows.with_columns(canonical=name_stages(rows), lost_ns=lost_ns)


def summarize_steady_steps(measured: Measurements, run: str | None, first: int) -> StepWalls:
    """Summarize the steps of one run after its first ones; `count` is over all processes."""
    steps = clear_redundant_parts(measured.frame("steps"))
    late = steps.filter(steps.equals("run", run) & is_after_first_steps(steps, first))
    walls = summarize_step_walls(measured).select_run(run).walls
    walls = walls.filter(walls.is_missing("step") | (walls.integers("step") > first))
    mean = float(walls["wall_ns"].mean()) if len(walls) else None
    return StepWalls(walls, mean, len(late.distinct(*PROCESS, "step", "part", "occurrence")))


def is_after_first_steps(rows: Frame, first: int) -> Bools:
    """Find the rows of steps after the first ones of the run; steps without a number count by their order."""
    return np.where(rows.is_missing("step"), rows["occurrence"] >= first, rows.integers("step") > first)


def measure_step_interruptions(
    measured: Measurements, rule: str, run: str | None, thresholds: Thresholds
) -> StepInterruptions | None:
    """Measure the interruptions of this rule in the steady steps of a run; None without a recorded steady step."""
    first = int(thresholds.of(rule)["first_steps"])
    steady = summarize_steady_steps(measured, run, first)
    if not steady.count:
        return None
    rows = list_interruptions_by_stage(measured)
    of_rule = rows.equals("run", run) & rows.equals("kind", KIND_OF_RULE[rule])
    late = rows.filter(of_rule & is_after_first_steps(rows, first))
    sums = [float(late[name].sum()) / steady.count for name in ("count", "dur_ns", "lost_ns")]
    return StepInterruptions(rule, late, steady, *sums)


def is_worth_a_finding(interruptions: StepInterruptions, thresholds: Thresholds) -> bool:
    """Check whether the rule fires."""
    limit = thresholds.of(interruptions.rule)
    least_ratio = limit["time_ratio"]
    if interruptions.rule == "allocator-calls" and interruptions.calls < limit["calls_per_step"]:
        least_ratio = limit["few_calls_time_ratio"]
    return interruptions.calls > 0 and (interruptions.ratio or 0.0) >= least_ratio


def find_costly_interruptions(measured: Measurements, thresholds: Thresholds) -> Iterator[StepInterruptions]:
    """Find every interruption that gets a finding."""
    if not measured.row_count("interruptions"):
        return
    for run in measured.frame("steps").distinct("run").values("run"):
        for rule in KIND_OF_RULE:
            found = measure_step_interruptions(measured, rule, run, thresholds)
            if found is not None and is_worth_a_finding(found, thresholds):
                yield found
