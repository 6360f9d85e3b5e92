"""Interruptions of the steady steps of a run, by rule: compilation, graph capture, driver allocator calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import (
    JobSteps,
    clear_parts_of_numbered_steps,
    count_distinct_keys,
    divide_or_none,
    find_canonical_stages,
    find_equal_rows,
    summarize_job_steps,
)
from tracekit.model.records import dataclass
from tracekit.model.tables.keys import PROCESS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements

KIND_OF_RULE = {"allocator-calls": "allocator", "recompilation": "compilation", "graph-capture": "graph"}
"""Kind of interruption of each rule."""


@dataclass(frozen=True, slots=True)
class StepInterruptions:
    """Interruptions of one kind in the steady steps of one run; `calls`, `dur_ns` and `lost_ns` per step and process.

    `lost_ns` is the part of their time in which no device of the process worked; all of it without a recorded device.
    """

    rule: str
    rows: pd.DataFrame
    steady: JobSteps
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


def list_interruptions_by_stage(measured: Measurements) -> pd.DataFrame:
    """List the interruptions by unit, with `canonical` and `lost_ns`: their idle time, else their time."""
    return measured.derived(_list_interruptions_by_stage)


def _list_interruptions_by_stage(measured: Measurements) -> pd.DataFrame:
    rows = clear_parts_of_numbered_steps(measured["interruptions"])
    rows["canonical"] = find_canonical_stages(rows)
    rows["lost_ns"] = rows["idle_ns"].where(rows["idle_ns"].notna(), rows["dur_ns"])
    return rows


def summarize_steady_steps(measured: Measurements, run: object, first: int) -> JobSteps:
    """Summarize the steps of one run after its first ones; `count` is over all processes."""
    steps = clear_parts_of_numbered_steps(measured["steps"])
    of_run = steps[find_equal_rows(steps["run"], run)]
    late = of_run[is_after_first_steps(of_run, first)]
    walls = summarize_job_steps(measured).select_run(run).walls
    number = walls["step"]
    steady_walls = walls[(number > first).fillna(value=False).astype(bool) | number.isna()]
    mean = float(steady_walls["wall_ns"].mean()) if len(steady_walls) else None
    count = count_distinct_keys(late, [*PROCESS, "step", "part", "occurrence"])
    return JobSteps(steady_walls, mean, count)


def is_after_first_steps(rows: pd.DataFrame, first: int) -> npt.NDArray[np.bool_]:
    """Find the rows of steps after the first ones of the run; steps without a number count by their order."""
    by_number = (rows["step"] > first).fillna(value=False).to_numpy(np.bool_)
    unnumbered = rows["step"].isna().to_numpy(np.bool_)
    return by_number | (unnumbered & (rows["occurrence"].to_numpy(np.int64) >= first))


def measure_step_interruptions(
    measured: Measurements, rule: str, run: object, thresholds: Thresholds
) -> StepInterruptions | None:
    """Measure the interruptions of this rule in the steady steps of a run; None without a recorded steady step."""
    first = int(thresholds.of(rule)["first_steps"])
    steady = summarize_steady_steps(measured, run, first)
    if not steady.count:
        return None
    rows = list_interruptions_by_stage(measured)
    of_run = rows[find_equal_rows(rows["run"], run) & (rows["kind"] == KIND_OF_RULE[rule])]
    late = of_run[is_after_first_steps(of_run, first)]
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
    if not measured.has("interruptions") or not measured.row_count("interruptions"):
        return
    for run in clear_parts_of_numbered_steps(measured["steps"])["run"].drop_duplicates():
        for rule in KIND_OF_RULE:
            found = measure_step_interruptions(measured, rule, run, thresholds)
            if found is not None and is_worth_a_finding(found, thresholds):
                yield found
