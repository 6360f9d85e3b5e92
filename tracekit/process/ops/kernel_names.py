"""What a kernel's name tells of the unit it multiplies matrices on, and of how it loads them.

Names as cuBLAS, cuBLASLt, cuDNN, CUTLASS (its profiler documents them), Tensile, hipBLASLt and Composable
Kernel make them. A name that says nothing, such as a generated one, is of unknown kind: rules leave it out.
"""

from __future__ import annotations

import re
from typing import Literal

from tracekit.model.patterns import expression
from tracekit.model.remembered import remembered

Kind = Literal["tensor", "plain"]

GEMM = expression(
    r"(?<!fb)gemm|nvjet|Cijk_|_matmul|matmul_|(?<![a-z])bmm(?![a-z])"
    r"|triton_(?:tem\w*_)?(?:add|b|baddb)?mm(?![a-z])",
    re.IGNORECASE,
)
"""Kernels that multiply matrices; `gemv` kernels multiply by one vector, where the unit matters little."""

TENSOR = expression(
    r"tensor_?op|nvjet|[hi]mma|w?gmma|wmma|umma|tcgen05|warpgroup"
    r"|tensor\d+x\d+x\d+"
    r"|(?<![0-9])[a-z](?:884|1688|8816|8832|16816|16832|16864)(?![0-9])"
    r"|_MI\d+x\d+x\d+|xdl|gtcx\d|mfma",
    re.IGNORECASE,
)
"""Tensor cores (matrix cores): a letter and the size of the instruction (`s884`, `h1688`, `s16816` …), the
instruction's or the class' name, all of the `nvjet` family; `_MI16x16x1`, `xdl`, `gtcx` on AMD."""

PLAIN = expression(
    r"simt|ffma|(?<![a-z0-9])[sh]gemm(?![a-z])|sgemmEx|f32f32_f32f32|Cijk_\w*_MT\d+x\d+x\d+_\w",
    re.IGNORECASE,
)
"""Other cores: `sgemm` and `hgemm` without such a size, CUTLASS' `simt`, fused multiply-add (`ffma`), 32-bit
inputs that are not rounded to tf32; a Tensile kernel that names its parameters behind the tile and no matrix
instruction among them. A name that ends with the tile was shortened, and leaves it open."""

PLAIN_CONVOLUTION = expression(
    r"(?<![a-z])scudnn|(?<!reduce_)(?:dgrad|wgrad)\w*<(?:int, )?float", re.IGNORECASE
)
"""Convolutions in 32 bits on other cores than the tensor cores: cuDNN's `scudnn` family, and its engines for
gradients (`dgrad_engine<float`, `wgrad_alg0_engine<float`). Those that say `gemm` are told by the patterns above."""

NARROW = expression(r"_(?:align[abc]?|ldg)(\d+)(?![0-9])", re.IGNORECASE)
"""How many elements a kernel loads at once (`align8`, `aligna4_alignc4`, `ldg8`)."""

ALWAYS_WIDE = expression(r"nvjet|warpgroupsize", re.IGNORECASE)
"""Kernels whose unit of copying takes nothing but rows that begin at multiples of 16 bytes."""

TWO_BYTES = expression(r"bf16|f16|fp16|(?<![a-z])h\d+gemm", re.IGNORECASE)
"""Names that say that what is multiplied has 16 bits."""


@remembered
def unit(name: str) -> Kind | None:
    """Whether a matrix kernel uses tensor cores by its name; None for other kernels and where it says nothing.

    >>> unit("volta_sgemm_128x32_nt"), unit("volta_fp16_s884gemm_fp16_128x64_nn"), unit("nvjet_tst_128x256")
    ('plain', 'tensor', 'tensor')
    >>> unit("elementwise_kernel") is unit("triton_mm_3") is unit("Cijk_Alik_Bljk_BBS_BH_MT256x256x64") is None
    True
    """
    if GEMM.search(name) is None or is_reduction(name):
        return None
    if TENSOR.search(name):
        return "tensor"
    return "plain" if PLAIN.search(name) else None


@remembered
def is_gemm(name: str) -> bool:
    """Whether a kernel multiplies matrices by its name.

    >>> is_gemm("ampere_sgemm_32x128_tn"), is_gemm("splitKreduce_kernel"), is_gemm("gemv2T_kernel")
    (True, False, False)
    """
    return GEMM.search(name) is not None and not is_reduction(name)


@remembered
def is_plain_convolution(name: str) -> bool:
    """Whether a kernel convolves in 32 bits without tensor cores, by its name.

    >>> is_plain_convolution("cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1")
    True
    >>> is_plain_convolution("void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*)")
    False
    """
    return PLAIN_CONVOLUTION.search(name) is not None and unit(name) != "tensor"


@remembered
def loaded_elements(name: str) -> int | None:
    """How many elements a matrix kernel loads at once by its name, the fewest it names; None where it says nothing.

    >>> loaded_elements("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1")
    1
    >>> loaded_elements("nvjet_tst_128x256") is None
    True
    """
    counts = [int(count) for count in NARROW.findall(name) if len(count) < 4]
    return min(counts, default=None)


@remembered
def is_always_wide(name: str) -> bool:
    """Whether a matrix kernel is of a kind that no unaligned product can use.

    >>> is_always_wide("nvjet_tst_128x256"), is_always_wide("ampere_sgemm_32x128_tn")
    (True, False)
    """
    return ALWAYS_WIDE.search(name) is not None


@remembered
def named_bytes(name: str) -> int:
    """The bytes of an element that a matrix kernel on tensor cores multiplies, by its name; 4 where it says nothing.

    >>> named_bytes("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1")
    2
    >>> named_bytes("cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1")
    4
    """
    return 2 if TWO_BYTES.search(name) else 4


def is_reduction(name: str) -> bool:
    """Whether a kernel only adds up what a split product left.

    >>> is_reduction("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasGemmParams)")
    True
    """
    return re.search(r"split_?k_?reduce|reduce_?split_?k", name, re.IGNORECASE) is not None
