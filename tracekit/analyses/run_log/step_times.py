"""Steps over the run, by the log: spikes, drift at equal length, and periodic validation and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import phrase_run
from tracekit.job.run_log.counted_steps import PERIODIC
from tracekit.job.run_log.evidence import (
    compute_known_median,
    convert_seconds_to_ns,
    judge_logs,
    list_coverage_evidence,
    list_gpu_hour_evidence,
    place_in_log,
)
from tracekit.job.run_log.lengths import choose_step_lengths
from tracekit.job.run_log.settings import compute_needed_factor, describe_scaled_proposals
from tracekit.job.run_log.stages import LoggedStage, LoggedSteps, find_logged_period, list_logged_steps
from tracekit.job.run_log.values import Floats
from tracekit.model.recording.advised_settings import name_advised_settings
from tracekit.model.report import Finding, Metric, Section, Verdict
from tracekit.model.stages import VALIDATION
from tracekit.model.stats.equal_length import RunDrift, find_outlying_steps, measure_drift_at_equal_length
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity, format_ranges


def measure(_trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads the values of the log."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Judge spikes, drift and periodic stages; None without a log."""
    if not list_logged_steps(measured):
        return None

    def find(steps: LoggedSteps) -> Iterator[Finding | Verdict]:
        of_run = phrase_run(measured, steps.log.run)
        yield from _find_spikes(steps, thresholds, of_run)
        yield from _find_step_drift(steps, thresholds, of_run)
        yield from _find_logged_chores(steps, thresholds, of_run)

    return ANALYSIS.answered(judge_logs(measured, ANALYSIS.rules, find))


def _choose_lengths_or_none(steps: LoggedSteps) -> Floats:
    """Choose the lengths of the steady steps; without any, no column."""
    lengths = choose_step_lengths(steps, steps.counted.steady)
    return np.empty((steps.counted.steady_count, 0)) if lengths is None else lengths


def _find_spikes(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding]:
    """Find single steps that take much longer than their length explains."""
    limit = thresholds.of("step-spikes")
    rows = np.flatnonzero(steps.counted.steady)
    seconds = steps.step_s[rows]
    outlying, expected = find_outlying_steps(
        _choose_lengths_or_none(steps), seconds, limit["deviations"], limit["longer_ratio"]
    )
    if not outlying.any() or outlying.mean() > limit["most_ratio"]:
        return
    excess = np.where(outlying, seconds - expected, 0.0)
    largest = np.argsort(-excess)[: min(int(outlying.sum()), MOST_NAMED)]
    ratio = float(excess.sum() / steps.wall_s[rows].sum())
    worst = int(rows[largest[0]])
    stage = _find_grown_stage(steps, worst)
    named = format_ranges(sorted(steps.log.step[rows[largest]].tolist()))
    count = int(outlying.sum())
    yield Finding(
        "step-spikes",
        thresholds.severity(ratio),
        f"{count} {choose_plural(count, 'step')} of {len(rows)} {choose_plural(count, 'takes', 'take')} up to {format_quantity(float((excess / expected).max()), 'ratio')} longer "
        f"than their length explains: {choose_plural(count, 'step')} {named}{f', most in {stage}' if stage else ''}{of_run}",
        "look at these steps: garbage collection, the file system, other jobs, retries of a service; profile such a step",
        (
            Metric(
                "spike_ns",
                convert_seconds_to_ns(float(excess.max())),
                "ns",
                "lower",
                label=f"excess of step {int(steps.log.step[worst])}",
            ),
            *list_gpu_hour_evidence(steps, float(excess.sum()) / len(rows)),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps, stage, int(steps.log.step[worst])),
        convert_seconds_to_ns(float(excess.sum()) / len(rows)),
        ratio,
    )


MOST_NAMED = 5
"""Most spikes named."""


def _find_grown_stage(steps: LoggedSteps, row: int) -> str | None:
    """Find the stage that exceeds its median most in a step; None if time in no timer does."""
    steady = steps.counted.steady
    grown = {
        stage.canonical: float(np.nan_to_num(stage.seconds[row]) - np.nanmedian(stage.seconds[steady]))
        for stage in steps.stages
        if stage.where == "inside" and np.isfinite(stage.seconds[steady]).any()
    }
    untimed = float(steps.residual_s[row] - np.median(steps.residual_s[steady]))
    stage = max(grown, key=lambda name: grown[name], default=None)
    return stage if stage is not None and grown[stage] > untimed else None


def _find_step_drift(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding | Verdict]:
    """Find steps that get slower over the run with length held equal."""
    limit = thresholds.of("step-drift")
    rows = np.flatnonzero(steps.counted.steady)
    if len(rows) < limit["steps"]:
        yield Verdict(
            "step-drift",
            "insufficient data",
            f"{len(rows)} of at least {limit['steps']:.0f} steady steps",
            steps.log.run,
        )
        return
    place = rows.astype(np.float64)
    # Without the spikes: one slow step late in the run is not drift.
    lengths, seconds = _choose_lengths_or_none(steps), steps.step_s[rows]
    outlying, _ = find_outlying_steps(lengths, seconds, 3.0, 0.15)
    if outlying.mean() <= MOST_OUTLYING:
        lengths, seconds, place = lengths[~outlying], seconds[~outlying], place[~outlying]
    drift = measure_drift_at_equal_length(lengths, seconds, place)
    if drift is None:
        return
    if not drift.is_told_apart:
        raw = measure_drift_at_equal_length(np.empty((len(seconds), 0)), seconds, place)
        if raw is not None and raw.p < limit["p"] and raw.change >= limit["slower_ratio"]:
            reason = f"length and step number are correlated by {drift.correlation:.2f}: longer answers may explain slower steps"
            yield Verdict("step-drift", "insufficient data", reason, steps.log.run)
        return
    if drift.p >= limit["p"] or drift.change < limit["slower_ratio"]:
        return
    yield _make_drift_finding(steps, drift, thresholds, of_run)


MOST_OUTLYING = 0.1
"""Largest share of spikes that are left out of a drift."""


def _make_drift_finding(steps: LoggedSteps, drift: RunDrift, thresholds: Thresholds, of_run: str) -> Finding:
    """Make the finding of a drift; the mean step pays for half."""
    median_s = compute_known_median(steps.step_s[steps.counted.steady])
    cost_s = median_s * (1 - 1 / (1 + drift.change / 2))
    stage = _find_drifting_stage(steps)
    return Finding(
        "step-drift",
        thresholds.severity(cost_s / median_s),
        f"steps get {format_quantity(drift.change, 'ratio')} slower over the run at equal length{f', most in {stage}' if stage else ''}{of_run}",
        "check what grows: memory and caches, the data loader, log files; clocks and temperature of the GPUs; restart from a checkpoint to compare",
        (
            Metric("drift_ratio", drift.change, "ratio", "lower", label="last against first step, at equal length"),
            *list_gpu_hour_evidence(steps, cost_s),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps, stage),
        convert_seconds_to_ns(cost_s),
        cost_s / median_s,
        ("the mean step pays for half of the drift",),
    )


def _find_drifting_stage(steps: LoggedSteps) -> str | None:
    """Find the stage that grows most over the run at equal length, in seconds; None if none grows."""
    rows = steps.counted.steady
    lengths, place = _choose_lengths_or_none(steps), np.flatnonzero(rows).astype(np.float64)
    grown: dict[str, float] = {}
    for stage in steps.stages:
        seconds = stage.seconds[rows]
        if stage.where != "inside" or not (seconds > 0).all():
            continue
        drift = measure_drift_at_equal_length(lengths, seconds, place)
        if drift is not None and drift.change > 0:
            grown[stage.canonical] = drift.change * float(seconds.mean())
    return max(grown, key=lambda name: grown[name], default=None)


def _find_logged_chores(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding]:
    """Find validation and checkpoints that take much of the wall time."""
    limit = thresholds.of("logged-chores")
    wall_s = steps.average_wall_seconds()
    for stage in steps.stages:
        if not stage.is_added or stage.canonical not in PERIODIC:
            continue
        times = stage.seconds[stage.seconds > 0]
        cost_s = steps.average_stage_seconds(stage)
        ratio = cost_s / wall_s
        if ratio < limit["wall_ratio"] or len(times) < limit["times"]:
            continue
        mean_s = float(times.mean())
        yield Finding(
            "logged-chores",
            thresholds.severity(ratio),
            f"{CHORE_NAMES[stage.canonical]} takes {format_quantity(mean_s * 1e9, 'ns')} {_describe_period(steps, stage)}: "
            f"{format_quantity(ratio, 'ratio')} of the wall time{of_run}",
            _advise_on_chore(steps, stage, cost_s, limit["wall_ratio"]),
            (
                Metric("wall_ratio", ratio, "ratio", "lower", label="of the wall time"),
                Metric("period_steps", find_logged_period(steps, stage), "count", label="steps from one to the next"),
                *list_gpu_hour_evidence(steps, cost_s),
                *list_coverage_evidence(steps),
            ),
            place_in_log(steps, stage.canonical),
            convert_seconds_to_ns(cost_s),
            ratio,
            ("a planned stage: the saving depends on how much less often or shorter it can run",),
        )


def _describe_period(steps: LoggedSteps, stage: LoggedStage) -> str:
    """Describe how often a stage runs."""
    period = find_logged_period(steps, stage)
    present = int((stage.seconds > 0).sum())
    return f"every {period} steps" if period else f"in {present} of {len(steps.log)} steps"


def _advise_on_chore(steps: LoggedSteps, stage: LoggedStage, cost_s: float, limit: float) -> str:
    """Advise how to run a stage less often: as rarely as keeps it below the limit of the rule."""
    code = steps.log.framework.code
    others = CHORE_ADVICE_OTHERS[stage.canonical] + name_advised_settings(CHORE_TOPICS[stage.canonical], code)
    advice = CHORE_ADVICE.get((code, stage.canonical), others)
    factor = compute_needed_factor(cost_s, steps.average_wall_seconds(), limit)
    what = f"until it takes less than {format_quantity(limit, 'ratio')} of the wall time"
    keys = CHORE_KEYS.get((code, stage.canonical), ())
    return advice + describe_scaled_proposals(steps.settings, keys, factor, cost_s, what)


CHORE_TOPICS = {VALIDATION: "validation", "save": "checkpoint"}
"""Topics of the settings that advice names."""

CHORE_KEYS = {
    ("verl", VALIDATION): ("trainer.test_freq",),
    ("verl", "save"): ("trainer.save_freq",),
    ("verl_omni", VALIDATION): ("trainer.test_freq",),
    ("verl_omni", "save"): ("trainer.save_freq",),
    ("nemo_rl", VALIDATION): ("grpo.val_period",),
    ("nemo_rl", "save"): ("checkpointing.save_period",),
    ("roll", VALIDATION): ("eval_steps",),
    ("roll", "save"): ("save_steps",),
    ("areal", VALIDATION): ("evaluator.freq_steps",),
    ("areal", "save"): ("saver.freq_steps",),
}
"""Settings of the steps from one validation or checkpoint to the next."""

CHORE_NAMES = {VALIDATION: "validation", "save": "a checkpoint"}
_VERL_VALIDATION = "validate less often (trainer.test_freq) or on fewer samples; in fully async runs on the rollouter (async_training.use_trainer_do_validate=False)"
_VERL_SAVE = "write checkpoints asynchronously (actor_rollout_ref.actor.checkpoint.async_save=True), or less often (trainer.save_freq)"
CHORE_ADVICE = {
    ("verl", VALIDATION): _VERL_VALIDATION,
    ("verl", "save"): _VERL_SAVE,
    ("verl_omni", VALIDATION): _VERL_VALIDATION,
    ("verl_omni", "save"): _VERL_SAVE,
    ("nemo_rl", VALIDATION): "validate less often (grpo.val_period) or on fewer samples (grpo.max_val_samples)",
    ("nemo_rl", "save"): "write checkpoints less often (checkpointing.save_period)",
}
CHORE_ADVICE_OTHERS = {
    VALIDATION: "validate less often or on fewer samples",
    "save": "write checkpoints asynchronously, or less often",
}

ANALYSIS = Analysis(
    id="log-steps",
    title="Which steps are longer than others, by the run's log?",
    reads=("log_values",),
    rests_on=("run_log", "run_settings"),
    rules=("step-spikes", "step-drift", "logged-chores"),
    every_step=True,
    thresholds={
        "step-spikes": {
            # Robust standard deviations above the step that its length explains,
            "deviations": 3.0,
            # and share above it.
            "longer_ratio": 0.15,
            # More steps than this share are not spikes.
            "most_ratio": 0.2,
        },
        "step-drift": {
            # Change over the run at equal length.
            "slower_ratio": 0.05,
            # Its probability by chance.
            "p": 0.01,
            # Fewest steady steps.
            "steps": 15,
        },
        "logged-chores": {
            # Share of the wall time.
            "wall_ratio": 0.05,
            # Fewest occurrences: one alone has no period.
            "times": 2,
        },
    },
    measure=measure,
    judge=judge,
)
