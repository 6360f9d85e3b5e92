"""GPU memory that a run never reserved, by the peaks in its log and the size that the user gave."""

from __future__ import annotations

import re

import numpy as np

from tracekit.job.run_log.stages import LoggedSteps

LEAST_HEADROOM, MOST_HEADROOM = 0.05, 0.40
"""Shares of GPU memory never reserved below which it is short, and above which it is unused."""

_RESERVED = re.compile(r"(?:\w+/)?perf/max_memory_reserved_gb")


def measure_reserved_peak(steps: LoggedSteps) -> float | None:
    """Measure the highest peak that any role reserved, in bytes; None where not logged."""
    peaks = [np.nanmax(values) for name, values in steps.log.series.items() if _RESERVED.fullmatch(name)]
    return float(max(peaks)) * 2**30 if peaks else None


def compute_memory_factor(steps: LoggedSteps, device_memory: int | None) -> float | None:
    """Compute by how much all reserved memory could grow until 5 % of the GPU is left; None where unknown.

    Activations grow with the micro-batch and weights do not, so the micro-batch may grow by this factor at least.
    A peak above the size contains unmapped memory.
    """
    peak = measure_reserved_peak(steps)
    if peak is None or device_memory is None or not 0 < peak <= device_memory:
        return None
    return (1 - LEAST_HEADROOM) * device_memory / peak
