"""The kinds of faults: each built for a size and a seed, strong enough to cost between 2 and 25 % of the step.

A kind is a function of a `Draw` that gives the job's own settings and its faults. `job_of` builds one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobsim.draws import MS, Built, Draw
from jobsim.job import Fault, Job
from jobsim.more_faults import MORE_KINDS


def straggler_clock(d: Draw) -> Built:
    """One GPU runs at a lower clock."""
    change = {"clock": d.about(1.13, 0.96, 1.06)}
    return {}, (d.fault(change, ranks=(d.rank(),), stage="update_actor"),)


def straggler_late(d: Draw) -> Built:
    """One GPU's clock falls in the middle of the run."""
    start = d.first + d.steps // 2
    steps = tuple(range(start, d.first + d.steps))
    change = {"clock": d.about(1.22, 0.95, 1.05)}
    return {}, (d.fault(change, ranks=(d.rank(),), steps=steps, stage="update_actor"),)


def four_stragglers(d: Draw) -> Built:
    """Four GPUs run at the same lower clock."""
    ranks = 16 if d.size == "large" else 12
    late = tuple(sorted(d.dice.sample(range(ranks), 4)))
    settings = {"ranks": ranks, "steps": 4 if d.size == "large" else 3}
    change = {"clock": d.about(1.12, 0.97, 1.05)}
    return settings, (d.fault(change, ranks=late, stage="update_actor"),)


def slow_host(d: Draw) -> Built:
    """All GPUs of one host run at a lower clock."""
    host = d.dice.randrange(2)
    settings = {"ranks": 16, "steps": 4 if d.size == "large" else 3, "skew_ns": 40_000}
    change = {"clock": d.about(1.12, 0.97, 1.05)}
    late = tuple(range(8 * host, 8 * host + 8))
    return settings, (d.fault(change, ranks=late, stage="update_actor", place=f"simulated-host-{host}"),)  # fmt: skip


def slow_link(d: Draw) -> Built:
    """Collectives of one data-parallel group have a sixth of the others' rate."""
    group = 1 + d.dice.randrange(2)
    ranks = tuple(range(group - 1, d.ranks, 2))
    change = {"slow_group": str(group), "busbw": 1 / 6}
    return {"tensor_parallel": 2}, (d.fault(change, stage="update_actor", ranks=ranks, place=f"group {group}"),)  # fmt: skip


def contention(d: Draw) -> Built:
    """Another process takes the cores of one rank: what its host does lasts longer."""
    change = {"host": d.about(2.6, 0.95, 1.1), "preempted": 0.01, "preempted_ns": 300_000}
    return {"tokens": 320}, (d.fault(change, ranks=(d.rank(),), stage="update_actor"),)


def more_tokens(d: Draw) -> Built:
    """One rank has more tokens than the others, in every step."""
    change = {"tokens": d.about(1.22, 0.96, 1.05)}
    return {}, (d.fault(change, ranks=(d.rank(),), stage="update_actor"),)


def exposed_communication(d: Draw) -> Built:
    """Collectives run alone, although they could run beside compute."""
    return {"busbw": d.about(190.0)}, (d.fault({"overlap": False}, stage="update_actor"),)


def item_in_loop(d: Draw) -> Built:
    """Numbers are read from the device in every layer."""
    settings = {"tokens": 512, "norms": d.dice.choice((6, 8, 10))}
    return settings, (d.fault({"items": True}, stage="update_actor", place="aten::item"),)


def pageable_copies(d: Draw) -> Built:
    """Batches lie in pageable memory."""
    change = {"batch_bytes": int(d.about(7 * 2**20))}
    return {}, (d.pageable(change, stage="update_actor", place="Pageable"),)


def allocator_churn(d: Draw) -> Built:
    """The driver is asked for memory in every micro-batch."""
    change = {"churn": d.dice.choice((2, 3))}
    return {}, (d.fault(change, stage="update_actor", place="cudaMalloc"),)


def gc_one_rank(d: Draw) -> Built:
    """Python collects garbage on one rank, in every step."""
    change = {"gc_at": ("update_actor",), "gc_ns": d.ns(12)}
    return {}, (d.fault(change, ranks=(d.rank(),), stage="update_actor", place="collect"),)


def gc_all_ranks(d: Draw) -> Built:
    """Python collects garbage on all ranks, on each at a time of its own."""
    ns, halves = d.ns(6), (tuple(range(0, d.ranks, 2)), tuple(range(1, d.ranks, 2)))
    where = (("update_actor",), ("ref",))
    change = tuple({"gc_at": spots, "gc_ns": ns} for spots in where)
    return {}, tuple(
        d.fault(what, ranks=ranks, stage=spots[0], place="collect")
        for what, ranks, spots in zip(change, halves, where, strict=True)
    )


def sleeping_loader(d: Draw) -> Built:
    """The data loader works in the training process, and sleeps."""
    return {}, (d.fault({"loader_ns": d.ns(9)}, place="DataLoader"),)


def late_loader_worker(d: Draw) -> Built:
    """The worker of one rank's data loader does not keep up."""
    change = {"loader_lag_ns": d.ns(9)}
    return {}, (d.fault(change, ranks=(d.rank(),), place="DataLoader"),)


def python_preprocessing(d: Draw) -> Built:
    """The batch is put together in Python before the log-probs."""
    change = {"preprocess_ns": d.ns(9)}
    return {"stacks": True}, (d.fault(change, stage="old_log_prob", place="rl_dataset.py"),)


def recompilation(d: Draw) -> Built:
    """A graph is compiled again in a step in the middle."""
    step = d.first + d.steps // 2
    change = {"recompile_ns": d.ns(26)}
    return {}, (d.fault(change, steps=(step,), stage="update_actor", place="compile"),)


def first_calls(d: Draw) -> Built:
    """Code is loaded where it is called for the first time: warm-up, in steps 1 and on."""
    change = {"module_load_ns": d.ns(30)}
    return {"first_step": 1}, (d.fault(change, steps=(1,), warm_up=True, place="cuLibraryLoadData"),)  # fmt: skip


def tiny_kernels(d: Draw) -> Built:
    """Hundreds of kernels of 2 to 5 µs are launched one by one."""
    tiny, tiny_ns = int(d.about(280)), d.dice.choice((2_000, 3_000, 4_500))
    settings = {"tokens": 512, "tiny": tiny, "tiny_ns": tiny_ns}
    return settings, (d.fault({"tiny_eager": True}, stage="adv", place="adv"),)


def eager_decode(d: Draw) -> Built:
    """The rollout engine launches kernels of 10 to 25 µs one by one."""
    ns = d.dice.choice((10_500, 12_500, 14_500))
    settings = {"tokens": 512, "decodes": 20, "decode_kernels": 15, "decode_kernel_ns": ns}
    return settings, (d.fault({"decode_eager": True}, stage="gen", place="gen"),)


def silent_pause(d: Draw) -> Built:
    """Nothing is recorded for 8 ms in every step."""
    return {}, (d.fault({"pauses": (8 * MS,)}, stage="update_actor", place="update_actor"),)


def silent_pauses(d: Draw) -> Built:
    """Nothing is recorded twice for 7.2 ms in every step."""
    change = {"pauses": (7_200_000, 7_200_000)}
    return {}, (d.fault(change, stage="update_actor", place="update_actor"),)


def unaligned_gemm(d: Draw) -> Built:
    """The vocabulary is odd."""
    return {}, (d.fault({"unaligned": True}, stage="update_actor", place="32003"),)


def fp32_gemm(d: Draw) -> Built:
    """The reference model's head multiplies in 32 bits."""
    return {}, (d.fault({"fp32": True}, stage="ref", place="sgemm"),)


def fp32_convolutions(d: Draw) -> Built:
    """The vision tower convolves in 32 bits."""
    return {"vision": True}, (d.fault({"conv32": True}, stage="old_log_prob", place="conv"),)


def unfused_optimizer(d: Draw) -> Built:
    """The optimizer updates tensor by tensor."""
    return {"tokens": 512}, (d.fault({"foreach": False}, stage="update_actor", place="AdamW"),)


def unfused_activation(d: Draw) -> Built:
    """Activations are chains of single ops."""
    return {}, (d.fault({"fused_activation": False}, stage="update_actor", place="aten::"),)


def unfused_attention(d: Draw) -> Built:
    """Attention is made of products and a softmax."""
    return {}, (d.fault({"fused_attention": False}, stage="update_actor", place="attention"),)


def rollout_tail(d: Draw) -> Built:
    """One rank generates on with few requests."""
    change = {"tail": d.dice.choice((9, 12, 15))}
    return {}, (d.fault(change, ranks=(d.rank(),), stage="gen", place="gen"),)


def idle_rollout(d: Draw) -> Built:
    """The rollout engine schedules between iterations while the device waits."""
    return {}, (d.fault({"scheduler_ns": d.ns(0.35)}, stage="gen", place="gen"),)


def drift(d: Draw) -> Built:
    """All GPUs run 8 % slower from the fourth step on."""
    settings = {"steps": 6 if d.size == "small" else 8}
    steps = tuple(range(d.first + 3, d.first + settings["steps"]))
    return settings, (d.fault({"clock": 1.08}, steps=steps, place=f"step {d.first + 3}"),)


def contiguous_copies(d: Draw) -> Built:
    """Activations are copied in every layer."""
    return {}, (d.fault({"contiguous": d.dice.choice((3, 4, 5))}, stage="update_actor", place="copy"),)  # fmt: skip


def log_writing(d: Draw) -> Built:
    """Rank 0 writes a log at the end of the update while all wait."""
    return {"stacks": True}, (d.fault({"log_ns": d.ns(7)}, ranks=(0,), stage="update_actor", place="tracking.py"),)  # fmt: skip


def slow_weight_sync(d: Draw) -> Built:
    """New weights are sent tensor by tensor."""
    change = {"sync_tensors": d.dice.choice((28, 36, 44))}
    return {}, (d.fault(change, stage="update_weights", place="update_weights"),)


def late_start(d: Draw) -> Built:
    """One rank begins every step late."""
    return {}, (d.fault({"late_ns": d.ns(9)}, ranks=(d.rank(),), place="rank"),)


def logits_to_host(d: Draw) -> Built:
    """Logits are copied to pageable memory of the host in every micro-batch."""
    change = {"logits_bytes": int(d.about(8 * 2**20))}
    return {}, (d.pageable(change, stage="update_actor", place="DtoH"),)


def rotating_tokens(d: Draw) -> Built:
    """In every step another rank has far more tokens."""
    order = d.dice.sample(range(d.ranks), d.ranks)
    faults = []
    for index in range(d.steps):
        change = {"tokens": d.about(1.35, 0.95, 1.05)}
        where = {"ranks": (order[index % d.ranks],), "steps": (d.first + index,)}
        faults.append(d.fault(change, stage="update_actor", **where))
    return {}, tuple(faults)


def three_at_once(d: Draw) -> Built:
    """A sleeping data loader, weights sent tensor by tensor, and a rank with more tokens."""
    loader = d.fault({"loader_ns": d.ns(5)}, place="DataLoader")
    weights = d.fault({"sync_tensors": 36}, stage="update_weights")
    tokens = d.fault({"tokens": 1.15}, ranks=(d.rank(),), stage="update_actor")
    return {}, (loader, weights, tokens)


KINDS: dict[str, Callable[[Draw], Built]] = {
    build.__name__: build
    for build in (
        straggler_clock, straggler_late, four_stragglers, slow_host, slow_link, contention, more_tokens,
        exposed_communication, item_in_loop, pageable_copies, allocator_churn, gc_one_rank, gc_all_ranks,
        sleeping_loader, late_loader_worker, python_preprocessing, recompilation, first_calls, tiny_kernels,
        eager_decode, silent_pause, silent_pauses, unaligned_gemm, fp32_gemm, fp32_convolutions,
        unfused_optimizer, unfused_activation, unfused_attention, rollout_tail, idle_rollout, drift,
        contiguous_copies, log_writing, slow_weight_sync, late_start, logits_to_host, rotating_tokens, three_at_once,
    )
}  # fmt: skip
"""The first kinds by their names."""
ALL_KINDS = KINDS | MORE_KINDS
"""Every kind by its name."""
Settings = dict[str, Any]


def job_of(kind: str, size: str = "small", seed: int = 0) -> Job:
    """The job of a kind: with a given size and seed always the same; every third seed records stacks."""
    draw = Draw(kind, size, seed)
    settings, faults = ALL_KINDS[kind](draw)
    common: Settings = {"ranks": draw.ranks, "steps": draw.steps, "stacks": seed % 3 == 1}
    name = f"{kind}-{size}-{seed}"
    return Job(name, seed=seed, faults=faults, **(common | settings))


def job_of_several(kinds: tuple[str, ...], size: str = "small", seed: int = 0) -> Job | None:
    """Return a job with several kinds of faults, or None if their settings or changes conflict."""
    draw = Draw("+".join(kinds), size, seed)
    settings: Settings = {}
    faults: list[Fault] = []
    for kind in kinds:
        own, planted = ALL_KINDS[kind](Draw(kind, size, seed))
        taken = {name for fault in faults for name in fault.change}
        changed = {name for fault in planted for name in fault.change}
        if taken & changed or any(settings.get(name, value) != value for name, value in own.items()):
            return None
        settings |= own
        faults += planted
    if settings.get("ranks", draw.ranks) != draw.ranks:
        return None
    common: Settings = {"ranks": draw.ranks, "steps": draw.steps, "stacks": seed % 3 == 1}
    name = f"{'+'.join(kinds)}-{size}-{seed}"
    return Job(name, seed=seed, faults=tuple(faults), **(common | settings))
