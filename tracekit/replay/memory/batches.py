"""Largest micro-batch that fits a device: from the scaling share of one history, or fitted to two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.process.memory.allocator.run import AllocatorProgram, run_program
from tracekit.replay.changes import ChangeError
from tracekit.replay.memory.applying import ReplayedMemory
from tracekit.replay.memory.purposes import find_scaling_pieces
from tracekit.replay.memory.resizing import scale_owners

Mask = npt.NDArray[np.bool_]

MOST_GROWTH = 1024
"""Multiples of the recorded micro-batch that are tried at most."""


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """Largest micro-batch that fits `device_memory`: between `low` and `high`, by the method in `basis`.

    0 means that not even one fits; `is_capped` that larger ones were not tried.
    """

    low: int
    high: int
    device_memory: int
    recorded: tuple[int, ...]
    basis: str
    is_capped: bool = False


def find_largest_batch(memory: ReplayedMemory, micro_batch: int) -> LargestBatch:
    """Find the largest micro-batch that fits by replaying one history with scaled activations.

    The lower end lets all memory scale that may, the higher end only what surely does. Raises `ChangeError`.
    """
    device_memory = _require_size(memory)
    scaling = find_scaling_pieces(memory.trace, memory.replay)
    if not scaling.sure.any():
        raise ChangeError("no memory of the history is known to scale with the micro-batch")
    limited = replace(memory.program, options=replace(memory.program.options, limit=device_memory))
    ends = [_bisect(limited, owners, micro_batch) for owners in (scaling.sure | scaling.possible, scaling.sure)]
    low, high = min(ends), max(ends)
    is_capped = high >= micro_batch * MOST_GROWTH
    return LargestBatch(low, high, device_memory, (micro_batch,), "one history, with activations scaled", is_capped)


def _require_size(memory: ReplayedMemory) -> int:
    if memory.device_memory is None:
        raise ChangeError("the largest micro-batch needs the size of the device", "give --device-memory 80GiB")
    return memory.device_memory


def _run_fits(program: AllocatorProgram, owners: Mask, factor: float) -> bool:
    run = run_program(scale_owners(program, owners, factor))
    return run.failed == 0 and run.reserved_before <= (program.options.limit or 0)


def _bisect(program: AllocatorProgram, owners: Mask, start: int) -> int:
    """Find the largest micro-batch that fits, up to `MOST_GROWTH` times the recorded one."""

    def fits(batch: int) -> bool:
        return _run_fits(program, owners, batch / start)

    low, high = 0, start
    while high < start * MOST_GROWTH and fits(high):
        low, high = high, 2 * high
    if high >= start * MOST_GROWTH and fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fit_largest_batch(memories: Sequence[ReplayedMemory], micro_batches: Sequence[int]) -> LargestBatch:
    """Fit the largest micro-batch that fits to the peaks of two histories with other micro-batches.

    Peaks are assumed to be linear in the micro-batch. The lower end is from reserved memory, the higher end from memory in
    use, which assumes no fragmentation at all. Raises `ChangeError`.
    """
    device_memory = _require_size(memories[0])
    (first, second), (one, two) = memories, micro_batches
    if one == two:
        raise ChangeError(
            "two histories with the same micro-batch give no slope", "give two different sizes: --micro-batch 4,8"
        )
    ends = []
    for before, after in (
        (first.run.peak_reserved, second.run.peak_reserved),
        (first.run.peak_active, second.run.peak_active),
    ):
        slope = (after - before) / (two - one)
        if slope <= 0:
            raise ChangeError("the peak does not grow with the micro-batch: nothing can be fitted")
        ends.append(max(int(one + (device_memory - before) // slope), 0))
    return LargestBatch(min(ends), max(ends), device_memory, (one, two), "the peaks of two histories, on a line")
