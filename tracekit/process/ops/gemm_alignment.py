"""Alignment of matrix products: whether kernels load their factors in 16-byte pieces or narrower ones.

Tensor cores are fed by loads of 16 bytes, which need rows that begin at multiples of 16 bytes. If stored by
rows, the rows of a factor are as long as the inner size (K) or the width of the result (N). M, the number of
tokens, is not the length of any row. A kernel's name that gives its load width comes first, since the kernel
was chosen by the strides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.keys import number_keys
from tracekit.model.trace import Trace
from tracekit.process.ops.flops import MatrixProduct
from tracekit.process.ops.kernel_names import (
    classify_matrix_unit,
    is_always_wide_kernel,
    is_gemm_kernel,
    parse_element_bytes,
    parse_loaded_elements,
)
from tracekit.process.ops.shapes import MatrixProducts

Mask = npt.NDArray[np.bool_]

LOADED_BYTES = 16
"""Bytes of one load of the fast kernels."""

ELEMENT_BYTES = {
    "double": 8,
    "float": 4,
    "Half": 2,
    "BFloat16": 2,
    "signed char": 1,
    "unsigned char": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e5m2fnuz": 1,
}
"""Bytes of an element by its recorded type; other types count as 2."""

GRADIENT_OPS = ("aten::mm", "aten::bmm")
"""Ops whose first factor may be stored by columns, as in the gradient of a weight.

K is then the number of tokens, and not the length of a row.
"""


def compute_elements_per_load(kind: str) -> int:
    """Compute how many elements of a recorded type one load takes.

    >>> compute_elements_per_load("BFloat16"), compute_elements_per_load("float")
    (8, 4)
    """
    return max(LOADED_BYTES // ELEMENT_BYTES.get(kind, 2), 1)


def is_misaligned_product(op: str, product: MatrixProduct) -> bool:
    """Check whether a product has rows that do not begin at multiples of 16 bytes, judging by its sizes.

    >>> linear = MatrixProduct("gemm", "BFloat16", 1, 577, 4096, 1024, 0)
    >>> is_misaligned_product("aten::addmm", linear)
    False
    >>> is_misaligned_product("aten::addmm", linear._replace(n=50257))
    True
    """
    elements = compute_elements_per_load(product.type)
    if product.n % elements:
        return True
    if not product.k % elements:
        return False
    return op not in GRADIENT_OPS or product.m % elements != 0


def is_narrow_loading_kernel(kernel: str, op: str, product: MatrixProduct | None) -> bool:
    """Check whether a kernel (launched for this product, if known) multiplies matrices with loads below 16 bytes.

    >>> is_narrow_loading_kernel("cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1", "aten::mm", None)
    True
    """
    if not is_gemm_kernel(kernel) or classify_matrix_unit(kernel) == "plain":
        return False
    elements = parse_loaded_elements(kernel)
    if elements is not None:
        size = ELEMENT_BYTES.get(product.type, 2) if product else parse_element_bytes(kernel)
        return elements * size < LOADED_BYTES
    if product is None or product.kind != "gemm" or is_always_wide_kernel(kernel):
        return False
    return is_misaligned_product(op, product)


def mark_narrow_loading_ops(trace: Trace, recorded: MatrixProducts) -> Mask:
    """Mark device ops that multiply matrices with loads below 16 bytes."""
    names = trace.texts("device_ops", "name")
    number = np.full(len(names), -1, np.int64)
    if len(recorded.number):
        number = np.where(recorded.owner >= 0, recorded.number[recorded.owner], -1)
    width = len(recorded.products) + 1
    pairs, pair = number_keys(names.codes.astype(np.int64) * width + number + 1)
    products: list[tuple[str, MatrixProduct | None]] = [("", None), *recorded.products]
    narrow = []
    for key in pairs.tolist():
        kernel = names.texts[key // width] if key >= 0 else ""
        narrow.append(is_narrow_loading_kernel(kernel, *products[key % width]))
    return np.array(narrow, np.bool_)[pair]
