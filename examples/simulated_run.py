"""A GPU run that never took place: what its two ranks do, and in what order.

Two ranks of a small model take three steps of an RL loop: generation, log-probabilities of the
actor and of the reference, an update of two mini-batches. They meet in collectives.

What there is to find: a decode loop that the host cannot feed (idle GPU), a reference model that
comes from host memory (exposed copies), batches in pageable memory, reduce-scatters that nothing
hides, and rank 1, whose update has more tokens, so that rank 0 waits in its collectives.
"""

from collections.abc import Generator
from typing import Any

from simulated_rank import (
    COMPUTE,
    COPY,
    FIRST_CORRELATION,
    FLOP_PER_S,
    HBM_BYTES_PER_S,
    WORLD,
    Joined,
    Meeting,
    Placed,
    Rank,
)

STEPS = (5, 6, 7)
STEP_LENGTH = {5: 1.0, 6: 1.06, 7: 0.97}

LAYERS, HIDDEN, VOCAB, DECODED = 2, 2048, 32_000, 24
LAYER_BYTES = 16 * HIDDEN * HIDDEN * 2
TOKENS, TRAINED_TOKENS = 2048, (2048, 2464)
"""Tokens of a micro-batch; in the update, those of each rank."""

DRIVER_NS = 600_000
"""What the driver does after each stage (rewards, advantages) while the ranks wait."""

FLASH = "void flash::flash_{}_kernel<Flash_kernel_traits<128, 128, 64, 4, false, bfloat16_t>>"
MULTI = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{}>"
SAMPLE = "void at::native::sampleMultinomialOnce<float, float>(long*, long, int, float const*)"

Program = Generator[Meeting, int, None]
"""What a rank does: it yields a `Meeting` and is sent the end that both ranks share."""


def gather(rank: Rank, index: int, after: int = 0) -> Joined:
    """When the parameters of a layer are there; at most two layers are held at a time."""
    rank.allocate(f"parameters {index}", LAYER_BYTES)
    ready = max(after, rank.layer_ends[-2])
    whole = LAYER_BYTES // 2
    return (yield from rank.collective("_allgather_base", whole // WORLD, whole, "BFloat16", ready))


def layer(rank: Rank, tokens: int) -> None:
    """Nothing; the forward of one layer is launched."""
    width = 2 * tokens * HIDDEN
    rank.elementwise("aten::rms_norm", 2 * width)
    rank.mm(tokens, HIDDEN, 3 * HIDDEN)
    flop = 4 * tokens * 1024 * HIDDEN
    rank.op("aten::_flash_attention_forward", FLASH.format("fwd"), 1e9 * flop / FLOP_PER_S)
    rank.mm(tokens, HIDDEN, HIDDEN)
    rank.elementwise("aten::add", 3 * width)
    rank.mm(tokens, HIDDEN, 8 * HIDDEN)
    rank.elementwise("aten::silu", 8 * width)
    rank.layer_ends.append(rank.mm(tokens, 4 * HIDDEN, HIDDEN))


def forward(rank: Rank, tokens: int, *, keep: bool, offloaded: bool = False) -> Program:
    """The forward of one micro-batch; parameters are gathered one layer ahead of their use."""
    there = []
    for index in range(LAYERS + 1):
        if index < LAYERS:
            shard = LAYER_BYTES // WORLD
            loaded = rank.copy("HtoD (Pinned -> Device)", shard, COPY) if offloaded else 0
            there.append((yield from gather(rank, index, loaded)))
        if index:
            rank.wait_for(there[index - 1])
            rank.allocate(f"activations {index - 1}", 34 * tokens * HIDDEN)
            layer(rank, tokens)
            rank.release(f"parameters {index - 1}")
            if not keep:
                rank.release(f"activations {index - 1}")
    rank.mm(tokens, HIDDEN, VOCAB)
    rank.elementwise("aten::_log_softmax", 4 * tokens * VOCAB)


def backward(rank: Rank, tokens: int) -> Program:
    """The backward of one micro-batch, on the autograd thread; its last scatter is waited for."""
    rank.tid = rank.autograd
    whole = LAYER_BYTES // 2
    scattered = 0
    for index in reversed(range(LAYERS)):
        rank.wait_for((yield from gather(rank, index)))
        for inner, columns in ((1, 3), (1, 1), (1, 8), (4, 1)):
            evaluated = rank.span("cpu_op", "autograd::engine::evaluate_function: MmBackward0")
            with evaluated, rank.span("cpu_op", "MmBackward0", 3_000):
                rank.mm(inner * HIDDEN, tokens, columns * HIDDEN)
                rank.mm(tokens, columns * HIDDEN, inner * HIDDEN)
        flop = 10 * tokens * 1024 * HIDDEN
        kernel = FLASH.format("bwd_dq_dk_dv_loop")
        rank.op("aten::_flash_attention_backward", kernel, 1e9 * flop / FLOP_PER_S)
        rank.layer_ends.append(rank.elementwise("aten::add_", 6 * tokens * HIDDEN))
        rank.release(f"activations {index}")
        ready = rank.free[COMPUTE]
        share = whole // WORLD
        scattered = yield from rank.collective("_reduce_scatter_base", whole, share, "BFloat16", ready)
        rank.release(f"parameters {index}")
    rank.wait_for(scattered)
    rank.tid = rank.main


def generate(rank: Rank, tokens: int) -> Program:
    """Fresh weights, a prefill, and a decode loop of small kernels that the host cannot feed."""
    for _ in range(LAYERS):
        rank.copy("DtoD (Device -> Device)", LAYER_BYTES)
    rank.copy("HtoD (Pinned -> Device)", 8 * tokens)
    for _ in range(LAYERS):
        layer(rank, tokens // 4)
    rows, slow = 16, 22_000
    for _ in range(DECODED):
        rank.now += rank.about(120_000, 0.15)  # the engine's scheduler
        for _ in range(LAYERS):
            rank.elementwise("aten::rms_norm", 4 * rows * HIDDEN, slow)
            rank.mm(rows, HIDDEN, 3 * HIDDEN, slow)
            rank.mm(rows, HIDDEN, HIDDEN, slow)
            rank.elementwise("aten::silu", 8 * rows * HIDDEN, slow)
        rank.op("aten::multinomial", SAMPLE, 7_000, slow)
        rank.item()
    rank.copy("DtoH (Device -> Pageable)", 8 * tokens)
    yield from ()


def log_prob(rank: Rank, tokens: int, *, offloaded: bool) -> Program:
    """Two micro-batches of forward, each with its batch from pageable memory."""
    for index in range(2):
        with rank.marked(f"micro_batch{index}"):
            rank.copy("HtoD (Pageable -> Device)", 24 * tokens)
            yield from forward(rank, tokens, keep=False, offloaded=offloaded)
    rank.copy("DtoH (Device -> Pageable)", 8 * tokens)


def update(rank: Rank, tokens: int) -> Program:
    """Two mini-batches of two micro-batches; the last optimizer kernels outlast the stage."""
    for mini in range(2):
        with rank.marked(f"mini_batch{mini}"):
            rank.memset(LAYER_BYTES)
            for micro in range(2):
                with rank.marked(f"micro_batch{micro}"):
                    rank.copy("HtoD (Pageable -> Device)", 2_400 * tokens)
                    yield from forward(rank, tokens, keep=True)
                    yield from backward(rank, tokens)
            rank.op("aten::_foreach_norm", MULTI.format("LpNormFunctor<float>"), 60_000)
            ready = rank.free[COMPUTE]
            rank.wait_for((yield from rank.collective("allreduce", 1, 1, "Float", ready)))
            rank.item()
            with rank.marked("Optimizer.step#AdamW.step"):
                kernel = MULTI.format("FusedAdamMathFunctor<float>")
                for _ in range(LAYERS):
                    rank.op("aten::_fused_adamw_", kernel, 7e9 * LAYER_BYTES / HBM_BYTES_PER_S)


def before_the_window(rank: Rank) -> None:
    """Nothing; work is running whose launch was not recorded, some of it into the first step."""
    start = rank.now + 30_000
    for index in range(6):
        name, ns = MULTI.format("FusedAdamMathFunctor<float>"), rank.about(120_000)
        args: dict[str, Any] = {"grid": [320, 1, 1], "block": [512, 1, 1]}
        work = Placed(name, "kernel", "compute", COMPUTE, ns, args)
        if index == 0:
            args = {"bytes": 2**27, "memory bandwidth (GB/s)": 2**27 / ns}
            work = Placed("Memset (Device)", "gpu_memset", "memset", COMPUTE, ns, args)
        work.start, work.correlation = start, FIRST_CORRELATION - 100 + index
        start = rank.place(work, {}) + 1_500
    rank.now += 400_000


def program(rank: Rank) -> Program:
    """The three steps of one rank."""
    before_the_window(rank)
    for step in STEPS:
        rank.step = step
        tokens = round(TOKENS * STEP_LENGTH[step])
        stages = {
            "rollout_generate": generate(rank, tokens),
            "actor_compute_log_prob": log_prob(rank, tokens, offloaded=False),
            "ref_compute_log_prob": log_prob(rank, tokens, offloaded=True),
            "actor_update": update(rank, round(TRAINED_TOKENS[rank.rank] * STEP_LENGTH[step])),
        }
        with rank.marked(f"ProfilerStep#{step}"):
            for name, work in stages.items():
                rank.stage = name
                with rank.marked(name):
                    yield from work
                rank.stage = None
                rank.now += rank.about(DRIVER_NS, 0.2)
    rank.step = None
    rank.now += 20_000
    rank.call("cudaDeviceSynchronize", until=max(work.end for work in rank.placed))


def run() -> list[Rank]:
    """Both ranks after their programs; they take turns from one collective to the next."""
    ranks = [Rank(index) for index in range(WORLD)]
    programs = [program(rank) for rank in ranks]
    meetings: list[Meeting | None] = [next(each) for each in programs]
    while None not in meetings:
        met = [meeting for meeting in meetings if meeting]
        end = max(start for start, _ in met) + met[0][1]
        meetings = [_send(each, end) for each in programs]
    return ranks


def _send(each: Program, end: int) -> Meeting | None:
    """The rank's next meeting; None after its last."""
    try:
        return each.send(end)
    except StopIteration:
        return None
