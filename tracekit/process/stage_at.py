"""The outermost stage at an instant, on whatever thread something happened."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import window_at
from tracekit.model.stages import may_be_stage
from tracekit.model.trace import Trace
from tracekit.process.by_name import is_named, named
from tracekit.process.steps import windows

Ints = npt.NDArray[np.int64]


MAX_NAMES = 64
"""More names of ranges that are no stages than this are numbered pieces, such as iterations of an engine."""


def outermost_ranges(trace: Trace) -> pd.DataFrame:
    """The annotated ranges of the step thread that lie in no other, in order of start: rows of `windows`."""
    stages = trace.derived(windows).stages
    return stages[stages["parent"].isna()].reset_index(drop=True)


def outermost_stages(trace: Trace) -> pd.DataFrame:
    """The outermost ranges, but for those that are no stages where these have thousands of names.

    What happens in those is outside any range, and belongs to the stage that the file names, if it names one.
    """
    ranges = trace.derived(outermost_ranges)
    may_be = is_named(ranges["stage"], may_be_stage)
    if ranges["stage"][~may_be].nunique(dropna=False) <= MAX_NAMES:
        return ranges
    return ranges[may_be].reset_index(drop=True)


def stage_at(trace: Trace, ts_ns: Ints) -> Ints:
    """For each instant, the code of the outermost stage then in the categories of `stage_names`; -1 outside."""
    stages = trace.derived(outermost_stages)
    codes = np.append(stages["stage"].cat.codes.to_numpy().astype(np.int64), -1)
    return codes[row_at(stages, ts_ns)]


def row_at(windows_: pd.DataFrame, ts_ns: Ints) -> Ints:
    """The row of the window, of those in order of start, that each instant lies in; -1 outside."""
    start = windows_["ts_ns"].to_numpy()
    return window_at(start, start + windows_["dur_ns"].to_numpy(), ts_ns)


def range_at(trace: Trace, ts_ns: Ints) -> npt.NDArray[np.object_]:
    """The recorded name of the outermost range then, whatever it is, for each instant; None outside."""
    ranges = trace.derived(outermost_ranges)
    return named(ranges["stage"], row_at(ranges, ts_ns))


def stage_names(trace: Trace) -> list[str]:
    """The names that the codes of `stage_at` stand for."""
    return [str(name) for name in trace.derived(outermost_stages)["stage"].cat.categories]
