"""The summary of a run's log: its trainer, its step time, and the table of its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracekit.job.frames import phrase_run
from tracekit.job.run_log.stages import LoggedSteps, list_logged_steps
from tracekit.model.report import Metric, Section, Sheet
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements

MOST_DESCRIBED = 3
"""Most logs described in the first line."""

SECTION, SHEET = "run-log", "logged_stages"


def describe_run_logs(measured: Measurements) -> str:
    """Describe what the logs were read as: `read as a driver's log: 24 steps of verl fully async, 24 GPUs`."""
    logs = list_logged_steps(measured)
    if not logs:
        return ""
    texts = [_describe_run_log(measured, steps, several=len(logs) > 1) for steps in logs[:MOST_DESCRIBED]]
    if len(logs) > MOST_DESCRIBED:
        texts.append(f"{len(logs) - MOST_DESCRIBED} more")
    return f"read as {choose_plural(len(logs), 'a driver' + chr(39) + 's log', 'drivers' + chr(39) + ' logs')}: {'; '.join(texts)}"


def _describe_run_log(measured: Measurements, steps: LoggedSteps, *, several: bool) -> str:
    """Describe one log: steps, trainer, GPUs, restarts."""
    count = len(steps.log)
    gpus = "" if steps.gpus is None else f", {steps.gpus} {choose_plural(steps.gpus, 'GPU')}"
    restarts = int(steps.log.part[-1] - steps.log.part[0])
    again = f", restarted {restarts} {choose_plural(restarts, 'time')}" if restarts else ""
    where = phrase_run(measured, steps.log.run) if several else ""
    return f"{count:,} {choose_plural(count, 'step')} of {steps.mode.label}{gpus}{again}{where}"


def has_only_run_logs(measured: Measurements) -> bool:
    """Check whether all that was read are logs of drivers."""
    return {*measured.frame("recordings").values("kind")} == {"driver-log"}


def measure_run_log_headline(measured: Measurements) -> tuple[Metric, ...]:
    """Measure the headline of a log alone: step time, throughput per GPU and MFU, as medians of the steady steps."""
    logs = list_logged_steps(measured)
    metrics: list[Metric] = []
    for steps in logs[:MOST_DESCRIBED]:
        steady = steps.counted.steady
        if not steady.any():
            continue
        where = phrase_run(measured, steps.log.run) if len(logs) > 1 else ""
        low, middle, high = (float(value) * 1e9 for value in np.percentile(steps.step_s[steady], (25, 50, 75)))
        metrics.append(Metric("logged_step", middle, "ns", "lower", low, high, f"step, median{where}", "middle half"))
        rate, mfu = (steps.get_steady(*names) for names in (steps.log.framework.throughput, steps.log.framework.mfu))
        unit = "images" if steps.mode.code == "diffusion" else "tokens"
        if rate is not None:
            metrics.append(
                Metric("work_per_s_per_gpu", float(np.nanmedian(rate)), "", "higher", label=f"{unit}/s/GPU{where}")
            )
        if mfu is not None and (known := mfu[(mfu > 0) & (mfu <= 1)]).size:
            metrics.append(Metric("actor_mfu", float(np.median(known)), "ratio", "higher", label=f"actor MFU{where}"))
    return tuple(metrics)


def pick_run_log_table(sections: Sequence[Section]) -> Sheet | None:
    """Pick the table of logged stages for the first screen; None without a log."""
    for section in sections:
        if section.id == SECTION and section.status == "ok":
            sheet = next((sheet for sheet in section.sheets if sheet.name == SHEET), None)
            return None if sheet is None or not sheet.rows else _drop_spread(sheet)
    return None


_HIDDEN = ("iqr_ns",)


def _drop_spread(sheet: Sheet) -> Sheet:
    """Drop the columns that the first screen has no room for."""
    kept = [place for place, heading in enumerate(sheet.headings) if heading.name not in _HIDDEN]
    return replace(
        sheet,
        name="overview",
        headings=tuple(sheet.headings[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in sheet.rows),
    )
