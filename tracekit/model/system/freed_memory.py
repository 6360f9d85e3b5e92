"""Freed memory: whether the allocator (glibc) keeps it in the process, or returns it to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_ARRAY = 2**30, 2**30


def keep_freed_memory() -> None:
    """Make the allocator keep freed memory in the process.

    Requesting it from the system again for every array takes a fifth of the work on a large file.
    """
    with suppress(AttributeError, OSError, TypeError):
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_MMAP_THRESHOLD, _LARGEST_ARRAY)
        allocator.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def release_freed_memory() -> None:
    """Return freed memory to the system.

    Joining many small arrays leaves holes of a few hundred MB that later allocations do not fit into.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
