"""How many FLOPs an op does, from its recorded input shapes: matrix products and attention.

A product of an M×K and a K×N matrix is 2·M·N·K FLOPs (Q22). Attention is its two products, of queries
with keys and of weights with values, without regard to masks: an upper bound where a mask is causal.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import NamedTuple

Dims = tuple[int, ...]

MAX_TEXT = 20_000
"""Longer texts of shapes are lists of hundreds of tensors, which no matrix product has."""

MAX_FLOPS = 2**62
"""More than that in one call is no recorded shape but damage."""

FACTORS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::matmul": (0, 1),
    "aten::_int_mm": (0, 1),
    "aten::_scaled_mm": (0, 1),
    "aten::_grouped_mm": (0, 1),
    "aten::_scaled_grouped_mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::addbmm": (1, 2),
}
"""Ops that multiply two of their inputs, and which."""

WEIGHTED = ("aten::linear", "aten::mkldnn_linear", "mkldnn::_linear_pointwise")
"""Ops that multiply their first input with the transpose of their second."""

HEADS_FIRST = {
    "aten::scaled_dot_product_attention": 0,
    "aten::_scaled_dot_product_flash_attention": 0,
    "aten::_scaled_dot_product_efficient_attention": 0,
    "aten::_scaled_dot_product_cudnn_attention": 0,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 0,
    "aten::_scaled_dot_product_flash_attention_backward": 1,
    "aten::_scaled_dot_product_efficient_attention_backward": 1,
    "aten::_scaled_dot_product_cudnn_attention_backward": 1,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 1,
}
"""Attention with inputs (batch, heads, length, size): which input the queries are."""

LENGTH_FIRST = {
    "aten::_flash_attention_forward": (0, 3),
    "aten::_efficient_attention_forward": (0, 4),
    "aten::_flash_attention_backward": (1, 6),
    "aten::_efficient_attention_backward": (1, 6),
    "flash_attn::_flash_attn_forward": (0, None),
    "flash_attn::_flash_attn_backward": (1, None),
    "FlashAttnFunc": (0, None),
}
"""Attention with inputs (batch, length, heads, size), and where lengths of packed sequences would be.

What packed sequences cost depends on their lengths, which are not recorded: nothing is said of them.
"""

OPS = frozenset((*FACTORS, *WEIGHTED, *HEADS_FIRST, *LENGTH_FIRST))
"""Every op of which something is known."""


class Product(NamedTuple):
    """What one call multiplies: `batch` products of M×K and K×N; attention: queries × keys, size K."""

    kind: str
    type: str
    batch: int
    m: int
    n: int
    k: int
    flops: int


def shapes(text: object) -> tuple[Dims | None, ...]:
    """The dims of each input; None for one that is no tensor (or a list of them); () if it is no shapes.

    >>> shapes("[[2,3],[],[[4],[5]]]")
    ((2, 3), (), None)
    """
    parsed = _parsed(text)
    if not isinstance(parsed, list):
        return ()
    return tuple(map(_dims, parsed))


def types(text: object) -> tuple[str, ...]:
    """The type of each input as recorded, without its C++ namespace.

    >>> types('["c10::BFloat16","float",""]')
    ('BFloat16', 'float', '')
    """
    parsed = _parsed(text)
    if not isinstance(parsed, list):
        return ()
    return tuple(str(kind).removeprefix("c10::") for kind in parsed)


def _parsed(text: object) -> object:
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _dims(entry: object) -> Dims | None:
    if not isinstance(entry, list):
        return None
    is_whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in entry)
    return tuple(entry) if is_whole else None


@lru_cache(4096)
def product(name: str, dims_text: object, types_text: object) -> Product | None:
    """What a call of this op with these inputs multiplies; None where that is not known.

    >>> product("aten::addmm", "[[5],[2,3],[3,5]]", '["float","float","float"]')
    Product(kind='gemm', type='float', batch=1, m=2, n=5, k=3, flops=60)
    """
    if name not in OPS:
        return None
    dims, kinds = shapes(dims_text), types(types_text)
    first = _first(name)
    first_kind = kinds[first] if first < len(kinds) else ""
    if first_kind.endswith(
        "_x2"
    ):  # two numbers in one element: the recorded sizes are not those of the product
        return None
    if name in FACTORS or name in WEIGHTED:
        sizes = _gemm(name, dims)
        flops = 2 * prod(sizes) if sizes else 0
        kind = "gemm"
    else:
        kind = "attention"
        sizes, flops = _attention(name, dims)
    if sizes is None or not 0 < flops <= MAX_FLOPS:
        return None
    return Product(kind, first_kind, *sizes, flops)


def _first(name: str) -> int:
    """Which input the first factor, or the queries, are."""
    if name in FACTORS:
        return FACTORS[name][0]
    return HEADS_FIRST.get(name, LENGTH_FIRST[name][0] if name in LENGTH_FIRST else 0)


def _gemm(name: str, dims: tuple[Dims | None, ...]) -> tuple[int, int, int, int] | None:
    """(batch, M, N, K) of a matrix product."""
    first_factor, other = FACTORS.get(name, (0, 1))
    if len(dims) <= max(first_factor, other):
        return None
    a, b = dims[first_factor], dims[other]
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    if name in WEIGHTED:
        b = (*b[:-2], b[-1], b[-2])
    if a[-1] != b[-2]:
        return None
    if "grouped" in name:
        # With two and three axes, each row of the one meets one group of the other.
        return (a[0] if len(a) == len(b) == 3 else 1), a[-2], b[-1], a[-1]
    if len(b) == 2:
        return 1, prod(a[:-1]), b[-1], a[-1]
    batch_dims = _broadcast(a[:-2], b[:-2])
    return None if batch_dims is None else (prod(batch_dims), a[-2], b[-1], a[-1])


def _broadcast(a: Dims, b: Dims) -> Dims | None:
    """The common shape of two, axes of length 1 being repeated; None if they have none."""
    longest = max(len(a), len(b))
    a, b = (1,) * (longest - len(a)) + a, (1,) * (longest - len(b)) + b
    if any(x not in (1, y) and y != 1 for x, y in zip(a, b, strict=True)):
        return None
    return tuple(max(x, y) if min(x, y) else 0 for x, y in zip(a, b, strict=True))


def _attention(
    name: str, dims: tuple[Dims | None, ...]
) -> tuple[tuple[int, int, int, int] | None, int]:
    """((batch × heads, queries, keys, size), FLOPs) of attention.

    Forward is 2 products; backward 5, as the weights are computed again: three of the keys' size, two
    of the values'.
    """
    tensors = _attention_tensors(name, dims)
    if len(tensors) < 3:
        return None, 0
    query, key, value = tensors
    same = (
        query[0] == key[0] == value[0],
        key[2] == value[2],
        query[3] == key[3],
        key[1] == value[1] > 0,
    )
    if not all(same) or query[1] % key[1]:
        return None, 0
    batch, heads, queries, size = query
    keys, value_size = key[2], value[3]
    both = size + value_size
    if name.endswith("backward"):
        both = 3 * size + 2 * value_size
    return (batch * heads, queries, keys, size), 2 * batch * heads * queries * keys * both


def _attention_tensors(name: str, dims: tuple[Dims | None, ...]) -> list[Dims]:
    """Sizes of queries, keys and values as (batch, heads, length, size); fewer where they are not all recorded."""
    packed = None
    if name in HEADS_FIRST:
        first = HEADS_FIRST[name]
    else:
        first, packed = LENGTH_FIRST[name]
    if packed is not None and any(dims[packed : packed + 1]):
        return []
    tensors: list[Dims] = [
        entry for entry in dims[first : first + 3] if entry is not None and len(entry) == 4
    ]
    if name in LENGTH_FIRST:
        tensors = [(b, h, n, d) for b, n, h, d in tensors]
    return tensors
