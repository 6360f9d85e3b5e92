"""Traces on which the rules of memory fire, and near misses just beyond their thresholds.

Times are whole microseconds; every step is 100 of them.
"""

from __future__ import annotations

from chrome_builder import memory, step
from rules.firing import Document, Firing, Sources

MIB = 2**20


def sample(ts, allocated, reserved=None, size=1, device_type=1, device=0):
    """A sample of an allocator: `allocated` bytes and, if told, `reserved` ones after it."""
    row = memory(ts, size, allocated, device_type=device_type)
    row["args"]["Device Id"] = -1 if device_type == 0 else device
    if reserved is not None:
        row["args"]["Total Reserved"] = reserved
    return row


def steps_at(levels, **more):
    """A step for each level; each rises to its level a tenth into it."""
    return [
        row
        for number, level in enumerate(levels)
        for row in (step(number, number * 100, 100), sample(number * 100 + 10, level, **more))
    ]


def leak(last=0):
    """12 steps, 8 MiB more in each; `last` is added to the level at which the last step begins."""
    levels = [1024 * MIB + 8 * MIB * number for number in range(12)]
    levels[-2] += last
    return steps_at(levels)


def card(rows, size):
    """The rows, on a GPU with so much memory."""
    return Document(rows, deviceProperties=[{"id": 0, "name": "GPU", "totalGlobalMem": size}])


FIRES: dict[str, Firing] = {
    # Three of twelve steps are warm-up; what the nine others begin with goes from 16 to 80 MiB above a GiB.
    # All 36 pairs rise: p is that of 35 of a normal deviation of 9 * 8 * 23 / 18, rooted.
    "memory-growth": Firing(
        leak(), "GPU memory of rank 0 grows by 8.00 MiB per step", "medium", None, None,
        {"growth": 8 * MIB, "floor_growth": 8 * MIB, "p": 0.000131630401, "detectable": MIB // 4, "steps": 9},
    ),
    "memory-near-limit": Firing(
        card(steps_at([50 * MIB], reserved=90 * MIB), 100 * MIB),
        "GPU 0 of rank 0 has 90 % of its memory reserved", "medium", None, None,
        {"reserved_ratio": 0.9, "reserved_bytes": 90 * MIB, "card_bytes": 100 * MIB, "devices": 1},
    ),
    # 60 is 20 % above the median of 60 and 40, and half of 120.
    "memory-imbalance": Firing(
        {0: card(steps_at([60 * MIB]), 120 * MIB), 1: card(steps_at([40 * MIB]), 120 * MIB)},
        "GPU 0 of rank 0 needs 20 % more memory than the median of 2 devices", "low", None, None,
        {"skew_ratio": 0.2, "peak_bytes": 60 * MIB, "median_bytes": 50 * MIB, "card_ratio": 0.5},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # One byte less than 64 MiB in all.
    "memory-growth": leak(-1),
    "memory-near-limit": card(steps_at([50 * MIB], reserved=90 * MIB - 1), 100 * MIB),
    # 10 MiB above a median of 50 MiB and one byte.
    "memory-imbalance": {0: card(steps_at([60 * MIB]), 120 * MIB), 1: card(steps_at([40 * MIB + 2]), 120 * MIB)},
}
