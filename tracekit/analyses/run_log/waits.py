"""Who waits for whom, by the log: the trainer for samples, the rollouter for the trainer, and samples that are thrown away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import phrase_run
from tracekit.job.run_log.evidence import (
    compute_known_median,
    convert_seconds_to_ns,
    divide_by_step,
    judge_logs,
    list_coverage_evidence,
    list_gpu_hour_evidence,
    place_in_log,
    reaches_limit,
)
from tracekit.job.run_log.settings import MOST_FACTOR, describe_proposals, multiply_by, raise_to, switch_to
from tracekit.job.run_log.stages import LoggedSteps, list_logged_steps
from tracekit.job.run_log.values import Floats
from tracekit.model.recording.advised_settings import name_advised_settings
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Metric, Section, Verdict
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity


def measure(_trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads the values of the log."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Judge the waits of trainer and rollouter, and wasted samples; None without a log."""
    if not list_logged_steps(measured):
        return None

    def find(steps: LoggedSteps) -> Iterator[Finding | Verdict]:
        of_run = phrase_run(measured, steps.log.run)
        yield from _find_trainer_waits(steps, thresholds, of_run)
        yield from _find_rollouter_waits(steps, thresholds, of_run)
        yield from _find_wasted_samples(steps, thresholds, of_run)

    return ANALYSIS.answered(judge_logs(measured, ANALYSIS.rules, find))


_WAIT_ADVICE = {
    "fully-async": "give the rollouter more GPUs (rollout.nnodes, rollout.n_gpus_per_node), or allow more staleness: async_training.staleness_threshold, async_training.trigger_parameter_sync_step, async_training.partial_rollout=True",
    "one-step-off": "give the rollout more GPUs (rollout.nnodes, rollout.n_gpus_per_node) until generation is as long as training",
    "separate-async": "give the rollout more GPUs, let trainer GPUs generate while they wait (trainer.v1.separate_async.hybrid_rollout.enable_switch=True), or raise trainer.v1.sampler.max_off_policy_threshold",
    "nemo-async": "give generation more GPUs, or raise grpo.async_grpo.max_trajectory_age_steps",
}
_WAIT_ADVICE_OTHERS = "give generation more GPUs, or let it run further ahead of training"


def _find_trainer_waits(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding]:
    """Find trainers that wait for samples."""
    limit = thresholds.of("trainer-wait")
    wait_s = steps.sum_wait_seconds()
    if wait_s is None:
        return
    share = divide_by_step(steps, wait_s)
    median_s = compute_known_median(wait_s[steps.counted.steady])
    if not reaches_limit(share, limit["step_ratio"]) or median_s < limit["seconds"]:
        return
    ratio = compute_known_median(share)
    idle = steps.get_steady("fully_async/rollouter/idle_ratio")
    yield Finding(
        "trainer-wait",
        thresholds.severity(ratio),
        f"the trainer waits for samples for {format_quantity(ratio, 'ratio')} of the step: "
        f"{format_quantity(median_s * 1e9, 'ns')} of {format_quantity(_median_step_ns(steps), 'ns')}{of_run}",
        _advise_on_wait(steps, median_s, ratio),
        (
            Metric("wait_ratio", ratio, "ratio", "lower", label="of the step, median"),
            Metric(
                "rollouter_idle_ratio",
                None if idle is None else float(np.nanmedian(idle)),
                "ratio",
                label="rollouter idle, as logged",
            ),
            *list_gpu_hour_evidence(steps, median_s),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps, "gen"),
        convert_seconds_to_ns(median_s),
        ratio,
        ("an upper bound: a trainer with samples at hand still loads and moves them",),
    )


def _advise_on_wait(steps: LoggedSteps, wait_s: float, ratio: float) -> str:
    """Advise how to shorten the trainer's wait: generation has to be faster by the part that it lacks."""
    faster = multiply_by(min(1 / (1 - ratio), MOST_FACTOR) if ratio < 1 else MOST_FACTOR)
    proposals = {
        "fully-async": (
            ("rollout.nnodes", faster),
            ("async_training.partial_rollout", switch_to("True")),
        ),
        "one-step-off": (("rollout.nnodes", faster),),
        "separate-async": (
            ("trainer.v1.separate_async.hybrid_rollout.enable_switch", switch_to("True")),
            ("actor_rollout_ref.rollout.nnodes", faster),
        ),
        "nemo-async": (("policy.generation.colocated.resources.num_nodes", faster),),
    }.get(steps.mode.code, ())
    others = _WAIT_ADVICE_OTHERS + name_advised_settings("trainer-wait", steps.log.framework.code)
    advice = _WAIT_ADVICE.get(steps.mode.code, others)
    return advice + describe_proposals(steps.settings, proposals, wait_s)


def _median_step_ns(steps: LoggedSteps) -> float:
    """Compute the median step time of the steady steps in ns."""
    return compute_known_median(steps.step_s[steps.counted.steady]) * 1e9


def _find_rollouter_waits(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding]:
    """Find rollouters that stand still: by their own idle ratio, or by a full queue."""
    limit = thresholds.of("rollouter-wait")
    idle = steps.get_steady("fully_async/rollouter/idle_ratio")
    full = _compute_full_queue_ratio(steps, limit["full_ratio"])
    by_idle = 0.0 if idle is None else compute_known_median(np.clip(idle, 0, 1))
    if by_idle < limit["idle_ratio"] and full < limit["idle_ratio"]:
        return
    seconds = (
        by_idle * compute_known_median(steps.step_s[steps.counted.steady]) if by_idle >= limit["idle_ratio"] else None
    )
    why = f"is idle for {format_quantity(by_idle, 'ratio')} of the time"
    if seconds is None:
        why = f"finds its queue full in {format_quantity(full, 'ratio')} of the steps"
    yield Finding(
        "rollouter-wait",
        thresholds.severity(max(by_idle, full)),
        f"the rollouter waits for the trainer: it {why}{of_run}",
        "move GPUs from the rollouter to the trainer (rollout.nnodes, trainer.nnodes), shorten training, or raise async_training.staleness_threshold"
        + describe_proposals(
            steps.settings,
            (("rollout.nnodes", multiply_by(1 - by_idle)),),
            seconds,
            "of the rollout GPUs",
        ),
        (
            Metric(
                "idle_ratio", by_idle if idle is not None else None, "ratio", "lower", label="rollouter idle, median"
            ),
            Metric("full_queue_ratio", full, "ratio", "lower", label="steps with a full queue"),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps),
        None if seconds is None else convert_seconds_to_ns(seconds),
        None if seconds is None else by_idle,
        ("time of the rollout GPUs, not of the step",),
    )


def _compute_full_queue_ratio(steps: LoggedSteps, full: float) -> float:
    """Compute the share of the steady steps whose queue, or staleness, is at its limit."""
    shares = []
    for level, most in (
        ("fully_async/monitor/queue/mq_queue_size", "fully_async/static/max_queue_size"),
        ("fully_async/count/staleness_samples", "fully_async/static/max_required_samples"),
    ):
        value, limit = steps.get_steady(level), steps.get_steady(most)
        if value is not None and limit is not None:
            shares.append(float(((limit > 0) & (value >= full * limit)).mean()))
    return max(shares, default=0.0)


_EVICTED_AGE = "training/off_policy/evicted_samples_staleness/max"
_EVICTED = (
    "training/off_policy/evicted_samples",
    "training/filter_groups/evicted_samples",
    "training/rollout_failure/evicted_samples",
)


def _find_wasted_samples(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding]:
    """Find generated samples that are never trained on, and samples that are as old as allowed in many steps."""
    limit = thresholds.of("evicted-samples")
    evicted, what, ratio = _measure_eviction(steps)
    oldest = _measure_oldest_steps(steps)
    wasted = ratio is not None and ratio >= limit["sample_ratio"]
    if not wasted and (oldest is None or oldest.ratio < limit["oldest_ratio"]):
        return
    if wasted:
        claim = f"{format_quantity(ratio or 0.0, 'ratio')} of the generated samples are thrown away ({what})"
    else:
        assert oldest is not None
        claim = f"samples are as old as allowed, {oldest.most:,.0f} weight versions, in {format_quantity(oldest.ratio, 'ratio')} of the steps: older ones are next"
    yield Finding(
        "evicted-samples",
        thresholds.severity(ratio) if wasted else "info",
        f"{claim}{of_run}",
        "let training keep up with generation, or accept older samples: async_training.staleness_threshold, trainer.v1.sampler.max_off_policy_threshold and max_off_policy_strategy; check algorithm.filter_groups"
        + _propose_older_samples(steps, ratio),
        (
            Metric("evicted_ratio", ratio, "ratio", "lower", label="of the generated samples"),
            Metric("evicted_samples", evicted, "", "lower", label="samples thrown away in the steady steps"),
            *_list_oldest_evidence(oldest),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps, "gen"),
        None,
        None,
        (
            "their generation was paid; the step is not shorter without them",
            "a lower bound where groups of several answers are counted as one",
        )
        if wasted
        else ("nothing is thrown away yet",),
    )


def _propose_older_samples(steps: LoggedSteps, ratio: float | None) -> str:
    """Propose to accept samples as old as those thrown away, or to wait instead, which keeps at most those of today."""
    proposals = [("trainer.v1.sampler.max_off_policy_strategy", switch_to("wait"))]
    age = steps.get_steady(_EVICTED_AGE)
    if age is not None:
        proposals.insert(0, (_OLDEST_SETTING, raise_to(float(np.nanmax(age)))))
    bound = "" if not ratio else f"at most {format_quantity(ratio, 'ratio')} of the samples are kept instead (bound)"
    return describe_proposals(steps.settings, proposals, None, bound)


def _measure_eviction(steps: LoggedSteps) -> tuple[float | None, str, float | None]:
    """Measure the samples thrown away: their number, why, and their share; None where not logged."""
    evicted, what = _sum_evicted_samples(steps)
    trained = steps.get_steady(
        "fully_async/rollouter/step_generated_samples", "fully_async/static/required_samples", "rollout/num_samples"
    )
    if trained is None:
        trained = _count_trained_groups(steps)
    if evicted is None or trained is None:
        return evicted, what, None
    total = evicted + float(np.nansum(trained))
    return evicted, what, evicted / total if total else 0.0


_OLDEST_SETTING = "trainer.v1.sampler.max_off_policy_threshold"


@dataclass(frozen=True, slots=True)
class _OldestSteps:
    """The largest allowed staleness of a sample in weight versions, and the share of the steps that reach it."""

    most: float
    ratio: float


def _measure_oldest_steps(steps: LoggedSteps) -> _OldestSteps | None:
    """Measure the steps with samples as old as allowed; None where staleness or its limit is not known."""
    staleness, limit = (
        steps.get_steady("training/off_policy/trajectory_staleness/max"),
        steps.settings.get(_OLDEST_SETTING),
    )
    most = None if limit is None else limit.number
    if staleness is None or most is None or most <= 0:
        return None
    return _OldestSteps(most, float((staleness >= most).mean()))


def _list_oldest_evidence(oldest: _OldestSteps | None) -> tuple[Metric, ...]:
    """List the share of the steps with samples as old as allowed; empty where the limit is not known."""
    if oldest is None:
        return ()
    label = f"steps whose oldest sample is {oldest.most:,.0f} weight versions old"
    return (Metric("oldest_ratio", oldest.ratio, "ratio", "lower", label=label),)


def _sum_evicted_samples(steps: LoggedSteps) -> tuple[float | None, str]:
    """Sum the samples thrown away in the steady steps, and name why; None where not logged."""
    parts = {name: steps.get_steady(name) for name in _EVICTED}
    sums = {name.split("/")[1]: float(np.nansum(values)) for name, values in parts.items() if values is not None}
    dropped = steps.log.get_first("fully_async/count/dropped_stale_samples")
    if dropped is not None:
        sums["dropped as stale"] = _sum_increases(dropped[steps.counted.steady])
    if not sums:
        return None, ""
    return sum(sums.values()), max(sums, key=lambda name: sums[name])


def _sum_increases(cumulative: Floats) -> float:
    """Sum the increases of a count from the start of the run; a restart of the count adds nothing."""
    known = cumulative[np.isfinite(cumulative)]
    return float(np.maximum(np.diff(known), 0).sum())


def _count_trained_groups(steps: LoggedSteps) -> Floats | None:
    """Count the samples that each steady step trains on: tokens over the mean length of a sample."""
    tokens, answer, prompt = (
        steps.get_steady(name) for name in ("perf/total_num_tokens", "response_length/mean", "prompt_length/mean")
    )
    if tokens is None or answer is None:
        return None
    return np.asarray(tokens / (answer + (0.0 if prompt is None else prompt)))


ANALYSIS = Analysis(
    id="log-waits",
    title="Who waits for whom, by the run's log?",
    reads=("log_values",),
    rests_on=("run_log", "run_settings"),
    rules=("trainer-wait", "rollouter-wait", "evicted-samples"),
    every_step=True,
    thresholds={
        "trainer-wait": {
            # The wait as a share of the step: one node of eight that changes sides shifts at least 12 %.
            "step_ratio": 0.10,
            # Seconds below which a wait is not worth moving GPUs.
            "seconds": 3.0,
        },
        "rollouter-wait": {
            # Share of the time that the rollouter is idle, or of the steps that find its queue full.
            "idle_ratio": 0.20,
            # Share of its size at which a queue counts as full.
            "full_ratio": 0.9,
        },
        "evicted-samples": {
            # Share of the generated samples that are thrown away.
            "sample_ratio": 0.05,
            # Share of the steps whose oldest sample is as old as allowed, where the limit is known.
            "oldest_ratio": 0.20,
        },
    },
    measure=measure,
    judge=judge,
)
