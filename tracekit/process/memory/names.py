"""What a logged number of memory is of, and in which unit, by its name."""

from __future__ import annotations

import re

UNITS = {
    "b": 1, "byte": 1, "bytes": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
"""Bytes of each unit that a name may end with."""

_WHAT = {"requested": "requested", "allocated": "allocated", "alloc": "allocated"}
_RESERVED = {"reserved", "cached"}
_PEAK = {"max", "peak"}
_MEMORY = {"memory", "mem", "gpu", "cuda", "allocated"} | UNITS.keys()
_OTHER = frozenset((
    *("block", "blocks", "count", "counts", "num", "number", "retries", "ratio", "cpu"),
    *("host", "percent", "pct", "util", "utilization", "rate", "segment", "segments", "delta"),
    *("diff", "freed", "free", "inactive", "split", "token", "tokens", "page", "pages"),
    *("slot", "slots", "pool", "small", "large", "efficiency", "fraction", "threshold", "limit"),
    *("time", "ms", "ns", "seconds", "kv"),
))  # fmt: skip
_POWERS_OF_TWO = re.compile(r"(?:.*/)?perf/max_memory_")


def quantity_of(name: str) -> tuple[str, int | None] | None:
    """(what a logged number is of, bytes of its unit or None where the name tells none); None for other names.

    >>> quantity_of("memory/allocated_mb"), quantity_of("max_memory_allocated")
    (('allocated', 1000000), ('peak allocated', None))
    >>> quantity_of("reserved_bytes.all.current"), quantity_of("cpu_memory_used_gb"), quantity_of("cached_tokens")
    (('reserved', 1), None, None)
    """
    words = re.findall(r"[a-z]+", name.lower())
    word_set = set(words)
    if word_set & _OTHER or words.count("allocated") > 1:
        return None
    what = next((_WHAT[word] for word in words if word in _WHAT), None)
    if what is None:
        what = "reserved" if word_set & _RESERVED else None
    elif word_set & _RESERVED:
        return None
    # A cache is not always one of memory: `cached` alone is, as are `max_cached` and what names memory.
    if what is None or (
        "cached" in word_set and not (word_set & _MEMORY) and word_set - {"cached"} - _PEAK
    ):
        return None
    unit = next((UNITS[word] for word in reversed(words) if word in UNITS), None)
    if unit == UNITS["gb"] and _POWERS_OF_TWO.match(name):
        # verl divides by 1024³ and calls it GB.
        unit = UNITS["gib"]
    return (f"peak {what}" if word_set & _PEAK and what != "requested" else what), unit
