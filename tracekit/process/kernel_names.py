"""What a kernel's name tells of the unit it multiplies matrices on.

Names as cuBLAS, cuBLASLt, cuDNN, CUTLASS (its profiler documents them), Tensile, hipBLASLt and Composable
Kernel make them. A name that says nothing, such as a generated one, is of unknown kind: rules leave it out.
"""

from __future__ import annotations

import re
from typing import Literal

from tracekit.model.remembered import remembered

Kind = Literal["tensor", "plain"]

GEMM = re.compile(
    r"(?<!fb)gemm|nvjet|Cijk_|_matmul|matmul_|(?<![a-z])bmm(?![a-z])"
    r"|triton_(?:tem\w*_)?(?:add|b|baddb)?mm(?![a-z])",
    re.IGNORECASE,
)
"""Kernels that multiply matrices; `gemv` kernels multiply by one vector, where the unit matters little."""

TENSOR = re.compile(
    r"tensor_?op|nvjet|[hi]mma|w?gmma|wmma|umma|tcgen05|warpgroup"
    r"|tensor\d+x\d+x\d+"
    r"|(?<![0-9])[a-z](?:884|1688|8816|8832|16816|16832|16864)(?![0-9])"
    r"|_MI\d+x\d+x\d+|xdl|gtcx\d|mfma",
    re.IGNORECASE,
)
"""Tensor cores (matrix cores): a letter and the size of the instruction (`s884`, `h1688`, `s16816` …), the
instruction's or the class' name, all of the `nvjet` family; `_MI16x16x1`, `xdl`, `gtcx` on AMD."""

PLAIN = re.compile(
    r"simt|ffma|(?<![a-z0-9])[sh]gemm(?![a-z])|sgemmEx|f32f32_f32f32|Cijk_\w*_MT\d",
    re.IGNORECASE,
)
"""Other cores: `sgemm` and `hgemm` without such a size, CUTLASS' `simt`, fused multiply-add (`ffma`), 32-bit
inputs that are not rounded to tf32; a Tensile kernel that names its tile and no matrix instruction."""


@remembered
def unit(name: str) -> Kind | None:
    """Whether a matrix kernel uses tensor cores by its name; None for other kernels and where it says nothing.

    >>> unit("volta_sgemm_128x32_nt"), unit("volta_fp16_s884gemm_fp16_128x64_nn"), unit("nvjet_tst_128x256")
    ('plain', 'tensor', 'tensor')
    >>> unit("elementwise_kernel") is unit("triton_mm_3") is None
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


def is_reduction(name: str) -> bool:
    """Whether a kernel only adds up what a split product left.

    >>> is_reduction("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasGemmParams)")
    True
    """
    return re.search(r"split_?k_?reduce|reduce_?split_?k", name, re.IGNORECASE) is not None
