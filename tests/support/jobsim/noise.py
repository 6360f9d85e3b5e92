"""Random factors that do not depend on what else happens: the n-th op of a stage draws the same in every simulation of a seed."""

from __future__ import annotations

import math
import random
import zlib

SIZE = 4096
MASK = SIZE - 1


def factors(seed: int, label: str, spread: float, spikes: float = 0.0) -> list[float]:
    """Log-normal factors around 1 with this spread; a share of them is three times as large."""
    source = random.Random(f"{label} {seed}")
    drawn = [math.exp(spread * source.gauss(0, 1)) for _ in range(SIZE)]
    return [factor * 3 if spikes and source.random() < spikes else factor for factor in drawn]


def offset(*names: object) -> int:
    """Where in a table the draws of something so named begin."""
    return zlib.crc32(" ".join(map(str, names)).encode()) & MASK


def uniform(*names: object) -> float:
    """A number from 0 to 1 that belongs to these names."""
    return random.Random(" ".join(map(str, names))).random()


def normal(*names: object) -> float:
    """A normal number that belongs to these names."""
    return random.Random(" ".join(map(str, names))).gauss(0, 1)
