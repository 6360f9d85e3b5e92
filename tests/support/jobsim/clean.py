"""Clean jobs: nothing is wrong in them, but they differ in all that could be taken for a fault."""

from __future__ import annotations

from typing import Any

from jobsim.job import Job

CLEAN: dict[str, dict[str, Any]] = {
    "plain": {},
    "without_noise": {"noise": 0.0, "host_noise": 0.0, "step_spread": 0.0, "rank_spread": 0.0},
    "noisy_kernels": {"noise": 0.06},
    "noisy_host": {"host_noise": 0.5},
    "random_tokens": {"rank_spread": 0.018, "steps": 6},
    "random_tokens_of_8_ranks": {"rank_spread": 0.015, "ranks": 8, "steps": 6},
    "steps_of_unlike_length": {"step_spread": 0.045, "steps": 6},
    "clocks_apart": {"skew_ns": 250_000},
    "hosts_with_clocks_apart": {"ranks": 16, "steps": 3, "skew_ns": 900_000},
    "host_ahead": {"sync_steps": False, "steps": 6},
    "two_ranks": {"ranks": 2},
    "eight_ranks": {"ranks": 8},
    "sixteen_ranks": {"ranks": 16, "steps": 3},
    "three_steps": {"steps": 3},
    "eight_steps": {"ranks": 2, "steps": 8},
    "copies_on_a_stream": {"copy_stream": True},
    "tensor_parallel": {"tensor_parallel": 2},
    "tensor_parallel_of_8_ranks": {"tensor_parallel": 2, "ranks": 8},
    "stacks": {"stacks": True},
    "stacks_of_8_ranks": {"stacks": True, "ranks": 8, "steps": 3},
    "long_micro_batches": {"tokens": 3072},
    "short_steps": {"tokens": 512, "decodes": 12, "steps": 6},
    "vision": {"vision": True},
    "odd_tokens": {"odd_tokens": True},
    "full_overlap": {"layer_bytes": 16 * 2**20},
    "short_queue": {"queue_depth": 128},
    "many_mini_batches": {"minis": 4, "micros": 1},
    "graphs_of_small_kernels": {"tokens": 512, "tiny": 280, "decode_kernels": 15},
    "first_steps": {"first_step": 0},
}
"""Settings of each clean job by its name."""


WORLDS: dict[str, dict[str, Any]] = {
    "wandering_clocks": {"wander": 0.008, "steps": 6},
    "spiking_kernels": {"spikes": 0.004},
    "busy_cores": {"os_noise": 0.01},
    "busy_cores_and_slow_hosts": {"os_noise": 0.006, "host_noise": 0.6},
    "uneven_links": {"link_noise": 0.25},
    "uneven_batches": {"batch_spread": 0.08, "steps": 6},
    "uneven_batches_of_8_ranks": {"batch_spread": 0.06, "ranks": 8},
    "uneven_lengths": {"tail_spread": 1, "steps": 6},
    "short_collections": {"small_gc_ns": 400_000, "steps": 6},
    "uneven_loader": {"loader_jitter_ns": 500_000, "steps": 6},
    "one_hiccup": {"hiccup_ns": 1_500_000, "steps": 6},
    "experts": {"moe": True},
    "rewards": {"reward": True},
    "preempted_requests": {"preempt_every": 10},
    "contended_memory": {"contention": 0.1},
    "everything_a_little": {
        "noise": 0.03, "wander": 0.004, "os_noise": 0.002, "link_noise": 0.1, "batch_spread": 0.02,
        "small_gc_ns": 200_000, "loader_jitter_ns": 200_000, "steps": 6,
    },
}  # fmt: skip
"""Clean jobs in which something varies all the time; settings of each by its name."""


def clean_job(name: str, seed: int = 0) -> Job:
    """The clean job of that name."""
    return Job(f"clean-{name}-{seed}", seed=100 + seed, **(CLEAN | WORLDS)[name])
