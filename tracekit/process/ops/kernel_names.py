"""Parsing of matrix kernel names: tensor cores or plain cores, and the width of loads.

Names follow cuBLAS, cuBLASLt, cuDNN, CUTLASS (documented by its profiler), Tensile, hipBLASLt and Composable
Kernel. A name without this information, such as a generated one, is of unknown kind: rules leave it out.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from tracekit.model.text.patterns import compile_lazily

Kind = Literal["tensor", "plain"]

GEMM = compile_lazily(
    r"(?<!fb)gemm|nvjet|Cijk_|_matmul|matmul_|(?<![a-z])bmm(?![a-z])"
    r"|triton_(?:tem\w*_)?(?:add|b|baddb)?mm(?![a-z])",
    re.IGNORECASE,
)
"""Kernels that multiply matrices. `gemv` kernels multiply by one vector, where the unit matters little."""

TENSOR = compile_lazily(
    r"tensor_?op|nvjet|[hi]mma|w?gmma|wmma|umma|tcgen05|warpgroup"
    r"|tensor\d+x\d+x\d+"
    r"|(?<![0-9])[a-z](?:884|1688|8816|8832|16816|16832|16864)(?![0-9])"
    r"|_MI\d+x\d+x\d+|xdl|gtcx\d|mfma",
    re.IGNORECASE,
)
"""Names of tensor cores (matrix cores).

A letter and the size of the instruction (`s884`, `h1688`, `s16816` …), the name of the instruction or class,
and the whole `nvjet` family; `_MI16x16x1`, `xdl`, `gtcx` on AMD.
"""

PLAIN = compile_lazily(
    r"simt|ffma|(?<![a-z0-9])[sh]gemm(?![a-z])|sgemmEx|f32f32_f32f32|Cijk_\w*_MT\d+x\d+x\d+_\w", re.IGNORECASE
)
"""Names of other cores.

`sgemm` and `hgemm` without such a size, CUTLASS's `simt`, fused multiply-add (`ffma`), 32-bit inputs that are
not rounded to tf32; a Tensile kernel that names its parameters after the tile without a matrix instruction. A
name that ends with the tile was shortened, and leaves it open.
"""

PLAIN_CONVOLUTION = compile_lazily(r"(?<![a-z])scudnn|(?<!reduce_)(?:dgrad|wgrad)\w*<(?:int, )?float", re.IGNORECASE)
"""Names of 32-bit convolutions without tensor cores.

cuDNN's `scudnn` family, and its engines for gradients (`dgrad_engine<float`, `wgrad_alg0_engine<float`).
Names with `gemm` are matched by the patterns above.
"""

NARROW = compile_lazily(r"_(?:align[abc]?|ldg)(\d+)(?![0-9])", re.IGNORECASE)
"""Number of elements that a kernel loads at once (`align8`, `aligna4_alignc4`, `ldg8`)."""

ALWAYS_WIDE = compile_lazily(r"nvjet|warpgroupsize", re.IGNORECASE)
"""Kernels whose copy unit only takes rows that begin at multiples of 16 bytes."""

TWO_BYTES = compile_lazily(r"bf16|f16|fp16|(?<![a-z])h\d+gemm", re.IGNORECASE)
"""Names of kernels that multiply 16-bit numbers."""


@lru_cache(4096)
def classify_matrix_unit(name: str) -> Kind | None:
    """Classify a matrix kernel by its name as `tensor` or `plain`; None for other kernels and unknown names.

    >>> classify_matrix_unit("volta_sgemm_128x32_nt"), classify_matrix_unit("volta_fp16_s884gemm_fp16_128x64_nn"), classify_matrix_unit("nvjet_tst_128x256")
    ('plain', 'tensor', 'tensor')
    >>> classify_matrix_unit("elementwise_kernel") is classify_matrix_unit("triton_mm_3") is classify_matrix_unit("Cijk_Alik_Bljk_BBS_BH_MT256x256x64") is None
    True
    """
    if GEMM.search(name) is None or is_split_k_reduction(name):
        return None
    if TENSOR.search(name):
        return "tensor"
    return "plain" if PLAIN.search(name) else None


@lru_cache(4096)
def is_gemm_kernel(name: str) -> bool:
    """Check whether a kernel multiplies matrices, by its name.

    >>> is_gemm_kernel("ampere_sgemm_32x128_tn"), is_gemm_kernel("splitKreduce_kernel"), is_gemm_kernel("gemv2T_kernel")
    (True, False, False)
    """
    return GEMM.search(name) is not None and not is_split_k_reduction(name)


@lru_cache(4096)
def is_plain_convolution(name: str) -> bool:
    """Check whether a kernel convolves in 32 bits without tensor cores, by its name.

    >>> is_plain_convolution("cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1")
    True
    >>> is_plain_convolution("void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*)")
    False
    """
    return PLAIN_CONVOLUTION.search(name) is not None and classify_matrix_unit(name) != "tensor"


@lru_cache(4096)
def parse_loaded_elements(name: str) -> int | None:
    """Parse how many elements a matrix kernel loads at once, the smallest number in its name; None without one.

    >>> parse_loaded_elements("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1")
    1
    >>> parse_loaded_elements("nvjet_tst_128x256") is None
    True
    """
    counts = [int(count) for count in NARROW.findall(name) if len(count) < 4]
    return min(counts, default=None)


@lru_cache(4096)
def is_always_wide_kernel(name: str) -> bool:
    """Check whether a matrix kernel is of a kind that unaligned products cannot use.

    >>> is_always_wide_kernel("nvjet_tst_128x256"), is_always_wide_kernel("ampere_sgemm_32x128_tn")
    (True, False)
    """
    return ALWAYS_WIDE.search(name) is not None


@lru_cache(4096)
def parse_element_bytes(name: str) -> int:
    """Parse the bytes per element of a tensor-core matrix kernel from its name; 4 by default.

    >>> parse_element_bytes("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1")
    2
    >>> parse_element_bytes("cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1")
    4
    """
    return 2 if TWO_BYTES.search(name) else 4


def is_split_k_reduction(name: str) -> bool:
    """Check whether a kernel only sums the parts of a split product.

    >>> is_split_k_reduction("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasGemmParams)")
    True
    """
    return re.search(r"split_?k_?reduce|reduce_?split_?k", name, re.IGNORECASE) is not None
