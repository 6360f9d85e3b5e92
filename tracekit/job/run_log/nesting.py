"""Timers that run within others in some steps: found where the timers of a step add up to more than the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.job.run_log.counted_steps import Mask
from tracekit.job.run_log.values import Floats

MOST_EXCESS = 0.01
"""Largest share of the step by which disjoint timers may exceed it: rounding of printed numbers."""

MOST_NESTED = 0.5
"""Largest share of a timer's steps within others; above it, the timer is nested in all steps.

In the other steps there is as much time in no timer as the nested one takes, so the sums do not show it.
"""


def find_nested_steps(timers: Sequence[Floats], step_s: Floats) -> list[Mask]:
    """Find the steps in which each timer runs within others: the remaining ones fit into the step.

    A timer within another is at least as long as the excess of the sum. The one that explains most steps is
    nested; of several, the one that leaves about as much time in no timer as other steps have. Where no single timer is
    long enough, the longest one is nested first.
    """
    seconds = np.array([np.nan_to_num(timer) for timer in timers]).reshape(len(timers), len(step_s))
    nested = np.zeros(seconds.shape, np.bool_)
    usual_s = _compute_usual_residual(step_s - seconds.sum(axis=0))
    while True:
        added = np.where(nested, 0.0, seconds)
        excess = added.sum(axis=0) - step_s
        rows = excess > MOST_EXCESS * step_s
        if not rows.any():
            break
        is_enough = rows & (added > 0) & (added * (1 + MOST_EXCESS) >= excess)
        if is_enough.any():
            unlike = np.abs(added - excess - usual_s).sum(axis=1, where=is_enough)
            order = np.lexsort((unlike, -is_enough.sum(axis=1)))
            nested[order[0]] |= is_enough[order[0]]
        else:
            longest = int(added[:, rows].sum(axis=1).argmax())
            nested[longest] |= rows & (added[longest] > 0)
    _nest_in_all_steps(seconds, nested)
    return list(nested)


def _compute_usual_residual(residual_s: Floats) -> float:
    """Compute the median time in no timer of the steps whose timers fit; 0 without any."""
    fitting = residual_s[residual_s >= 0]
    return float(np.median(fitting)) if len(fitting) else 0.0


def _nest_in_all_steps(seconds: Floats, nested: Mask) -> None:
    """Nest the timers in all steps that are nested in most of their steps."""
    present = seconds > 0
    is_most = (nested & present).sum(axis=1) > MOST_NESTED * present.sum(axis=1)
    nested |= present & is_most[:, None]
