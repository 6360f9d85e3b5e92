"""Generation by the log: its tail, and tools and rewards that the step waits for."""

from __future__ import annotations

import math
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
from tracekit.job.run_log.generation_tail import measure_generation_tail
from tracekit.job.run_log.schedules import measure_tail_cut
from tracekit.job.run_log.settings import (
    compute_needed_factor,
    describe_proposals,
    describe_scaled_proposals,
    lower_to,
    raise_to,
)
from tracekit.job.run_log.stages import LoggedSteps, list_logged_steps
from tracekit.job.run_log.values import Floats
from tracekit.model.recording.advised_settings import name_advised_settings
from tracekit.model.report import Finding, Metric, Section, Verdict
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

_SLOWEST = "timing_s/agent_loop/slowest/"


def measure(_trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads the values of the log."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Judge the tail of generation, tools and rewards; None without a log."""
    if not list_logged_steps(measured):
        return None

    def find(steps: LoggedSteps) -> Iterator[Finding | Verdict]:
        of_run = phrase_run(measured, steps.log.run)
        yield from _find_generation_tails(steps, thresholds, of_run)
        yield from _find_slow_tools(steps, thresholds, of_run)
        yield from _find_slow_rewards(steps, thresholds, of_run)

    return ANALYSIS.answered(judge_logs(measured, ANALYSIS.rules, find))


def _find_generation_tails(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding]:
    """Find steps that wait for the longest answers of a batch."""
    limit = thresholds.of("generation-tail")
    gen_s = steps.sum_stage_seconds("gen", waits=False)
    tail = measure_generation_tail(steps)
    if gen_s is None or tail is None or steps.mode.is_async:
        return
    steady = steps.counted.steady
    share = divide_by_step(steps, gen_s)
    if not reaches_limit(tail.ratio[steady], limit["tail_ratio"]) or not reaches_limit(share, limit["step_ratio"]):
        return
    bound_s = compute_known_median(gen_s[steady] * tail.ratio[steady])
    ratio = compute_known_median(share * tail.ratio[steady])
    yield Finding(
        "generation-tail",
        thresholds.severity(ratio),
        f"generation is {format_quantity(compute_known_median(share), 'ratio')} of the step and waits for its longest answers: "
        f"{_describe_answer_lengths(steps)}{of_run}",
        _advise_on_tail(steps, bound_s, gen_s),
        (
            Metric(
                "tail_ratio",
                compute_known_median(tail.ratio[steady]),
                "ratio",
                "lower",
                label=f"1 − mean/longest, by {tail.basis}",
            ),
            Metric("generation_ratio", compute_known_median(share), "ratio", "lower", label="generation, of the step"),
            *_list_length_evidence(steps),
            *list_gpu_hour_evidence(steps, bound_s),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps, "gen"),
        convert_seconds_to_ns(bound_s),
        ratio,
        ("an upper bound: if requests queue in the engine, the tail is shorter than it looks",),
    )


DROPPED_ANSWERS = 0.05
"""Share of the answers that a cut at their 95th percentile drops."""


def _advise_on_tail(steps: LoggedSteps, bound_s: float, gen_s: Floats) -> str:
    """Advise how to cut the tail: proposed values drop or truncate the longest 5 % of the answers."""
    if not steps.is_verl:
        advice = "cut or avoid the tail: limit the length of answers, an overlong penalty, oversampling, partial rollouts, or a trainer that generates ahead"
        return advice + name_advised_settings("generation-tail", steps.log.framework.code)
    advice = "cut or avoid the tail: data.max_response_length, an overlong penalty, actor_rollout_ref.rollout.over_sample_rate, partial rollout, or a trainer that is one step off or fully async"
    cut = measure_tail_cut(steps)
    if cut is None:
        return advice
    saved_s = min(bound_s, compute_known_median(gen_s[steps.counted.steady]) * cut.saved_ratio)
    proposals = (
        ("data.max_response_length", lower_to(math.floor(cut.limit))),
        ("actor_rollout_ref.rollout.over_sample_rate", raise_to(DROPPED_ANSWERS)),
    )
    return advice + describe_proposals(
        steps.settings, proposals, saved_s, "without the longest 5 % of the answers, if lengths fall off exponentially"
    )


def _describe_answer_lengths(steps: LoggedSteps) -> str:
    """Describe the longest and the mean answer."""
    framework = steps.log.framework
    mean, most = steps.get_steady(*framework.mean_length), steps.get_steady(*framework.longest)
    if mean is None or most is None:
        return "the mean sample is done much earlier"
    return f"{compute_known_median(most):,.0f} tokens where the mean answer has {compute_known_median(mean):,.0f}"


def _list_length_evidence(steps: LoggedSteps) -> Iterator[Metric]:
    """List the slowest sample's length, and the share of truncated answers."""
    length = steps.get_steady(f"{_SLOWEST}response_length")
    if length is not None:
        yield Metric("slowest_length", compute_known_median(length), "", label="tokens of the slowest sample, median")
    clipped = steps.get_steady("response_length/clip_ratio")
    if clipped is not None:
        yield Metric(
            "clip_ratio", compute_known_median(clipped), "ratio", "lower", label="answers at the longest length"
        )


def _find_slow_tools(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding]:
    """Find batches whose slowest sample mostly waits for tools."""
    limit = thresholds.of("tool-tail")
    tool, generate = steps.log.get_first(f"{_SLOWEST}tool_calls"), steps.log.get_first(f"{_SLOWEST}generate_sequences")
    if tool is None or generate is None:
        return
    known = np.isfinite(tool) & np.isfinite(generate) & (tool + generate > 0)
    if not known.any():
        return
    share = tool[known] / (tool[known] + generate[known])
    is_slow = share >= limit["tool_ratio"]
    if float(is_slow.mean()) < limit["steps_ratio"]:
        return
    seconds = float((tool[known] * is_slow).mean())
    ratio = seconds / float(steps.step_s[known].mean())
    turns = steps.get_steady("num_turns/max")
    yield Finding(
        "tool-tail",
        thresholds.severity(ratio),
        f"tools delay the slowest sample in {format_quantity(float(is_slow.mean()), 'ratio')} of the steps: "
        f"{format_quantity(float(np.median(tool[known][is_slow])) * 1e9, 'ns')}, "
        f"{format_quantity(float(np.median(share[is_slow])), 'ratio')} of its time{of_run}",
        "shorten or limit tool calls: actor_rollout_ref.rollout.multi_turn.max_parallel_calls, multi_turn.max_assistant_turns, actor_rollout_ref.rollout.agent.num_workers, a time limit in the tool"
        + describe_scaled_proposals(
            steps.settings,
            ("actor_rollout_ref.rollout.multi_turn.max_parallel_calls",),
            _compute_tool_factor(tool[known][is_slow], generate[known][is_slow], limit["tool_ratio"]),
            seconds,
            f"until tools take less than {format_quantity(limit['tool_ratio'], 'ratio')} of the slowest sample, if calls scale with it",
        ),
        (
            Metric(
                "tool_ratio",
                float(np.median(share[is_slow])),
                "ratio",
                "lower",
                label="of the slowest sample's time, in these steps",
            ),
            Metric(
                "most_turns",
                None if turns is None else compute_known_median(turns),
                "",
                "lower",
                label="most turns, median",
            ),
            *list_gpu_hour_evidence(steps, seconds),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps, "gen"),
        convert_seconds_to_ns(seconds),
        ratio,
        ("an upper bound: without tools, another sample is the slowest",),
    )


def _find_slow_rewards(steps: LoggedSteps, thresholds: Thresholds, of_run: str) -> Iterator[Finding]:
    """Find rewards that take a part of the step by themselves."""
    limit = thresholds.of("reward-time")
    reward_s = steps.sum_stage_seconds("reward")
    if reward_s is None:
        return
    share = divide_by_step(steps, reward_s)
    if not reaches_limit(share, limit["step_ratio"]):
        return
    median_s, ratio = compute_known_median(reward_s[steps.counted.steady]), compute_known_median(share)
    yield Finding(
        "reward-time",
        thresholds.severity(ratio),
        f"rewards take {format_quantity(ratio, 'ratio')} of the step: {format_quantity(median_s * 1e9, 'ns')}{of_run}",
        _advise_on_rewards(steps, median_s, limit["step_ratio"]),
        (
            Metric("reward_ratio", ratio, "ratio", "lower", label="of the step, median"),
            *list_gpu_hour_evidence(steps, median_s),
            *list_coverage_evidence(steps),
        ),
        place_in_log(steps, "reward"),
        convert_seconds_to_ns(median_s),
        ratio,
    )


_REWARD_KEYS = ("reward.num_workers", "reward.sandbox_fusion.max_concurrent")


def _compute_tool_factor(tool: Floats, generate: Floats, limit: float) -> float:
    """Compute the factor by which tools of the slowest samples have to be faster to stay below a share of their time."""
    return compute_needed_factor(float(np.median(tool / (tool + generate))), 1.0, limit)


def _advise_on_rewards(steps: LoggedSteps, median_s: float, limit: float) -> str:
    """Advise how to compute rewards faster: by so many more workers that rewards fall below the limit of the rule."""
    if not steps.is_verl:
        return "compute rewards while samples are generated, with more workers"
    advice = "compute rewards while samples are generated, with more workers: reward.num_workers, reward.sandbox_fusion.max_concurrent"
    factor = compute_needed_factor(median_s, compute_known_median(steps.step_s[steps.counted.steady]), limit)
    what = f"until rewards take less than {format_quantity(limit, 'ratio')} of the step, if they scale with it"
    return advice + describe_scaled_proposals(steps.settings, _REWARD_KEYS, factor, median_s, what)


ANALYSIS = Analysis(
    id="log-generation",
    title="Does generation wait for tails, tools or rewards, by the run's log?",
    reads=("log_values",),
    rests_on=("run_log", "run_settings"),
    rules=("generation-tail", "tool-tail", "reward-time"),
    every_step=True,
    thresholds={
        "generation-tail": {
            # Share of generation by which the longest sample exceeds the mean: even lengths from 0 to the longest give
            # 0.5, evenly falling ones 0.67. A limit of 0.5 fires on all of five
            # balanced logs: tails of 0.55 to 0.61, generation at 54 to 61 % of the step.
            "tail_ratio": 0.7,
            # Share of generation in the step.
            "step_ratio": 0.40,
        },
        "tool-tail": {
            # Share of tools in the slowest sample's time,
            "tool_ratio": 0.40,
            # in this share of the steps.
            "steps_ratio": 0.5,
        },
        "reward-time": {
            # Share of rewards in the step.
            "step_ratio": 0.05,
        },
    },
    measure=measure,
    judge=judge,
)
