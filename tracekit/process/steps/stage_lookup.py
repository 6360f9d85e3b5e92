"""The outermost stage at an instant, on whatever thread something happened."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import window_at
from tracekit.model.keys import distinct
from tracekit.model.stages import may_be_stage
from tracekit.model.tables.arrays import Coded, Columns
from tracekit.model.trace import Trace
from tracekit.process.name_filters import codes_at, is_named, named
from tracekit.process.steps.windows import Stages, windows

Ints = npt.NDArray[np.int64]


MAX_NAMES = 64
"""More names of ranges that are no stages than this are numbered pieces, such as iterations of an engine."""


def outer_ranges(trace: Trace) -> Stages:
    """The annotated ranges of the step thread that lie in no other, in order of start."""
    ranges = trace.derived(windows).stage_rows
    return ranges.at((ranges.parent.codes < 0).nonzero()[0])


def outer_stages(trace: Trace) -> Stages:
    """The outermost ranges, but for those that are no stages where these have thousands of names.

    What happens in those is outside any range, and belongs to the stage that the file names, if it names one.
    """
    ranges = trace.derived(outer_ranges)
    may_be = is_named(ranges.stage, may_be_stage)
    if len(distinct(ranges.stage.codes[~may_be])) <= MAX_NAMES:
        return ranges
    return ranges.at(may_be.nonzero()[0])


def outermost_ranges(trace: Trace) -> pd.DataFrame:
    """The frame of `outer_ranges`."""
    ranges = trace.derived(outer_ranges)
    return Columns(len(ranges), ranges.arrays).frame()


def outermost_stages(trace: Trace) -> pd.DataFrame:
    """The frame of `outer_stages`."""
    stages = trace.derived(outer_stages)
    return Columns(len(stages), stages.arrays).frame()


def stage_at(trace: Trace, ts_ns: Ints) -> Ints:
    """For each instant, the code of the outermost stage then in the categories of `stage_names`; -1 outside."""
    stages = trace.derived(outer_stages)
    codes = np.append(stages.stage.codes.astype(np.int64), -1)
    return codes[stages.row_at(ts_ns)]


def row_at(windows_: pd.DataFrame, ts_ns: Ints) -> Ints:
    """The row of the window, of those in order of start, that each instant lies in; -1 outside."""
    start = windows_["ts_ns"].to_numpy()
    return window_at(start, start + windows_["dur_ns"].to_numpy(), ts_ns)


def range_at(trace: Trace, ts_ns: Ints) -> npt.NDArray[np.object_]:
    """The recorded name of the outermost range then, whatever it is, for each instant; None outside."""
    ranges = trace.derived(outer_ranges)
    return named(ranges.stage, ranges.row_at(ts_ns))


def range_codes_at(trace: Trace, ts_ns: Ints) -> Coded:
    """The same as codes of names."""
    ranges = trace.derived(outer_ranges)
    return Coded(codes_at(ranges.stage, ranges.row_at(ts_ns)), ranges.stage.texts)


def stage_names(trace: Trace) -> list[str]:
    """The names that the codes of `stage_at` stand for."""
    return list(trace.derived(outer_stages).stage.texts)
