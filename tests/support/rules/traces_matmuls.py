"""Traces on which R18, R24, R25, R27 and R37 fire, and near misses at the edge; whole microseconds."""

from __future__ import annotations

import json

from chrome_builder import annotation, launched, op, step
from rules.firing import Document, Firing, Sources

A100 = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}]
BF16 = "c10::BFloat16"


def shaped(name, ts, dur, dims, kind=BF16, **args):
    """An op with recorded shapes; every tensor of one type, everything else a number."""
    types = [kind if shape else "Scalar" for shape in dims] if isinstance(kind, str) else kind
    recorded = {"Input Dims": json.loads(json.dumps(dims)), "Input type": types}
    return op(name, ts, dur, **recorded, **args)


def update(*rows):
    """One step of 1,000 µs that is one update."""
    return [step(1, 0, 1000), annotation("actor_update", 0, 1000), *rows]


def on_units(plain):
    """GPU work of 1,000: so much in a kernel without tensor cores, the rest in one with them."""
    rows = update(
        op("aten::mm", 0, 20),
        *launched("ampere_sgemm_128x64_nn", 1, 0, plain, 1),
        *launched("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn", 5, plain, 1000 - plain, 2),
    )
    return Document(rows, deviceProperties=A100)


def sized(odd):
    """Gemm time of 1,000: a product with N = 25 takes `odd`, one with M, N, K of multiples of 8 the rest.

    The aligned one does 2·(8·rest)·8·8 FLOPs in `rest` µs, 1,024 a µs; the odd one does 2·25·8·64 = 25,600.
    """
    rest = 1000 - odd
    rows = update(
        shaped("aten::mm", 0, 10, [[8, 64], [64, 25]]),
        *launched("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tensor16x8x16", 1, 0, odd, 1),
        shaped("aten::mm", 20, 10, [[8 * rest, 8], [8, 8]]),
        *launched("nvjet_tst_128x8", 21, odd, rest, 2),
    )
    return Document(rows, deviceProperties=A100)


def attention(between, softmax="aten::_softmax"):
    """GPU work of 1,000: two products of 4 heads, between them a softmax that takes `between`."""
    return update(
        shaped("aten::bmm", 0, 10, [[4, 16, 8], [4, 8, 16]]),
        *launched("nvjet_tst_a", 1, 0, 480, 1),
        shaped(softmax, 20, 10, [[1, 4, 16, 16], [], []]),
        *launched("softmax_warp_forward", 21, 480, between, 2),
        shaped("aten::bmm", 40, 10, [[4, 16, 16], [4, 16, 8]]),
        *launched("nvjet_tst_b", 41, 480 + between, 520 - between, 3),
    )


ELEMENTWISE = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{}> >(int)"


def copied(dur, types=(BF16, BF16, "Scalar"), around=("aten::contiguous", "aten::clone")):
    """GPU work of 1,000: `contiguous()` copies for `dur`, a product takes the rest."""
    rows = [shaped(name, index, 20 - 2 * index, [[64, 64]]) for index, name in enumerate(around)]
    return update(
        *rows,
        shaped("aten::copy_", 5, 10, [[64, 64], [64, 64], []], types),
        *launched(ELEMENTWISE.format("direct_copy_kernel_cuda"), 6, 0, dur, 1),
        shaped("aten::mm", 30, 10, [[64, 64], [64, 64]]),
        *launched("nvjet_tst_a", 31, dur, 1000 - dur, 2),
    )


def chain(*kernels, rest=1000, dims=((64, 64),), stream=7):
    """GPU work of `rest`: kernels of these (op, duration) one after the other, a product takes what is left."""
    rows, at = [], 0
    for number, (name, dur) in enumerate(kernels):
        shape = [list(dims[number % len(dims)])]
        rows.append(shaped(name, 10 * number, 9, shape))
        kernel = ELEMENTWISE.format(f"{name}_kernel_cuda")
        rows += launched(kernel, 10 * number + 1, at, dur, number + 1, stream=stream)
        at += dur
    rows.append(shaped("aten::mm", 500, 10, [[64, 64], [64, 64]]))
    rows += launched("nvjet_tst_a", 501, at, rest - at, 99, stream=stream)
    return update(*rows)


def micro_batches(forward, training=128, count=2):
    """A host that runs `ref` and then an update in micro-batches of 200 µs, of so many tokens each."""
    rows = [step(1, 0, 200 * (count + 2)), annotation("ref", 0, 200 * count)]
    rows += [annotation("actor_update", 200 * count, 400)]
    for index in range(count + 2):
        at, tokens = 200 * index, forward if index < count else training
        number = index if index < count else index - count
        rows += [annotation(f"micro_batch{number}", at, 200)]
        rows += [shaped("aten::addmm", at + 1, 198, [[64], [tokens, 32], [32, 64]], "float")]
    return rows


FIRES: dict[str, Firing] = {
    # As many tokens as in training, in two micro-batches.
    "forward-batch-size": Firing(
        micro_batches(128),
        "ref: micro-batches of 128 rows, no larger than training's 128",
        "info", None, None,
        {"forward_rows": 128, "training_rows": 128, "micro_batches": 2},
    ),
    # 50 of 1,000; 8 times as fast it would be 6.25: 43.75 µs of 1,000.
    "no-tensor-cores": Firing(
        on_units(50),
        "5.0 % of the GPU work of update_actor is matrix products without tensor cores",
        "medium", 43_750, 0.04375,
        {"plain_ratio": 0.05, "plain_ns": 50_000, "plain_kernels": 1},
    ),
    # 50 of 1,000; 25,600 FLOPs at 1,024 a µs are 25 µs: 25 of 50 are lost.
    "unaligned-gemm": Firing(
        sized(50),
        "5.0 % of the time of matrix products is spent on unaligned sizes: aten::mm 8×25×64 BFloat16 most of all",
        "low", 25_000, 0.025,
        {"unaligned_ratio": 0.05, "unaligned_ns": 50_000},
    ),
    # 30 of 1,000 between the products, which write and read the scores as long as the softmax does.
    "unfused-operators": Firing(
        attention(30),
        "3.0 % of the GPU work of update_actor is unfused attention, between its two products",
        "medium", 60_000, 0.06,
        {"unfused_ratio": 0.03, "calls": 1, "scores_ns": 30_000},
    ),
    # 30 of 1,000.
    "layout-copies": Firing(
        copied(30),
        "3.0 % of the GPU work of update_actor copies tensors into another layout: aten::contiguous > aten::clone > aten::copy_",
        "medium", 30_000, 0.03,
        {"unfused_ratio": 0.03, "calls": 1},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # One token more than in training.
    "forward-batch-size": micro_batches(129),
    # 49 of 1,000.
    "no-tensor-cores": on_units(49),
    # 49 of 1,000.
    "unaligned-gemm": sized(49),
    # 29 of 1,000.
    "unfused-operators": attention(29),
    # 29 of 1,000.
    "layout-copies": copied(29),
}
