"""What a kind of fault is built from: a size, a seed, and dice of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from jobsim.job import Fault

SIZES = {"small": (4, 4), "large": (8, 6)}
ALL_SIZES = SIZES | {"long": (4, 6)}
"""Ranks and steps."""
MS = 1_000_000
Built = tuple[dict[str, Any], tuple[Fault, ...]]


@dataclass
class Draw:
    """What one kind is built for, and the dice of its seed."""

    kind: str
    size: str
    seed: int

    def __post_init__(self) -> None:
        self.ranks, self.steps = ALL_SIZES[self.size]
        self.dice = random.Random(f"{self.kind} {self.size} {self.seed}")
        self.first = 3

    def rank(self) -> int:
        """Some rank."""
        return self.dice.randrange(self.ranks)

    def about(self, value: float, low: float = 0.85, high: float = 1.2) -> float:
        """The value, somewhat smaller or larger."""
        return value * self.dice.uniform(low, high)

    def ns(self, ms: float) -> int:
        """So many ms, somewhat less or more."""
        return int(self.about(ms * MS))

    def fault(self, change: dict[str, Any], **where: Any) -> Fault:
        """The fault of this kind."""
        return Fault(self.kind, change, **where)

    def pageable(self, change: dict[str, Any], **where: Any) -> Fault:
        """The fault of this kind: copies of pageable memory, which are copies of pinned memory in the repaired run."""
        return self.fault({**change, "pageable": True}, repair=change, **where)
