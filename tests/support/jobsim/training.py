"""What a rank does in a step: generation, advantages, log-probs, the update, and the new weights for the next generation."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from jobsim import chores, model, noise
from jobsim import kernels as k
from jobsim.chores import spend_in
from jobsim.proposals import is_in
from jobsim.rank import COMPUTE, COPY, Meeting, Rank

Program = Generator[Meeting, int, None]

FIT = "verl/trainer/ppo/ray_trainer.py(1012): fit"
FRAME_OF_STAGE = {
    "reward": "verl/trainer/ppo/reward.py(99): compute_reward",
    "testing": "verl/trainer/ppo/ray_trainer.py(640): _validate",
    "save_checkpoint": "verl/trainer/ppo/ray_trainer.py(730): _save_checkpoint",
    "gen": "verl/workers/rollout/vllm_rollout/vllm_rollout.py(211): generate_sequences",
    "adv": "verl/trainer/ppo/core_algos.py(188): compute_advantage",
    "old_log_prob": "verl/workers/actor/dp_actor.py(301): compute_log_prob",
    "ref": "verl/workers/fsdp_workers.py(842): compute_ref_log_prob",
    "update_actor": "verl/workers/actor/dp_actor.py(360): update_policy",
    "update_weights": "verl/workers/sharding_manager/fsdp_vllm.py(120): sync_weights",
}
DECODE_NS, TAIL_NS, RUNNING, TAIL_RUNNING = 900_000, 600_000, 64, 4
PINNING_NS = 350_000
SINGLE, SEVERAL = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"


def program(rank: Rank) -> Program:
    """All steps of one rank."""
    job = rank.job
    rank.now += int(40_000 * noise.uniform(job.seed, rank.rank, "start"))
    with rank.frame("verl/trainer/main_ppo.py(42): main"), rank.frame(FIT):
        for step in job.step_numbers():
            rank.begin(step, "start")
            start = rank.now
            with rank.marked(f"ProfilerStep#{step}"):
                yield from one_step(rank, step)
            rank.steps.append((step, start, rank.now))
            rank.device_ends.append(max(rank.free.values()))
            rank.spend(6_000)
    rank.call("cudaDeviceSynchronize", 3_000, until=max(rank.free.values()))
    rank.loader_frames()


def rows_of(rank: Rank, step: int) -> int:
    """The tokens of a micro-batch, which differ from step to step and a little from rank to rank."""
    job = rank.job
    replica = rank.rank // job.tensor_parallel
    change = job.step_spread * noise.normal(job.seed, step, "tokens")
    change += job.rank_spread * noise.normal(job.seed, replica, step, "tokens")
    rows = job.tokens * math.exp(change) * job.behaviour(rank.rank, step).tokens
    return round(rows / 8) * 8 + (3 if job.odd_tokens else 0)


def one_step(rank: Rank, step: int) -> Program:
    """One step, stage by stage."""
    b, job, rows = rank.behaviour, rank.job, rows_of(rank, step)
    if job.is_generator(rank.rank):
        yield from generate_aside(rank, step)
        return
    rank.stall(b.late_ns)
    load(rank)
    if job.rollout and not job.async_rollout:
        with stage(rank, step, "gen"):
            yield from chores.wake_up(rank)
            generate(rank, step)
    if job.reward:
        with stage(rank, step, "reward"):
            yield from chores.reward(rank)
    with stage(rank, step, "adv"):
        yield from advantage(rank)
    for name in ("old_log_prob", "ref"):
        with stage(rank, step, name):
            yield from log_prob(rank, name, 4 * rows, step)
    with stage(rank, step, "update_actor"):
        yield from update(rank, rows, step)
    if job.rollout:
        with stage(rank, step, "update_weights"):
            yield from send_weights(rank)
    end_step(rank, step)


def end_step(rank: Rank, step: int) -> None:
    """Validate, write a checkpoint and log, where the job or a fault does."""
    b, job = rank.behaviour, rank.job
    planned = job.validate_every and step % job.validate_every == 0
    if b.validate_decodes or planned:
        with stage(rank, step, "testing"):
            generate(rank, step, (b.validate_decodes or 24) - job.decodes)
    planned = job.checkpoint_every and step % job.checkpoint_every == 0
    if b.checkpoint_ns or planned:
        with stage(rank, step, "save_checkpoint"):
            chores.write_checkpoint(rank, b.checkpoint_ns or 16_000_000)
    if b.end_ns:
        spend_in(rank, b.end_ns, "verl/utils/tracking.py(88): log", chores.SOCKET)


def generate_aside(rank: Rank, step: int) -> Program:
    """Generate for the next step while the trainers work, and receive the new weights."""
    with stage(rank, step, "gen"):
        yield from chores.wake_up(rank)
        generate(rank, step, 2 * rank.job.decodes)
    with stage(rank, step, "update_weights"):
        yield from send_weights(rank)


@contextmanager
def stage(rank: Rank, step: int, name: str) -> Iterator[None]:
    """One stage, in the profile and on the stack."""
    rank.begin(step, name)
    with rank.in_stage(name), rank.marked(name), rank.frame(FRAME_OF_STAGE[name]):
        rank.spend(25_000)
        chores.collect_a_little(rank, step, name)
        yield


def load(rank: Rank) -> None:
    """The next batch is taken from the data loader."""
    b = rank.behaviour
    kind = SINGLE if b.loader_ns else SEVERAL
    frame = rank.frame("torch/utils/data/dataloader.py(701): __next__")
    with frame, rank.marked(f"enumerate(DataLoader)#{kind}.__next__"):
        rank.spend(40_000)
        if b.loader_ns:
            where = "verl/utils/dataset/rl_dataset.py(164): __getitem__"
            spend_in(rank, b.loader_ns, where, "<built-in function sleep>")
        if rank.job.loader_jitter_ns:
            drawn = noise.uniform(rank.job.seed, rank.rank, rank.step, "loader")
            rank.now += int(rank.job.loader_jitter_ns * drawn)
        if b.loader_lag_ns:
            poll = "<built-in method poll of _multiprocessing.Connection object at 0x7f3c2d1b0fd0>"
            spend_in(rank, b.loader_lag_ns, "multiprocessing/queues.py(102): get", poll)
    if kind == SEVERAL:
        late = b.loader_lag_ns > PINNING_NS
        rank.pinned(rank.now - PINNING_NS if late else rank.now, PINNING_NS)


def pause(rank: Rank, where: str) -> None:
    """Garbage is collected here, if it is."""
    b = rank.behaviour
    if b.gc_ns and where in b.gc_at:
        spend_in(rank, b.gc_ns, "verl/trainer/ppo/ray_trainer.py(1290): _free_objects", "<built-in function collect>")


def first_call(rank: Rank, step: int) -> None:
    """Code that is loaded where it is called for the first time."""
    ns = rank.behaviour.module_load_ns
    if ns and step == rank.job.first_step:
        with rank.op("aten::mm", 9_000):
            rank.now += ns // 8
            rank.call("cuLibraryLoadData", ns * 7 // 8)


def generate(rank: Rank, step: int, more: int = 0) -> None:
    """A prefill and decode iterations, some more than usual; the host is one iteration ahead of the device."""
    b, job = rank.behaviour, rank.job
    if job.tail_spread:
        more += int((job.tail_spread + 1) * noise.uniform(job.seed, rank.rank, step, "lengths"))
    rank.copy("HtoD (Pinned -> Device)", 65_536)
    first_call(rank, step)
    chores.prefill(rank, round(job.tokens * 2 * b.prompts / 8) * 8)
    most = RUNNING - (5 * (rank.rank // job.tensor_parallel) + step) % 7
    before, pace = 0, DECODE_NS * math.exp(0.01 * noise.normal(job.seed, rank.rank, step, "pace"))
    with rank.frame("vllm/v1/engine/llm_engine.py(240): step"):
        for number in range(job.decodes + more):
            running = most - 16 * (number >= job.decodes + more - 2)
            preempted = number < 2 * b.preemptions and number % 2
            if preempted or (job.preempt_every and number % job.preempt_every == 3):
                before = recompute(rank, running, before)
            before = decode(rank, running, pace * job.tokens / 1024, before)
        with rank.apart("tail"):
            if job.proposal.full_batches_from > TAIL_RUNNING:
                for _ in range(math.ceil(b.tail * TAIL_RUNNING / most)):
                    before = decode(rank, most, pace * job.tokens / 1024, before)
            for _ in range(b.tail if job.proposal.full_batches_from <= TAIL_RUNNING else 0):
                before = decode(rank, TAIL_RUNNING, TAIL_NS * job.tokens / 1024, before)
        rank.call("cudaEventSynchronize", 2_500, until=before)


def recompute(rank: Rank, running: int, before: int) -> int:
    """Prefill a preempted request again, and return when its first token is on the host."""
    rows = rank.job.tokens // 2
    name = f"execute_context_1({rows})_generation_{running}({running})"
    with rank.apart("preempted"), rank.marked(name):
        chores.prefill(rank, rows)
        end = rank.copy("DtoH (Device -> Pinned)", 8 * running)
        if before:
            rank.call("cudaEventSynchronize", 2_500, until=before)
    return end


def decode(rank: Rank, running: int, ns: float, before: int) -> int:
    """When the tokens of one iteration are on the host; the host has waited for those before."""
    b = rank.behaviour
    with rank.marked(f"execute_context_0(0)_generation_{running}({running})"):
        rank.copy("HtoD (Pinned -> Device)", 4_096)
        launch(rank, decode_kernels(rank, ns), eager=b.decode_eager, cost=16_000)
        rank.kernel("aten::multinomial", k.SAMPLE, 9_000)
        end = rank.copy("DtoH (Device -> Pinned)", 8 * running)
        rank.call("cudaEventRecord", 700)
        if b.scheduler_ns:
            before = end
        if before:
            rank.call("cudaEventSynchronize", 2_500, until=before)
    rank.spend(30_000)
    if b.scheduler_ns:
        with rank.frame("vllm/v1/core/sched/scheduler.py(164): schedule"):
            rank.stall(b.scheduler_ns)
    return end


def decode_kernels(rank: Rank, ns: float) -> list[tuple[str, float]]:
    """The kernels of one decode iteration."""
    job = rank.job
    if not job.decode_kernels:
        return [(name, share * ns) for name, share in k.DECODE]
    names = [k.DECODE[number % len(k.DECODE)][0] for number in range(job.decode_kernels)]
    return [(name, job.decode_kernel_ns) for name in names]


def launch(rank: Rank, kernels: list[tuple[str, float]], *, eager: bool, cost: int) -> None:
    """These kernels run, as one graph or launched one by one."""
    if not eager:
        rank.graph(kernels)
        return
    for name, ns in kernels:
        rank.kernel("aten::add" if name == k.ADD else "aten::mm", name, ns, cost=cost)


def advantage(rank: Rank) -> Program:
    """Rewards meet, and advantages are computed from them."""
    b, job = rank.behaviour, rank.job
    pause(rank, "adv")
    rank.copy("HtoD (Pinned -> Device)", 16_384)
    rows = job.tokens * 4
    model.elementwise(rank, "aten::sub", k.ADD, rows, 64)
    end = rank.free[COMPUTE]
    rank.wait_for((yield from rank.collective("_allgather_base", job.trainers(), 64 * job.ranks, "Float", after=end)))  # fmt: skip
    if job.tiny:
        with rank.frame("verl/trainer/ppo/core_algos.py(203): discounted_sums"):
            tiny = [(k.ADD, job.tiny_ns)] * job.tiny
            launch(rank, tiny, eager=b.tiny_eager or job.eager_tiny, cost=6_500)
    for op in ("aten::mul", "aten::div"):
        model.elementwise(rank, op, k.MUL, rows, 256)
    if rank.reads():
        rank.item()


def log_prob(rank: Rank, name: str, rows: int, step: int) -> Program:
    """The log-probs of one micro-batch, copied to the host."""
    b = rank.behaviour
    pause(rank, name)
    if b.preprocess_ns and name == "old_log_prob":
        preprocess(rank, b.preprocess_ns)
    batches = 2 if rank.job.pipeline > 1 else 1
    for batch in range(batches):
        size = rows // batches
        with rank.marked(f"micro_batch{batch}"):
            rank.copy("HtoD (Pinned -> Device)", 24 * size)
            if name == "old_log_prob":
                first_call(rank, step)
            if rank.job.vision and name == "old_log_prob":
                model.vision_tower(rank, size)
            yield from model.forward(rank, size, head="fp32" if b.fp32 and name == "ref" else "")
    rank.copy("DtoH (Device -> Pinned)", 4 * rows, blocking=rank.reads())


def preprocess(rank: Rank, ns: int) -> None:
    """The batch is put together in Python, sample by sample."""
    with rank.frame("verl/utils/dataset/rl_dataset.py(187): preprocess"):
        samples = 40
        for _ in range(samples):
            spend_in(
                rank,
                ns * 7 // (8 * samples),
                "verl/utils/dataset/rl_dataset.py(210): tokenize_sample",
                "<built-in method join of str object at 0x7f51c80b4030>",
                silence_ns=ns,
            )
            rank.stall(ns // (8 * samples), silence_ns=ns)


def update(rank: Rank, rows: int, step: int) -> Program:
    """The mini-batches of the update; gradients are accumulated over their micro-batches."""
    b, job = rank.behaviour, rank.job
    for mini in range(job.minis):
        with rank.marked(f"mini_batch{mini}"):
            clear_gradients(rank)
            if mini == 0 and b.bare_compile_ns:
                chores.compile_barely(rank, b.bare_compile_ns)
            yield from micro_batches(rank, rows, mini)
            if mini == 0:
                first_call(rank, step)
                chores.hiccup(rank, step)
            chores.check_finite(rank)
            yield from model.norm_of_gradients(rank)
            chores.fetch_optimizer(rank, back=False)
            model.optimizer(rank)
            chores.fetch_optimizer(rank, back=True)
            if rank.reads():
                rank.item()
        pause(rank, f"update_actor {mini}" if mini else "update_actor")
        rank.stall(b.pauses[mini] if mini < len(b.pauses) else 0)
    if b.log_ns:
        spend_in(
            rank,
            b.log_ns,
            "verl/utils/tracking.py(88): log",
            "<built-in method write of _io.TextIOWrapper object at 0x7f3c2d1ae5a0>",
        )
    if job.sync_steps:
        rank.item()


def clear_gradients(rank: Rank) -> None:
    """Set the gradients to zero."""
    with rank.op("aten::zero_", 3_000):
        ready, correlation = rank.launch_call("cudaMemsetAsync", 4_000)
        size = rank.job.gathered_bytes() // 2
        dur = rank.lasting(k.traffic_ns(size))
        args = f'"bytes": {size}, "memory bandwidth (GB/s)": {size / dur:.6f}'
        rank.place("gpu_memset", "Memset (Device)", COMPUTE, ready, dur, correlation, args)


def micro_batches(rank: Rank, rows: int, mini: int) -> Program:
    """Forward and backward of all micro-batches: one after the other, or all forwards first in a pipeline."""
    b, job = rank.behaviour, rank.job
    sizes = [rows_of_batch(rank, rows, mini, micro) for micro in range(job.micros)]
    for micro, size in enumerate(sizes):
        with rank.marked(f"micro_batch{micro}"):
            if mini == micro == 0 and b.recompile_ns:
                compile_again(rank, b.recompile_ns)
            yield from chores.send_objects(rank)
            yield from train(rank, size)
            if job.pipeline == 1:
                often = b.reduce_often and not is_in(job.proposal.accumulating, rank.stage)
                reduce = often or micro == job.micros - 1
                yield from model.backward(rank, size, reduce=reduce)
    for micro, size in enumerate(sizes if job.pipeline > 1 else ()):
        with rank.marked(f"backward{micro}"):
            yield from model.backward(rank, size, reduce=micro == job.micros - 1)


def rows_of_batch(rank: Rank, rows: int, mini: int, micro: int) -> int:
    """Return the tokens of one micro-batch."""
    spread = rank.job.batch_spread
    if not spread:
        return rows
    drawn = noise.normal(rank.job.seed, rank.rank, rank.step, mini, micro, "batch")
    return max(64, round(rows * math.exp(spread * drawn) / 8) * 8)


def train(rank: Rank, rows: int) -> Program:
    """The forward of one micro-batch."""
    b = rank.behaviour
    stream = COPY if rank.job.copy_stream else COMPUTE
    end = rank.copy("HtoD (Pinned -> Device)", 24 * rows, stream=stream)
    if rank.job.copy_stream:
        rank.wait_for(end)
    with rank.apart("train"):
        if b.batch_bytes:
            with rank.frame("verl/protocol.py(412): to"):
                rank.copy(f"HtoD ({b.memory} -> Device)", b.batch_bytes, op="aten::to")
        for _ in range(b.churn):
            rank.call("cudaFree", 280_000, until=max(rank.free.values()) + 200_000)
            rank.call("cudaMalloc", 420_000)
    yield from model.forward(rank, rows, norms=rank.job.norms, trains=True)
    if b.logits_bytes:
        with rank.apart("logits"), rank.frame("verl/workers/actor/dp_actor.py(402): keep_logits"):
            rank.copy(f"DtoH (Device -> {b.memory})", b.logits_bytes, op="aten::to")


def compile_again(rank: Rank, ns: int) -> None:
    """A graph that was thrown away is compiled again."""
    with rank.apart("compile"), rank.op("_compile.compile_inner (dynamo_timed)", 5_000):
        rank.now += ns // 4
        with rank.op("compile_fx_inner (dynamo_timed)", 5_000):
            with rank.op("async_compile.wait (dynamo_timed)", 5_000):
                rank.now += ns // 2
            for _ in range(4):
                rank.call("cuModuleLoadData", ns // 16)


def send_weights(rank: Rank) -> Program:
    """The new weights go to the rollout engine: in four buckets, or tensor by tensor."""
    b, job = rank.behaviour, rank.job
    size = job.layers * job.gathered_bytes() // 2
    messages = 1 if job.proposal.weights_at_once else b.sync_tensors or 4
    copied = [rank.free[COMPUTE]] * 2
    behind = 2 if is_in(job.proposal.prefetching, "update_weights") else 1
    how = "broadcast" if job.async_rollout else "_allgather_base"
    for _ in range(messages):
        rank.spend(12_000)
        end = yield from rank.collective(how, "default_pg", size // messages // 1024 * 1024, after=copied[-behind])  # fmt: skip
        rank.wait_for(end)
        if b.sync_tensors:
            with rank.frame("verl/workers/sharding_manager/fsdp_vllm.py(151): load_tensor"):
                rank.copy("DtoD (Device -> Device)", 2 * size // messages, blocking=True)
                rank.spend(60_000)
        elif b.through_host:
            with rank.frame("verl/workers/sharding_manager/fsdp_vllm.py(163): to_cpu"):
                rank.copy(f"DtoH (Device -> {b.memory})", size // messages // 4, op="aten::to")
                rank.copy(f"HtoD ({b.memory} -> Device)", size // messages // 4, op="aten::to")
        else:
            rank.copy("DtoD (Device -> Device)", 2 * size // messages)
        copied.append(rank.free[COMPUTE])
    if job.sync_steps:
        rank.call("cudaStreamSynchronize", 2_500, until=rank.free[COMPUTE])
