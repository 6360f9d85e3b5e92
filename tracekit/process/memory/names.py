"""Classification of logged memory numbers by name: the quantity and its unit."""

from __future__ import annotations

import re
from collections.abc import Sequence

UNITS = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
"""Bytes of each unit that a name may end with."""

_WHAT = {"requested": "requested", "allocated": "allocated", "alloc": "allocated"}
_RESERVED = {"reserved", "cached"}
_PEAK = {"max", "peak"}
_MEMORY = {"memory", "mem", "gpu", "cuda", "allocated"} | UNITS.keys()
_OTHER = frozenset(
    (
        *("block", "blocks", "count", "counts", "num", "number", "retries", "ratio", "cpu"),
        *("host", "percent", "pct", "util", "utilization", "rate", "segment", "segments", "delta"),
        *("diff", "freed", "free", "inactive", "split", "token", "tokens", "page", "pages"),
        *("slot", "slots", "pool", "small", "large", "efficiency", "fraction", "threshold", "limit"),
        *("time", "ms", "ns", "seconds", "kv"),
    )
)
_POWERS_OF_TWO = re.compile(r"(?:.*/)?perf/max_memory_")


def parse_memory_quantity(name: str) -> tuple[str, int | None] | None:
    """Parse a name into (quantity, bytes of its unit or None if the name has none); None for other names.

    >>> parse_memory_quantity("memory/allocated_mb"), parse_memory_quantity("max_memory_allocated")
    (('allocated', 1000000), ('peak allocated', None))
    >>> parse_memory_quantity("reserved_bytes.all.current"), parse_memory_quantity("cpu_memory_used_gb"), parse_memory_quantity("cached_tokens")
    (('reserved', 1), None, None)
    """
    words = re.findall(r"[a-z]+", name.lower())
    what = _find_memory_quantity(words)
    if what is None:
        return None
    unit = next((UNITS[word] for word in reversed(words) if word in UNITS), None)
    if unit == UNITS["gb"] and _POWERS_OF_TWO.match(name):
        # verl divides by 1024³ and calls it GB.
        unit = UNITS["gib"]
    if _PEAK.isdisjoint(words) or what == "requested":
        return what, unit
    return f"peak {what}", unit


def _find_memory_quantity(words: Sequence[str]) -> str | None:
    """Find the memory quantity that the words of a name describe; None if it is not memory, or ambiguous."""
    distinct = set(words)
    if distinct & _OTHER or words.count("allocated") > 1:
        return None
    what = next((_WHAT[word] for word in words if word in _WHAT), None)
    is_reserved = bool(distinct & _RESERVED)
    if is_reserved == (what is not None):
        return None
    # A cache is not always memory: accept `cached` alone, `max_cached`, and names that mention memory.
    names_memory = bool(distinct & _MEMORY) or distinct <= {"cached"} | _PEAK
    if "cached" in distinct and not names_memory:
        return None
    return "reserved" if is_reserved else what
