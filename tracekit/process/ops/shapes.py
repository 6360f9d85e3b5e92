"""Input shapes of host ops, the matrix products among them with their alignment, and work summed over groups of ops."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import measure_group_unions, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import broadcast_value
from tracekit.model.tables.keys import find_distinct, look_up_keys, number_keys, sum_by_group
from tracekit.model.trace import SparseColumn, Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.device.devices import number_devices
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names
from tracekit.process.ops.flops import OPS, MatrixProduct, compute_matrix_product
from tracekit.process.ops.kernel_names import (
    classify_matrix_unit,
    is_always_wide_kernel,
    is_gemm_kernel,
    parse_element_bytes,
    parse_loaded_elements,
)

Ints = npt.NDArray[np.int64]
Rows = sweeps.Rows

DIMS, TYPES = "Input Dims", "Input type"


@dataclass(frozen=True, slots=True)
class InputShapes:
    """Number of the (dims, types) of each row of `host_ops`, -1 if no shape is recorded.

    `dims[number]` and `types[number]` are the texts as recorded.
    """

    number: Ints
    dims: list[str]
    types: list[str | None]


def collect_input_shapes(trace: Trace) -> InputShapes:
    """Collect the distinct input shapes and types of host ops."""
    dims, dims_texts = _look_up_argument_codes(trace, DIMS)
    if not dims_texts:
        return InputShapes(_make_no_numbers(len(dims)), [], [])
    types, types_texts = _look_up_argument_codes(trace, TYPES)
    width = len(types_texts) + 1
    with_dims = (dims >= 0).nonzero()[0]
    pairs, pair_number = number_keys(dims[with_dims] * width + types[with_dims] + 1)
    number = np.full(len(dims), -1, np.int64)
    number[with_dims] = pair_number
    texts = [*types_texts, None]
    return InputShapes(
        number,
        [dims_texts[pair] for pair in (pairs // width).tolist()],
        [texts[pair] for pair in (pairs % width - 1).tolist()],
    )


def _make_no_numbers(length: int) -> Ints:
    """Broadcast -1 to `length` rows; read-only."""
    return broadcast_value(np.int64(-1), length)


def _look_up_argument_codes(trace: Trace, key: str) -> tuple[Ints, list[str]]:
    """Look up a recorded argument: (code of the text of each host op, -1 without one; texts)."""
    column: SparseColumn | None = trace.sparse.get(key)
    ids = trace.numbers("host_ops", "id")
    if column is None or column.categories is None or not len(column.rows):
        return _make_no_numbers(len(ids)), []
    out = np.full(len(ids), -1, np.int64)
    place, hit = look_up_keys(column.rows, ids)
    is_text = np.array([isinstance(text, str) for text in column.categories], np.bool_)
    codes = column.values[place].astype(np.int64)
    out[hit] = np.where(is_text[codes[hit]], codes[hit], -1)
    return out, [str(text) for text in column.categories]


@dataclass(frozen=True, slots=True)
class MatrixProducts:
    """Matrix products of a trace, each counted once, at the innermost op whose shapes describe it.

    `number` is the product of each row of `host_ops`, -1 for none; `products[number]` has the op's name.
    `owner` is, per row of `device_ops`, the host row of the product it was launched for, -1 for none.
    """

    number: Ints
    products: list[tuple[str, MatrixProduct]]
    owner: Ints


def find_matrix_products(trace: Trace) -> MatrixProducts:
    """Find the matrix products of a trace by their recorded shapes."""
    recorded: InputShapes = trace.derived(collect_input_shapes)
    names = trace.texts("host_ops", "name")
    is_op = mark_rows_of_kind(trace, "host_ops", "op") & mark_wanted_names(names, OPS.__contains__)
    rows = (is_op & (recorded.number >= 0)).nonzero()[0]
    codes = names.codes[rows].astype(np.int64)
    width = max(len(recorded.dims), 1)
    keys, group = number_keys(codes * width + recorded.number[rows])
    priced: list[tuple[str, MatrixProduct]] = []
    number = np.full(len(keys), -1, np.int64)
    for index, key in enumerate(keys.tolist()):
        name, pair = names.texts[key // width], key % width
        flops = compute_matrix_product(name, recorded.dims[pair], recorded.types[pair])
        if flops is not None:
            number[index] = len(priced)
            priced.append((name, flops))
    if not priced:
        return MatrixProducts(
            _make_no_numbers(len(names)), priced, _make_no_numbers(len(trace.numbers("device_ops", "ts_ns")))
        )
    per_row = np.full(len(names), -1, np.int64)
    per_row[rows] = number[group]
    with_product = (per_row >= 0).nonzero()[0]
    around = trace.derived(build_call_tree).nearest(per_row >= 0, with_product)
    per_row[around[around >= 0]] = -1
    return MatrixProducts(per_row, priced, find_launch_owners(trace, per_row >= 0))


def find_launch_owners(trace: Trace, chosen: npt.NDArray[np.bool_]) -> Ints:
    """Find the nearest chosen host op around the launch of each device op, or the launching op itself; -1 for none."""
    links: Launches = trace.derived(find_launches)
    issued = np.where(links.op >= 0, links.op, links.call)
    return find_nearest_or_self(trace, chosen, issued)


def find_nearest_or_self(trace: Trace, chosen: npt.NDArray[np.bool_], rows: Ints) -> Ints:
    """Map each host row to itself if chosen, else to its nearest chosen ancestor; -1 for none, and for row -1."""
    out = rows.copy()
    above = (rows >= 0).nonzero()[0]
    above = above[~chosen[rows[above]]]
    out[above] = trace.derived(build_call_tree).nearest(chosen, rows[above])
    return out


def sum_device_work(trace: Trace, group: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    """Sum each group of device ops: (launches, total duration, busy time as a union per device, summed)."""
    rows, of_trace = (group >= 0).nonzero()[0], trace.derived(number_devices)
    start = trace.numbers("device_ops", "ts_ns")[rows]
    dur = trace.numbers("device_ops", "dur_ns")[rows]
    width = max(len(of_trace), 1)
    queue = group[rows] * width + of_trace.number[rows]
    busy = measure_group_unions(start, start + dur, queue, count * width)
    return (
        np.bincount(group[rows], minlength=count),
        sum_by_group(group[rows], dur, count),
        busy.reshape(count, width).sum(axis=1),
    )


@dataclass(frozen=True, slots=True)
class MergedCalls:
    """Time of groups of host ops on each thread, as merged intervals, so recursion counts once.

    Intervals of one group and thread do not overlap.
    """

    count: int
    group: Rows
    thread: Rows
    start: Ints
    end: Ints
    total_ns: Ints


def merge_calls(trace: Trace, rows: Ints, group: Rows, count: int) -> MergedCalls:
    """Merge these host rows by group and thread, and measure the wall time of each group."""
    if sweeps.native is not None:
        in_order = trace.derived(build_call_tree).order
        slot = np.full(len(trace.numbers("host_ops", "ts_ns")), -1, in_order.dtype)
        slot[rows] = group
        in_order = in_order[slot[in_order] >= 0]
        if len(in_order) == len(rows):
            return _merge_ordered_calls(trace, in_order, slot, count)
    thread, start, dur = (trace.numbers("host_ops", name)[rows] for name in ("thread", "ts_ns", "dur_ns"))
    pairs, pair = number_keys(thread.astype(np.int64) * count + group.astype(np.int64))
    totals = measure_group_unions(start, start + dur, pair, len(pairs))
    (first, last), points, width = _map_to_positions(len(pairs), start, start + np.maximum(dur, 1))
    merged = merge_intervals(first + pair * width, last + pair * width)
    which = merged.start // width
    return MergedCalls(
        count,
        pairs[which] % count,
        pairs[which] // count,
        _restore_times(points, merged.start - which * width),
        _restore_times(points, merged.end - which * width),
        sum_by_group(pairs % count, totals, count),
    )


def _merge_ordered_calls(trace: Trace, in_order: Rows, slot: Rows, count: int) -> MergedCalls:
    """Merge calls in one pass over rows in order of thread and start; `slot` is the group of every row."""
    thread, start, dur = (trace.numbers("host_ops", name) for name in ("thread", "ts_ns", "dur_ns"))
    totals, low, high, first = sweeps.list_united_calls(in_order, thread, start, dur, slot, count)
    return MergedCalls(count, slot[first], thread[first], low, high, totals)


def _map_to_positions(lanes: int, *times: Ints) -> tuple[list[Ints], Ints, int]:
    """Map times to positions: (positions of the times among the points, points, a length that no position reaches)."""
    points, width = _choose_points(lanes, *times)
    return [_compute_positions(points, ts) for ts in times], points, width


def _choose_points(lanes: int, *times: Ints) -> tuple[Ints, int]:
    """Choose the points: (the earliest time, a length greater than any difference).

    If `lanes` lanes of that length would overflow, the points are all distinct times, and positions are
    ranks.
    """
    present = [ts for ts in times if len(ts)]
    low = min((int(ts.min()) for ts in present), default=0)
    width = max((int(ts.max()) for ts in present), default=0) - low + 2
    if width * (lanes + 1) < 2**62:
        return np.array([low]), width
    points = find_distinct(np.concatenate(times))
    return points, len(points) + 1


def _compute_positions(points: Ints, ts_ns: Ints) -> Ints:
    """Map times to offsets from the only point, or to their ranks among several."""
    return ts_ns - points[0] if len(points) == 1 else np.searchsorted(points, ts_ns)


def _restore_times(points: Ints, placed: Ints) -> Ints:
    """Map positions back to times."""
    return placed + points[0] if len(points) == 1 else points[placed]


CALLS_AT_ONCE = 2**17
"""Intervals processed at a time, to bound memory: there are as many as calls."""


def sum_during_calls(merged_calls: MergedCalls, thread: Ints, ts_ns: Ints, *values: Ints) -> list[Ints]:
    """Sum `values` over the instants (thread, ts_ns) inside the calls of each group; thread -1 is outside all."""
    in_thread = (thread >= 0).nonzero()[0]
    lanes = max(int(thread.max(initial=0)), int(merged_calls.thread.max(initial=0))) + 1
    points, width = _choose_points(lanes, ts_ns[in_thread], merged_calls.start, merged_calls.end)
    place = _compute_positions(points, ts_ns[in_thread]) + thread[in_thread] * width
    order = np.argsort(place, kind="stable")
    place, in_thread = place[order], in_thread[order]
    none = np.zeros(1, np.int64)
    sums = [np.concatenate((none, np.cumsum(value[in_thread]))) for value in values]
    totals = np.zeros((len(values), merged_calls.count), np.int64)
    for first in range(0, len(merged_calls.start), CALLS_AT_ONCE):
        part = slice(first, first + CALLS_AT_ONCE)
        lane = merged_calls.thread[part].astype(np.int64) * width
        low, high = (
            sweeps.count_below(place, _compute_positions(points, ts) + lane)
            for ts in (merged_calls.start[part], merged_calls.end[part])
        )
        np.maximum(high, low, out=high)
        for number, before in enumerate(sums):
            inside = before[high] - before[low]
            totals[number] += sum_by_group(merged_calls.group[part], inside, merged_calls.count)
    return list(totals)


def find_launch_threads(trace: Trace) -> Ints:
    """Find the thread that launched each device op; -1 if the launch is unknown."""
    links: Launches = trace.derived(find_launches)
    thread = trace.numbers("host_ops", "thread")
    issued = np.where(links.call >= 0, links.call, links.op)
    return (
        np.where(issued >= 0, thread[issued].astype(np.int64), -1)
        if len(thread)
        else np.full(len(issued), -1, np.int64)
    )


Mask = npt.NDArray[np.bool_]

LOADED_BYTES = 16
"""Bytes of one load of the fast kernels; narrower loads are slower.

Tensor cores are fed by loads of 16 bytes, which need rows that begin at multiples of 16 bytes. If stored by
rows, the rows of a factor are as long as the inner size (K) or the width of the result (N). M, the number of
tokens, is not the length of any row. A kernel's name that gives its load width comes first, since the kernel
was chosen by the strides.
"""

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
