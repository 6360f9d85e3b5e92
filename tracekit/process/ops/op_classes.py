"""Classes of device ops that rules count: products without tensor cores, unaligned ones, unfused operators, layout copies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.trace import Trace
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names
from tracekit.process.ops.kernel_names import classify_matrix_unit, is_gemm_kernel, is_plain_convolution
from tracekit.process.ops.pointwise import PointwiseKernels, find_pointwise_kernels
from tracekit.process.ops.shapes import (
    MatrixProducts,
    collect_input_shapes,
    find_launch_owners,
    find_matrix_products,
    mark_narrow_loading_ops,
)
from tracekit.process.ops.unfused import (
    UnfusedOps,
    find_unfused_ops,
    mark_attention_extra_ops,
    mark_attention_products,
    mark_score_passes,
)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def classify_device_ops(trace: Trace) -> dict[str, Bools]:
    """Mark the device ops of each class that has any; an op may be in several."""
    classes = dict(classify_matmuls(trace, trace.derived(find_matrix_products)))
    if trace.derived(collect_input_shapes).dims:
        passes: PointwiseKernels = trace.derived(find_pointwise_kernels)
        classes |= classify_unfused_work(trace, trace.derived(find_unfused_ops), passes)
    return {name: mask for name, mask in classes.items() if name != "all" and mask.any()}


def classify_matmuls(trace: Trace, recorded: MatrixProducts) -> dict[str, npt.NDArray[np.bool_]]:
    """Mark the device ops of each class; gemm by the name of the kernel or of the op that launched it."""
    names, is_kernel = (trace.texts("device_ops", "name"), mark_rows_of_kind(trace, "device_ops", "kernel"))
    is_product = mark_wanted_names(names, is_gemm_kernel)
    if len(recorded.number):
        number = np.where(recorded.owner >= 0, recorded.number[recorded.owner], -1)
        kinds = [product.kind == "gemm" for _, product in recorded.products]
        is_product |= np.array([*kinds, False], np.bool_)[number]
    convolving = is_kernel & mark_wanted_names(names, is_plain_convolution)
    return {
        "all": np.ones(len(names), np.bool_),
        "gemm": is_kernel & is_product,
        "plain": convolving
        | (is_kernel & mark_wanted_names(names, lambda name: classify_matrix_unit(name) == "plain")),
        "unaligned": is_kernel & trace.derived(mark_narrow_loads) & ~trace.derived(mark_products_of_attention),
        "convolution": convolving,
    }


def mark_narrow_loads(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mark device ops that multiply matrices with loads of less than 16 bytes."""
    return mark_narrow_loading_ops(trace, trace.derived(find_matrix_products))


def mark_products_of_attention(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mark the products of unfused attention: a fused kernel makes them needless, and rule R27 counts them."""
    return mark_attention_products(trace, trace.derived(find_unfused_ops))


def classify_unfused_work(trace: Trace, recorded: UnfusedOps, passes: PointwiseKernels) -> dict[str, Bools]:
    """Mark the device ops of every class that occurs."""
    count = len(trace.numbers("device_ops", "ts_ns"))

    def only(rows: Ints) -> Bools:
        mask = np.zeros(count, np.bool_)
        mask[rows] = True
        return mask

    classes = {"all": np.ones(count, np.bool_)}
    if len(recorded.softmax):
        extra = mark_attention_extra_ops(trace, recorded)
        classes["attention"] = extra
        classes["pass"] = mark_score_passes(trace, recorded, extra)
        classes["products"] = mark_attention_products(trace, recorded)
    if len(recorded.loss) or len(recorded.copies):
        losses = np.zeros(len(trace.numbers("host_ops", "ts_ns")), np.bool_)
        losses[recorded.loss] = losses[recorded.copies] = True
        classes["loss"] = find_launch_owners(trace, losses) >= 0
    counted = classes.get("attention", only(np.empty(0, np.int64)))
    classes["chain"] = only(passes.chained[~passes.longest]) & ~counted
    classes["layout"] = only(passes.copies) & ~counted
    return classes
