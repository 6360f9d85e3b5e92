"""Runs and steps that lie far from all others of their side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.model.stats.estimate import Floats

LEAST_RUNS_OF_ODD = 5
"""Runs of a side from which one of them may be called odd."""

ODD_TIMES, ODD_LOG = 5.0, 0.05
"""An odd run lies so many times as far from the median as the next, and at least so far, on the log scale."""

ODD_STEP_SDS, ODD_RUN_SDS = 8.0, 6.0
"""Robust standard deviations from the median beyond which a step, or a run, decides the spread by itself."""

_MAD_TO_SD, _MEAN_TO_SD = 1.4826, 1.2533
"""Standard deviations of the normal distribution per median, and per mean, absolute deviation.

The mean is used if at least half of the values are equal.
"""


def find_odd_run(logs: Sequence[float]) -> int | None:
    """Find the run whose log mean lies far from those of all others; None if there is none, or if runs are too few.

    >>> find_odd_run([0.0, 0.01, 0.02, 0.0, 0.4]), find_odd_run([0.0, 0.01, 0.02, 0.0, 0.04])
    (4, None)
    """
    if len(logs) < LEAST_RUNS_OF_ODD:
        return None
    away = np.abs(np.array(logs) - np.median(logs))
    farthest = int(away.argmax())
    others = float(np.delete(away, farthest).max())
    return farthest if away[farthest] > max(ODD_LOG, ODD_TIMES * others) else None


def has_odd_values(runs: Sequence[Floats]) -> bool:
    """Whether a step, or a run, lies so far from the others of a side that it decides their spread."""
    steps = np.concatenate([np.log(run / np.median(run)) for run in runs])
    means = np.log([run.mean() for run in runs])
    return _measure_farthest(steps) > ODD_STEP_SDS or _measure_farthest(means) > ODD_RUN_SDS


def _measure_farthest(values: Floats) -> float:
    """Measure the largest distance from the median in robust standard deviations; 0 for fewer than four values."""
    if len(values) < 4:
        return 0.0
    away = np.abs(values - np.median(values))
    typical = _MAD_TO_SD * float(np.median(away)) or _MEAN_TO_SD * float(away.mean())
    return float(away.max()) / typical if typical else 0.0
