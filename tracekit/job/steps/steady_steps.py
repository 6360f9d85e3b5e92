"""Steady steps, on which headline, means and findings are based, and the steps left out with their reasons.

Steps are judged by their content, never by their length: whether their device work was launched and ran in them. A
recording of a host alone cannot show that, so all of its steps count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tracekit.job.frames import find_damaged_sources
from tracekit.job.steps.metric_samples import collect_samples
from tracekit.job.steps.step_values import list_values_and_marks
from tracekit.job.steps.warm_up import COMPARED_ONLY, INCOMPLETE, DroppedStep, find_steps_to_drop
from tracekit.model import failed_questions
from tracekit.model.metrics import STEP_TIME
from tracekit.model.records import dataclass
from tracekit.model.report import StepNumbers
from tracekit.model.tables.arrays import Columns, mask_value
from tracekit.model.tables.frame import Bools, Frame, count_rows, median_of, texts, where
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.trace import Measurements, derive_once

OF_EVERY_STEP = frozenset(
    [
        "allocator_steps",
        "counter_levels",
        "live_steps",
        "logged",
        "memory_stages",
        "memory_steps",
        "out_of_memory",
        "snapshot_windows",
        "step_levels",
        "survivors",
    ]
)
"""Tables with rows that always count: memory levels carry over between steps, and logs count their own steps."""

LEAST_COUNTED = 2
"""If fewer steps of a capture would be left, its first step counts too: its device work is like that of the others."""

Steps = tuple[DroppedStep, ...]


@derive_once
def list_left_out_steps(measured: Measurements) -> Steps:
    """List the steps that do not count, with reasons, in order.

    None in runs without device work, or where that is unknown. Steps that a person chose all count, as the measurements
    lack the work of other steps that ran in them.
    """
    return failed_questions.judge_if_sound_and_asked(measured, _find_left_out_steps, ())


def _find_left_out_steps(measured: Measurements) -> Steps:
    """Apply the warm-up rules to runs with device work, then find incomplete steps."""
    if measured.facts.has_chosen_steps:
        return ()
    steps = measured.frame("steps")
    on_device = steps.filter(steps.integers("launch_count") > 0)
    if not len(on_device):
        return ()
    values = list_values_and_marks(measured)
    runs = texts([run or "" for run in values.values("run")])
    values = values.with_columns(run=runs, role=None, rank=None, stage=None)
    with_device = {run or "" for run in on_device.values("run")}
    of_steps = collect_samples(values.filter(values.equals("name", STEP_TIME)))
    left_out = [
        step
        for step in find_steps_to_drop(of_steps, values, None).steps
        if step.run in with_device and step.reason not in COMPARED_ONLY
    ]
    kept = tuple(_keep_needed_first_steps(left_out, steps))
    return (*kept, *_find_incomplete_steps(measured, kept))


WHOLE_SHARE = 0.98
"""A damaged rank lacks a step with less than this share of the launches that its other steps predict."""

MARKED_ORIGINS = ("profiler", "range")
"""Origins of steps that have the same number on every rank."""


def list_incomplete_steps(measured: Measurements) -> Steps:
    """List the steps that some rank lacks: waits between ranks are known only for steps on all of them."""
    return tuple(step for step in list_left_out_steps(measured) if step.is_incomplete)


def _find_incomplete_steps(measured: Measurements, left_out: Steps) -> Iterator[DroppedStep]:
    """Find the steps that a rank lacks because it stopped early or its file was cut; none if too few would be left.

    Ranks of one role should show the same steps. In an undamaged file a step is missing only without any row or any
    device work.
    """
    gone = {(step.run, step.step) for step in left_out}
    for steps in _select_steps_known_on_ranks(measured).group_by("run").frames():
        name = steps.values("run")[0] or ""
        lacking: set[int] = set()
        for of_role in steps.group_by("role").frames():
            whole = of_role.filter(~_find_lost_device_work(measured, of_role))
            members = len(whole.distinct("replica", "rank"))
            by_step = Counter(whole.distinct("step", "replica", "rank").values("step"))
            lacking |= {number for number in of_role.values("step") if by_step[number] < members}
        common = set(steps.values("step")) - lacking
        counting = [number for number in common if (name, number) not in gone]
        if lacking and len(counting) >= LEAST_COUNTED:
            for number in sorted(lacking):
                if (name, number) not in gone:
                    yield DroppedStep(name, number, None, INCOMPLETE)


def _select_steps_known_on_ranks(measured: Measurements) -> Frame:
    """Select the rows of steps that can be identified on every rank."""
    steps = measured.frame("steps")
    is_known = ~steps.is_missing("step") & ~steps.is_missing("rank")
    return steps.filter(is_known & steps.is_in("origin", MARKED_ORIGINS))


def _find_lost_device_work(measured: Measurements, steps: Frame) -> Bools:
    """Find the rows with lost device work: all of it, or in a damaged file a part that other ranks have."""
    launches = steps.number("launch_count", missing=0.0)
    usual = steps.group_by("replica", "rank").each(median_of(where(launches > 0, launches)))
    ratio = launches / np.where(usual.missing, 1.0, usual.values)
    of_step = steps.group_by("step").each(median_of(ratio))
    is_partial = steps.is_in("source", find_damaged_sources(measured)) & (ratio < WHOLE_SHARE * of_step)
    return np.asarray(~usual.missing & (of_step > 0) & ((launches == 0) | is_partial), np.bool_)


def _keep_needed_first_steps(left_out: Sequence[DroppedStep], steps: Frame) -> Iterator[DroppedStep]:
    """Keep first steps that are needed to leave enough steps in a capture, and yield the other steps to leave out.

    Captures of one step are counted together, by run.
    """
    by_step = {(step.run, step.step): step for step in left_out}
    numbers = zip(steps.values("run"), steps.values("step"), strict=True)
    dropped_of = [by_step.get((run or "", step)) for run, step in numbers]
    by_capture, by_run = steps.group_by(*CAPTURE), steps.group_by("run")
    is_alone = by_capture.each(count_rows()) == 1
    capture = np.where(is_alone, len(by_capture) + by_run.number, by_capture.number)
    counting = np.bincount(capture[[step is None for step in dropped_of]], minlength=len(by_capture) + len(by_run))
    needed = {
        step
        for step, number in zip(dropped_of, capture.tolist(), strict=True)
        if step is not None and step.is_first and counting[number] < LEAST_COUNTED
    }
    yield from (step for step in left_out if step not in needed)


def list_counted_steps(measured: Measurements, left_out: Steps) -> tuple[StepNumbers, ...]:
    """List the numbers of the steps that count and of those left out, by run; runs without numbered steps are missing."""
    steps = measured.frame("steps")
    numbered = steps.filter(~steps.is_missing("step"))
    counted = []
    for of_run in numbered.group_by("run").frames():
        run = of_run.values("run")[0]
        gone = {step.step for step in left_out if step.run == (run or "")}
        numbers = sorted(set(of_run.values("step")))
        left = tuple(number for number in numbers if number in gone)
        counted.append(StepNumbers(run, tuple(number for number in numbers if number not in gone), left))
    return tuple(counted)


def drop_left_out_steps(measured: Measurements, steps: Steps) -> Measurements:
    """Drop `steps` from the measurements. `recorded` of the result has all steps with work.

    Reads no table: judgements depend only on the tables that they read themselves.
    """
    return measured.derived(_SteadyMeasurements(steps)) if steps else measured


@dataclass(frozen=True)
class _SteadyMeasurements:
    """Function of measurements that is equal for equal steps, which makes `Measurements.derived` cache it."""

    steps: Steps

    def __call__(self, measured: Measurements) -> Measurements:
        """Drop the steps that do not count."""
        without_work = [step for step in self.steps if step.is_without_work]
        recorded = _drop_rows_of_steps(measured, without_work) if without_work else measured
        return replace(_drop_rows_of_steps(measured, self.steps), recorded=recorded)


def _drop_rows_of_steps(measured: Measurements, steps: Iterable[DroppedStep]) -> Measurements:
    """Drop the rows of these steps from all tables."""
    tables = dict(measured.arrays)
    for name, columns in measured.arrays.items():
        if name in OF_EVERY_STEP or "step" not in columns.arrays:
            continue
        is_gone = np.zeros(len(columns), np.bool_)
        for step in steps:
            is_gone |= _find_rows_of_step(columns, step)
        if is_gone.any():
            tables[name] = columns.where(~is_gone)
    return replace(measured, arrays=tables)


def _find_rows_of_step(columns: Columns, step: DroppedStep) -> Bools:
    """Find the rows of a step; a step without a part matches any part."""
    keys: dict[str, str | int | None] = {"run": step.run or None, "step": step.step}
    if step.part is not None:
        keys["part"] = step.part
    of_step = np.ones(len(columns), np.bool_)
    for name, value in keys.items():
        of_step &= mask_value(columns[name], value)
    return of_step
