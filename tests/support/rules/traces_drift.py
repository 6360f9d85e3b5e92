"""Traces of one rank whose steps become longer, on which R36 fires, and a near miss. Times are whole microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chrome_builder import annotation, op, step
from rules.firing import Firing, Sources


def steps_of(lengths: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of steps of these lengths, each with one op in one stage."""
    rows, at = [], 0
    for number, length in enumerate(lengths, start=1):
        rows += [step(number, at, length), annotation("update_actor", at, length), op("aten::mm", at, length)]
        at += length
    return rows


FIRES: dict[str, Firing] = {
    # 1,000 on average, then 1,080: 80 in half of the steps, of a mean step of 1,040.
    "drift": Firing(
        {0: steps_of([990, 1010, 1000, 1080, 1090, 1070])},
        "steps are 8.0 % slower from step 4 on, mostly in update_actor",
        "medium",
        40_000,
        40 / 1040,
        {"before_ns": 1_000_000, "after_ns": 1_080_000, "gain_ns": 40_000},
    )
}

NEAR_MISSES: dict[str, Sources] = {
    # By 2.9 %.
    "drift": {0: steps_of([1000, 1000, 1000, 1029, 1029, 1029])}
}
