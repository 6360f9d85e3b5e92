"""Memory snapshots on which the rules of free and exhausted memory fire, and near misses just beyond their thresholds."""

from __future__ import annotations

import memory_builder as snapshots
from rules.firing import Firing, Sources

MIB = 2**20

SNAPSHOT = "step1/torch_memory_rank0_pid7.pickle"


def in_pieces(request):
    """12 of 40 MiB free in three pieces of 4 between blocks in use, and then this request."""
    allocator = snapshots.Allocator()
    blocks = [allocator.alloc(4 * MIB) for _ in range(10)]
    for block in blocks[1:7:2]:
        allocator.free(block)
    allocator.alloc(request)
    return {SNAPSHOT: snapshots.pickled(snapshots.snapshot(allocator))}


def full(capacity):
    """40 MiB in use, and 10 more asked of a device of this capacity."""
    allocator = snapshots.Allocator(capacity=capacity)
    for _ in range(4):
        allocator.alloc(10 * MIB)
    try:
        allocator.alloc(10 * MIB)
    except snapshots.DeviceFullError:
        assert capacity < 50 * MIB
    return {SNAPSHOT: snapshots.pickled(snapshots.snapshot(allocator))}


def grown(moves):
    """8 snapshots of 3 blocks in 60 MiB; after each one, so often, a buffer is in a stream of its own, and freed."""
    allocator, sources = snapshots.Allocator(), {}
    for _ in range(3):
        allocator.alloc(20 * MIB)
    for step in range(8):
        if step < moves:
            allocator.free(allocator.alloc(24 * MIB, stream=step + 1))
        sources[f"step{step}/torch_memory_rank0_pid7.pickle"] = snapshots.pickled(snapshots.snapshot(allocator))
        allocator.clear_history()
    return sources


FIRES: dict[str, Firing] = {
    # 28 of 40 MiB are in use when 12 more are asked for.
    "fragmentation": Firing(
        in_pieces(12 * MIB), "12.0 MiB reserved for rank 0, GPU 0 are free only in pieces of at most 4.00 MiB",
        "medium", None, None,
        {"stranded_bytes": 12 * MIB, "unused_ratio": 0.3, "largest_free_bytes": 4 * MIB,
         "largest_request_bytes": 12 * MIB, "needless_segments": 1},
    ),
    "out-of-memory": Firing(
        full(40 * MIB), "rank 0, GPU 0 ran out of memory (OOM): 10.0 MiB were requested, and too much was in use",
        "high", None, None,
        {"asked_bytes": 10 * MIB, "requested_bytes": 40 * MIB, "reserved_bytes": 40 * MIB,
         "device_free_bytes": 0, "free_bytes": 0, "largest_free_bytes": 0},
    ),
    # The first two of 8 are warm-up: 24 MiB more at each of the other ones, 120 MiB in total.
    "reserved-growth": Firing(
        grown(8), "memory reserved for rank 0, GPU 0 grows by 24.0 MiB per step while no more is in use: it lies in cached "
        "segments without a block in use: requests of other sizes or streams do not reuse them",
        "medium", None, None,
        {"growth": 24 * MIB, "releasable_growth_bytes": 24 * MIB, "steps": 6},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # What is free would not be enough together.
    "fragmentation": in_pieces(12 * MIB + 1),
    "out-of-memory": full(50 * MIB),
    # It stops in the fifth snapshot.
    "reserved-growth": grown(4),
}
