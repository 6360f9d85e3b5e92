"""Pointwise kernels: chains that a fused kernel could replace, and layout copies (R27, R37).

Chain: consecutive kernels of one stream, each of a pointwise operator over equally many elements, all
launched by one thread. Layout copy: an `aten::copy_` between tensors of one type by an elementwise kernel, as
in `contiguous()`; if both sides have the same layout, a copy does not use a kernel.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.keys import number_keys
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.device.devices import number_devices
from tracekit.process.host.phases import HostPhases, classify_host_rows
from tracekit.process.name_filters import look_up_names, map_coded_values, mark_rows_of_kind, mark_wanted_names
from tracekit.process.ops import flops
from tracekit.process.ops.shapes import InputShapes, collect_input_shapes, find_launch_threads, find_nearest_or_self

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MIN_CHAIN = 3
"""Kernels of a chain at least; two pointwise kernels in a row occur in any model (a scale and a sum).

Chains of 2, 3 and 4 and more take 4.4, 2.9 and 0.0 % of the GPU work of a real Qwen (its rotary embedding has
three), 3.2, 1.7 and 1.0 % of a recommender's; simulated jobs with unfused activations 5.2 % of each, clean
ones nothing.
"""

MAX_NAMED = 6
"""Ops of a chain that its text names at most."""

COPY = "aten::copy_"
COPIED_BY = ("aten::clone", "aten::contiguous", "aten::reshape", "aten::_to_copy", "aten::to")
"""Ops in which a copy is the purpose, not part of other work such as padding."""

_POINTWISE = re.compile(
    r"(?:^|[\s:])(?:vectorized_|unrolled_|vectorized_templated_)?elementwise_kernel"
    r"(?:_manual_unroll|_for_multi_outputs)?<"
)
_FILL = re.compile(r"FillFunctor")


@dataclass(frozen=True, slots=True)
class PointwiseKernels:
    """Chains and copies, as rows of `device_ops`.

    `chained` are the kernels of all chains in order; `chain` is the number of the chain of each; `longest`
    whether it is the longest of its chain (the first of equals); `copies` are layout copies.
    """

    chained: Ints
    chain: Ints
    longest: Bools
    copies: Ints


@lru_cache(4096)
def is_pointwise_kernel(name: str) -> bool:
    """Check whether a PyTorch kernel processes elements one by one and reads some of them.

    >>> is_pointwise_kernel("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, int>(int)")
    True
    >>> is_pointwise_kernel("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>(int)")
    False
    """
    return bool(_POINTWISE.search(name)) and not _FILL.search(name)


def find_pointwise_kernels(trace: Trace) -> PointwiseKernels:
    """Find the chains of pointwise kernels of a trace, and its layout copies, by recorded shapes."""
    is_kernel = mark_rows_of_kind(trace, "device_ops", "kernel")
    kernels = (is_kernel & mark_wanted_names(trace.texts("device_ops", "name"), is_pointwise_kernel)).nonzero()[0]
    if len(kernels):
        links: Launches = trace.derived(find_launches)
        kernels = kernels[links.op[kernels] >= 0]
    if not len(kernels):
        none = np.empty(0, np.int64)
        return PointwiseKernels(none, none, np.empty(0, np.bool_), none)
    recorded: InputShapes = trace.derived(collect_input_shapes)
    op = find_nearest_or_self(trace, recorded.number >= 0, links.op[kernels])
    number = np.append(recorded.number, -1)[op]
    copies = _mark_layout_copies(trace, recorded, op, number)
    size = count_input_elements(recorded, number)
    side: HostPhases = trace.derived(classify_host_rows)
    is_part = ~copies & (size > 0) & (np.append(side.within_optimizer, -1)[op] < 0)
    is_part &= ~np.append(mark_wanted_names(trace.texts("host_ops", "name"), _is_in_place_op), False)[op]
    return PointwiseKernels(*_find_pointwise_chains(trace, kernels[is_part], size[is_part]), kernels[copies])


def _is_in_place_op(name: str) -> bool:
    """Check whether an op writes into its input, as loops over tensors do."""
    return name.endswith("_")


def _mark_layout_copies(trace: Trace, recorded: InputShapes, op: Ints, number: Ints) -> Bools:
    """Mark kernels that copy numbers of one type for the sake of the copy."""
    names = trace.texts("host_ops", "name")
    is_copy = np.append(mark_wanted_names(names, COPY.__eq__), False)[op]
    copies = is_copy.nonzero()[0]
    keeps_type = map_coded_values(number[copies], recorded.types, _has_one_type)
    is_copy[copies] = np.equal(keeps_type, True)  # noqa: FBT003
    copies = is_copy.nonzero()[0]
    around = trace.derived(build_call_tree).nearest(mark_rows_of_kind(trace, "host_ops", "op"), op[copies])
    is_own = np.append(mark_wanted_names(names, COPIED_BY.__contains__), True)[around]
    is_copy[copies] = is_own
    return is_copy


def _has_one_type(text: str | None) -> bool:
    """Check whether input and output have the same type."""
    types = [kind for kind in flops.parse_input_types(text)[:2] if kind]
    return bool(types) and len(set(types)) == 1


def count_input_elements(recorded: InputShapes, number: Ints) -> Ints:
    """Count the elements of the largest input of each op; 0 if unknown."""

    def largest(dims: str) -> int:
        """Count the elements of the largest input."""
        sizes = [prod(size) for size in flops.parse_input_shapes(dims) if size]
        return min(max(sizes, default=0), 2**62)

    sizes = map_coded_values(number, recorded.dims, largest)
    sizes[number < 0] = 0
    return sizes.astype(np.int64)


def _find_pointwise_chains(trace: Trace, kernels: Ints, size: Ints) -> tuple[Ints, Ints, Bools]:
    """Find the chains: (their kernels, number of the chain of each, whether it is the longest of its chain)."""
    stream = trace.nullable("device_ops", "stream")
    start = trace.numbers("device_ops", "ts_ns")
    queue = number_keys(np.where(stream.missing, -1, stream.values))[1] * len(trace.derived(number_devices))
    queue += trace.derived(number_devices).number
    order = np.lexsort((start, queue))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    by_place = np.argsort(place[kernels])
    kernels, size = kernels[by_place], size[by_place]
    thread = find_launch_threads(trace)[kernels]
    follows = np.zeros(len(kernels), np.bool_)
    follows[1:] = (
        (np.diff(place[kernels]) == 1)
        & (queue[kernels[1:]] == queue[kernels[:-1]])
        & (size[1:] == size[:-1])
        & (thread[1:] == thread[:-1])
    )
    chain = np.cumsum(~follows) - 1
    is_long = np.bincount(chain)[chain] >= MIN_CHAIN if len(chain) else follows
    kernels, chain = kernels[is_long], number_keys(chain[is_long])[1]
    dur = trace.numbers("device_ops", "dur_ns")[kernels]
    first = np.lexsort((np.arange(len(kernels)), -dur, chain))
    longest = np.zeros(len(kernels), np.bool_)
    longest[first[np.diff(chain[first], prepend=-1).nonzero()[0]]] = True
    return kernels, chain, longest


def group_chains_by_ops(trace: Trace, kernels: PointwiseKernels) -> tuple[Ints, Ints]:
    """Group chains of the same ops: (kind of each chain, first chain of each kind)."""
    first = np.diff(kernels.chain, prepend=-1).nonzero()[0]
    links: Launches = trace.derived(find_launches)
    codes = trace.texts("host_ops", "name").codes[links.op[kernels.chained]].astype(np.uint64)
    step = (np.arange(len(codes)) - first[kernels.chain]).astype(np.uint64)
    # Hash the ops in their order. Kinds with equal hashes would be merged.
    weighted = (codes + np.uint64(1)) * np.power(np.uint64(_ODD), step)
    keys, kind = number_keys(np.add.reduceat(weighted, first).view(np.int64))
    sample = np.full(len(keys), len(first), np.int64)
    np.minimum.at(sample, kind, np.arange(len(first)))
    return kind, sample


_ODD = 0x9E3779B97F4A7C15


def format_chain(trace: Trace, kernels: PointwiseKernels, chain: int) -> str:
    """List the ops of a chain as text."""
    rows = kernels.chained[np.searchsorted(kernels.chain, chain) :][: MAX_NAMED + 1]
    rows = rows[kernels.chain[np.searchsorted(kernels.chain, chain) :][: MAX_NAMED + 1] == chain]
    links: Launches = trace.derived(find_launches)
    ops = list(look_up_names(trace.texts("host_ops", "name"), links.op[rows]))
    more = ["…"] if len(ops) > MAX_NAMED else []
    return ", ".join([*(str(op) for op in ops[:MAX_NAMED]), *more])
