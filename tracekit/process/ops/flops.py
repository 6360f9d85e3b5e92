"""FLOPs of ops from their recorded input shapes: matrix products (GEMM) and attention.

A product of an M×K and a K×N matrix is 2·M·N·K FLOPs (Q22). Attention is its two products, of queries with
keys and of weights with values, ignoring masks: an upper bound if a mask is causal.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import NamedTuple

Dims = tuple[int, ...]

MAX_TEXT = 20_000
"""Longest text of shapes that is parsed; longer ones list hundreds of tensors, which no matrix product has."""

MAX_FLOPS = 2**62
"""Largest plausible FLOPs of one call; more is damage."""

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
"""Ops that multiply two of their inputs, with the indices of these inputs."""

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
"""Attention ops with inputs (batch, heads, length, size), with the index of the queries."""

LENGTH_FIRST = {
    "aten::_flash_attention_forward": (0, 3),
    "aten::_efficient_attention_forward": (0, 4),
    "aten::_flash_attention_backward": (1, 6),
    "aten::_efficient_attention_backward": (1, 6),
    "flash_attn::_flash_attn_forward": (0, None),
    "flash_attn::_flash_attn_backward": (1, None),
    "FlashAttnFunc": (0, None),
}
"""Attention ops with inputs (batch, length, heads, size): indices of the queries and of packed sequence lengths.

The cost of packed sequences depends on their lengths, which are not recorded: no FLOPs are computed.
"""

OPS = frozenset((*FACTORS, *WEIGHTED, *HEADS_FIRST, *LENGTH_FIRST))
"""Every op with known FLOPs."""


class MatrixProduct(NamedTuple):
    """Sizes of one call: `batch` products of M×K and K×N; for attention: queries × keys, size K."""

    kind: str
    type: str
    batch: int
    m: int
    n: int
    k: int
    flops: int


def parse_input_shapes(text: object) -> tuple[Dims | None, ...]:
    """Parse the dims of each input; None for an input that is not a tensor; () for texts that are not shapes.

    >>> parse_input_shapes("[[2,3],[],[[4],[5]]]")
    ((2, 3), (), None)
    """
    parsed = _parse_shape_json(text)
    if not isinstance(parsed, list):
        return ()
    return tuple(_convert_to_dims(shape) for shape in parsed)


def parse_input_types(text: object) -> tuple[str, ...]:
    """Parse the type of each input, without its C++ namespace.

    >>> parse_input_types('["c10::BFloat16","float",""]')
    ('BFloat16', 'float', '')
    """
    parsed = _parse_shape_json(text)
    if not isinstance(parsed, list):
        return ()
    return tuple(str(kind).removeprefix("c10::") for kind in parsed)


def _parse_shape_json(text: object) -> object:
    """Parse a text as JSON; None if it is invalid or too long."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _convert_to_dims(entry: object) -> Dims | None:
    """Convert a parsed entry to dims; None if it is not a list of sizes."""
    if not isinstance(entry, list):
        return None
    is_whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in entry)
    return tuple(entry) if is_whole else None


@lru_cache(4096)
def compute_matrix_product(name: str, dims_text: object, types_text: object) -> MatrixProduct | None:
    """Compute the product of a call of this op with these inputs; None if unknown.

    >>> compute_matrix_product("aten::addmm", "[[5],[2,3],[3,5]]", '["float","float","float"]')
    MatrixProduct(kind='gemm', type='float', batch=1, m=2, n=5, k=3, flops=60)
    """
    if name not in OPS:
        return None
    dims, kinds = parse_input_shapes(dims_text), parse_input_types(types_text)
    first = _find_first_factor(name)
    first_kind = kinds[first] if first < len(kinds) else ""
    if first_kind.endswith("_x2"):  # two numbers per element: the recorded sizes are not those of the product
        return None
    if name in FACTORS or name in WEIGHTED:
        sizes = _compute_gemm_sizes(name, dims)
        flops = 2 * prod(sizes) if sizes else 0
        kind = "gemm"
    else:
        kind = "attention"
        sizes, flops = _compute_attention_flops(name, dims)
    if sizes is None or not 0 < flops <= MAX_FLOPS:
        return None
    return MatrixProduct(kind, first_kind, *sizes, flops)


def _find_first_factor(name: str) -> int:
    """Find the index of the first factor, or of the queries."""
    if name in FACTORS:
        return FACTORS[name][0]
    return HEADS_FIRST.get(name, LENGTH_FIRST[name][0] if name in LENGTH_FIRST else 0)


def _compute_gemm_sizes(name: str, dims: tuple[Dims | None, ...]) -> tuple[int, int, int, int] | None:
    """Compute (batch, M, N, K) of a matrix product; None if the shapes do not fit."""
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
        # With two and three axes, each row of the one input meets one group of the other.
        return (a[0] if len(a) == len(b) == 3 else 1), a[-2], b[-1], a[-1]
    if len(b) == 2:
        return 1, prod(a[:-1]), b[-1], a[-1]
    batch_dims = _broadcast_dims(a[:-2], b[:-2])
    return None if batch_dims is None else (prod(batch_dims), a[-2], b[-1], a[-1])


def _broadcast_dims(a: Dims, b: Dims) -> Dims | None:
    """Broadcast two shapes; None if they are incompatible."""
    longest = max(len(a), len(b))
    a, b = (1,) * (longest - len(a)) + a, (1,) * (longest - len(b)) + b
    if any(x not in (1, y) and y != 1 for x, y in zip(a, b, strict=True)):
        return None
    return tuple(max(x, y) if min(x, y) else 0 for x, y in zip(a, b, strict=True))


def _compute_attention_flops(name: str, dims: tuple[Dims | None, ...]) -> tuple[tuple[int, int, int, int] | None, int]:
    """Compute ((batch × heads, queries, keys, size), FLOPs) of attention.

    Forward has 2 products. Backward has 5, since the weights are recomputed: three of the keys' size, two of
    the values'.
    """
    tensors = _extract_attention_tensors(name, dims)
    if len(tensors) < 3:
        return None, 0
    query, key, value = tensors
    same = (query[0] == key[0] == value[0], key[2] == value[2], query[3] == key[3], key[1] == value[1] > 0)
    if not all(same) or query[1] % key[1]:
        return None, 0
    batch, heads, queries, size = query
    keys, value_size = key[2], value[3]
    both = size + value_size
    if name.endswith("backward"):
        both = 3 * size + 2 * value_size
    return (batch * heads, queries, keys, size), 2 * batch * heads * queries * keys * both


def _extract_attention_tensors(name: str, dims: tuple[Dims | None, ...]) -> list[Dims]:
    """Extract queries, keys and values as (batch, heads, length, size); fewer if they are not all recorded."""
    packed = None
    if name in HEADS_FIRST:
        first = HEADS_FIRST[name]
    else:
        first, packed = LENGTH_FIRST[name]
    if packed is not None and any(dims[packed : packed + 1]):
        return []
    tensors: list[Dims] = [entry for entry in dims[first : first + 3] if entry is not None and len(entry) == 4]
    if name in LENGTH_FIRST:
        tensors = [(b, h, n, d) for b, n, h, d in tensors]
    return tensors
