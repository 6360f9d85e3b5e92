"""The logs of several runs as one table: a row per run with its main values, and the command that compares two."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from os.path import commonpath
from typing import Any

import numpy as np

from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.run_log.stages import LoggedSteps
from tracekit.model.report import Heading, Sheet
from tracekit.model.tables.frame import from_rows
from tracekit.model.trace import Measurements

RUN_SHEET = "logged_runs"

_HEADINGS = """
    mode | trainer
    steps | steps | number
    gpus | GPUs | number
    median_ns | step | ns | Median over the steps without warm-up, validation, checkpoints and profilers.
    iqr_ns | IQR | ns | Range of the middle half.
    mean_ns | wall | ns | Mean of the step with the stages between steps.
    work_per_s_per_gpu | tokens/s/GPU | number | Median; images of diffusion trainers.
    mfu_ratio | actor MFU | ratio | Median.
    longest | longest stage
    longest_ratio | its share | ratio | Part of the wall time.
    untimed_ratio | in no timer | ratio | Part of the wall time.
    gpu_hours | GPU-hours | number | Over all logged steps, with those that ran again after a restart.
    price | cost | number | Price of the GPU-hours.
"""


def make_logged_run_sheet(measured: Measurements, logs: Sequence[LoggedSteps]) -> Sheet:
    """Make the table of the main values of each run's log; no row for a single log."""
    headings = (Heading("run", "run"), *parse_headings(_HEADINGS))
    rows = [_make_run_row(steps) for steps in logs if steps.counted.counted.any()] if len(logs) > 1 else []
    table = from_rows([heading.name for heading in headings], rows)
    caption = suggest_run_comparison(measured, logs)
    return make_sheet(RUN_SHEET, "Runs by their logs", headings, table, caption=caption)


def _make_run_row(steps: LoggedSteps) -> tuple[Any, ...]:
    """Make the row of one run."""
    steady, framework = steps.counted.steady, steps.log.framework
    wall_s = steps.average_wall_seconds()
    stages = {stage.canonical: steps.average_stage_seconds(stage) for stage in steps.stages if stage.is_added}
    longest = max(stages, key=lambda name: stages[name], default=None)
    median = iqr = None
    if steady.any():
        low, middle, high = (float(value) * 1e9 for value in np.percentile(steps.step_s[steady], (25, 50, 75)))
        median, iqr = round(middle), round(high - low)
    rate, mfu = (steps.get_steady(*names) for names in (framework.throughput, framework.mfu))
    known_mfu = None if mfu is None else mfu[(mfu > 0) & (mfu <= 1)]
    hours = steps.compute_run_gpu_hours()
    return (
        steps.log.run,
        steps.mode.label,
        len(steps.log),
        steps.gpus,
        median,
        iqr,
        round(wall_s * 1e9),
        None if rate is None else float(np.nanmedian(rate)),
        None if known_mfu is None or not len(known_mfu) else float(np.median(known_mfu)),
        longest,
        None if longest is None else stages[longest] / wall_s,
        float(steps.residual_s[steps.counted.counted].mean()) / wall_s,
        hours,
        steps.compute_price(hours),
    )


def suggest_run_comparison(measured: Measurements, logs: Sequence[LoggedSteps]) -> str:
    """Suggest the command that compares the first two runs of one trainer; empty if their paths are not separate."""
    by_trainer: dict[str, list[str]] = {}
    for steps in logs:
        by_trainer.setdefault(steps.mode.code, []).append(steps.log.run or "")
    pairs = [runs[:2] for runs in by_trainer.values() if len(runs) > 1]
    sides = [_find_run_path(measured, run) for run in pairs[0]] if pairs else []
    if not all(sides) or not sides or commonpath(sides) in sides:
        return ""
    return f"To compare two runs: {shlex.join(['tracekit', 'compare', *sides])}"


def _find_run_path(measured: Measurements, run: str) -> str:
    """Find the file of a run, or the folder that contains all its files; empty for an unknown run."""
    paths = [str(source.path) for source in measured.sources if source.run == run]
    return commonpath(paths) if paths else ""
