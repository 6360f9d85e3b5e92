"""A/A noise: the spread between runs of the same configuration, which a single run per side cannot show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.stats.estimate import RANGE, ROUNDING, Runs, check_runs, compute_lag_one

LEAST_RUNS = 4
"""Minimum number of calibration runs whose noise is used to widen an interval."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The spread of runs that should be equal.

    `sd` is the standard deviation of the logarithms of run means on `df` degrees of freedom, `steps` the fewest steps of a
    run, `rho` the lag-1 correlation of steps over all runs, weighted by their steps (None if unknown).
    """

    sd: float
    df: float
    runs: int
    steps: int
    rho: float | None

    @property
    def usable(self) -> bool:
        """Whether enough runs were calibrated to widen an interval."""
        return self.runs >= LEAST_RUNS and self.sd > ROUNDING

    def to_dict(self) -> dict[str, float | int | None]:
        """Convert to plain numbers for a file; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Noise:
        """Restore a calibration that `to_dict` wrote; raise ValueError if it is invalid."""
        sd, rho = _read_noise_number(stored, "sd"), stored.get("rho")
        runs, steps = _read_noise_count(stored, "runs", 2), _read_noise_count(stored, "steps", 1)
        if sd < 0:
            raise ValueError(f"noise: sd is {sd}, below zero")
        if _read_noise_number(stored, "df") != runs - 1:
            raise ValueError(f"noise: df is {stored['df']}, not one less than {runs} runs")
        return cls(sd, runs - 1.0, runs, steps, None if rho is None else _read_noise_number(stored, "rho"))


def calibrate_noise(runs: Runs) -> Noise:
    """Measure the noise of two or more runs of the same configuration, each a list of positive step values in order.

    >>> calibrate_noise([[1.0, 1.0], [1.0, 1.0]]).sd
    0.0
    """
    parts = check_runs(runs, positive=True)
    if len(parts) < 2:
        raise ValueError("noise needs two runs of the same thing at least; four to be used")
    means = np.log([part.mean() for part in parts])
    sd = float(means.std(ddof=1))
    longer = [part for part in parts if len(part) > 2]
    rhos = np.array([float(compute_lag_one(np.log(part))) for part in longer])
    sizes = np.array([len(part) for part in longer], float)
    correlated = ~np.isnan(rhos)
    rho = float((rhos * sizes)[correlated].sum() / sizes[correlated].sum()) if correlated.any() else None
    return Noise(
        sd=sd if sd > ROUNDING else 0.0,
        df=len(parts) - 1.0,
        runs=len(parts),
        steps=min(len(part) for part in parts),
        rho=None if rho is None else min(max(rho, -1.0), 1.0),
    )


def _read_noise_number(stored: Mapping[str, Any], key: str) -> float:
    """Read a finite number from the stored form."""
    value = stored.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < RANGE[1]:
        return float(value)
    raise ValueError(f"noise: {key} is {value!r}, not a number")


def _read_noise_count(stored: Mapping[str, Any], key: str, minimum: int) -> int:
    """Read an integer of at least `minimum` from the stored form."""
    value = _read_noise_number(stored, key)
    if value != int(value) or value < minimum:
        raise ValueError(f"noise: {key} is {stored[key]!r}, not a whole number from {minimum} on")
    return int(value)
