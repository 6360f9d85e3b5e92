"""Unfused attention and losses: sequences of single operators that a fused kernel replaces (rule R27).

Attention: a matrix product, a softmax over the last axis and a product with the result, consecutive on one
thread, with matching shapes. Loss: log-softmax over a vocabulary, and the 32-bit copies made for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.keys import distinct
from tracekit.model.records import dataclass
from tracekit.model.sweeps import places
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, launches
from tracekit.process.calls.nesting import by_start
from tracekit.process.name_filters import is_named, named, of_kind
from tracekit.process.ops import flops
from tracekit.process.ops.pointwise import elements
from tracekit.process.ops.shapes import Shapes, launch_threads, owners, shapes

Ints = npt.NDArray[np.int64]

VOCABULARY = 8_192
"""Smallest last axis that counts as a vocabulary, not a class head or a row of a mask."""

PRODUCTS = ("aten::bmm", "aten::baddbmm")
SOFTMAX = ("aten::_softmax", "aten::_safe_softmax", "aten::_masked_softmax")
LOSS = ("aten::_log_softmax", "aten::_log_softmax_backward_data")
COPY = "aten::copy_"
HALF = ("BFloat16", "Half", "c10::BFloat16", "c10::Half")


@dataclass(frozen=True, slots=True)
class Unfused:
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


def unfused(trace: Trace) -> Unfused:
    """Find the attention and losses of a trace that consist of single operators, by their recorded shapes."""
    recorded: Shapes = trace.derived(shapes)
    names = trace.texts("host_ops", "name")
    is_op = of_kind(trace, "host_ops", "op") & (recorded.number >= 0)

    def rows_of(wanted: tuple[str, ...]) -> Ints:
        """Find the ops with these names and a recorded shape."""
        return (is_op & is_named(names, wanted.__contains__)).nonzero()[0]

    first, softmax, last = _attention(trace, recorded, rows_of(PRODUCTS), rows_of(SOFTMAX))
    losses, copies = rows_of(LOSS), rows_of((COPY,))
    wide = np.array([_is_vocabulary(text) for text in recorded.dims], np.bool_)
    size = np.array(
        [
            _copied(dims, types) if is_wide else 0
            for dims, types, is_wide in zip(
                recorded.dims, recorded.types, wide.tolist(), strict=True
            )
        ],
        np.int64,
    )
    loss = losses[wide[recorded.number[losses]]]
    of_copy = size[recorded.number[copies]]
    return Unfused(first, softmax, last, loss, copies[of_copy > 0], of_copy[of_copy > 0])


def _attention(
    trace: Trace, recorded: Shapes, products: Ints, softmax: Ints
) -> tuple[Ints, Ints, Ints]:
    """Find unfused attention: (first products, softmaxes, second products)."""
    if not len(products) or not len(softmax):
        none = np.empty(0, np.int64)
        return none, none, none
    rows = np.concatenate((products, softmax))
    is_softmax = np.repeat([False, True], [len(products), len(softmax)])
    start, dur, thread = (
        trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns", "thread")
    )
    order = by_start(thread, start, start + dur)
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
    names = named(trace.texts("host_ops", "name"), rows)
    number = recorded.number[rows]
    triples = np.stack((number[middle - 1], number[middle], number[middle + 1]), axis=1)
    kinds, which = np.unique(triples, axis=0, return_inverse=True)
    sample = np.zeros(len(kinds), np.int64)
    sample[which.ravel()] = middle
    fits = [
        _fits(recorded, (str(names[position - 1]), str(names[position + 1])), kind)
        for kind, position in zip(kinds.tolist(), sample.tolist(), strict=True)
    ]
    middle = middle[np.array(fits, np.bool_)[which.ravel()]] if len(kinds) else middle
    return rows[middle - 1], rows[middle], rows[middle + 1]


def _fits(recorded: Shapes, names: tuple[str, str], kind: list[int]) -> bool:
    """Check whether the softmax takes the first product's result, and the second product takes the softmax's."""
    first = flops.product(names[0], recorded.dims[kind[0]], recorded.types[kind[0]])
    last = flops.product(names[1], recorded.dims[kind[2]], recorded.types[kind[2]])
    scores = flops.shapes(recorded.dims[kind[1]])
    if first is None or last is None or not scores or scores[0] is None or len(scores[0]) < 2:
        return False
    rows, row = scores[0][-2], scores[0][-1]
    return (first.m, first.n, first.batch) == (rows, row, last.batch) and (last.m, last.k) == (
        rows,
        row,
    )


def _is_vocabulary(text: str) -> bool:
    """Check whether the last axis of the first input is a vocabulary."""
    dims = flops.shapes(text)
    return bool(dims) and dims[0] is not None and len(dims[0]) > 1 and dims[0][-1] >= VOCABULARY


def _copied(dims_text: str, types_text: str | None) -> int:
    """Compute the bytes of a 32-bit copy of 16-bit numbers of one shape; 0 for any other copy."""
    dims, types = flops.shapes(dims_text), flops.types(types_text)
    if len(dims) < 2 or len(types) < 2 or dims[0] != dims[1] or dims[0] is None:
        return 0
    if types[0] != "float" or types[1] not in HALF:
        return 0
    size = 4
    for axis in dims[0]:
        size *= axis
    return size if size < 2**62 else 0


def product_work(trace: Trace, attention: Unfused) -> npt.NDArray[np.bool_]:
    """Mark device ops launched by one of the two products of an attention."""
    chosen = np.zeros(len(trace.numbers("host_ops", "ts_ns")), np.bool_)
    chosen[attention.first] = chosen[attention.last] = True
    launched: npt.NDArray[np.bool_] = owners(trace, chosen) >= 0
    return launched


def score_passes(
    trace: Trace, recorded_attention: Unfused, extra: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Mark the shortest device op between the products of each attention that passes over all scores."""
    recorded: Shapes = trace.derived(shapes)
    rows = extra.nonzero()[0]
    softmax = recorded_attention.softmax[np.lexsort(_by_thread(trace, recorded_attention.first))]
    attention = _latest_product(trace, recorded_attention)[rows]
    size, scores = (
        elements(recorded, np.append(recorded.number, -1)[ops])
        for ops in (trace.derived(launches).op[rows], softmax)
    )
    is_pass = size >= scores[attention]
    rows, attention = rows[is_pass], attention[is_pass]
    dur = trace.numbers("device_ops", "dur_ns")[rows]
    order = np.lexsort((dur, attention))
    shortest = np.zeros(len(extra), np.bool_)
    shortest[rows[order[np.diff(attention[order], prepend=-1).nonzero()[0]]]] = True
    return shortest


def _by_thread(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Build the sort keys of host rows for `np.lexsort`: start, then thread (primary)."""
    return trace.numbers("host_ops", "ts_ns")[rows], trace.numbers("host_ops", "thread")[rows]


def _latest_product(trace: Trace, recorded_attention: Unfused) -> Ints:
    """Find the attention whose first product each device op's thread launched last; -1 if none.

    Attentions are numbered by thread and start of their first product. If the op's own thread has none, the
    result may belong to an earlier thread.
    """
    links: Launches = trace.derived(launches)
    start, thread = _by_thread(trace, recorded_attention.first)
    order = np.lexsort((start, thread))
    thread = thread[order].astype(np.int64)
    return _latest(thread, start[order], launch_threads(trace), links.ts_ns)


def attention_extra(trace: Trace, recorded_attention: Unfused) -> npt.NDArray[np.bool_]:
    """Mark device ops launched within an attention, without its two products."""
    links: Launches = trace.derived(launches)
    count = len(links.ts_ns)
    if not len(recorded_attention.first) or not count:
        return np.zeros(count, np.bool_)
    start, dur, thread = (
        trace.numbers("host_ops", name).astype(np.int64) for name in ("ts_ns", "dur_ns", "thread")
    )
    order = np.lexsort((start[recorded_attention.first], thread[recorded_attention.first]))
    first, last = recorded_attention.first[order], recorded_attention.last[order]
    latest_product = _latest_product(trace, recorded_attention)
    inside = latest_product >= 0
    end = (start + dur)[last][latest_product]
    same = thread[first][latest_product] == launch_threads(trace)
    products = np.zeros(len(start), np.bool_)
    products[first] = products[last] = True
    is_owner = owners(trace, products) >= 0
    extra: npt.NDArray[np.bool_] = inside & same & (links.ts_ns < end) & links.linked & ~is_owner
    return extra


def _latest(thread: Ints, start: Ints, asked_thread: Ints, asked_ns: Ints) -> Ints:
    """Find the last of the sorted (thread, start) at or before each instant; -1 for none.

    The result may belong to an earlier thread: callers compare threads.
    """
    times = np.concatenate((start, asked_ns))
    low = int(times.min(initial=0))
    width = int(times.max(initial=0)) - low + 2
    if width * (int(thread.max(initial=0)) + int(asked_thread.max(initial=0)) + 2) < 2**62:
        start, asked_ns = start - low, asked_ns - low
    else:
        points = distinct(times)
        width = len(points) + 1
        start, asked_ns = np.searchsorted(points, start), np.searchsorted(points, asked_ns)
    return places(thread * width + start, asked_thread * width + asked_ns, right=True) - 1
