"""How much a packed file may unpack to: a bomb of a few kilobytes must not fill memory or disk.

Of 240 public gzip traces the most repetitive unpacks to 30 times its size, half of them to less than 15 times.
"""

from __future__ import annotations

MOST_TIMES = 200
"""No packed file is unpacked to more than so many times its size, …"""

FREE_BYTES = 2**24
"""… except up to 16 MiB, whatever its size."""

BOMB = f"it unpacks to more than {MOST_TIMES} times its size"


def most_bytes(packed_bytes: int) -> int:
    """How many bytes are unpacked of a file of this size.

    >>> most_bytes(12_000), most_bytes(1_000_000)
    (16777216, 200000000)
    """
    return max(FREE_BYTES, MOST_TIMES * packed_bytes)
