"""Logs of RL runs for the rules that judge a log alone. Every step takes 100 s on 4 GPUs unless a rule needs another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from rules.firing import Firing, Sources

Values = Mapping[str, float]


def log_of(
    values: Callable[[int], Values] | None = None, count: int = 10, step: Callable[[int], float] = lambda _: 100.0
) -> Sources:
    """A log of verl's synchronous trainer: for each step the usual values, changed by those of `values`.

    Times that are None are left out.
    """
    lines = []
    for number in range(1, count + 1):
        seconds = step(number)
        data = {
            "timing_s/step": seconds, "timing_s/gen": 30.0, "timing_s/reward": 1.0,
            "timing_s/update_actor": seconds - 40, "timing_s/update_weights": 3.0,
            "perf/total_num_tokens": 1_000, "perf/throughput": 1_000 / seconds / 4,
            "response_length/mean": 500.0, "response_length/max": 1_000.0,
            **(values(number) if values else {}),
        }  # fmt: skip
        lines.append(json.dumps({"step": number, "data": data}))
    return {"metrics.jsonl": ("\n".join(lines) + "\n").encode()}


def asynchronous(wait: float, **more: float) -> Sources:
    """A log of verl's fully async trainer that waits for samples for so long."""
    return log_of(
        lambda _: {
            "timing_s/gen": wait, "timing_s/update_actor": 90 - wait, "fully_async/trainer/idle_ratio": wait / 100,
            **{name.replace("__", "/"): value for name, value in more.items()},
        }
    )  # fmt: skip


def hours(seconds: float, count: int = 10) -> float:
    """GPU-hours of a time per step over the log."""
    return seconds * count * 4 / 3600


FIRES: dict[str, Firing] = {
    # 3 steps warm up: 7 of 10 count.
    "trainer-wait": Firing(
        asynchronous(20.0), "the trainer waits for samples for 20 % of the step: 20.0 s of 100 s", "high", 20_000_000_000, 0.2,
        {"wait_ratio": 0.2, "rollouter_idle_ratio": None, "gpu_hours": hours(20), "steady_steps": 7},
    ),
    "rollouter-wait": Firing(
        asynchronous(1.0, fully_async__rollouter__idle_ratio=0.25),
        "the rollouter waits for the trainer: it is idle for 25 % of the time", "high", 25_000_000_000, 0.25,
        {"idle_ratio": 0.25, "full_queue_ratio": 0.0, "steady_steps": 7},
    ),
    # 6 of 6 + 94 in each step.
    "evicted-samples": Firing(
        log_of(lambda _: {"training/off_policy/evicted_samples": 6, "rollout/num_samples": 94}),
        "6.0 % of the generated samples are thrown away (off_policy)", "medium", None, None,
        {"evicted_ratio": 0.06, "evicted_samples": 42, "steady_steps": 7},
    ),
    # Generation takes 60 s and ends with an answer four times as long as the mean.
    "generation-tail": Firing(
        log_of(lambda _: {"timing_s/gen": 60.0, "timing_s/update_actor": 30.0, "response_length/mean": 250.0}),
        "generation is 60 % of the step and waits for its longest answers: 1,000 tokens where the mean answer has 250", "high",
        45_000_000_000, 0.45,
        {"tail_ratio": 0.75, "generation_ratio": 0.6, "gpu_hours": hours(45), "steady_steps": 7},
    ),
    # In even steps, 12 s of the slowest sample's 20 s: 6 s per step.
    "tool-tail": Firing(
        log_of(
            lambda number: {
                "timing_s/agent_loop/slowest/tool_calls": 12.0 if number % 2 == 0 else 0.0,
                "timing_s/agent_loop/slowest/generate_sequences": 8.0,
            }
        ),
        "tools delay the slowest sample in 50 % of the steps: 12.0 s, 60 % of its time", "medium", 6_000_000_000, 0.06,
        {"tool_ratio": 0.6, "most_turns": None, "gpu_hours": hours(6), "steady_steps": 7},
    ),
    "reward-time": Firing(
        log_of(lambda _: {"timing_s/reward": 5.0}), "rewards take 5.0 % of the step: 5,000 ms", "medium", 5_000_000_000, 0.05,
        {"reward_ratio": 0.05, "gpu_hours": hours(5), "steady_steps": 7},
    ),
    # A tenth of the 60 s of update_actor; 100 tokens are 11 % more than 90.
    "sequence-imbalance": Firing(
        log_of(lambda _: {"global_seqlen/mean": 90.0, "global_seqlen/balanced_max": 100}),
        "ranks get uneven work: the largest has 11 % more tokens than the mean", "medium", 6_000_000_000, 0.06,
        {"imbalance_ratio": 0.1, "gpu_hours": hours(6), "steady_steps": 7},
    ),
    "training-mfu": Firing(
        log_of(lambda _: {"perf/mfu/actor": 0.19}, 13), "the actor trains at an MFU of 19 %", "info", None, None,
        {"mfu": 0.19, "fall_ratio": None, "steady_steps": 10},
    ),
    # 16 s more in one of 7 steps of 716 s.
    "step-spikes": Firing(
        log_of(step=lambda number: 116.0 if number == 8 else 100.0),
        "1 step of 7 takes up to 16 % longer than their length explains: step 8, most in update_actor", "low",
        2_285_714_286, 16 / 716,
        {"spike_ns": 16_000_000_000, "gpu_hours": hours(16 / 7), "steady_steps": 7},
    ),
    # From step 4 to step 20 it rises from 104 s to 120 s; the median is 112 s.
    "step-drift": Firing(
        log_of(count=20, step=lambda number: 100.0 + number),
        "steps get 15 % slower over the run at equal length, most in update_actor", "medium",
        8_000_000_000, 8 / 112,
        {"drift_ratio": 16 / 104, "gpu_hours": hours(8, 20), "steady_steps": 17},
    ),
    # 8 s per step of 100 s, between steps.
    "logged-chores": Firing(
        log_of(lambda number: {"timing_s/testing": 40.0} if number % 5 == 0 else {}, 15),
        "validation takes 40.0 s every 5 steps: 7.4 % of the wall time", "medium", 8_000_000_000, 8 / 108,
        {"wall_ratio": 8 / 108, "period_steps": 5, "gpu_hours": hours(8, 15), "steady_steps": 9},
    ),
    "host-memory-growth": Firing(
        log_of(lambda number: {"actor/perf/cpu_memory_used_gb": 100.0 + number}, 20),
        "host memory grows by 1.00 GiB per step, from 101 GiB to 120 GiB in 20 steps", "medium", None, None,
        {"growth_bytes": 2**30, "steps_left": None, "steps_per_100_gib": 100.0, "steady_steps": 17},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    "trainer-wait": asynchronous(9.9),
    "rollouter-wait": asynchronous(1.0, fully_async__rollouter__idle_ratio=0.19),
    "evicted-samples": log_of(lambda _: {"training/off_policy/evicted_samples": 4, "rollout/num_samples": 96}),
    # 1 − 310 / 1000.
    "generation-tail": log_of(
        lambda _: {"timing_s/gen": 60.0, "timing_s/update_actor": 30.0, "response_length/mean": 310.0}
    ),
    # 0.39 of the time.
    "tool-tail": log_of(
        lambda _: {
            "timing_s/agent_loop/slowest/tool_calls": 7.8,
            "timing_s/agent_loop/slowest/generate_sequences": 12.2,
        }
    ),
    "reward-time": log_of(lambda _: {"timing_s/reward": 4.9}),
    # Uneven before balancing, even after it.
    "sequence-imbalance": log_of(
        lambda _: {"global_seqlen/mean": 96.0, "global_seqlen/balanced_max": 100, "global_seqlen/minmax_diff": 90}
    ),
    "training-mfu": log_of(lambda _: {"perf/mfu/actor": 0.2}, 13),
    "step-spikes": log_of(step=lambda number: 114.9 if number == 8 else 100.0),
    # Length explains all of it.
    "step-drift": log_of(
        lambda number: {"perf/total_num_tokens": 1_000 + 10 * ((number * 7) % 20)},
        20,
        lambda number: 100.0 + (number * 7) % 20,
    ),
    # 5 s per step of 100 s: 4.8 %.
    "logged-chores": log_of(lambda number: {"timing_s/testing": 25.0} if number % 5 == 0 else {}, 15),
    # A start that saturates.
    "host-memory-growth": log_of(lambda number: {"actor/perf/cpu_memory_used_gb": 120.0 - 20 * 0.6**number}, 20),
}
