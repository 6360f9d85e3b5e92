"""A/A noise: the spread between runs of the same configuration, which a single run per side cannot show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.stats.designs import EarlierRuns
from tracekit.model.stats.estimate import RANGE, ROUNDING, Runs, check_runs, compute_lag_one

_SAME_SD = 1e-9
"""Largest difference of two spreads that are the same but for rounding."""

LEAST_RUNS = 4
"""Minimum number of calibration runs whose noise is used to widen an interval."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The spread of runs that should be equal.

    `sd` is the standard deviation of the logarithms of run means on `df` degrees of freedom, `steps` the fewest steps of a
    run, `rho` the lag-1 correlation of steps over all runs, weighted by their steps (None if unknown). `logs` are the
    logarithms of run means; empty in files of older versions.
    """

    sd: float
    df: float
    runs: int
    steps: int
    rho: float | None
    logs: tuple[float, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether enough runs were calibrated to widen an interval."""
        return self.runs >= LEAST_RUNS and self.sd > ROUNDING

    def list_earlier_runs(self, base: Sequence[float]) -> EarlierRuns | None:
        """List the calibrated runs as earlier runs of a base with these log run means; None if they are not usable.

        Runs of the base itself are left out, as they would count twice.
        """
        if not self.usable:
            return None
        if not self.logs:
            return EarlierRuns(self.runs, self.sd**2 * self.df, None)
        others = np.array([log for log in self.logs if len(base) == 1 or log not in base])
        if len(others) < 2:
            return None
        return EarlierRuns(len(others), float(others.var() * len(others)), float(np.ptp(others)))

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers for a file; `from_dict` reads them back."""
        return {**asdict(self), "logs": list(self.logs)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Noise:
        """Restore a calibration that `to_dict` wrote; raise ValueError if it is invalid."""
        sd, rho = _read_noise_number(stored, "sd"), stored.get("rho")
        runs, steps = _read_noise_count(stored, "runs", 2), _read_noise_count(stored, "steps", 1)
        if sd < 0:
            raise ValueError(f"noise: sd is {sd}, below zero")
        if _read_noise_number(stored, "df") != runs - 1:
            raise ValueError(f"noise: df is {stored['df']}, not one less than {runs} runs")
        logs = _read_noise_logs(stored, runs, sd)
        return cls(sd, runs - 1.0, runs, steps, None if rho is None else _read_noise_number(stored, "rho"), logs)


def calibrate_noise(runs: Runs) -> Noise:
    """Measure the noise of two or more runs of the same configuration, each a list of positive step values in order.

    >>> calibrate_noise([[1.0, 1.0], [1.0, 1.0]]).sd
    0.0
    """
    parts = check_runs(runs, positive=True)
    if len(parts) < 2:
        raise ValueError("measuring noise needs at least 2 runs of the same setting, and using it needs 4")
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
        logs=tuple(means.tolist()),
    )


def _read_noise_number(stored: Mapping[str, Any], key: str) -> float:
    """Read a finite number from the stored form."""
    value = stored.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < RANGE[1]:
        return float(value)
    raise ValueError(f"noise: {key} is {value!r}, not a number")


def _read_noise_logs(stored: Mapping[str, Any], runs: int, sd: float) -> tuple[float, ...]:
    """Read the log means of all runs, which must have the spread `sd`; empty if an older version wrote the file."""
    values = stored.get("logs", [])
    if not isinstance(values, list):
        raise ValueError("noise: logs is not a list")  # noqa: TRY004 - of a file, not of a caller
    logs = tuple(_read_noise_number({"logs": value}, "logs") for value in values)
    if logs and (len(logs) != runs or abs(float(np.std(logs, ddof=1)) - sd) > _SAME_SD * max(sd, 1.0)):
        raise ValueError(f"noise: logs are not of {runs} runs with a spread of {sd}")
    return logs


def _read_noise_count(stored: Mapping[str, Any], key: str, minimum: int) -> int:
    """Read an integer of at least `minimum` from the stored form."""
    value = _read_noise_number(stored, key)
    if value != int(value) or value < minimum:
        raise ValueError(f"noise: {key} is {stored[key]!r}, not a whole number from {minimum} on")
    return int(value)
