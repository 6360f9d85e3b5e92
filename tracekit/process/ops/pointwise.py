"""Pointwise kernels: chains that a fused kernel could replace, and layout copies (R27, R37).

Chain: consecutive kernels of one stream, each of a pointwise operator over equally many elements, all
launched by one thread. Layout copy: an `aten::copy_` between tensors of one type by an elementwise kernel, as
in `contiguous()`; if both sides have the same layout, a copy does not use a kernel.
"""

from __future__ import annotations

import re
from math import prod

import numpy as np
import numpy.typing as npt

from tracekit.model.keys import numbered
from tracekit.model.records import dataclass
from tracekit.model.remembered import remembered
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, launches
from tracekit.process.calls.nesting import nesting
from tracekit.process.device.devices import devices
from tracekit.process.host.phases import HostSide, host_side
from tracekit.process.name_filters import by_value, is_named, named, of_kind
from tracekit.process.ops import flops
from tracekit.process.ops.shapes import Shapes, launch_threads, nearest_or_self, shapes

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
class Pointwise:
    """Chains and copies, as rows of `device_ops`.

    `chained` are the kernels of all chains in order; `chain` is the number of the chain of each; `longest`
    whether it is the longest of its chain (the first of equals); `copies` are layout copies.
    """

    chained: Ints
    chain: Ints
    longest: Bools
    copies: Ints


@remembered
def is_pointwise(name: str) -> bool:
    """Check whether a PyTorch kernel processes elements one by one and reads some of them.

    >>> is_pointwise("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, int>(int)")
    True
    >>> is_pointwise("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>(int)")
    False
    """
    return bool(_POINTWISE.search(name)) and not _FILL.search(name)


def pointwise(trace: Trace) -> Pointwise:
    """Find the chains of pointwise kernels of a trace, and its layout copies, by recorded shapes."""
    is_kernel = of_kind(trace, "device_ops", "kernel")
    kernels = (is_kernel & is_named(trace.texts("device_ops", "name"), is_pointwise)).nonzero()[0]
    if len(kernels):
        links: Launches = trace.derived(launches)
        kernels = kernels[links.op[kernels] >= 0]
    if not len(kernels):
        none = np.empty(0, np.int64)
        return Pointwise(none, none, np.empty(0, np.bool_), none)
    recorded: Shapes = trace.derived(shapes)
    op = nearest_or_self(trace, recorded.number >= 0, links.op[kernels])
    number = np.append(recorded.number, -1)[op]
    copies = _is_layout_copy(trace, recorded, op, number)
    size = elements(recorded, number)
    side: HostSide = trace.derived(host_side)
    is_part = ~copies & (size > 0) & (np.append(side.within_optimizer, -1)[op] < 0)
    is_part &= ~np.append(is_named(trace.texts("host_ops", "name"), _is_in_place), False)[op]
    return Pointwise(*_chains(trace, kernels[is_part], size[is_part]), kernels[copies])


def _is_in_place(name: str) -> bool:
    """Check whether an op writes into its input, as loops over tensors do."""
    return name.endswith("_")


def _is_layout_copy(trace: Trace, recorded: Shapes, op: Ints, number: Ints) -> Bools:
    """Mark kernels that copy numbers of one type for the sake of the copy."""
    names = trace.texts("host_ops", "name")
    is_copy = np.append(is_named(names, COPY.__eq__), False)[op]
    copies = is_copy.nonzero()[0]
    keeps_type = by_value(number[copies], recorded.types, _keeps_type)
    is_copy[copies] = np.equal(keeps_type, True)  # noqa: FBT003
    copies = is_copy.nonzero()[0]
    around = trace.derived(nesting).nearest(of_kind(trace, "host_ops", "op"), op[copies])
    is_own = np.append(is_named(names, COPIED_BY.__contains__), True)[around]
    is_copy[copies] = is_own
    return is_copy


def _keeps_type(text: str | None) -> bool:
    """Check whether input and output have the same type."""
    types = [kind for kind in flops.types(text)[:2] if kind]
    return bool(types) and len(set(types)) == 1


def elements(recorded: Shapes, number: Ints) -> Ints:
    """Count the elements of the largest input of each op; 0 if unknown."""

    def largest(dims: str) -> int:
        """Count the elements of the largest input."""
        sizes = [prod(size) for size in flops.shapes(dims) if size]
        return min(max(sizes, default=0), 2**62)

    sizes = by_value(number, recorded.dims, largest)
    sizes[number < 0] = 0
    return sizes.astype(np.int64)


def _chains(trace: Trace, kernels: Ints, size: Ints) -> tuple[Ints, Ints, Bools]:
    """Find the chains: (their kernels, number of the chain of each, whether it is the longest of its chain)."""
    stream = trace.nullable("device_ops", "stream")
    start = trace.numbers("device_ops", "ts_ns")
    queue = numbered(np.where(stream.missing, -1, stream.values))[1] * len(trace.derived(devices))
    queue += trace.derived(devices).number
    order = np.lexsort((start, queue))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    by_place = np.argsort(place[kernels])
    kernels, size = kernels[by_place], size[by_place]
    thread = launch_threads(trace)[kernels]
    follows = np.zeros(len(kernels), np.bool_)
    follows[1:] = (
        (np.diff(place[kernels]) == 1)
        & (queue[kernels[1:]] == queue[kernels[:-1]])
        & (size[1:] == size[:-1])
        & (thread[1:] == thread[:-1])
    )
    chain = np.cumsum(~follows) - 1
    is_long = np.bincount(chain)[chain] >= MIN_CHAIN if len(chain) else follows
    kernels, chain = kernels[is_long], numbered(chain[is_long])[1]
    dur = trace.numbers("device_ops", "dur_ns")[kernels]
    first = np.lexsort((np.arange(len(kernels)), -dur, chain))
    longest = np.zeros(len(kernels), np.bool_)
    longest[first[np.diff(chain[first], prepend=-1).nonzero()[0]]] = True
    return kernels, chain, longest


def chain_kinds(trace: Trace, found: Pointwise) -> tuple[Ints, Ints]:
    """Group chains of the same ops: (kind of each chain, first chain of each kind)."""
    first = np.diff(found.chain, prepend=-1).nonzero()[0]
    links: Launches = trace.derived(launches)
    codes = trace.texts("host_ops", "name").codes[links.op[found.chained]].astype(np.uint64)
    step = (np.arange(len(codes)) - first[found.chain]).astype(np.uint64)
    # Hash the ops in their order. Kinds with equal hashes would be merged.
    weighted = (codes + np.uint64(1)) * np.power(np.uint64(_ODD), step)
    keys, kind = numbered(np.add.reduceat(weighted, first).view(np.int64))
    sample = np.full(len(keys), len(first), np.int64)
    np.minimum.at(sample, kind, np.arange(len(first)))
    return kind, sample


_ODD = 0x9E3779B97F4A7C15


def chain_text(trace: Trace, found: Pointwise, chain: int) -> str:
    """List the ops of a chain as text."""
    rows = found.chained[np.searchsorted(found.chain, chain) :][: MAX_NAMED + 1]
    rows = rows[found.chain[np.searchsorted(found.chain, chain) :][: MAX_NAMED + 1] == chain]
    links: Launches = trace.derived(launches)
    ops = list(named(trace.texts("host_ops", "name"), links.op[rows]))
    more = ["…"] if len(ops) > MAX_NAMED else []
    return ", ".join([*map(str, ops[:MAX_NAMED]), *more])
