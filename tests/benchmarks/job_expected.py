"""What a report has to say of each kind of fault of the simulated jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Expectation:
    """What a report may say of a kind of fault."""

    rules: tuple[str, ...]
    """Rules that tell the cause: one of them has to come first. None: any, if its text tells the place."""
    also: tuple[str, ...] = ()
    """Rules that name the fault all the same, as a symptom."""
    places: tuple[str, ...] = ()
    """What has to stand in the claim, the evidence or the places: `@rank`, `@step`, `@stage` and `@place` of the fault, or words,
    with `|` between those of which one will do."""
    unmarked: tuple[str, ...] = ()
    """Rules that may come first instead where no stages are recorded."""
    estimated: bool = True
    """Whether there is one cost to estimate: not of warm-up, which does not count, nor of several faults."""


LATE = ("straggler",)
PAUSE_OF_GC = ("host-silence", "garbage-collection")
"""With stacks garbage collection has a row of its own; without, the host is silent."""
EXPECTED = {
    "straggler_clock": Expectation(LATE, (), ("@rank",)),
    "straggler_late": Expectation(LATE, (), ("@rank",)),
    "four_stragglers": Expectation(LATE, (), ("@rank",)),
    "slow_host": Expectation(LATE, (), ("@rank|@place",)),
    "slow_link": Expectation((), (), ("@place|slow link|slower link|slow group",)),
    "contention": Expectation(LATE, ("launch-bound",), ("@rank",)),
    "more_tokens": Expectation(LATE, (), ("@rank",)),
    "exposed_communication": Expectation(("exposed-communication", "no-comm-overlap"), (), ("@stage",)),
    "item_in_loop": Expectation(("host-sync-stalls",), ("launch-bound",), ("@stage", "@place")),
    "pageable_copies": Expectation(("pageable-copies",), ("offload", "host-sync-stalls"), ("HtoD",)),
    "allocator_churn": Expectation(("allocator-calls",), ("low-gpu-utilization",), ("@place|cudaFree",)),
    "gc_one_rank": Expectation((*PAUSE_OF_GC, *LATE), (), ("@rank",)),
    "gc_all_ranks": Expectation(PAUSE_OF_GC, ("rank-imbalance", *LATE), ("@stage",)),
    "sleeping_loader": Expectation(("data-loader-wait",), (), ()),
    "late_loader_worker": Expectation(("data-loader-wait",), LATE, ("@rank",)),
    "python_preprocessing": Expectation((), (), ("@place",)),
    "recompilation": Expectation(("recompilation",), ("step-variance",), ()),
    "first_calls": Expectation(("start-up",), (), ("cuLibraryLoadData", "@step"), estimated=False),
    "tiny_kernels": Expectation(("launch-bound",), ("low-gpu-utilization",), ("@stage",)),
    "eager_decode": Expectation(("launch-bound",), ("low-gpu-utilization",), ("@stage",)),
    "silent_pause": Expectation(("host-silence",), ("low-gpu-utilization", "host-sync-stalls"), ("@stage",)),
    "silent_pauses": Expectation(("host-silence",), ("low-gpu-utilization", "host-sync-stalls"), ("@stage",)),
    "unaligned_gemm": Expectation(("unaligned-gemm",), (), ()),
    "fp32_gemm": Expectation(("no-tensor-cores",), (), ("@stage",)),
    "fp32_convolutions": Expectation(("no-tensor-cores",), (), ("@stage",)),
    "unfused_optimizer": Expectation(("unfused-optimizer",), ("launch-bound",), ()),
    "unfused_activation": Expectation(("unfused-operators",), (), ("activation|aten::neg|elementwise",)),
    "unfused_attention": Expectation(("unfused-operators",), (), ("attention",)),
    "rollout_tail": Expectation(("rollout-tail", *LATE), ("replica-imbalance",), ()),
    "idle_rollout": Expectation(("low-gpu-utilization", "host-sync-stalls", "launch-bound"), (), ("@stage",)),
    "drift": Expectation(("drift",), (), ("@place",)),
    "contiguous_copies": Expectation((), (), ("aten::copy_|contiguous|direct_copy",)),
    "log_writing": Expectation((), (), ("@place|write",)),
    "slow_weight_sync": Expectation(("weight-sync",), (), (), ("small-collectives", "host-sync-stalls")),
    "late_start": Expectation((), (), ("@rank",)),
    "logits_to_host": Expectation(("pageable-copies",), ("offload", "host-sync-stalls"), ("DtoH",)),
    "three_at_once": Expectation(("data-loader-wait", "weight-sync", *LATE), estimated=False),
    "rotating_tokens": Expectation(("rank-imbalance",), (), ()),
    "tail_all_ranks": Expectation(("rollout-tail",), ("replica-imbalance",), ()),
    "long_prompts": Expectation((*LATE, "replica-imbalance"), (), ("@rank",)),
    "kv_preemption": Expectation((*LATE, "replica-imbalance"), (), ("@rank",)),
    "memory_mapping": Expectation(("allocator-calls", "host-silence", "low-gpu-utilization"), (), ("cuMem|gen",)),
    "resharding": Expectation(("weight-sync", "small-collectives", "host-sync-stalls", "exposed-communication"), (), ("@stage",)),
    "reward_in_python": Expectation((), (), ("@stage|naive.py|math.py",)),
    "reward_on_first_rank": Expectation((*LATE, "host-silence"), (), ("@rank",)),
    "reward_server": Expectation((), (), ("@stage|sandbox.py",)),
    "slow_sandbox": Expectation((*LATE, "host-silence"), (), ("@rank",)),
    "optimizer_offload": Expectation(("pageable-copies", "offload"), ("host-sync-stalls",), ("HtoD|DtoH|H2D|D2H|offload",)),
    "pinned_offload": Expectation(("offload",), ("host-sync-stalls", "low-gpu-utilization"), ()),
    "layer_offload": Expectation(("offload",), ("host-sync-stalls", "low-gpu-utilization"), ()),
    "optimizer_on_host": Expectation(("host-silence", "low-gpu-utilization", "offload"), ("host-sync-stalls",), ("@stage",)),
    "slow_pipeline_stage": Expectation(LATE, (), ("@rank",)),
    "hot_expert": Expectation((*LATE, "rank-imbalance"), (), ("@rank",)),
    "rotating_expert": Expectation(("rank-imbalance",), (), ()),
    "frequent_reduction": Expectation(("exposed-communication", "no-comm-overlap", "small-collectives"), (), ("@stage",)),
    "small_reductions": Expectation(("small-collectives", "exposed-communication"), ("no-comm-overlap",), ("@stage",)),
    "slow_network": Expectation(("exposed-communication", "no-comm-overlap", "slow-link", "weight-sync"), (), ()),
    "second_compilation": Expectation(("recompilation",), ("step-variance",), ()),
    "compilation_every_step": Expectation(("recompilation",), ("host-silence",), ()),
    "bare_compilation": Expectation(("recompilation", "host-silence"), ("step-variance",), ()),
    "bare_compilation_every_step": Expectation(("recompilation", "host-silence"), ("low-gpu-utilization",), ()),
    "gc_random_rank": Expectation((*PAUSE_OF_GC, "rank-imbalance"), LATE, ()),
    "loader_restart": Expectation(("data-loader-wait",), ("step-variance",), ()),
    "slow_cores_of_half": Expectation((*LATE, "launch-bound"), (), ("@rank",)),
    "slow_cores": Expectation(("launch-bound",), ("low-gpu-utilization",), ()),
    "shared_gpu": Expectation(LATE, (), ("@rank",)),
    "log_after_step": Expectation((), (), ("outside|between|edge|tracking.py|no stage",)),
    "device_syncs": Expectation(("host-sync-stalls",), ("launch-bound",), ("cudaDeviceSynchronize|synchronising|synchronizing",)),
    "nan_checks": Expectation(("host-sync-stalls",), ("launch-bound",), ("@stage",)),
    "casts": Expectation((), (), ("aten::copy_|_to_copy|direct_copy|cast",)),
    "weights_through_host": Expectation(("pageable-copies", "weight-sync", "offload"), ("host-sync-stalls",), ()),
    "object_broadcast": Expectation(("host-silence", "launch-bound", "small-collectives", "low-gpu-utilization"), ("host-sync-stalls",), ("@stage",)),
    "frequent_checkpoints": Expectation(("periodic-stage",), (), ("checkpoint",)),
    "frequent_validation": Expectation(("periodic-stage",), (), ("@stage",)),
    "clock_of_one_of_two": Expectation(LATE, (), ("@rank",)),
    "copies_of_one_of_two": Expectation((*LATE, "pageable-copies"), (), ("@rank",)),
}  # fmt: skip
"""Every kind of fault by its name."""
ALLOWED: dict[str, tuple[tuple[str, str], ...]] = {
    "cut_file": (("profiling-artefact", ""),),
    "pipeline": (("exposed-communication", ""),),
    "periodic": (("periodic-stage", ""), ("", "save_checkpoint"), ("", "testing")),
}
"""(Rule, words) of what is true of every job under a switch: neither a fault nor a false alarm. The bubble of a pipeline
is waiting, and a checkpoint takes its time."""


def tells(text: str, wanted: str, fault: dict[str, Any]) -> bool:
    """Whether the text holds one of the wanted words."""
    return any(_holds(text, word, fault) for word in wanted.split("|"))


def _holds(text: str, word: str, fault: dict[str, Any]) -> bool:
    if word == "@rank":
        return set(fault.get("ranks", ())) <= ranks_in(text)
    if word == "@step":
        return all(f"step {step}" in text for step in fault["steps"])
    if word in ("@stage", "@place"):
        names = (fault[word[1:]], fault.get(f"usual_{word[1:]}") or fault[word[1:]])
        return any(str(name) in text for name in names)
    return word in text


RANKS = re.compile(r"\brank (\d+)|\branks (\d+(?:(?:[–-]|, | and )\d+)*)")


def ranks_in(text: str) -> set[int]:
    """The ranks that a text names: `rank 2`, `ranks 0–3, 5 and 7`."""
    ranks: set[int] = set()
    for single, several in RANKS.findall(text):
        for part in re.split(", | and ", single or several):
            ends = [int(end) for end in re.split("[–-]", part)]
            ranks |= {*range(ends[0], ends[-1] + 1)}
    return ranks
