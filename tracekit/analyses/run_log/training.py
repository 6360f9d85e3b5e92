"""Training by the log: sequences that are uneven over ranks, and the model FLOPS utilization (MFU)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import phrase_run
from tracekit.job.run_log.evidence import (
    compute_known_median,
    convert_seconds_to_ns,
    judge_logs,
    list_coverage_evidence,
    list_gpu_hour_evidence,
    place_in_log,
    reaches_limit,
)
from tracekit.job.run_log.gpu_headroom import compute_memory_factor
from tracekit.job.run_log.lengths import choose_step_lengths
from tracekit.job.run_log.settings import describe_proposals, grow_to_fit, switch_to
from tracekit.job.run_log.stages import LoggedSteps, list_logged_steps
from tracekit.job.run_log.values import Floats
from tracekit.model.report import Finding, Metric, Section, Verdict
from tracekit.model.stats.equal_length import measure_drift_at_equal_length
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

_TRAINING = ("old_log_prob", "ref", "values", "update_critic", "update_actor")
"""Stages whose ranks wait for the one with most work."""


def measure(_trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads the values of the log."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Judge the balance of sequences and the MFU; None without a log."""
    if not list_logged_steps(measured):
        return None

    def find(steps: LoggedSteps) -> Iterator[Finding | Verdict]:
        of_run = phrase_run(measured, steps.log.run)
        yield from _find_imbalance(steps, thresholds, of_run)
        memory_factor = compute_memory_factor(steps, measured.facts.device_memory)
        yield from _find_training_mfu(steps, thresholds, of_run, memory_factor)

    return ANALYSIS.answered(judge_logs(measured, ANALYSIS.rules, find))


def _measure_imbalance(steps: LoggedSteps) -> Floats | None:
    """Measure 1 − mean/largest of the tokens of a rank after balancing, in the steady steps; None where not logged.

    The lengths before balancing are never used: balancing has removed their difference.
    """
    mean, largest = steps.get_steady("global_seqlen/mean"), steps.get_steady("global_seqlen/balanced_max")
    if mean is None or largest is None:
        return steps.get_steady("performance/average_token_imbalance")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(largest > 0, 1 - mean / largest, np.nan)


def _find_imbalance(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding]:
    """Find ranks with more tokens than others after balancing."""
    imbalance = _measure_imbalance(steps)
    if imbalance is None or not reaches_limit(imbalance, thresholds.of("sequence-imbalance")["token_ratio"]):
        return
    ratio = compute_known_median(imbalance)
    is_generation = steps.log.framework.code == "nemo_rl"
    training_s = steps.sum_stage_seconds(*(("gen",) if is_generation else _TRAINING))
    steady = steps.counted.steady
    cost_s = None if training_s is None else compute_known_median(training_s[steady] * imbalance)
    share = None if cost_s is None else cost_s / compute_known_median(steps.step_s[steady])
    yield Finding(
        "sequence-imbalance",
        thresholds.severity(share),
        f"{'generation workers' if is_generation else 'ranks'} get uneven work: the largest has {format_quantity(1 / (1 - ratio) - 1, 'ratio')} more tokens "
        f"than the mean{of_run}",
        _advise_on_imbalance(steps, cost_s),
        (
            Metric("imbalance_ratio", ratio, "ratio", "lower", label="1 − mean/largest, after balancing"),
            *(() if cost_s is None else list_gpu_hour_evidence(steps, cost_s)),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps, "gen" if is_generation else "update_actor"),
        None if cost_s is None else convert_seconds_to_ns(cost_s),
        share,
        ("an upper bound: work grows faster than tokens, so uneven tokens may be even work",),
    )


def _advise_on_imbalance(steps: LoggedSteps, cost_s: float | None) -> str:
    """Advise how to balance the work of ranks; verl and NeMo-RL alone log it."""
    if steps.log.framework.code == "nemo_rl":
        advice = "give workers answers of mixed length: more prompts per worker, or an engine that takes the next prompt when one is done"
    else:
        advice = "balance the batch (trainer.balance_batch=True), pack by tokens (actor_rollout_ref.actor.use_dynamic_bsz=True with ppo_max_token_len_per_gpu), or use larger mini-batches"
    proposals = (
        ("trainer.balance_batch", switch_to("True")),
        ("actor_rollout_ref.actor.use_dynamic_bsz", switch_to("True")),
    )
    return advice + describe_proposals(steps.settings, proposals, cost_s)


def _advise_on_mfu(
    steps: LoggedSteps, level: float, reached: float, cost_s: float | None, memory_factor: float | None
) -> str:
    """Advise how to raise the MFU; the bound of a low level is the time at the limit of the rule.

    Micro-batches grow at most by `memory_factor`, to fit into the GPU. verl and NeMo-RL alone log the MFU.
    """
    if steps.log.framework.code == "nemo_rl":
        advice = "larger micro-batches (policy.train_micro_batch_size), packing (policy.sequence_packing.enabled), no offloading if memory allows (policy.dtensor_cfg.cpu_offload)"
    else:
        advice = "larger micro-batches (actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu, or use_dynamic_bsz=True), no offloading if memory allows (fsdp_config.param_offload, optimizer_offload), less ulysses_sequence_parallel_size, actor_rollout_ref.model.use_remove_padding=True"
    actor = "actor_rollout_ref.actor"
    proposals = (
        (f"{actor}.use_dynamic_bsz", switch_to("True")),
        (f"{actor}.ppo_micro_batch_size_per_gpu", grow_to_fit(memory_factor)),
        (f"{actor}.ppo_max_token_len_per_gpu", grow_to_fit(memory_factor)),
        (f"{actor}.fsdp_config.param_offload", switch_to("False")),
        (f"{actor}.fsdp_config.optimizer_offload", switch_to("False")),
        ("actor_rollout_ref.model.use_remove_padding", switch_to("True")),
        ("policy.sequence_packing.enabled", switch_to("True")),
        ("policy.dtensor_cfg.cpu_offload", switch_to("False")),
    )
    update_s = steps.sum_stage_seconds("update_actor")
    if cost_s is not None or update_s is None or level >= reached:
        return advice + describe_proposals(steps.settings, proposals, cost_s)
    bound_s = compute_known_median(update_s[steps.counted.steady]) * (1 - level / reached)
    return advice + describe_proposals(
        steps.settings, proposals, bound_s, f"at an MFU of {format_quantity(reached, 'ratio')}"
    )


def _find_training_mfu(
    steps: LoggedSteps, thresholds: Thresholds, of_run: str, memory_factor: float | None
) -> Iterator[Finding]:
    """Find a low MFU of the actor, or one that falls over the run at equal length."""
    limit = thresholds.of("training-mfu")
    values = steps.log.get_first(*steps.log.framework.mfu)
    if values is None:
        return
    rows = steps.counted.steady & (values > 0) & (values <= 1)
    if rows.sum() < limit["steps"]:
        return
    level, fall = compute_known_median(values[rows]), _measure_mfu_fall(steps, rows, values, limit)
    if level >= limit["mfu"] and fall is None:
        return
    claim = f"the actor trains at an MFU of {format_quantity(level, 'ratio')}"
    if fall is not None:
        claim = f"the actor's MFU falls by {format_quantity(fall, 'ratio')} over the run at equal length"
    update_s = steps.sum_stage_seconds("update_actor")
    cost_s = share = None
    if fall is not None and update_s is not None:
        # The mean step pays for half of the fall.
        cost_s = compute_known_median(update_s[rows]) * fall / 2
        share = cost_s / compute_known_median(steps.step_s[rows])
    yield Finding(
        "training-mfu",
        thresholds.severity(share),
        f"{claim}{of_run}",
        _advise_on_mfu(steps, level, limit["mfu"], cost_s, memory_factor),
        (
            Metric("mfu", level, "ratio", "higher", label="MFU of the actor, median"),
            Metric("fall_ratio", fall, "ratio", "lower", label="fall over the run"),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps, "update_actor"),
        None if cost_s is None else convert_seconds_to_ns(cost_s),
        share,
        ("the promise of the device is looked up by its name: an unknown name makes the MFU wrong",),
    )


def _measure_mfu_fall(steps: LoggedSteps, rows: Any, values: Floats, limit: Mapping[str, float]) -> float | None:
    """Measure the fall of the MFU over the run at equal length, by the rise of 1/MFU; None where it is not certain."""
    lengths = choose_step_lengths(steps, rows)
    if lengths is None:
        return None
    rise = measure_drift_at_equal_length(lengths, 1 / values[rows], np.flatnonzero(rows).astype(np.float64))
    if rise is None or not rise.is_told_apart or rise.p >= limit["p"] or rise.change < limit["fall_ratio"]:
        return None
    return 1 - 1 / (1 + rise.change)


ANALYSIS = Analysis(
    id="log-training",
    title="How well does training use its GPUs, by the run's log?",
    reads=("log_values",),
    rests_on=("run_log", "run_settings"),
    rules=("sequence-imbalance", "training-mfu"),
    every_step=True,
    thresholds={
        "sequence-imbalance": {
            # 1 − mean/largest. Below it, micro-batches cannot be cut more evenly.
            "token_ratio": 0.05,
        },
        "training-mfu": {
            # MFU of a dense model; a mixture of experts reaches about half.
            "mfu": 0.20,
            # Rise of 1/MFU over the run: a fall of 10 %.
            "fall_ratio": 0.111,
            # Its probability by chance.
            "p": 0.01,
            # Fewest steady steps.
            "steps": 10,
        },
    },
    measure=measure,
    judge=judge,
)
