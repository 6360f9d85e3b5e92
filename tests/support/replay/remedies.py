"""The change that undoes each kind of simulated fault, from its parameters and in the words of `tracekit whatif`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobsim.job import Fault, Job

Changes = list[dict[str, Any]]

STAGES = "^(gen|reward|adv|old_log_prob|ref|update_actor|update_weights|testing|save_checkpoint)$|DataLoader"
LOADER_US = 40
"""What taking a batch takes when it is ready."""
GEMM_RATIO, FP32_RATIO = 2.4e5 / 6.0e5, 5.5e4 / 6.0e5
HBM, PINNED, PAGEABLE = 2_600, 25, 6
"""Bytes per ns."""


def where(fault: Fault) -> dict[str, Any]:
    """The ranks and steps of a fault."""
    chosen: dict[str, Any] = {}
    if fault.ranks is not None:
        chosen["rank"] = [*fault.ranks]
    if fault.steps is not None:
        chosen["step"] = [*fault.steps]
    return chosen


def clock(job: Job, fault: Fault) -> Changes:
    return [{"do": "scale", "on": "device", **where(fault), "factor": 1 / fault.change["clock"]}]


def cores(job: Job, fault: Fault) -> Changes:
    return [{"do": "scale", "on": "host", **where(fault), "factor": 1 / fault.change["host"]}]


def equal_device(job: Job, fault: Fault) -> Changes:
    return [{"do": "equalise", "on": "device", **where(fault)}]


def equal_host(job: Job, fault: Fault) -> Changes:
    return [{"do": "equalise", "on": "host", **where(fault)}]


def link(job: Job, fault: Fault) -> Changes:
    group = fault.change["slow_group"]
    return [{"do": "scale", "on": "collective", "group": rf"^{group}\b", "factor": fault.change["busbw"]}]


def silence(job: Job, fault: Fault, **more: Any) -> Changes:
    """No time in which nothing is recorded, from 1 ms on, in the stage of the fault."""
    inside = {"range": f"^{fault.stage}$"} if fault.stage else {}
    change = {"do": "set", "on": "host", "silent": True, "at_least_us": 1_000, "to_us": 0}
    return [change | inside | where(fault) | more]


def loader(job: Job, fault: Fault) -> Changes:
    return silence(job, fault, range="DataLoader", silent=False, to_us=LOADER_US)


def removed_range(pattern: str) -> Callable[[Job, Fault], Changes]:
    def change(job: Job, fault: Fault) -> Changes:
        return [{"do": "remove", "on": "range", "range": pattern, **where(fault)}]

    return change


def removed_ops(**named: str) -> Callable[[Job, Fault], Changes]:
    def change(job: Job, fault: Fault) -> Changes:
        return [{"do": "remove", "on": "device", **named, **where(fault)}]

    return change


def removed_collectives(**named: str) -> Callable[[Job, Fault], Changes]:
    def change(job: Job, fault: Fault) -> Changes:
        return [{"do": "remove", "on": "collective", "host": "c10d::", **named, **where(fault)}]

    return change


def scaled_ops(factor: float, **named: str) -> Callable[[Job, Fault], Changes]:
    def change(job: Job, fault: Fault) -> Changes:
        return [{"do": "scale", "on": "device", "factor": factor, **named, **where(fault)}]

    return change


def unlaunched(**named: str) -> Callable[[Job, Fault], Changes]:
    """No host time for the launches of a range, as with a graph."""

    def change(job: Job, fault: Fault) -> Changes:
        return [{"do": "scale", "on": "host", "factor": 0, **named, **where(fault)}]

    return change


ITEM = {"do": "remove", "op": "DtoH", "by": "aten::item", "host": "aten::item"}


def items(job: Job, fault: Fault) -> Changes:
    return [ITEM | {"range": "micro_batch"} | where(fault)]


def reward(job: Job, fault: Fault) -> Changes:
    if job.stacks:
        return [{"do": "remove", "on": "range", "range": "is_equiv|compute_score", **where(fault)}]
    return silence(job, fault, to_us=275)


def late(job: Job, fault: Fault) -> Changes:
    return silence(job, fault, before="DataLoader")


def outside(job: Job, fault: Fault) -> Changes:
    return silence(job, fault, not_range=STAGES)


def bare_compile(job: Job, fault: Fault) -> Changes:
    return silence(job, fault) + removed_range("cuModuleLoadData")(job, fault)


def pinned(direction: str, key: str, parts: int = 1) -> Callable[[Job, Fault], Changes]:
    """Copies of `parts` equal parts of these bytes, asynchronous and at the rate of pinned memory."""

    def change(job: Job, fault: Fault) -> Changes:
        return pin(direction, fault.change[key] / parts, where(fault))

    return change


def pin(direction: str, size: float, inside: dict[str, Any]) -> Changes:
    op = f"{direction}.*Pageable"
    factor = (1_400 + size / PINNED) / (1_400 + size / PAGEABLE)
    return [
        {"do": "unblock", "op": op, **inside},
        {"do": "scale", "on": "device", "op": op, "factor": factor, **inside},
    ]


def pinned_state(job: Job, fault: Fault) -> Changes:
    return [change for way in ("HtoD", "DtoH") for change in pinned(way, "offload_bytes", 4)(job, fault)]


def offload(job: Job, fault: Fault) -> Changes:
    copies = removed_ops(op="Pinned", by="aten::to", host="aten::to")(job, fault)
    return copies + removed_range("cudaDeviceSynchronize")(job, fault)


def device_sync(job: Job, fault: Fault) -> Changes:
    spent = {"do": "set", "on": "host", "silent": True, "at_least_us": 45, "to_us": 0, "range": "micro_batch"}
    return [*removed_range("cudaDeviceSynchronize")(job, fault), spent | where(fault)]


def idle_rollout(job: Job, fault: Fault) -> Changes:
    waits = {"do": "unwait", "row": "cudaEventSynchronize", "range": "execute_context"}
    return [*silence(job, fault, at_least_us=150), waits]


def shard_bytes(job: Job) -> int:
    return job.layers * job.gathered_bytes() // 2 // min(8, job.ranks)


def unfused_optimizer(job: Job, fault: Fault) -> Changes:
    """Of 160 ops 20 are left, which last as long as the one that updates all."""
    few, fused = 2_500 + 10 * shard_bytes(job) / 20 / HBM, 2_500 + 28 * shard_bytes(job) / HBM
    gone = "aten::(mul_|lerp_|addcmul_|sqrt|div|add_)$"
    inside = {"range": "Optimizer.step"}
    return [
        {"do": "remove", "by": gone, "host": gone, **inside},
        {"do": "scale", "on": "device", "by": "aten::addcdiv_", "factor": fused / (20 * few), **inside},
        {"do": "scale", "on": "host", "by": "aten::addcdiv_", "factor": 1 / 20, **inside},
    ]


def optimizer_on_host(job: Job, fault: Fault) -> Changes:
    """The copy back to the device stands for the kernel that updates there."""
    kernel, copy = 2_500 + 28 * shard_bytes(job) / HBM, 1_400 + 4 * 2**20 / PINNED
    inside = {"range": "Optimizer.step"}
    return [
        *silence(job, fault, **inside),
        {"do": "remove", "op": "DtoH", "host": "aten::copy_", **inside},
        {"do": "scale", "on": "device", "op": "HtoD", "factor": kernel / copy, **inside},
    ]


def unfused_activation(job: Job, fault: Fault) -> Changes:
    """Of two products one is left, as long as the fused kernel."""
    gone = "aten::(neg|exp|reciprocal)$"
    changes: Changes = [{"do": "remove", "by": gone, "host": gone}]
    for stage, longer in (("update_actor", 18), ("old_log_prob|ref", 65)):
        inside = {"range": f"^({stage})$"}
        changes.append({"do": "remove", "by": "aten::add$", "host": "aten::add$", "longer_than_us": longer, **inside})
        changes.append({"do": "scale", "on": "device", "by": "aten::mul$", "factor": 0.5, **inside})
    return changes


def unfused_attention(job: Job, fault: Fault) -> Changes:
    """Of two batched products something is left, as long as the fused kernel of 1,024 tokens."""
    product = 2_500 + 2 * 32 * 1024**2 / HBM + 2 * 2 * 1024 * 1024 * 4096 / 6e5
    fused = 2_500 + 2 * 1024 * 1024 * 4096 / 3.6e5
    changes: Changes = [{"do": "scale", "on": "device", "by": "aten::bmm$", "factor": fused / (2 * product)}]
    for stage, longer in (("update_actor", 30), ("old_log_prob|ref", 100)):
        gone = {"by": "aten::(mul|add)$", "host": "aten::(mul|add)$", "longer_than_us": longer}
        changes.append({"do": "remove", **gone, "range": f"^({stage})$"})
    return [*changes, {"do": "remove", "by": "aten::_softmax$", "host": "aten::_softmax$"}]


def exposed(job: Job, fault: Fault) -> Changes:
    """Gathers end beside the layer before, but for the first after the host has read a number; reductions are awaited last.

    Gathers of a step: one of adv, then one per layer of both log-probs and of each micro-batch.
    """
    passes = [1, 1, *[job.micros] * job.minis]
    firsts = [1 + job.layers * sum(passes[:number]) for number in range(len(passes))]
    hidden = [number for number in range(1, 1 + job.layers * sum(passes)) if number not in firsts]
    gather = {"do": "remove", "on": "collective", "op": "AllGather", "range": "^nccl:_all_gather_base$"}
    return [{"do": "hide", "op": "ReduceScatter", "until": "aten::_foreach_norm"}, gather | {"nth": hidden}]


def resharding(job: Job, fault: Fault) -> Changes:
    inside = {"range": "^gen$"}
    return [
        {"do": "remove", "on": "collective", "op": "AllGather", "host": "c10d::", **inside},
        {"do": "remove", "on": "range", "range": "cudaStreamSynchronize", "by": "^gen$"},
        {"do": "set", "on": "host", "silent": True, "at_least_us": 45, "to_us": 0, **inside},
    ]


def weight_sync(job: Job, fault: Fault) -> Changes:
    """As few messages as without: fixed costs of messages, copies and host time go with their number."""
    count, size = fault.change["sync_tensors"], job.layers * job.gathered_bytes() // 2
    fixed = 11_000 + 700 * job.ranks
    bytes_ns = (job.ranks - 1) / job.ranks * 2 * size / job.busbw
    copy_ns = 4 * size / HBM
    inside = {"range": "^update_weights$"}
    fewer = 4 / count
    return [
        {"do": "unwait", "by": "aten::copy_", **inside},
        {"do": "scale", "on": "collective", "factor": (4 * fixed + bytes_ns) / (count * fixed + bytes_ns), **inside},
        {"do": "scale", "on": "device", "factor": (4 * 2_500 + copy_ns) / (count * 2_500 + copy_ns), **inside},
        {"do": "scale", "on": "host", "factor": fewer, **inside},
    ]


def through_host(job: Job, fault: Fault) -> Changes:
    size = job.layers * job.gathered_bytes() // 2 // 4
    inside = {"range": "^update_weights$"}
    return [change for way in ("HtoD", "DtoH") for change in pin(way, size / 4, inside)]


def nan_checks(job: Job, fault: Fault) -> Changes:
    """Items of a step: one of adv, and per mini-batch those of the checks and two more."""
    count = fault.change["finite_checks"]
    first = [1 + mini * (count + 2) + number for mini in range(job.minis) for number in range(count)]
    checks = "aten::(isfinite|all)$"
    return [
        {"do": "set", "on": "host", "before": "aten::isfinite", "to_us": 0, "silent": True},
        {"do": "remove", "by": checks, "host": checks},
        {"do": "remove", "op": "DtoH", "by": "aten::item", "host": "aten::item", "range": "aten::item", "nth": first},
    ]


def objects(job: Job, fault: Fault) -> Changes:
    return [
        *silence(job, fault, range="micro_batch", at_least_us=500),
        *removed_collectives(op="Broadcast", range="micro_batch")(job, fault),
        *items(job, fault),
    ]


def frequent_reduction(job: Job, fault: Fault) -> Changes:
    last = f"^micro_batch{job.micros - 1}$"
    return removed_collectives(op="ReduceScatter", range="micro_batch", not_range=last)(job, fault)


PAGED = pinned("HtoD", "batch_bytes")
COMPILED = removed_range("compile_inner")
REMEDIES: dict[str, Callable[[Job, Fault], Changes]] = {
    "straggler_clock": clock, "straggler_late": clock, "four_stragglers": clock, "slow_host": clock, "drift": clock,
    "slow_pipeline_stage": clock, "clock_of_one_of_two": clock, "copies_of_one_of_two": PAGED,
    "slow_link": link, "slow_network": link, "contention": equal_host, "slow_cores_of_half": cores, "slow_cores": cores,
    "more_tokens": equal_device, "rotating_tokens": equal_device, "hot_expert": equal_device,
    "rotating_expert": equal_device, "shared_gpu": equal_device, "long_prompts": equal_device,
    "exposed_communication": exposed, "item_in_loop": items, "pageable_copies": PAGED,
    "allocator_churn": removed_range("cudaMalloc|cudaFree"),
    "gc_one_rank": silence, "gc_all_ranks": silence, "gc_random_rank": silence, "silent_pause": silence,
    "silent_pauses": silence, "log_writing": silence, "sleeping_loader": loader, "late_loader_worker": loader,
    "loader_restart": loader, "late_start": late, "log_after_step": outside,
    "python_preprocessing": removed_range(r"rl_dataset.py.*preprocess"),
    "recompilation": COMPILED, "second_compilation": COMPILED, "compilation_every_step": COMPILED,
    "bare_compilation": bare_compile, "bare_compilation_every_step": bare_compile,
    "first_calls": removed_range("cuLibraryLoadData"),
    "tiny_kernels": unlaunched(by="aten::add$", range="^adv$"),
    "eager_decode": unlaunched(by="aten::(mm|add)$", range="execute_context_0"),
    "unaligned_gemm": scaled_ops(GEMM_RATIO * 32_000 / 32_003, op="align1"),
    "fp32_gemm": scaled_ops(FP32_RATIO, op="sgemm"), "fp32_convolutions": scaled_ops(FP32_RATIO, op="gemm_f32f32"),
    "unfused_optimizer": unfused_optimizer, "unfused_activation": unfused_activation,
    "unfused_attention": unfused_attention, "optimizer_on_host": optimizer_on_host,
    "rollout_tail": removed_range(r"generation_4\(4\)"), "tail_all_ranks": removed_range(r"generation_4\(4\)"),
    "kv_preemption": removed_range("execute_context_1"), "idle_rollout": idle_rollout,
    "contiguous_copies": removed_ops(op="direct_copy", host="aten::copy_"),
    "casts": removed_ops(op="direct_copy", host="aten::to"),
    "logits_to_host": pinned("DtoH", "logits_bytes"),
    "memory_mapping": removed_range("cuMem"), "resharding": resharding, "slow_weight_sync": weight_sync,
    "weights_through_host": through_host, "reward_in_python": reward, "reward_on_first_rank": reward,
    "reward_server": reward, "slow_sandbox": reward, "optimizer_offload": pinned_state, "pinned_offload": offload,
    "layer_offload": removed_ops(op="Pinned", by="aten::to", host="aten::to"), "device_syncs": device_sync,
    "frequent_reduction": frequent_reduction,
    "small_reductions": removed_collectives(op="AllReduce", range="micro_batch"), "nan_checks": nan_checks,
    "object_broadcast": objects, "frequent_checkpoints": removed_range("^save_checkpoint$"),
    "frequent_validation": removed_range("^testing$"),
}  # fmt: skip
"""Kind of fault → the changes that undo one of it."""


def changes_of(job: Job, *faults: Fault) -> Changes:
    """The changes that undo faults of a job, all without a choice."""
    undone = faults or job.faults
    changes: Changes = []
    for fault in undone:
        kind = fault.kind
        if kind == "three_at_once":
            kind = {"loader_ns": "sleeping_loader", "sync_tensors": "slow_weight_sync", "tokens": "more_tokens"}[
                next(iter(fault.change))
            ]
        changes += [change for change in REMEDIES[kind](job, fault) if change not in changes]
    return changes
