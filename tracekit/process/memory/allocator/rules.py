"""Sizes and options of PyTorch's caching allocator for CUDA.

All rules are those of `c10/cuda/CUDACachingAllocator.cpp` in PyTorch (read at 001074d2508, 2025); docstrings name its
functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.process.memory.space import LARGE_SEGMENT, LEAST, OWN_SEGMENT, SMALL, SMALL_SEGMENT

Ints = npt.NDArray[np.int64]

UNLIMITED = 2**63 - 1
"""`max_split_size` of an allocator that splits every block."""

ADDRESS_SPACE = 2**46
"""Addresses of an expandable segment, more than any device has: PyTorch reserves 9/8 of the device's memory."""

SEGMENT_STEP = SMALL_SEGMENT
"""Large segments are multiples of this (`kRoundLarge`)."""

_FIRST_POWER = 20
"""`roundup_power2_divisions` has one entry per power of two from 1 MiB on (`kRoundUpPowerOfTwoStart`)."""


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """Options of an allocator: `PYTORCH_CUDA_ALLOC_CONF`, and the limit of its memory.

    `collect_above` are the reserved bytes from which on unused segments are collected (`garbage_collection_threshold` times
    the allowed memory). `limit` is the memory that it may reserve. None means none. `divisions` are those of
    `roundup_power2_divisions`, for sizes from 1 MiB, 2 MiB, 4 MiB … on.
    """

    expandable: bool = False
    max_split: int = UNLIMITED
    collect_above: int | None = None
    limit: int | None = None
    divisions: tuple[int, ...] = ()


def read_allocator_options(settings: Mapping[str, Any]) -> AllocatorOptions:
    """Read the options of a snapshot's `allocator_settings`.

    >>> read_allocator_options({"max_split_size": 2**27, "expandable_segments": True}).max_split
    134217728
    """
    max_split = settings.get("max_split_size")
    return AllocatorOptions(
        expandable=settings.get("expandable_segments") is True,
        max_split=max_split if type(max_split) is int and 0 < max_split < UNLIMITED else UNLIMITED,
        divisions=_read_divisions(settings.get("roundup_power2_divisions")),
    )


def _read_divisions(setting: object) -> tuple[int, ...]:
    """Read `roundup_power2_divisions`, whose keys are MiB; empty if every size is rounded to 512 bytes."""
    if not isinstance(setting, Mapping):
        return ()
    by_size = {int(key): value for key, value in setting.items() if str(key).isdecimal() and type(value) is int}
    divisions = tuple(max(by_size.get(2**power, 0), 0) for power in range(16))
    return divisions if max(divisions) > 1 else ()


def round_requests(size: Ints, divisions: tuple[int, ...] = ()) -> Ints:
    """Round requests up to the bytes that they occupy (`round_size`).

    >>> round_requests(np.array([1, 512, 513, 5 * 2**20])).tolist(), round_requests(np.array([5 * 2**20]), (4,) * 16).tolist()
    ([512, 512, 1024, 5242880], [5242880])
    """
    rounded: Ints = np.maximum(-(-size // LEAST), 1) * LEAST
    if not divisions:
        return rounded
    power = np.frexp(np.maximum(size, 1).astype(np.float64))[1].astype(np.int64) - 1
    parts = np.array(divisions, np.int64)[np.clip(power - _FIRST_POWER, 0, len(divisions) - 1)]
    is_divided = (parts > 1) & (size > LEAST * parts)
    floor = np.int64(1) << power
    # PyTorch rounds the divisions down to a power of two.
    step = np.maximum(floor >> (np.frexp(np.maximum(parts, 1).astype(np.float64))[1].astype(np.int64) - 1), 1)
    return np.where(is_divided & (size != floor), -(-size // step) * step, np.where(is_divided, size, rounded))


def compute_segment_bytes(size: Ints) -> Ints:
    """Compute the bytes that the allocator gets from the driver for rounded requests (`get_allocation_size`)."""
    own = -(-size // SEGMENT_STEP) * SEGMENT_STEP
    return np.where(size <= SMALL, SMALL_SEGMENT, np.where(size < OWN_SEGMENT, LARGE_SEGMENT, own))
