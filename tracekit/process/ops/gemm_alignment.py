"""Alignment of matrix products: whether kernels load their factors in 16-byte pieces or narrower ones.

Tensor cores are fed by loads of 16 bytes, which need rows that begin at multiples of 16 bytes. If stored by
rows, the rows of a factor are as long as the inner size (K) or the width of the result (N). M, the number of
tokens, is not the length of any row. A kernel's name that gives its load width comes first, since the kernel
was chosen by the strides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.keys import numbered
from tracekit.model.trace import Trace
from tracekit.process.ops.flops import Product
from tracekit.process.ops.kernel_names import (
    is_always_wide,
    is_gemm,
    loaded_elements,
    named_bytes,
    unit,
)
from tracekit.process.ops.shapes import Products

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


def multiple_of(kind: str) -> int:
    """Compute how many elements of a recorded type one load takes.

    >>> multiple_of("BFloat16"), multiple_of("float")
    (8, 4)
    """
    return max(LOADED_BYTES // ELEMENT_BYTES.get(kind, 2), 1)


def leaves_fast_kernels(op: str, product: Product) -> bool:
    """Check whether a product has rows that do not begin at multiples of 16 bytes, judging by its sizes.

    >>> linear = Product("gemm", "BFloat16", 1, 577, 4096, 1024, 0)
    >>> leaves_fast_kernels("aten::addmm", linear)
    False
    >>> leaves_fast_kernels("aten::addmm", linear._replace(n=50257))
    True
    """
    elements = multiple_of(product.type)
    if product.n % elements:
        return True
    if not product.k % elements:
        return False
    return op not in GRADIENT_OPS or product.m % elements != 0


def loads_narrow(kernel: str, op: str, product: Product | None) -> bool:
    """Check whether a kernel (launched for this product, if known) multiplies matrices with loads below 16 bytes.

    >>> loads_narrow("cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1", "aten::mm", None)
    True
    """
    if not is_gemm(kernel) or unit(kernel) == "plain":
        return False
    elements = loaded_elements(kernel)
    if elements is not None:
        size = ELEMENT_BYTES.get(product.type, 2) if product else named_bytes(kernel)
        return elements * size < LOADED_BYTES
    if product is None or product.kind != "gemm" or is_always_wide(kernel):
        return False
    return leaves_fast_kernels(op, product)


def narrow_loads(trace: Trace, recorded: Products) -> Mask:
    """Mark device ops that multiply matrices with loads below 16 bytes."""
    names = trace.texts("device_ops", "name")
    number = np.full(len(names), -1, np.int64)
    if len(recorded.number):
        number = np.where(recorded.owner >= 0, recorded.number[recorded.owner], -1)
    width = len(recorded.products) + 1
    pairs, pair = numbered(names.codes.astype(np.int64) * width + number + 1)
    products: list[tuple[str, Product | None]] = [("", None), *recorded.products]
    narrow = []
    for key in pairs.tolist():
        kernel = names.texts[key // width] if key >= 0 else ""
        narrow.append(loads_narrow(kernel, *products[key % width]))
    return np.array(narrow, np.bool_)[pair]
