"""Disjoint stages of logged steps: nested and overlapping timers resolved, with the residual that no timer covers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, replace
from math import gcd
from typing import Literal, NamedTuple

import numpy as np

from tracekit.job.run_log.counted_steps import PERIODIC, Mask, SteadySteps, choose_counted_steps, drop_idle_calls
from tracekit.job.run_log.nesting import find_nested_steps
from tracekit.job.run_log.settings import Setting, find_log_settings, list_profiled_steps
from tracekit.job.run_log.trainer import TrainerMode, count_trainer_gpus, find_enclosing_timer, find_trainer_mode
from tracekit.job.run_log.values import Floats, RunLog, map_run_logs, name_logged_stage
from tracekit.model.recording.rl_frameworks import StageTimer
from tracekit.model.records import dataclass
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements, derive_once
from tracekit.model.units import format_quantity

Where = Literal["inside", "outside", "nested", "overlapping"]
"""Position of a timer: inside or outside the step's own time, nested in another timer, or parallel to the step."""

_PROFILER_CALLS = frozenset({"step", "start_profile", "stop_profile"})


@dataclass(frozen=True, slots=True)
class LoggedStage:
    """One timer: seconds by row of the log, NaN where not logged. `within` names the timer around a nested one.

    `nested_steps` counts the steps in which a timer runs within others; they are a stage of their own.
    """

    label: str
    canonical: str
    seconds: Floats
    where: Where
    is_wait: bool = False
    within: str = ""
    nested_steps: int = 0

    @property
    def is_added(self) -> bool:
        """Whether its time is part of the wall time of a step, once."""
        return self.where in ("inside", "outside")


@dataclass(frozen=True, slots=True)
class LoggedSteps:
    """One run's log by step: trainer, GPUs, steps that count, stages and residual.

    `step_s` is the step time as logged and `wall_s` the same with the stages outside it. `residual_s` is the part of the step that no
    timer covers, never below 0. `first_tries_s` is the wall time of each try that ran again after one of the `restarts`; it is part of the
    GPU-hours alone. `price` is that of a GPU-hour. `settings` are the known settings of the run.
    """

    log: RunLog
    mode: TrainerMode
    gpus: int | None
    counted: SteadySteps
    step_s: Floats
    wall_s: Floats
    residual_s: Floats
    stages: tuple[LoggedStage, ...]
    first_tries_s: Floats = field(default_factory=lambda: np.zeros(0))
    restarts: int = 0
    price: float | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])

    @property
    def is_verl(self) -> bool:
        """Whether a trainer of verl wrote the log."""
        return self.log.framework.code in ("verl", "verl_omni")

    def get_steady(self, *names: str) -> Floats | None:
        """Get the values of the first logged name in the steady steps; None if no steady step has one."""
        values = self.log.get_first(*names)
        if values is None or not np.isfinite(values[self.counted.steady]).any():
            return None
        return values[self.counted.steady]

    def sum_stage_seconds(self, *canonical: str, waits: bool | None = None) -> Floats | None:
        """Sum the time of some stages by row; None if the log has none."""
        chosen = [
            stage.seconds
            for stage in self.stages
            if stage.is_added and stage.canonical in canonical and (waits is None or stage.is_wait == waits)
        ]
        return _sum_known(chosen) if chosen else None

    def average_stage_seconds(self, stage: LoggedStage) -> float:
        """Average the time of a stage over the counted steps; over all steps if only some have it.

        The steps that warm up would make a stage of every fifth step look more frequent than it is.
        """
        seconds = np.nan_to_num(stage.seconds)
        return float(seconds.mean() if self.is_averaged_over_all(stage) else seconds[self.counted.counted].mean())

    def is_averaged_over_all(self, stage: LoggedStage) -> bool:
        """Check whether a stage is averaged over all steps: one that runs in every k-th step."""
        return stage.canonical in PERIODIC and not bool((stage.seconds > 0).all())

    def average_wall_seconds(self) -> float:
        """Average the wall time of a step: its stages, each once, and the time in no timer."""
        stages = sum(self.average_stage_seconds(stage) for stage in self.stages if stage.is_added)
        return stages + float(self.residual_s[self.counted.counted].mean())

    def sum_wait_seconds(self) -> Floats | None:
        """Sum the trainer's waits for samples by row; None if the trainer does not wait for samples."""
        waits = [stage.seconds for stage in self.stages if stage.is_wait and stage.is_added]
        return _sum_known(waits) if waits else None

    def compute_gpu_hours(self, seconds_per_step: float) -> float | None:
        """Compute the GPU-hours over all logged steps of a time per step; None if the number of GPUs is unknown."""
        return None if self.gpus is None else seconds_per_step * len(self.log) * self.gpus / 3600

    def compute_lost_gpu_hours(self) -> float | None:
        """Compute the GPU-hours of the tries that ran again; None if the number of GPUs is unknown."""
        return None if self.gpus is None else float(self.first_tries_s.sum()) * self.gpus / 3600

    def compute_run_gpu_hours(self) -> float | None:
        """Compute the GPU-hours of the run, with the tries that ran again; None if the number of GPUs is unknown."""
        hours, lost = self.compute_gpu_hours(self.average_wall_seconds()), self.compute_lost_gpu_hours()
        return None if hours is None or lost is None else hours + lost

    def compute_price(self, gpu_hours: float | None) -> float | None:
        """Compute the price of GPU-hours; None if either is unknown."""
        return None if self.price is None or gpu_hours is None else self.price * gpu_hours


@derive_once
def list_logged_steps(measured: Measurements) -> tuple[LoggedSteps, ...]:
    """List the logs of all runs by step; a log without any time of a step is left out."""
    price = measured.facts.gpu_hour_price
    made = []
    for log in map_run_logs(measured).values():
        settings = find_log_settings(measured, log.run, log.source)
        steps = resolve_logged_stages(log, list_profiled_steps(settings))
        if steps is not None:
            made.append(replace(steps, price=price, settings=settings))
    return tuple(made)


def sum_step_timers(measured: Measurements, run: str | None) -> dict[int, int]:
    """Sum the timers of each step of a run, ns, where its framework never times the whole step; empty for any other log."""
    return {
        step: round(seconds * 1e9)
        for steps in list_logged_steps(measured)
        if steps.log.run == run and not steps.log.framework.step_keys
        for step, seconds in zip(steps.log.step.tolist(), steps.step_s.tolist(), strict=True)
    }


def resolve_logged_stages(log: RunLog, profiled_steps: Collection[int] = ()) -> LoggedSteps | None:
    """Resolve the timers of a log into disjoint stages; None if the log has no time of a step.

    `profiled_steps` are the numbers of steps that a profiler was set to record.
    """
    if log.get_first(*log.framework.step_keys) is not None:
        log = _select_timed_rows(log)
    mode = find_trainer_mode(log)
    times = _resolve_times(log, mode)
    if times is None or not (times.step_s > 0).any():
        return None
    first = None if log.first_tries is None else _resolve_times(log.first_tries, mode)
    parts = log.part if log.first_tries is None else np.append(log.part, log.first_tries.part)
    return LoggedSteps(
        log,
        mode,
        count_trainer_gpus(log),
        choose_counted_steps(log, profiled_steps),
        times.step_s,
        times.wall_s,
        times.residual_s,
        times.stages,
        np.zeros(0) if first is None else first.wall_s,
        int(parts.max() - parts.min()),
    )


class _Times(NamedTuple):
    """Times of rows of a log: see `LoggedSteps`."""

    step_s: Floats
    wall_s: Floats
    residual_s: Floats
    stages: tuple[LoggedStage, ...]


def _resolve_times(log: RunLog, mode: TrainerMode) -> _Times | None:
    """Resolve the timers of rows; None without the time of a step or of any stage inside it."""
    stages = tuple(_list_logged_timers(log, mode))
    step_s = log.get_first(*log.framework.step_keys)
    if step_s is None:
        inside = [stage.seconds for stage in stages if stage.where == "inside"]
        if not inside:
            return None
        step_s = _sum_known(inside)
    stages = _resolve_unknown_nesting(stages, step_s)
    inside_s = _sum_known([np.zeros(len(log)), *(stage.seconds for stage in stages if stage.where == "inside")])
    outside_s = _sum_known([np.zeros(len(log)), *(stage.seconds for stage in stages if stage.where == "outside")])
    # Printed numbers are rounded: their sum may exceed the step a little.
    return _Times(step_s, np.maximum(step_s, inside_s) + outside_s, np.maximum(step_s - inside_s, 0.0), stages)


def _select_timed_rows(log: RunLog) -> RunLog:
    """Select the rows with a step time: a validation before training has none."""
    step_s = log.get_first(*log.framework.step_keys)
    timed = np.zeros(len(log), np.bool_) if step_s is None else step_s > 0
    first = None if log.first_tries is None else _select_timed_rows(log.first_tries)
    log = replace(log, first_tries=first if first is not None and len(first) else None)
    if timed.all():
        return log
    series = {name: values[timed] for name, values in log.series.items()}
    known = {name: values for name, values in series.items() if np.isfinite(values).any()}
    return replace(log, part=log.part[timed], step=log.step[timed], series=known)


def _list_logged_timers(log: RunLog, mode: TrainerMode) -> Iterator[LoggedStage]:
    """List the timers of a log with their position."""
    parsed = ((name, log.framework.parse_timer(name)) for name in log.series)
    labels = {name: label for name, label in parsed if label is not None and label not in _PROFILER_CALLS}
    known = {timer.key: timer for timer in map(log.framework.find_timer, labels) if timer is not None}
    for name, label in labels.items():
        timer = log.framework.find_timer(name)
        if timer is not None:
            where, outer = _place_known_timer(timer, known)
        else:
            found = find_enclosing_timer(label, labels.values())
            where, outer = ("inside", "") if found is None else ("nested", found)
        if where == "inside" and label in mode.outside:
            where = "outside"
        seconds = log.series[name] * (1.0 if timer is None else timer.seconds)
        canonical = name_logged_stage(log.framework, name, label)
        if canonical in PERIODIC:
            seconds = drop_idle_calls(seconds)
        yield LoggedStage(label, canonical, seconds, where, label in mode.waits, outer)


_POSITIONS: Mapping[str, Where] = {"outside": "outside", "overlapping": "overlapping"}
"""Positions of the timers that are not within the step."""


def _place_known_timer(timer: StageTimer, logged: Mapping[str, StageTimer]) -> tuple[Where, str]:
    """Place a timer of the registry among those that were logged: its position, and the timer around a nested one."""
    if timer.place == "nested":
        if timer.parent is None:
            return "nested", "step"
        return ("nested", timer.parent) if timer.parent in logged else ("inside", "")
    if timer.place == "sum" and any(part.parent == timer.key for part in logged.values()):
        return "nested", "its parts"
    return _POSITIONS.get(timer.place, "inside"), ""


def _resolve_unknown_nesting(stages: tuple[LoggedStage, ...], step_s: Floats) -> tuple[LoggedStage, ...]:
    """Resolve timers that exceed their steps: in these steps, one or more run within others and are not added."""
    inside = [stage for stage in stages if stage.where == "inside"]
    if len(inside) < 2:
        return stages
    masks = iter(find_nested_steps([stage.seconds for stage in inside], step_s))
    resolved: list[LoggedStage] = []
    for stage in stages:
        nested = next(masks) if stage.where == "inside" else np.zeros(len(step_s), np.bool_)
        resolved += _split_nested_stage(stage, nested) if nested.any() else (stage,)
    return tuple(resolved)


def _split_nested_stage(stage: LoggedStage, nested: Mask) -> Iterator[LoggedStage]:
    """Split a stage into its steps by itself, if there are any, and its steps within other timers."""
    alone = ~nested & (stage.seconds > 0)
    if alone.any():
        yield replace(stage, seconds=np.where(nested, np.nan, stage.seconds), nested_steps=int(nested.sum()))
    seconds = np.where(nested, stage.seconds, np.nan)
    yield replace(stage, seconds=seconds, where="nested", within="another timer")


def _sum_known(values: list[Floats]) -> Floats:
    """Sum arrays, without missing values."""
    total = np.zeros(len(values[0]))
    for part in values:
        total += np.nan_to_num(part)
    return total


def describe_first_tries(steps: LoggedSteps) -> str:
    """Describe the tries that ran again after restarts, with their cost: `4 steps run again: 0.3 GPU-hours`."""
    count, hours = len(steps.first_tries_s), steps.compute_lost_gpu_hours()
    cost = format_quantity(float(steps.first_tries_s.sum()) * 1e9, "ns") if hours is None else f"{hours:.2g} GPU-hours"
    return f"{count:,} {choose_plural(count, 'step')} run again: {cost}"


def find_logged_period(steps: LoggedSteps, stage: LoggedStage) -> int | None:
    """Find how many steps are between occurrences of a stage that some steps lack: the gcd of their numbers."""
    present = steps.log.step[stage.seconds > 0]
    if stage.nested_steps or len(present) < 2 or len(present) == len(steps.log):
        return None
    period = gcd(*np.diff(present).tolist())
    return period if period > 1 else None
