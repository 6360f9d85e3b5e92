"""A log of what every GPU had allocated, by step."""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from capture.metrics.json_lines import JsonLines

log = logging.getLogger("capture")

LEAK_BYTES_PER_STEP = 1_000_000
"""The guide's threshold, of a step where the guide takes it of a sample."""

LEAST_STEPS, MOST_STEPS = 10, 400
"""Fewest steps for a trend, and the number of last steps it uses."""

_TWO_SIDED_95 = 1.96


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Memory of one GPU at one point of a step; peaks are since the start, or since the last row on request."""

    step: int
    description: str
    rank: int
    device: int
    time: float
    allocated_bytes: int
    reserved_bytes: int
    max_allocated_bytes: int
    max_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that grows from step to step, at one point of the step; `low` and `high` bound it at 95 %."""

    device: int
    description: str
    bytes_per_step: float
    low: float
    high: float


class MemoryProfiler:
    """Log of allocated and reserved memory of every GPU that this process uses, with a check for growth.

    `path`: the JSON lines file to append to, None for none. `reset_peaks`: reset torch's peaks with every
    row, which other readers of them in the process would notice.
    """

    def __init__(self, path: str | Path | None = None, *, rank: int | None = None, reset_peaks: bool = False) -> None:
        self.memory_stats: list[MemoryRow] = []
        self._file = JsonLines(path)
        self._rank = int(os.environ.get("RANK") or 0) if rank is None else rank
        self._reset_peaks = reset_peaks
        self._told = False

    def log_memory_stats(self, step: int, description: str = "") -> list[MemoryRow]:
        """Log one row for every GPU in use; none without CUDA. Never raises."""
        try:
            rows = self._rows(step, description)
        except Exception as error:  # noqa: BLE001 - torch missing, or whatever CUDA says
            if not self._told:
                log.warning("rank %s: memory is not logged: %s", self._rank, error)
            self._told = True
            return []
        self.memory_stats += rows
        for row in rows:
            self._file.append(asdict(row))
        return rows

    def _rows(self, step: int, description: str) -> list[MemoryRow]:
        import torch

        cuda: Any = torch.cuda
        if not cuda.is_available():
            raise RuntimeError("there is no CUDA device")
        now, rows = time.time(), list[MemoryRow]()
        for device in range(cuda.device_count()):
            reserved = cuda.max_memory_reserved(device)
            if not reserved:  # never used by this process
                continue
            rows.append(
                MemoryRow(
                    step=step,
                    description=description,
                    rank=self._rank,
                    device=device,
                    time=now,
                    allocated_bytes=cuda.memory_allocated(device),
                    reserved_bytes=cuda.memory_reserved(device),
                    max_allocated_bytes=cuda.max_memory_allocated(device),
                    max_reserved_bytes=reserved,
                )
            )
            if self._reset_peaks:
                cuda.reset_peak_memory_stats(device)
        return rows

    def analyze_memory_patterns(self) -> dict[int, dict[str, float | None]]:
        """By GPU, in bytes: `peak_allocated`, `peak_reserved` as torch kept them; means over the time between rows.

        `memory_efficiency` is mean allocated by mean reserved; means are None with one row only.
        """
        by_device: dict[int, dict[str, float | None]] = {}
        for device in sorted({row.device for row in self.memory_stats}):
            rows = [row for row in self.memory_stats if row.device == device]
            allocated = _mean([(row.time, row.allocated_bytes) for row in rows])
            reserved = _mean([(row.time, row.reserved_bytes) for row in rows])
            by_device[device] = {
                "peak_allocated": max(map(attrgetter("max_allocated_bytes"), rows)),
                "peak_reserved": max(map(attrgetter("max_reserved_bytes"), rows)),
                "avg_allocated": allocated,
                "avg_reserved": reserved,
                "memory_efficiency": allocated / reserved if allocated and reserved else None,
            }
        return by_device

    def detect_memory_leaks(self, threshold: float = LEAK_BYTES_PER_STEP) -> list[Leak]:
        """Find where allocated memory reliably grows by more than `threshold` bytes per step; else empty."""
        series: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
        for row in self.memory_stats:
            series[row.device, row.description][row.step] = row.allocated_bytes
        leaks = list[Leak]()
        for (device, description), by_step in sorted(series.items()):
            points = sorted(by_step.items())[-MOST_STEPS:]
            if len(points) >= LEAST_STEPS:
                slope, low, high = _slope(points)
                leaks += [Leak(device, description, slope, low, high)] if low > threshold else []
        return leaks


def _mean(points: Sequence[tuple[float, int]]) -> float | None:
    """Average values weighted by the time until the next one; None if no time passed."""
    passed = points[-1][0] - points[0][0]
    if passed <= 0:
        return None
    pairs = pairwise(points)
    return sum(value * (until - since) for (since, value), (until, _) in pairs) / passed


def _slope(points: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """(median of the slopes between any two points, lower and upper bound)."""
    slopes = sorted(
        (y - other_y) / (x - other_x) for number, (x, y) in enumerate(points) for other_x, other_y in points[:number]
    )
    n = len(points)
    reach = _TWO_SIDED_95 * (n * (n - 1) * (2 * n + 5) / 18) ** 0.5
    below = max(int((len(slopes) - reach) / 2), 0)
    above = min(int((len(slopes) + reach) / 2 + 1), len(slopes) - 1)
    return median(slopes), slopes[below], slopes[above]
