"""The outermost stage at an instant, on whatever thread something happened."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.derived.steps import Windows, windows
from tracekit.stages import may_be_stage
from tracekit.trace import Trace

Ints = npt.NDArray[np.int64]


MAX_NAMES = 64
"""More names of ranges that are no stages than this are numbered pieces, such as iterations of an engine."""


def outermost_stages(trace: Trace) -> pd.DataFrame:
    """The ranges that lie in no other, in order of start: rows of `windows`.

    Thousands of names that are no stages are left out: what happens in them is outside any range, and belongs to
    the stage that the file names, if it names one.
    """
    found: Windows = trace.derived(windows)
    names, codes = found.stages["stage"], found.stages["stage"].cat.codes.to_numpy()
    may_be = np.array(
        [*(may_be_stage(str(name)) for name in names.cat.categories), False], np.bool_
    )
    outer = found.stages["parent"].isna().to_numpy()
    other = outer & ~may_be[codes]
    chosen = outer if len(np.unique(codes[other])) <= MAX_NAMES else outer & ~other
    return found.stages[chosen].reset_index(drop=True)


def stage_at(trace: Trace, ts_ns: Ints) -> Ints:
    """For each instant, the code of the outermost stage then in the categories of `stage_names`; -1 outside."""
    stages = trace.derived(outermost_stages)
    start = stages["ts_ns"].to_numpy()
    if not len(start):
        return np.full(len(ts_ns), -1, np.int64)
    end = start + stages["dur_ns"].to_numpy()
    at = np.searchsorted(start, ts_ns, side="right") - 1
    inside = (at >= 0) & (ts_ns < end[at])
    return np.where(inside, stages["stage"].cat.codes.to_numpy().astype(np.int64)[at], -1)


def stage_names(trace: Trace) -> list[str]:
    """The names that the codes of `stage_at` stand for."""
    return [str(name) for name in trace.derived(outermost_stages)["stage"].cat.categories]
