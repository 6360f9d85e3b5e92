"""The summary of a run's log: its trainer, its step time, and the table of its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracekit.job.frames import COUNTED_ANEW, phrase_run
from tracekit.job.run_log.counted_steps import Mask
from tracekit.job.run_log.disagreement import describe_step_disagreement
from tracekit.job.run_log.run_table import RUN_SHEET
from tracekit.job.run_log.stages import LoggedSteps, describe_first_tries, list_logged_steps
from tracekit.job.stages.matrix import list_units_with_cells
from tracekit.job.stages.windows import STAGE_KEY
from tracekit.model.report import Metric, Section, Sheet
from tracekit.model.tables.frame import Frame, from_rows
from tracekit.model.text.labels import choose_plural, join_first_few
from tracekit.model.trace import Measurements
from tracekit.pipeline.summary.run_columns import drop_columns, make_run_overview

MOST_DESCRIBED = 3
"""Most logs and trainers described in the first lines."""

SECTION, SHEET = "run-log", "logged_stages"


def describe_run_logs(measured: Measurements) -> str:
    """Describe what the logs were read as: `read as a driver's log: 24 steps of verl fully async, 24 GPUs`."""
    logs = list_logged_steps(measured)
    if not logs:
        return ""
    texts = {_describe_run_log(steps) for steps in logs}
    if len(logs) == 1:
        (text,) = texts
    elif len(texts) == 1:
        text = f"each {texts.pop()}"
    else:
        trainers = dict.fromkeys(steps.mode.label for steps in logs)
        text = f"{sum(len(steps.log) for steps in logs):,} steps of {join_first_few(list(trainers), MOST_DESCRIBED)}"
    if not has_only_run_logs(measured):
        return f"driver's log: {text}"
    whose = choose_plural(len(logs), "a driver's log", "drivers' logs")
    return f"read as {whose}: {text}"


def _describe_run_log(steps: LoggedSteps) -> str:
    """Describe one log: steps, trainer, GPUs, restarts."""
    count = len(steps.log)
    gpus = "" if steps.gpus is None else f", {steps.gpus} {choose_plural(steps.gpus, 'GPU')}"
    restarts = steps.restarts
    again = f", restarted {restarts} {choose_plural(restarts, 'time')}" if restarts else ""
    if len(steps.first_tries_s):
        again += f" ({describe_first_tries(steps)})"
    return f"{count:,} {choose_plural(count, 'step')} of {steps.mode.label}{gpus}{again}"


def has_only_run_logs(measured: Measurements) -> bool:
    """Check whether all that was read are logs of drivers."""
    return {*measured.frame("recordings").values("kind")} == {"driver-log"}


def measure_run_log_headline(measured: Measurements) -> tuple[Metric, ...]:
    """Measure the headline of a log alone: step time, throughput per GPU and MFU, as medians of the steady steps.

    Empty for several logs: the table of their runs contains these values.
    """
    logs = list_logged_steps(measured)
    if len(logs) != 1 or not logs[0].counted.steady.any():
        return ()
    (steps,) = logs
    low, middle, high = (
        float(value) * 1e9 for value in np.percentile(steps.step_s[steps.counted.steady], (25, 50, 75))
    )
    metrics = [Metric("logged_step", middle, "ns", "lower", low, high, "step, median", "middle half")]
    rate, mfu = (steps.get_steady(*names) for names in (steps.log.framework.throughput, steps.log.framework.mfu))
    unit = "images" if steps.mode.code == "diffusion" else "tokens"
    if rate is not None:
        metrics.append(Metric("work_per_s_per_gpu", float(np.nanmedian(rate)), "", "higher", label=f"{unit}/s/GPU"))
    if mfu is not None and (known := mfu[(mfu > 0) & (mfu <= 1)]).size:
        metrics.append(Metric("actor_mfu", float(np.median(known)), "ratio", "higher", label="actor MFU"))
    return tuple(metrics)


LEAST_LOGGED_SHARE = 0.01
"""Smallest share of the driver's step for a stage that no trace has."""

LEAST_OVERHEAD = 0.05
"""Smallest difference between profiled and un-profiled steps that the first screen shows."""


def measure_driver_step(measured: Measurements) -> tuple[Metric, ...]:
    """Measure the driver's step next to that of the traces: mean of the steps that both have.

    The median of the un-profiled steps follows where it differs.
    """
    metrics = []
    for steps in list_logged_steps(measured)[:MOST_DESCRIBED]:
        shared = _find_profiled_rows(measured, steps)
        if shared.any():
            where = phrase_run(measured, steps.log.run)
            label = f"driver's step{where}"
            metrics.append(Metric("driver_step", float(steps.step_s[shared].mean()) * 1e9, "ns", "lower", label=label))
            other = steps.step_s[steps.counted.steady & ~shared & (steps.step_s > 0)]
            if len(other) and abs(float(steps.step_s[shared].mean() / np.median(other)) - 1) >= LEAST_OVERHEAD:
                label = f"its un-profiled steps{where}, median"
                metrics.append(
                    Metric("unprofiled_driver_step", float(np.median(other)) * 1e9, "ns", "lower", label=label)
                )
    return tuple(metrics)


def _find_profiled_rows(measured: Measurements, steps: LoggedSteps) -> Mask:
    """Find the rows of a log whose steps were recorded under the same number."""
    units = list_units_with_cells(measured)
    units = units.filter(units.equals("run", steps.log.run) & ~units.is_in("origin", COUNTED_ANEW))
    return np.isin(steps.log.step, units.integers("step", missing=-1))


def describe_log_disagreements(measured: Measurements) -> tuple[str, ...]:
    """Describe where the profile and the log of one run have different times for the same steps."""
    texts = []
    for steps in list_logged_steps(measured)[:MOST_DESCRIBED]:
        units = list_units_with_cells(measured)
        units = units.filter(units.equals("run", steps.log.run) & ~units.is_in("origin", COUNTED_ANEW))
        recorded = dict(zip(units.integers("step", missing=-1).tolist(), units.number("wall_ns").tolist(), strict=True))
        logged = dict(zip(steps.log.step.tolist(), (steps.step_s * 1e9).tolist(), strict=True))
        text = describe_step_disagreement(recorded, logged)
        if text:
            texts.append(text + phrase_run(measured, steps.log.run))
    return tuple(texts)


def append_log_only_stages(measured: Measurements, stages: Frame) -> Frame:
    """Append the stages that only the driver's log has, in the steps that were recorded; their other cells are unknown."""
    logged = _list_log_only_stages(measured, stages)
    if measured.facts.stages or not len(logged):
        return stages
    shown = {*STAGE_KEY, *logged.columns, "busy_ratio", "ranks", "slowest"}
    names = [name for name in stages.columns if name in shown]
    rows = [tuple(row.values()) for row in stages.select(*names).rows()]
    rows += [tuple(row.get(name) for name in names) for row in logged.rows()]
    return from_rows(names, rows)


def _list_log_only_stages(measured: Measurements, stages: Frame) -> Frame:
    """List the stages that only the log has: run, canonical, wall_ns, share_ratio, spread_ns.

    They take at least 1 % of the driver's step. `stages` are those of the traces.
    """
    rows: list[tuple[str | None, str, float, float, float]] = []
    for steps in list_logged_steps(measured):
        shared = _find_profiled_rows(measured, steps)
        traced = set(stages.filter(stages.equals("run", steps.log.run)).values("canonical"))
        if not shared.any() or not traced:
            continue
        step_s = float(steps.step_s[shared].mean())
        for stage in steps.stages:
            known = stage.seconds[shared & (stage.seconds > 0)]
            if stage.where != "inside" or stage.canonical in traced or not len(known):
                continue
            spread_s = float(known.sum()) / int(shared.sum())
            if spread_s >= LEAST_LOGGED_SHARE * step_s:
                name = f"{stage.canonical} (driver's log)"
                rows.append((steps.log.run, name, float(known.mean()) * 1e9, spread_s / step_s, spread_s * 1e9))
    return from_rows(("run", "canonical", "wall_ns", "share_ratio", "spread_ns"), rows)


def pick_run_log_table(sections: Sequence[Section]) -> Sheet | None:
    """Pick the table of logged stages for the first screen, or that of several runs; None without a log."""
    section = next((one for one in sections if one.id == SECTION and one.status == "ok"), None)
    sheets = {} if section is None else {sheet.name: sheet for sheet in section.sheets if sheet.rows}
    if SHEET not in sheets:
        return None
    if RUN_SHEET in sheets:
        return make_run_overview(sheets[SHEET], sheets[RUN_SHEET])
    return replace(drop_columns(sheets[SHEET], ("iqr_ns",)), name="overview")
