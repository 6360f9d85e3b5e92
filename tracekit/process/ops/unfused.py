"""Unfused attention and losses: sequences of single operators that a fused kernel replaces (rule R27).

Attention: a matrix product, a softmax over the last axis and a product with the result, consecutive on one
thread, with matching shapes. Loss: log-softmax over a vocabulary, and the 32-bit copies made for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.sweeps import count_below
from tracekit.model.tables.keys import find_distinct
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import sort_by_start
from tracekit.process.name_filters import look_up_names, mark_rows_of_kind, mark_wanted_names
from tracekit.process.ops import flops
from tracekit.process.ops.pointwise import count_input_elements
from tracekit.process.ops.shapes import InputShapes, collect_input_shapes, find_launch_owners, find_launch_threads

Ints = npt.NDArray[np.int64]

VOCABULARY = 8_192
"""Smallest last axis that counts as a vocabulary, not a class head or a row of a mask."""

PRODUCTS = ("aten::bmm", "aten::baddbmm")
SOFTMAX = ("aten::_softmax", "aten::_safe_softmax", "aten::_masked_softmax")
LOSS = ("aten::_log_softmax", "aten::_log_softmax_backward_data")
COPY = "aten::copy_"
HALF = ("BFloat16", "Half", "c10::BFloat16", "c10::Half")


@dataclass(frozen=True, slots=True)
class UnfusedOps:
    """Unfused attention and losses, as rows of `host_ops`.

    `first`, `softmax` and `last` are the three ops of each attention. `loss` are the log-softmax calls over a
    vocabulary; `copies` the 32-bit copies of 16-bit numbers of that width, with their `copy_bytes`.
    """

    first: Ints
    softmax: Ints
    last: Ints
    loss: Ints
    copies: Ints
    copy_bytes: Ints


def find_unfused_ops(trace: Trace) -> UnfusedOps:
    """Find the attention and losses of a trace that consist of single operators, by their recorded shapes."""
    recorded: InputShapes = trace.derived(collect_input_shapes)
    names = trace.texts("host_ops", "name")
    is_op = mark_rows_of_kind(trace, "host_ops", "op") & (recorded.number >= 0)

    def rows_of(wanted: tuple[str, ...]) -> Ints:
        """Find the ops with these names and a recorded shape."""
        return (is_op & mark_wanted_names(names, wanted.__contains__)).nonzero()[0]

    first, softmax, last = _find_unfused_attention(trace, recorded, rows_of(PRODUCTS), rows_of(SOFTMAX))
    losses, copies = rows_of(LOSS), rows_of((COPY,))
    wide = np.array([_has_vocabulary_axis(text) for text in recorded.dims], np.bool_)
    size = np.array(
        [
            _compute_upcast_bytes(dims, types) if is_wide else 0
            for dims, types, is_wide in zip(recorded.dims, recorded.types, wide.tolist(), strict=True)
        ],
        np.int64,
    )
    loss = losses[wide[recorded.number[losses]]]
    of_copy = size[recorded.number[copies]]
    return UnfusedOps(first, softmax, last, loss, copies[of_copy > 0], of_copy[of_copy > 0])


def _find_unfused_attention(
    trace: Trace, recorded: InputShapes, products: Ints, softmax: Ints
) -> tuple[Ints, Ints, Ints]:
    """Find unfused attention: (first products, softmaxes, second products)."""
    if not len(products) or not len(softmax):
        none = np.empty(0, np.int64)
        return none, none, none
    rows = np.concatenate((products, softmax))
    is_softmax = np.repeat([False, True], [len(products), len(softmax)])
    start, dur, thread = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns", "thread"))
    order = sort_by_start(thread, start, start + dur)
    rows, is_softmax, thread = rows[order], is_softmax[order], thread[order]
    middle = (
        (
            is_softmax[1:-1]
            & ~is_softmax[:-2]
            & ~is_softmax[2:]
            & (thread[1:-1] == thread[:-2])
            & (thread[1:-1] == thread[2:])
        ).nonzero()[0]
        + 1
        if len(rows) > 2
        else np.empty(0, np.int64)
    )
    names = look_up_names(trace.texts("host_ops", "name"), rows)
    number = recorded.number[rows]
    triples = np.stack((number[middle - 1], number[middle], number[middle + 1]), axis=1)
    kinds, which = np.unique(triples, axis=0, return_inverse=True)
    sample = np.zeros(len(kinds), np.int64)
    sample[which.ravel()] = middle
    fits = [
        _has_attention_shapes(recorded, (str(names[position - 1]), str(names[position + 1])), kind)
        for kind, position in zip(kinds.tolist(), sample.tolist(), strict=True)
    ]
    middle = middle[np.array(fits, np.bool_)[which.ravel()]] if len(kinds) else middle
    return rows[middle - 1], rows[middle], rows[middle + 1]


def _has_attention_shapes(recorded: InputShapes, names: tuple[str, str], kind: list[int]) -> bool:
    """Check whether the softmax takes the first product's result, and the second product takes the softmax's."""
    first = flops.compute_matrix_product(names[0], recorded.dims[kind[0]], recorded.types[kind[0]])
    last = flops.compute_matrix_product(names[1], recorded.dims[kind[2]], recorded.types[kind[2]])
    scores = flops.parse_input_shapes(recorded.dims[kind[1]])
    if first is None or last is None or not scores or scores[0] is None or len(scores[0]) < 2:
        return False
    rows, row = scores[0][-2], scores[0][-1]
    return (first.m, first.n, first.batch) == (rows, row, last.batch) and (last.m, last.k) == (rows, row)


def _has_vocabulary_axis(text: str) -> bool:
    """Check whether the last axis of the first input is a vocabulary."""
    dims = flops.parse_input_shapes(text)
    return bool(dims) and dims[0] is not None and len(dims[0]) > 1 and dims[0][-1] >= VOCABULARY


def _compute_upcast_bytes(dims_text: str, types_text: str | None) -> int:
    """Compute the bytes of a 32-bit copy of 16-bit numbers of one shape; 0 for any other copy."""
    dims, types = flops.parse_input_shapes(dims_text), flops.parse_input_types(types_text)
    if len(dims) < 2 or len(types) < 2 or dims[0] != dims[1] or dims[0] is None:
        return 0
    if types[0] != "float" or types[1] not in HALF:
        return 0
    size = 4
    for axis in dims[0]:
        size *= axis
    return size if size < 2**62 else 0


def mark_attention_products(trace: Trace, attention: UnfusedOps) -> npt.NDArray[np.bool_]:
    """Mark device ops launched by one of the two products of an attention."""
    chosen = np.zeros(len(trace.numbers("host_ops", "ts_ns")), np.bool_)
    chosen[attention.first] = chosen[attention.last] = True
    launched: npt.NDArray[np.bool_] = find_launch_owners(trace, chosen) >= 0
    return launched


def mark_score_passes(
    trace: Trace, recorded_attention: UnfusedOps, extra: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Mark the shortest device op between the products of each attention that passes over all scores."""
    recorded: InputShapes = trace.derived(collect_input_shapes)
    rows = extra.nonzero()[0]
    softmax = recorded_attention.softmax[np.lexsort(_build_thread_sort_keys(trace, recorded_attention.first))]
    attention = _find_latest_attention(trace, recorded_attention)[rows]
    size, scores = (
        count_input_elements(recorded, np.append(recorded.number, -1)[ops])
        for ops in (trace.derived(find_launches).op[rows], softmax)
    )
    is_pass = size >= scores[attention]
    rows, attention = rows[is_pass], attention[is_pass]
    dur = trace.numbers("device_ops", "dur_ns")[rows]
    order = np.lexsort((dur, attention))
    shortest = np.zeros(len(extra), np.bool_)
    shortest[rows[order[np.diff(attention[order], prepend=-1).nonzero()[0]]]] = True
    return shortest


def _build_thread_sort_keys(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Build the sort keys of host rows for `np.lexsort`: start, then thread (primary)."""
    return trace.numbers("host_ops", "ts_ns")[rows], trace.numbers("host_ops", "thread")[rows]


def _find_latest_attention(trace: Trace, recorded_attention: UnfusedOps) -> Ints:
    """Find the attention whose first product each device op's thread launched last; -1 if none.

    Attentions are numbered by thread and start of their first product. If the op's own thread has none, the
    result may belong to an earlier thread.
    """
    links: Launches = trace.derived(find_launches)
    start, thread = _build_thread_sort_keys(trace, recorded_attention.first)
    order = np.lexsort((start, thread))
    thread = thread[order].astype(np.int64)
    return _find_latest_start_of_thread(thread, start[order], find_launch_threads(trace), links.ts_ns)


def mark_attention_extra_ops(trace: Trace, recorded_attention: UnfusedOps) -> npt.NDArray[np.bool_]:
    """Mark device ops launched within an attention, without its two products."""
    links: Launches = trace.derived(find_launches)
    count = len(links.ts_ns)
    if not len(recorded_attention.first) or not count:
        return np.zeros(count, np.bool_)
    start, dur, thread = (trace.numbers("host_ops", name).astype(np.int64) for name in ("ts_ns", "dur_ns", "thread"))
    order = np.lexsort((start[recorded_attention.first], thread[recorded_attention.first]))
    first, last = recorded_attention.first[order], recorded_attention.last[order]
    latest_product = _find_latest_attention(trace, recorded_attention)
    inside = latest_product >= 0
    end = (start + dur)[last][latest_product]
    same = thread[first][latest_product] == find_launch_threads(trace)
    products = np.zeros(len(start), np.bool_)
    products[first] = products[last] = True
    is_owner = find_launch_owners(trace, products) >= 0
    extra: npt.NDArray[np.bool_] = inside & same & (links.ts_ns < end) & links.linked & ~is_owner
    return extra


def _find_latest_start_of_thread(thread: Ints, start: Ints, asked_thread: Ints, asked_ns: Ints) -> Ints:
    """Find the last of the sorted (thread, start) at or before each instant; -1 for none.

    The result may belong to an earlier thread: callers compare threads.
    """
    times = np.concatenate((start, asked_ns))
    low = int(times.min(initial=0))
    width = int(times.max(initial=0)) - low + 2
    if width * (int(thread.max(initial=0)) + int(asked_thread.max(initial=0)) + 2) < 2**62:
        start, asked_ns = start - low, asked_ns - low
    else:
        points = find_distinct(times)
        width = len(points) + 1
        start, asked_ns = np.searchsorted(points, start), np.searchsorted(points, asked_ns)
    return count_below(thread * width + start, asked_thread * width + asked_ns, right=True) - 1
