"""The tail of generation: how much longer its longest sample takes than the mean one."""

from __future__ import annotations

import numpy as np

from tracekit.job.run_log.stages import LoggedSteps
from tracekit.job.run_log.values import Floats
from tracekit.model.records import dataclass

_SAMPLE = "timing_s/agent_loop/generate_sequences/"


@dataclass(frozen=True, slots=True)
class GenerationTail:
    """The share of generation by which the longest sample exceeds the mean one, by row of the log."""

    ratio: Floats
    basis: str


def measure_generation_tail(steps: LoggedSteps) -> GenerationTail | None:
    """Measure the tail by times of samples, or by lengths of answers where times are not logged; None without either."""
    mean, most = steps.log.get_first(f"{_SAMPLE}mean"), steps.log.get_first(f"{_SAMPLE}max")
    basis = "times of samples"
    if mean is None or most is None:
        framework = steps.log.framework
        mean, most = steps.log.get_first(*framework.mean_length), steps.log.get_first(*framework.longest)
        basis = "lengths of answers"
    if mean is None or most is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return GenerationTail(np.where(most > 0, 1 - mean / most, np.nan), basis)
