"""Step times of a profile against those of the driver's log, where both have the same steps of one run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracekit.model.units import format_quantity, format_signed

LEAST_DISAGREEMENT = 0.05
"""Smallest difference of the means that is described, as a share of the logged step."""


def describe_step_disagreement(recorded: Mapping[int, float], logged: Mapping[int, float]) -> str:
    """Describe how the recorded steps differ from the logged ones of the same number, in ns; empty if they agree.

    >>> describe_step_disagreement({1: 8e9, 2: 8e9, 9: 1e9}, {1: 10e9, 2: 10e9})
    'the profile shows 8,000 ms per step, the log 10.0 s (−20 %) in 2 common steps: the driver also does work that was not recorded'
    >>> describe_step_disagreement({1: 10e9}, {1: 10.1e9}), describe_step_disagreement({1: 1e9}, {2: 2e9})
    ('', '')
    """
    common = sorted(recorded.keys() & {step for step, ns in logged.items() if ns > 0})
    if not common:
        return ""
    of_profile, of_log = (float(np.mean([times[step] for step in common])) for times in (recorded, logged))
    change = of_profile / of_log - 1
    if abs(change) < LEAST_DISAGREEMENT:
        return ""
    why = "the driver also does work that was not recorded"
    if change > 0:
        why = "recorded work continues after the driver's timer, or the steps are numbered differently"
    steps = f"{len(common)} common steps" if len(common) > 1 else f"step {common[0]}"
    return (
        f"the profile shows {format_quantity(of_profile, 'ns')} per step, the log {format_quantity(of_log, 'ns')} "
        f"({format_signed(change, 'ratio')}) in {steps}: {why}"
    )
