"""Simulated logs of RL runs with a known fault: trainer, fault, drift of length and noise vary.

The generator shares no code with the analysis: it writes seconds as a trainer would log them.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

TRAINERS = ("classic", "v1_sync", "fully_async", "one_step_off", "separate_async", "nemo_sync")

FAULTS = {
    "trainer-wait": ("fully_async", "one_step_off", "separate_async"),
    "rollouter-wait": ("fully_async",),
    "evicted-samples": ("fully_async", "separate_async"),
    "generation-tail": ("classic", "v1_sync"),
    "tool-tail": ("classic",),
    "reward-time": ("classic", "v1_sync"),
    "sequence-imbalance": ("classic", "v1_sync", "fully_async"),
    "training-mfu": ("classic", "v1_sync", "fully_async", "one_step_off"),
    "step-spikes": ("classic", "v1_sync", "nemo_sync"),
    "step-drift": ("classic", "v1_sync", "nemo_sync"),
    "logged-chores": ("classic", "v1_sync", "one_step_off", "nemo_sync"),
    "host-memory-growth": ("classic", "v1_sync", "fully_async", "separate_async"),
}
"""Faults, and the trainers that show them."""


@dataclass(frozen=True)
class SimulatedLog:
    """The lines of a log, and its truth: the fault (None: clean) and its amount."""

    text: str
    fault: str | None
    amount: float
    name: str


def _correlated(rng: random.Random, count: int, phi: float, sd: float) -> list[float]:
    """Noise in which each value resembles the one before."""
    value, values = rng.gauss(0, sd), []
    for _ in range(count):
        value = phi * value + rng.gauss(0, sd * (1 - phi * phi) ** 0.5)
        values.append(value)
    return values


def simulate_log(seed: int, trainer: str, fault: str | None, drift: float, noise: float) -> SimulatedLog:
    """One log: answers lengthen by the share `drift` over the run, and times vary by the share `noise`."""
    rng = random.Random(seed)
    count = rng.choice((30, 40, 60, 80))
    gpus = rng.choice((8, 16, 32))
    size = {  # how much of the fault
        "trainer-wait": rng.uniform(0.2, 0.5), "rollouter-wait": rng.uniform(0.3, 0.6),
        "evicted-samples": rng.uniform(0.1, 0.3), "generation-tail": rng.uniform(0.8, 0.92),
        "tool-tail": rng.uniform(0.55, 0.85), "reward-time": rng.uniform(0.08, 0.25),
        "sequence-imbalance": rng.uniform(0.1, 0.3), "training-mfu": rng.uniform(0.08, 0.15),
        "step-spikes": rng.uniform(0.6, 1.5), "step-drift": rng.uniform(0.15, 0.4),
        "logged-chores": rng.uniform(0.08, 0.2), "host-memory-growth": rng.uniform(1.0, 6.0),
        None: 0.0,
    }[fault]  # fmt: skip
    waves = _correlated(rng, count, 0.5, noise)
    lengths = _correlated(rng, count, 0.6, 0.09)
    spikes = {rng.randrange(8, count - 1) for _ in range(2)} if fault == "step-spikes" else set()
    every = rng.choice((5, 10))
    rows = []
    for index in range(count):
        step = index + 1
        mean = 1_000 * (1 + drift * index / (count - 1)) * (1 + lengths[index])
        rows.append(
            _simulate_step(
                rng, step, index, count, trainer, fault, size, mean, 1 + waves[index], index in spikes, every, gpus
            )
        )
    text = (
        _write_nemo(rows)
        if trainer == "nemo_sync"
        else "".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in rows)
    )
    return SimulatedLog(text, fault, size, f"{trainer}-{fault}-{seed}")


def _simulate_step(rng, step, index, count, trainer, fault, size, mean, wave, spiked, every, gpus):
    """The values of one step under verl's names."""
    samples, prompt = 256, 300.0
    tokens = samples * (mean + prompt)
    longest = mean * (rng.uniform(2.2, 2.7) if fault != "generation-tail" else 1 / (1 - size))
    is_async = trainer in ("fully_async", "one_step_off", "separate_async")
    slow = 1 + size * index / (count - 1) if fault == "step-drift" else 1.0
    train = {"old_log_prob": tokens * 3e-5, "ref": tokens * 2.8e-5, "update_actor": tokens * 1.1e-4}
    train = {name: seconds * wave * (1 + rng.gauss(0, 0.003)) for name, seconds in train.items()}
    fixed = {"adv": 0.4, "reward": 0.8, "update_weights": 1.6}
    gen = (8 + longest * 0.012) * wave
    if fault == "generation-tail":
        gen = (40 + longest * 0.012) * wave
    if trainer == "nemo_sync":
        fixed.pop("update_weights")
    work = sum(train.values()) + sum(fixed.values())
    if is_async:
        gen = 0.3
        if fault == "trainer-wait":
            gen = work * size / (1 - size) * (1 + rng.gauss(0, 0.05))
    if fault == "reward-time":
        fixed["reward"] = (work - 0.8 + gen) * size / (1 - size)
    times = {"gen": gen, **train, **fixed}
    times = {name: seconds * slow for name, seconds in times.items()}
    if spiked:
        times["update_actor"] += size * sum(times.values())
    total = sum(times.values()) + 0.6
    data = {f"timing_s/{name}": seconds for name, seconds in times.items()}
    if fault == "logged-chores" and step % every == 0:
        data["timing_s/testing"] = every * total * size / (1 - size)
    data["timing_s/step"] = total
    mfu = size if fault == "training-mfu" else 0.35
    balanced = 0.01 if fault != "sequence-imbalance" else size
    data |= {
        "perf/total_num_tokens": tokens, "perf/throughput": tokens / total / gpus, "perf/time_per_step": total,
        "perf/mfu/actor": mfu * (1 + rng.gauss(0, 0.02)) / (slow if fault == "step-drift" else 1),
        "response_length/mean": mean, "response_length/max": longest, "response_length/clip_ratio": 0.01,
        "prompt_length/mean": prompt, "training/global_step": step,
        "global_seqlen/mean": tokens / gpus, "global_seqlen/min": tokens / gpus * 0.7,
        "global_seqlen/max": tokens / gpus * 1.4, "global_seqlen/minmax_diff": tokens / gpus * 0.7,
        "global_seqlen/balanced_max": tokens / gpus / (1 - balanced),
        "actor/perf/cpu_memory_used_gb": 200 + rng.gauss(0, 1.0) + (size * step if fault == "host-memory-growth" else 0),
        "actor/perf/max_memory_reserved_gb": 60.0,
    }  # fmt: skip
    data |= _write_trainer_values(rng, trainer, fault, size, step, gen, mean, longest, total)
    return step, data


def _write_trainer_values(rng, trainer, fault, size, step, gen, mean, longest, total):
    """The values that only this trainer logs."""
    if trainer == "classic":
        tool = 0.0
        slowest = gen * 0.97
        if fault == "tool-tail" and step % 3:
            tool, slowest = slowest * size, slowest * (1 - size)
        return {
            "timing_s/agent_loop/generate_sequences/mean": gen * 0.97 * mean / longest,
            "timing_s/agent_loop/generate_sequences/max": gen * 0.97,
            "timing_s/agent_loop/slowest/tool_calls": tool,
            "timing_s/agent_loop/slowest/generate_sequences": slowest,
            "timing_s/agent_loop/slowest/response_length": longest,
            "timing_s/agent_loop/num_preempted/mean": -1.0,
        }
    if trainer == "v1_sync":
        return {"training/off_policy/trajectory_staleness/max": 0, "training/off_policy/trajectory_staleness/mean": 0.0}
    if trainer == "fully_async":
        idle = size if fault == "rollouter-wait" else 0.03
        dropped = 256 * size / (1 - size) if fault == "evicted-samples" else 0
        return {
            "fully_async/trainer/idle_ratio": gen / total, "fully_async/rollouter/idle_ratio": idle * (1 + rng.gauss(0, 0.05)),
            "fully_async/rollouter/step_generated_samples": 256, "fully_async/count/dropped_stale_samples": dropped * step,
            "fully_async/monitor/queue/mq_queue_size": 3, "fully_async/static/max_queue_size": 1_024,
        }  # fmt: skip
    if trainer == "one_step_off":
        return {"timing_s/generate_async": total * 0.9, "timing_s/sync_rollout_weights": 1.6}
    if trainer == "separate_async":
        return {
            "timing_s/switch_to_trainer": 0.1, "training/off_policy/trajectory_staleness/max": 2,
            "training/off_policy/evicted_samples": 256 * size / (1 - size) if fault == "evicted-samples" else 0,
        }  # fmt: skip
    return {}


_NEMO = {
    "gen": "generation", "old_log_prob": "policy_and_reference_logprobs", "update_actor": "policy_training",
    "ref": "logprob_inference_prep", "adv": "advantage_calculation", "reward": "reward_calculation",
}  # fmt: skip


def _write_nemo(rows) -> str:
    """The same values under NeMo-RL's names; validation is within its step."""
    lines = []
    for step, data in rows:
        chore = data.get("timing_s/testing", 0.0)
        values = {f"timing/train/{new}": data[f"timing_s/{old}"] for old, new in _NEMO.items()}
        values["timing/train/total_step_time"] = data["timing_s/step"] + chore
        if chore:
            values["timing/validation/total_validation_time"] = chore
        values["train/total_num_tokens"] = data["perf/total_num_tokens"]
        values["train/mean_gen_tokens_per_sample"] = data["response_length/mean"]
        values["train/max_gen_tokens_per_sample"] = data["response_length/max"]
        lines.append(json.dumps({"step": step, "data": values}) + "\n")
    return "".join(lines)
