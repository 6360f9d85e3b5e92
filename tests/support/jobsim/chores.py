"""Parts of a step that only some jobs have: rewards, checkpoints, validation, offloading, pipelines, and faults in them."""

from __future__ import annotations

from collections.abc import Generator

from jobsim import kernels as k
from jobsim import model, noise
from jobsim.rank import COMPUTE, Meeting, Rank

Program = Generator[Meeting, int, None]
SOCKET = "<method 'recv_into' of '_socket.socket' objects>"
WRITE = "<built-in method write of _io.BufferedWriter object at 0x7f3c2d1ae5a0>"


def spend_in(rank: Rank, ns: int, function: str, builtin: str, silence_ns: int | None = None) -> None:
    """Spend host time in a function that launches nothing, as a part of a longer silence if given."""
    with rank.frame(function), rank.frame(builtin):
        rank.stall(ns, silence_ns)


def reward(rank: Rank) -> Program:
    """Score the responses: in Python, or by asking a server; with one scoring rank the others wait for its scores."""
    b = rank.behaviour
    rank.spend(250_000)
    if b.reward_ns and b.reward_waits:
        spend_in(rank, b.reward_ns, "verl/utils/reward_score/sandbox.py(71): compute_score", SOCKET)
    elif b.reward_ns:
        with rank.frame("verl/workers/reward_manager/naive.py(44): __call__"):
            for _ in range(30):
                spend_in(rank, b.reward_ns // 30, "verl/utils/reward_score/math.py(24): is_equiv", "<method 'sub' of 're.Pattern' objects>", b.reward_ns)  # fmt: skip
    rank.copy("HtoD (Pinned -> Device)", 16_384)
    end = yield from rank.collective("broadcast", rank.job.trainers(), 4_096, "Float")
    rank.wait_for(end)


def wake_up(rank: Rank) -> Program:
    """Bring the weights of the rollout engine back before generation."""
    b, job = rank.behaviour, rank.job
    with rank.apart("wake up"):
        for number in range(b.wake_calls):
            rank.call(("cuMemCreate", "cuMemMap", "cuMemSetAccess")[number % 3], 300_000)
        for _ in range(b.reshard_tensors):
            size = job.layers * job.gathered_bytes() // 2 // b.reshard_tensors // 1024 * 1024
            with rank.frame("verl/workers/sharding_manager/fsdp_vllm.py(96): __enter__"):
                end = yield from rank.collective("_allgather_base", "default_pg", size, after=rank.free[COMPUTE])  # fmt: skip
                rank.wait_for(end)
                rank.call("cudaStreamSynchronize", 2_500, until=max(end, rank.free[COMPUTE]))
                rank.spend(70_000)


def prefill(rank: Rank, rows: int) -> None:
    """Run the prompt through two layers."""
    for _ in range(2):
        model.elementwise(rank, "aten::native_layer_norm", k.NORM, rows, k.HIDDEN)
        model.mm(rank, rows, k.HIDDEN, model.QKV)
        model.mm(rank, rows, k.HIDDEN, model.FEED_UP)
        model.mm(rank, rows, model.FEED_DOWN, k.HIDDEN)


def experts(rank: Rank, rows: int) -> Program:
    """Send the tokens of one layer to the experts, compute there, and send them back."""
    if not rank.job.moe:
        return
    tokens = round(rows * rank.behaviour.hot_expert / 8) * 8
    group = rank.job.trainers()
    for last in (False, True):
        ready = rank.free[COMPUTE]
        end = yield from rank.collective("all_to_allv", group, rows * k.HIDDEN // 8, after=ready)
        rank.wait_for(end)
        if not last:
            model.mm(rank, tokens, k.HIDDEN, model.FEED_DOWN)
            model.elementwise(rank, "aten::silu", k.SILU, tokens, model.FEED_DOWN, 3)
            model.mm(rank, tokens, model.FEED_DOWN, k.HIDDEN)


def after_layer(rank: Rank, rows: int) -> None:
    """Do after a layer of the update's forward what faults add to it."""
    b = rank.behaviour
    if b.layer_offload_bytes:
        with rank.apart("offload layer"), rank.frame("verl/utils/activation_offload.py(88): offload"):
            end = rank.copy("DtoH (Device -> Pinned)", b.layer_offload_bytes, op="aten::to")
            rank.wait_for(end)
    if b.device_syncs:
        with rank.apart("device sync"), rank.frame("verl/utils/debug/performance.py(40): log_gpu_memory"):
            rank.call("cudaDeviceSynchronize", 3_000, until=max(rank.free.values()))
            rank.spend(60_000)


def before_layer_backward(rank: Rank) -> None:
    """Bring offloaded activations back."""
    size = rank.behaviour.layer_offload_bytes
    if size:
        with rank.apart("fetch layer"), rank.frame("verl/utils/activation_offload.py(131): reload"):
            rank.copy("HtoD (Pinned -> Device)", size, op="aten::to")


def casts(rank: Rank, rows: int) -> None:
    """Cast activations between 16 and 32 bits."""
    with rank.apart("casts"):
        for _ in range(rank.behaviour.casts):
            with rank.op("aten::to", 2_000), rank.op("aten::_to_copy", 2_000):
                model.elementwise(rank, "aten::copy_", k.COPY, rows, model.FEED_UP, 3)


def check_finite(rank: Rank) -> None:
    """Look for NaN in each gradient and read the answer."""
    if not rank.behaviour.finite_checks:
        return
    with rank.apart("finite"), rank.frame("verl/utils/torch_functional.py(310): assert_finite_grads"):
        for _ in range(rank.behaviour.finite_checks):
            rank.kernel("aten::isfinite", k.ADD, 6_000)
            rank.kernel("aten::all", k.REDUCE, 4_000)
            rank.item()
            rank.spend(40_000)


def send_objects(rank: Rank) -> Program:
    """Pickle and broadcast a list of Python objects."""
    b = rank.behaviour
    if not b.objects_ns:
        return
    with rank.apart("objects"), rank.frame("torch/distributed/distributed_c10d.py(3301): broadcast_object_list"):
        spend_in(rank, b.objects_ns, "torch/distributed/distributed_c10d.py(2891): _object_to_tensor", "<method 'dump' of '_pickle.Pickler' objects>")  # fmt: skip
        for size in (64, 65_536):
            end = yield from rank.collective("broadcast", rank.job.trainers(), size, "Long")
            rank.wait_for(end)
        rank.item()


def reduce_tensors(rank: Rank, label: str) -> Program:
    """Reduce the gradients of a layer tensor by tensor."""
    many = rank.behaviour.reduce_tensors
    with rank.apart(label):
        for _ in range(many):
            end = yield from rank.collective("allreduce", rank.job.trainers(), 16_384, after=rank.free[COMPUTE])  # fmt: skip
            rank.wait_for(end)


def fetch_optimizer(rank: Rank, *, back: bool) -> None:
    """Copy the optimizer's state to the device, or back to the host."""
    b = rank.behaviour
    if not b.offload_bytes:
        return
    kind = f"DtoH (Device -> {b.memory})" if back else f"HtoD ({b.memory} -> Device)"
    function = "offload_fsdp_optimizer" if back else "load_fsdp_optimizer"
    with rank.apart(function), rank.frame(f"verl/utils/fsdp_utils.py(201): {function}"):
        for _ in range(4):
            rank.copy(kind, b.offload_bytes // 4, op="aten::to")
        rank.call("cudaDeviceSynchronize", 3_000, until=max(rank.free.values()))


def step_on_host(rank: Rank) -> None:
    """Update the weights on the host."""
    b = rank.behaviour
    with rank.apart("cpu adam"), rank.frame("deepspeed/ops/adam/cpu_adam.py(145): step"):
        rank.copy("DtoH (Device -> Pinned)", 4 * 2**20, blocking=True)
        spend_in(rank, b.cpu_optimizer_ns, "deepspeed/ops/adam/cpu_adam.py(199): step_group", "<built-in method adam_update of PyCapsule object>")  # fmt: skip
        rank.copy("HtoD (Pinned -> Device)", 4 * 2**20)


def compile_barely(rank: Rank, ns: int) -> None:
    """Compile without ranges of it: the host is silent, and loads the new code."""
    with rank.apart("compile"), rank.frame("torch/_dynamo/eval_frame.py(574): _fn"):
        for _ in range(3):
            rank.stall(ns * 9 // 32)
            rank.call("cuModuleLoadData", ns * 5 // 96)


def write_checkpoint(rank: Rank, ns: int) -> None:
    """Copy the weights to the host and write them to a file."""
    with rank.apart("checkpoint"), rank.frame("verl/utils/checkpoint/fsdp_checkpoint_manager.py(140): save_checkpoint"):  # fmt: skip
        for _ in range(3):
            rank.copy("DtoH (Device -> Pinned)", ns // 3, blocking=True)
            spend_in(rank, ns // 4, "torch/serialization.py(850): save", WRITE)


def hiccup(rank: Rank, step: int) -> None:
    """Stop the host of one rank once in the run."""
    job = rank.job
    where = int(noise.uniform(job.seed, "hiccup") * job.ranks)
    when = job.first_step + 1 + int(noise.uniform(job.seed, "hiccup step") * (job.steps - 1))
    if job.hiccup_ns and (rank.rank, step) == (where, when):
        rank.stall(job.hiccup_ns)


def collect_a_little(rank: Rank, step: int, stage: str) -> None:
    """Collect garbage for a short time in one stage of the step."""
    job = rank.job
    if job.small_gc_ns:
        drawn = int(5 * noise.uniform(job.seed, rank.rank, step, "gc"))
        if stage == ("gen", "adv", "old_log_prob", "ref", "update_actor")[drawn]:
            spend_in(rank, job.small_gc_ns, "verl/trainer/ppo/ray_trainer.py(1290): fit", "<built-in function collect>")  # fmt: skip
