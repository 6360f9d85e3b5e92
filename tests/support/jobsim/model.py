"""What a step launches on the device: layers, losses, the optimizer, each op with its shapes."""

from __future__ import annotations

from collections.abc import Generator

from jobsim import chores
from jobsim import kernels as k
from jobsim.proposals import is_in
from jobsim.rank import COMPUTE, Meeting, Rank

Program = Generator[Meeting, int, None]
HEADS, HEAD_WIDTH, SEQUENCE = 32, 128, 1024
QKV, FEED_UP, FEED_DOWN = 6_144, 28_672, 14_336
TENSORS = 20


def shapes(*dims: tuple[int, ...], kind: str = "c10::BFloat16") -> str:
    """The arguments of an op whose inputs have these sizes."""
    strides = []
    for size in dims:
        steps = [1]
        for extent in reversed(size[1:]):
            steps.insert(0, steps[0] * extent)
        strides.append(steps)
    types = ", ".join(f'"{kind}"' for _ in dims)
    blank = ", ".join('""' for _ in dims)
    listed = [list(size) for size in dims]
    return f'"Concrete Inputs": [{blank}], "Input type": [{types}], "Input Strides": {strides}, "Input Dims": {listed}'


def mm(rank: Rank, rows: int, inner: int, columns: int, how: str = "") -> int:
    """A product; `how` is `align1` or `fp32` where it leaves the fast kernels."""
    name, rate = k.GEMM, k.FLOP_PER_NS
    if how == "align1":
        name, rate = k.ALIGN1, k.UNALIGNED_FLOP_PER_NS
    if how == "fp32":
        name, rate = k.SGEMM, k.FP32_FLOP_PER_NS
    kind = "float" if how == "fp32" else "c10::BFloat16"
    args = shapes((rows, inner), (inner, columns), kind=kind)
    return rank.kernel("aten::mm", name, k.matmul_ns(rows, inner, columns, rate), args=args)


def elementwise(rank: Rank, op: str, name: str, rows: int, columns: int, passes: int = 2) -> int:
    """An op that reads and writes a matrix of 16-bit numbers so many times."""
    args = shapes((rows, columns))
    return rank.kernel(op, name, k.traffic_ns(2 * passes * rows * columns), args=args)


def attention(rank: Rank, rows: int, *, fused: bool) -> None:
    """The attention of one layer."""
    flop = 2 * rows * SEQUENCE * k.HIDDEN
    heads = HEADS * max(1, rows // SEQUENCE)
    length = min(rows, SEQUENCE)
    if fused:
        args = shapes((heads // HEADS, HEADS, length, HEAD_WIDTH))
        name = k.FLASH.format("fwd", "fwd")
        rank.kernel("aten::_flash_attention_forward", name, k.KERNEL_START_NS + flop / 3.6e5, args=args)
        return
    scores = 2 * heads * length * length
    query, key = (heads, length, HEAD_WIDTH), (heads, HEAD_WIDTH, length)
    with rank.apart("attention"):
        product = k.traffic_ns(scores) + 2 * flop / k.FLOP_PER_NS
        rank.kernel("aten::bmm", k.GEMM, product, args=shapes(query, key))
        for op, name in (("aten::mul", k.MUL), ("aten::add", k.ADD), ("aten::_softmax", k.SOFTMAX)):
            args = shapes((heads, length, length))
            rank.kernel(op, name, k.traffic_ns(2 * scores), args=args)
        args = shapes((heads, length, length), query)
        rank.kernel("aten::bmm", k.GEMM, product, args=args)
    rank.lasting(0)


def layer(rank: Rank, rows: int, number: int) -> Program:
    """The forward of one layer."""
    b = rank.behaviour
    with rank.frame(f"nn.Module: DecoderLayer_{number}"):
        elementwise(rank, "aten::native_layer_norm", k.NORM, rows, k.HIDDEN)
        mm(rank, rows, k.HIDDEN, QKV)
        attention(rank, rows, fused=b.fused_attention)
        mm(rank, rows, k.HIDDEN, k.HIDDEN)
        yield from reduce_over_tensor_parallel(rank, rows)
        elementwise(rank, "aten::add", k.ADD, rows, k.HIDDEN, 3)
        mm(rank, rows, k.HIDDEN, FEED_UP)
        if b.fused_activation:
            elementwise(rank, "aten::silu", k.SILU, rows, FEED_DOWN, 3)
        else:
            unfused_activation(rank, rows)
        with rank.apart("contiguous"):
            for _ in range(b.contiguous):
                with rank.frame("verl/models/attention.py(141): merge_heads"):
                    elementwise(rank, "aten::copy_", k.COPY, rows, FEED_UP)
        mm(rank, rows, FEED_DOWN, k.HIDDEN)
        if b.casts:
            chores.casts(rank, rows)
        yield from chores.experts(rank, rows)
        yield from reduce_over_tensor_parallel(rank, rows)


def unfused_activation(rank: Rank, rows: int) -> None:
    """The activation as a chain of single ops."""
    with rank.apart("activation"):
        for op, name in (
            ("aten::neg", k.MUL), ("aten::exp", k.MUL), ("aten::add", k.ADD),
            ("aten::reciprocal", k.MUL), ("aten::mul", k.MUL), ("aten::mul", k.MUL),
        ):  # fmt: skip
            elementwise(rank, op, name, rows, FEED_DOWN, 2 if op != "aten::mul" else 3)
    rank.lasting(0)


def reduce_over_tensor_parallel(rank: Rank, rows: int) -> Program:
    """The partial sums of a product meet, if the model is split."""
    if rank.job.tensor_parallel == 1:
        return
    ready = rank.free[COMPUTE]
    rank.wait_for((yield from rank.collective("allreduce", "tp", rows * 512, after=ready)))


def gather(rank: Rank, after: int = 0) -> Generator[Meeting, int, int]:
    """When the weights of the next layer are there."""
    return (yield from rank.collective("_allgather_base", "dp", rank.job.gathered_bytes() // 2, after=after))


def neighbours(rank: Rank) -> tuple[int | None, int | None]:
    """Return the rank with the layers before, and that with the layers after."""
    job = rank.job
    many, stage = job.ranks // job.pipeline, job.pipeline_stage(rank.rank)
    before = rank.rank - many if stage else None
    after = rank.rank + many if stage < job.pipeline - 1 else None
    return before, after


def forward(rank: Rank, rows: int, *, head: str = "", norms: int = 0, trains: bool = False) -> Program:
    """The forward of one micro-batch; weights are gathered one layer ahead of their use."""
    b, layers = rank.behaviour, rank.job.layers
    before, after = neighbours(rank)
    if before is not None:
        rank.wait_for((yield from rank.peer("recv", before, rows * k.HIDDEN)))
    elif after is not None:
        # The first stage embeds images, which takes as long as the head of the last stage.
        mm(rank, rows, k.HIDDEN, k.VOCAB)
        elementwise(rank, "aten::gelu", k.SILU, rows, k.VOCAB, 1)
    with rank.frame("verl/workers/actor/dp_actor.py(88): _forward_micro_batch"):
        there: list[int] = []
        ahead = b.overlap + is_in(rank.job.proposal.prefetching, rank.stage)
        for _ in range(min(ahead, layers)):
            there.append((yield from gather(rank)))
        for number in range(layers):
            if number + ahead < layers:
                there.append((yield from gather(rank, 0 if ahead else rank.free[COMPUTE])))
            rank.wait_for(there[number])
            yield from layer(rank, rows, number)
            norms_of_activations(rank, norms)
            if trains:
                chores.after_layer(rank, rows)
        if after is not None:
            yield from rank.peer("send", after, rows * k.HIDDEN, after=rank.free[COMPUTE])
            return
        vocabulary = k.ODD_VOCAB if b.unaligned else k.VOCAB
        mm(rank, rows, k.HIDDEN, vocabulary, "align1" if b.unaligned else head)
        elementwise(rank, "LinearCrossEntropy", k.CROSS_ENTROPY, rows, vocabulary, 1)


def norms_of_activations(rank: Rank, norms: int) -> None:
    """Norms are computed on the device; where the host reads each at once, it launches nothing meanwhile."""
    if not norms:
        return
    with rank.frame("verl/workers/actor/dp_actor.py(131): log_activation_norm"):
        for _ in range(norms):
            rank.kernel("aten::linalg_vector_norm", k.REDUCE, 4_000)
            if rank.behaviour.items:
                with rank.apart("items"):
                    rank.item()


RUN_BACKWARD = "<built-in method run_backward of torch._C._EngineBase object at 0x7f3c2d1b7a30>"


def backward(rank: Rank, rows: int, *, reduce: bool) -> Program:
    """The backward of one micro-batch: the main thread waits for the autograd thread."""
    rank.spend(30_000)
    with rank.frame("torch/autograd/graph.py(824): _engine_run_backward"), rank.frame(RUN_BACKWARD):
        yield from run_backward(rank, rows, reduce=reduce)
    rank.spend(12_000)


def run_backward(rank: Rank, rows: int, *, reduce: bool) -> Program:
    """What the autograd thread does in a backward; gradients are reduced as layers end."""
    b = rank.behaviour
    how = "align1" if b.unaligned else ""
    vocabulary = k.ODD_VOCAB if b.unaligned else k.VOCAB
    before, after = neighbours(rank)
    rank.tid = rank.autograd
    if after is not None:
        rank.wait_for((yield from rank.peer("recv", after, rows * k.HIDDEN)))
    else:
        with rank.op("autograd::engine::evaluate_function: LinearCrossEntropyBackward", 3_000):
            elementwise(rank, "LinearCrossEntropyBackward", k.CROSS_ENTROPY_BACKWARD, rows, vocabulary)  # fmt: skip
            mm(rank, rows, vocabulary, k.HIDDEN, how)
            mm(rank, k.HIDDEN, rows, vocabulary, how)
    ends = []
    for number in range(rank.job.layers):
        chores.before_layer_backward(rank)
        yield from backward_layer(rank, rows)
        if reduce and b.reduce_tensors:
            yield from chores.reduce_tensors(rank, f"reduce {number}")
        if reduce:
            ready, size = rank.free[COMPUTE], rank.job.gathered_bytes() // 2
            ends.append((yield from rank.collective("_reduce_scatter_base", "dp", size, after=ready)))
            if not b.overlap and not is_in(rank.job.proposal.hiding, rank.stage):
                rank.wait_for(ends[-1])
    if ends:
        rank.wait_for(max(ends))
    if before is not None:
        yield from rank.peer("send", before, rows * k.HIDDEN, after=rank.free[COMPUTE])
    elif after is not None:
        mm(rank, rows, k.VOCAB, k.HIDDEN)
        mm(rank, k.HIDDEN, rows, k.VOCAB)
    rank.tid = rank.main


def backward_layer(rank: Rank, rows: int) -> Program:
    """The backward of one layer."""
    for inner, columns in ((FEED_DOWN, k.HIDDEN), (k.HIDDEN, FEED_UP), (k.HIDDEN, k.HIDDEN), (k.HIDDEN, QKV)):  # fmt: skip
        with rank.op("autograd::engine::evaluate_function: MmBackward0", 3_000):
            mm(rank, rows, columns, inner)
            mm(rank, inner, rows, columns)
        if columns == FEED_UP:
            elementwise(rank, "aten::silu_backward", k.SILU, rows, FEED_DOWN, 3)
            elementwise(rank, "aten::native_layer_norm_backward", k.NORM, rows, k.HIDDEN, 3)
    flop = 5 * rows * SEQUENCE * k.HIDDEN
    name = k.FLASH.format("bwd_dq_dk_dv_loop_seqk_parallel", "bwd")
    args = shapes((max(1, rows // SEQUENCE), HEADS, min(rows, SEQUENCE), HEAD_WIDTH))
    rank.kernel("aten::_flash_attention_backward", name, k.KERNEL_START_NS + flop / 3e5, args=args)
    elementwise(rank, "aten::add_", k.ADD, rows, k.HIDDEN, 3)
    yield from chores.experts(rank, rows)
    yield from reduce_over_tensor_parallel(rank, rows)


def optimizer(rank: Rank) -> None:
    """The update of the weights: one kernel for all tensors, or twelve for each."""
    shard = rank.job.layers * rank.job.gathered_bytes() // 2 // min(8, rank.job.ranks)
    traffic = 7 * 4 * shard
    frame = rank.frame("torch/optim/adamw.py(232): step")
    with rank.marked("Optimizer.step#AdamW.step"), frame:
        if rank.behaviour.cpu_optimizer_ns:
            chores.step_on_host(rank)
        elif rank.behaviour.foreach:
            name = k.MULTI.format("FusedAdamMathFunctor<float, 4>")
            rank.kernel("aten::_fused_adamw_", name, k.traffic_ns(traffic))
        else:
            single_tensors(rank, shard)


def single_tensors(rank: Rank, shard: int) -> None:
    """Twelve ops for each tensor, as without foreach and fused."""
    ops = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")
    with rank.apart("optimizer"):
        for _ in range(TENSORS):
            for op in ops:
                name = k.MUL if op.startswith(("mul", "sqrt")) else k.ADD
                rank.kernel(f"aten::{op}", name, k.traffic_ns(10 * shard / TENSORS), cost=8_000)
    rank.lasting(0)


def vision_tower(rank: Rank, rows: int) -> None:
    """Convolutions over the images of the batch."""
    slow = rank.behaviour.conv32
    kind = "float" if slow else "c10::BFloat16"
    rate = k.FLOP_PER_NS / k.FP32_FLOP_PER_NS if slow else 1.0
    with rank.frame("nn.Module: VisionTower_0"):
        for _ in range(4):
            images = max(1, rows // 128)
            args = shapes((images, 256, 56, 56), (512, 256, 3, 3), kind=kind)
            ns = k.KERNEL_START_NS + 55.0 * rows * rate
            rank.kernel("aten::cudnn_convolution", k.CONV32 if slow else k.CONV, ns, args=args)


def norm_of_gradients(rank: Rank) -> Program:
    """The gradient norm over all ranks, which the host reads."""
    end = rank.kernel("aten::_foreach_norm", k.MULTI.format("LpNormFunctor<float, (at::native::NormType)1, float, 1>"), 28_000)  # fmt: skip
    rank.wait_for((yield from rank.collective("allreduce", rank.job.trainers(), 1, "Float", after=end)))
    if rank.reads():
        rank.item()
