"""Lengths of logged steps: the covariates at which times are compared."""

from __future__ import annotations

import numpy as np

from tracekit.job.run_log.counted_steps import Mask
from tracekit.job.run_log.stages import LoggedSteps
from tracekit.job.run_log.values import Floats

LEAST_STEPS_OF_TWO = 25
"""Fewest steps for two covariates."""

_SLOWEST_LENGTH = "timing_s/agent_loop/slowest/response_length"


def choose_step_lengths(steps: LoggedSteps, rows: Mask) -> Floats | None:
    """Choose the lengths of some rows, in columns: the tokens of the step, and the longest answer with 25 rows or more.

    None if the log has neither tokens nor lengths.
    """
    framework = steps.log.framework
    choices = [steps.log.get_first(*names) for names in (framework.tokens, framework.mean_length)]
    columns = [values[rows] for values in choices if values is not None and np.isfinite(values[rows]).all()][:1]
    longest = steps.log.get_first(*framework.longest, _SLOWEST_LENGTH)
    is_used = not steps.mode.is_async and rows.sum() >= LEAST_STEPS_OF_TWO
    if is_used and longest is not None and np.isfinite(longest[rows]).all():
        columns.append(longest[rows])
    return np.column_stack(columns) if columns else None
