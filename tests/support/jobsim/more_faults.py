"""More kinds of faults, planted in other parts of a step and with other names than those of `faults`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobsim.draws import Built, Draw
from jobsim.job import Fault


def tail_all_ranks(d: Draw) -> Built:
    """Every rank generates on with few requests."""
    return {}, (d.fault({"tail": d.dice.choice((9, 12, 15))}, stage="gen", place="gen"),)


def long_prompts(d: Draw) -> Built:
    """The prompts of one rank are several times as long."""
    return {}, (d.fault({"prompts": d.about(4.5)}, ranks=(d.rank(),), stage="gen"),)


def kv_preemption(d: Draw) -> Built:
    """The KV cache of one rank is too small: preempted requests are prefilled again."""
    change = {"preemptions": d.dice.choice((6, 8, 10))}
    return {"tokens": 1536}, (d.fault(change, ranks=(d.rank(),), stage="gen", place="gen"),)


def memory_mapping(d: Draw) -> Built:
    """The sleeping rollout engine maps its memory again in every step."""
    return {}, (d.fault({"wake_calls": int(d.about(21))}, stage="gen", place="cuMem"),)


def resharding(d: Draw) -> Built:
    """Weights are gathered tensor by tensor before generation, and the host waits for each."""
    return {}, (d.fault({"reshard_tensors": d.dice.choice((28, 36, 44))}, stage="gen"),)


def reward_in_python(d: Draw) -> Built:
    """Rewards are computed in Python on every rank."""
    return {"reward": True}, (d.fault({"reward_ns": d.ns(9)}, stage="reward", place="reward"),)


def reward_on_first_rank(d: Draw) -> Built:
    """Rewards are computed on rank 0 alone while the others wait."""
    return {"reward": True}, (d.fault({"reward_ns": d.ns(9)}, ranks=(0,), stage="reward"),)


def reward_server(d: Draw) -> Built:
    """Every rank waits for a reward server."""
    change = {"reward_ns": d.ns(9), "reward_waits": True}
    return {"reward": True}, (d.fault(change, stage="reward", place="reward"),)


def slow_sandbox(d: Draw) -> Built:
    """One rank waits longer for its sandbox."""
    change = {"reward_ns": d.ns(9), "reward_waits": True}
    return {"reward": True}, (d.fault(change, ranks=(d.rank(),), stage="reward"),)


def optimizer_offload(d: Draw) -> Built:
    """The optimizer's state comes from pageable memory and goes back there."""
    change = {"offload_bytes": int(d.about(10 * 2**20))}
    return {}, (d.pageable(change, stage="update_actor", place="Pageable"),)


def pinned_offload(d: Draw) -> Built:
    """The optimizer's state comes from pinned memory and goes back there, and nothing overlaps with it."""
    change = {"offload_bytes": int(d.about(40 * 2**20))}
    return {}, (d.fault(change, stage="update_actor", place="Pinned"),)


def layer_offload(d: Draw) -> Built:
    """Activations of every layer go to the host and come back while nothing else runs."""
    change = {"layer_offload_bytes": int(d.about(4.5 * 2**20))}
    return {}, (d.fault(change, stage="update_actor", place="Pinned"),)


def optimizer_on_host(d: Draw) -> Built:
    """The optimizer runs on the host."""
    return {}, (d.fault({"cpu_optimizer_ns": d.ns(5)}, stage="update_actor", place="adam"),)


def slow_pipeline_stage(d: Draw) -> Built:
    """The GPUs of one pipeline stage run at a lower clock."""
    stage = d.dice.randrange(2)
    ranks = tuple(range(stage * d.ranks // 2, (stage + 1) * d.ranks // 2))
    settings = {"pipeline": 2, "micros": 4}
    return settings, (d.fault({"clock": d.about(1.2, 0.97, 1.05)}, ranks=ranks, stage="update_actor"),)  # fmt: skip


def hot_expert(d: Draw) -> Built:
    """The experts of one rank get more tokens than those of others."""
    change = {"hot_expert": d.about(1.7, 0.95, 1.05)}
    return {"moe": True}, (d.fault(change, ranks=(d.rank(),), stage="update_actor"),)


def rotating_expert(d: Draw) -> Built:
    """In every step the experts of another rank get more tokens."""
    change = {"hot_expert": d.about(2.0, 0.95, 1.05)}
    return {"moe": True}, in_turn(d, change, "experts")


def in_turn(d: Draw, change: dict[str, Any], place: str) -> tuple[Fault, ...]:
    """Return a fault for every step, each on another rank."""
    order = d.dice.sample(range(d.ranks), d.ranks)
    faults = []
    for index in range(d.steps):
        where = {"ranks": (order[index % d.ranks],), "steps": (d.first + index,)}
        faults.append(d.fault(change, stage="update_actor", place=place, **where))
    return tuple(faults)


def frequent_reduction(d: Draw) -> Built:
    """Gradients are reduced after every micro-batch instead of the last."""
    settings = {"layer_bytes": 90 * 2**20, "micros": 4}
    return settings, (d.fault({"reduce_often": True}, stage="update_actor"),)


def small_reductions(d: Draw) -> Built:
    """Gradients are reduced tensor by tensor."""
    return {}, (d.fault({"reduce_tensors": d.dice.choice((28, 36, 44))}, stage="update_actor"),)


def slow_network(d: Draw) -> Built:
    """Every collective has a third of its rate."""
    return {}, (d.fault({"slow_group": "0", "busbw": 1 / 3}),)


def second_compilation(d: Draw) -> Built:
    """A graph is compiled again in the second step that counts."""
    change = {"recompile_ns": d.ns(26)}
    return {}, (d.fault(change, steps=(d.first + 2,), stage="update_actor", place="compile"),)


def compilation_every_step(d: Draw) -> Built:
    """A graph is compiled again in every step."""
    return {}, (d.fault({"recompile_ns": d.ns(7)}, stage="update_actor", place="compile"),)


def bare_compilation(d: Draw) -> Built:
    """Code is compiled in one step without ranges that would tell."""
    change = {"bare_compile_ns": d.ns(26)}
    return {}, (d.fault(change, steps=(d.first + 2,), stage="update_actor", place="cuModuleLoadData"),)  # fmt: skip


def bare_compilation_every_step(d: Draw) -> Built:
    """Code is compiled in every step without ranges that would tell."""
    return {}, (d.fault({"bare_compile_ns": d.ns(8)}, stage="update_actor", place="cuModuleLoadData"),)  # fmt: skip


def gc_random_rank(d: Draw) -> Built:
    """In every step another rank collects garbage."""
    change = {"gc_at": ("update_actor",), "gc_ns": d.ns(12)}
    return {}, in_turn(d, change, "collect")


def loader_restart(d: Draw) -> Built:
    """The data loader starts its workers again in one step."""
    change = {"loader_lag_ns": d.ns(30)}
    return {}, (d.fault(change, steps=(d.first + 2,), place="DataLoader"),)


def slow_cores_of_half(d: Draw) -> Built:
    """The cores of half the ranks run at a lower clock."""
    ranks = tuple(range(d.ranks // 2))
    return {"tokens": 320}, (d.fault({"host": d.about(2.4, 0.97, 1.05)}, ranks=ranks, stage="update_actor"),)  # fmt: skip


def slow_cores(d: Draw) -> Built:
    """Python is slow on every rank, and kernels are short."""
    return {"tokens": 256}, (d.fault({"host": d.about(2.2, 0.97, 1.05)}, place="launch"),)


def shared_gpu(d: Draw) -> Built:
    """Another process works on the GPU of one rank."""
    change = {"shared": d.about(0.16, 0.95, 1.1)}
    return {}, (d.fault(change, ranks=(d.rank(),), stage="update_actor"),)


def log_after_step(d: Draw) -> Built:
    """Metrics are sent to a server after the last stage of every step."""
    return {}, (d.fault({"end_ns": d.ns(7)}, place="outside"),)


def device_syncs(d: Draw) -> Built:
    """The memory in use is logged after every layer, which waits for the device."""
    return {"tokens": 512, "micros": 3}, (d.fault({"device_syncs": True}, stage="update_actor", place="cudaDeviceSynchronize"),)  # fmt: skip


def nan_checks(d: Draw) -> Built:
    """Every gradient is checked for NaN on the host."""
    change = {"finite_checks": int(d.about(24))}
    return {}, (d.fault(change, stage="update_actor", place="aten::item"),)


def casts(d: Draw) -> Built:
    """Activations are cast in every layer."""
    return {}, (d.fault({"casts": d.dice.choice((2, 3))}, stage="update_actor", place="copy"),)


def weights_through_host(d: Draw) -> Built:
    """New weights reach the rollout engine through pageable memory."""
    return {}, (d.pageable({"through_host": True}, stage="update_weights", place="Pageable"),)


def object_broadcast(d: Draw) -> Built:
    """Python objects are pickled and broadcast before every micro-batch."""
    return {}, (d.fault({"objects_ns": d.ns(1.4)}, stage="update_actor", place="Pickler"),)


def frequent_checkpoints(d: Draw) -> Built:
    """A checkpoint is written in every second step."""
    steps = tuple(range(d.first + 1, d.first + d.steps, 2))
    return {}, (d.fault({"checkpoint_ns": d.ns(18)}, steps=steps, stage="save_checkpoint", place="checkpoint"),)  # fmt: skip


def frequent_validation(d: Draw) -> Built:
    """A validation runs in every second step."""
    steps = tuple(range(d.first + 1, d.first + d.steps, 2))
    change = {"validate_decodes": int(d.about(20))}
    return {}, (d.fault(change, steps=steps, stage="testing", place="testing"),)


def two_slow_ranks(d: Draw) -> Built:
    """Two ranks are late for two reasons: a lower clock, and pageable copies."""
    one, other = d.dice.sample(range(d.ranks), 2)
    slower = {"clock": d.about(1.11, 0.98, 1.02)}
    clock = Fault("clock_of_one_of_two", slower, (one,), stage="update_actor")
    batch = {"batch_bytes": int(d.about(11 * 2**20))}
    copies = Fault("copies_of_one_of_two", {**batch, "pageable": True}, (other,), stage="update_actor", repair=batch)
    return {}, (clock, copies)


MORE_KINDS: dict[str, Callable[[Draw], Built]] = {
    build.__name__: build
    for build in (
        tail_all_ranks, long_prompts, kv_preemption, memory_mapping, resharding,
        reward_in_python, reward_on_first_rank, reward_server, slow_sandbox, optimizer_offload, pinned_offload,
        layer_offload, optimizer_on_host, slow_pipeline_stage, hot_expert, rotating_expert, frequent_reduction,
        small_reductions, slow_network, second_compilation, compilation_every_step, bare_compilation,
        bare_compilation_every_step, gc_random_rank, loader_restart, slow_cores_of_half, slow_cores, shared_gpu,
        log_after_step, device_syncs, nan_checks, casts, weights_through_host, object_broadcast,
        frequent_checkpoints, frequent_validation, two_slow_ranks,
    )
}  # fmt: skip
"""Every such kind by its name."""
