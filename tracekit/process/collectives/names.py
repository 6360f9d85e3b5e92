"""Parsing of recorded texts about a collective: its op, element type, message size and process group.

Every function takes one distinct recorded text (or tuple of texts), so callers run it once per text, not per
row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2s
from math import prod
from typing import Any

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Ops that no rank can finish before all ranks have begun."""

ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Ops with a root: a small message may leave before all ranks have begun; a large one waits as the others do."""

_OP_BY_PART = {
    "sendrecv": "other",
    "reducescatter": "reduce_scatter",
    "crossdevicereduce": "all_reduce",
    "twoshotallreduce": "all_reduce",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "recv": "recv",
    "send": "send",
}
"""Op by part of a name without case and punctuation; the first match counts.

Kernels named SendRecv carry sends, receives and all_to_all alike.
"""

_BOOKKEEPING = re.compile(r"wait|init|(start|end)_?coalesc", re.IGNORECASE)

_TYPES: Mapping[str, tuple[str, ...]] = {
    "float64": ("double",),
    "float32": ("float",),
    "float16": ("half",),
    "bfloat16": (),
    "int64": ("long", "long int", "long long"),
    "int32": ("int",),
    "int16": ("short", "short int"),
    "int8": ("char", "signed char"),
    "uint8": ("byte", "unsigned char"),
    "uint16": ("unsigned short",),
    "uint32": ("unsigned int",),
    "uint64": ("unsigned long",),
    "bool": (),
    "float8_e4m3fn": (),
    "float8_e5m2": (),
    "float8_e4m3fnuz": (),
    "float8_e5m2fnuz": (),
    "float8_e8m0fnu": (),
    "complex64": ("complexfloat", "complex<float>"),
    "complex128": ("complexdouble", "complex<double>"),
}
_DTYPE = {alias: name for name, aliases in _TYPES.items() for alias in (name, *aliases)}

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element; a type that is missing here has no known size."""

MAX_BYTES = 2**60
"""Largest plausible message; a larger one is a recording fault and its size is unknown."""

_NO_TENSOR = ("", "scalar", "scalarlist", "none", "genericlist", "device")


def is_collective_bookkeeping(name: str) -> bool:
    """Check whether a recorded collective name is a call around collectives, not a collective.

    >>> is_collective_bookkeeping("wait"), is_collective_bookkeeping("startCoalescing"), is_collective_bookkeeping("allreduce")
    (True, True, False)
    """
    return _BOOKKEEPING.match(name) is not None


def parse_collective_op(name: str) -> str:
    """Parse the op from the name of a collective, host range or kernel; `other` if the name does not tell.

    >>> parse_collective_op("_reduce_scatter_base"), parse_collective_op("ncclDevKernel_AllReduce_Sum_bf16"), parse_collective_op("all_to_allv")
    ('reduce_scatter', 'all_reduce', 'all_to_all')
    """
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((op for part, op in _OP_BY_PART.items() if part in plain), "other")


def normalize_dtype(name: str) -> str:
    """Map a recorded element type to torch's name; an unknown type stays as recorded.

    >>> normalize_dtype("Float"), normalize_dtype("c10::BFloat16"), normalize_dtype("Float8_e4m3fn"), normalize_dtype("mine")
    ('float32', 'bfloat16', 'float8_e4m3fn', 'mine')
    """
    return _DTYPE.get(name.removeprefix("c10::").strip().lower(), name)


def parse_message_size(dims: str, types: str) -> tuple[int, str] | None:
    """Parse the (bytes, element type) of a message from recorded shapes and types; None if they do not tell.

    >>> parse_message_size("[[128, 192], []]", '["float", "Scalar"]')
    (98304, 'float32')
    """
    shapes, kinds = _parse_json_or_none(dims), _parse_json_or_none(types)
    if not isinstance(shapes, list) or not isinstance(kinds, list) or len(shapes) != len(kinds):
        return None
    total, sizes = 0, []
    for shape, kind in zip(shapes, kinds, strict=True):
        if not isinstance(kind, str) or kind.lower() in _NO_TENSOR:
            continue
        dtype = normalize_dtype(kind)
        if dtype not in ITEM_BYTES or not isinstance(shape, list):
            return None
        if not all(type(extent) is int and 0 <= extent <= MAX_BYTES for extent in shape):
            return None
        total += prod(shape) * ITEM_BYTES[dtype]
        sizes.append(dtype)
    return (total, sizes[0]) if sizes and total <= MAX_BYTES else None


def sum_split_sizes(text: str) -> int:
    """Sum a recorded list of split sizes; 0 for an empty list or any other text.

    >>> sum_split_sizes("[3, 0, 5]"), sum_split_sizes("[]"), sum_split_sizes("[1, ..., 2]")
    (8, 0, 0)
    """
    sizes = _parse_json_or_none(text)
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        return 0
    return min(sum(sizes), MAX_BYTES)


def parse_group_ranks(text: str) -> tuple[str, ...]:
    """Parse the ranks of a recorded list; `...` marks a truncated list.

    >>> parse_group_ranks("[0, 1, 2]"), parse_group_ranks("[0, 1, ..., 7]"), parse_group_ranks("[]")
    (('0', '1', '2'), ('0', '1', '...', '7'), ())
    """
    return tuple(re.findall(r"\d+|\.\.\.", text))


def make_group_key(name: str, ranks: tuple[str, ...]) -> str:
    """Make a stable text for a process group: its name and a short hash of its known members.

    >>> make_group_key("0", ("0", "1")), make_group_key("tp", ()), make_group_key("", ())
    ('0:b1abcf', 'tp', '(default)')
    """
    if not ranks:
        return name or "(default)"
    return f"{name}:{blake2s(','.join(ranks).encode(), digest_size=3).hexdigest()}"


def parse_recorded_groups(meta: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Parse the members of every process group that the file lists, by group name."""
    recorded = meta.get("distributedInfo")
    listed = recorded.get("pg_config") if isinstance(recorded, Mapping) else None
    if isinstance(listed, str):
        listed = _parse_json_or_none(listed)
    groups: dict[str, tuple[str, ...]] = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, Mapping) and "pg_name" in entry:
            groups[str(entry["pg_name"])] = parse_group_ranks(str(entry.get("ranks", "")))
    return groups


def _parse_json_or_none(text: str) -> Any:
    """Parse a text as JSON; None if it is not valid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
