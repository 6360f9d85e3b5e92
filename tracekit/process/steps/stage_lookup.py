"""Look-up of the outermost stage at an instant, for events on any thread."""

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
"""Range names that are not stages, at most; more of them are numbered pieces, such as engine iterations."""


def outer_ranges(trace: Trace) -> Stages:
    """Select the outermost annotated ranges of the step thread, in order of start."""
    ranges = trace.derived(windows).stage_rows
    return ranges.at((ranges.parent.codes < 0).nonzero()[0])


def outer_stages(trace: Trace) -> Stages:
    """Select the outermost ranges, without non-stages if these have too many names (`MAX_NAMES`).

    Time in the dropped ranges is outside any range, and belongs to the stage in the file name, if any.
    """
    ranges = trace.derived(outer_ranges)
    may_be = is_named(ranges.stage, may_be_stage)
    if len(distinct(ranges.stage.codes[~may_be])) <= MAX_NAMES:
        return ranges
    return ranges.at(may_be.nonzero()[0])


def outermost_ranges(trace: Trace) -> pd.DataFrame:
    """Convert `outer_ranges` to a frame."""
    ranges = trace.derived(outer_ranges)
    return Columns(len(ranges), ranges.arrays).frame()


def outermost_stages(trace: Trace) -> pd.DataFrame:
    """Convert `outer_stages` to a frame."""
    stages = trace.derived(outer_stages)
    return Columns(len(stages), stages.arrays).frame()


def stage_at(trace: Trace, ts_ns: Ints) -> Ints:
    """Find the code of the outermost stage at each instant, an index of `stage_names`; -1 outside."""
    stages = trace.derived(outer_stages)
    codes = np.append(stages.stage.codes.astype(np.int64), -1)
    return codes[stages.row_at(ts_ns)]


def row_at(windows_: pd.DataFrame, ts_ns: Ints) -> Ints:
    """Find the window (of those in order of start) that contains each instant; -1 outside."""
    start = windows_["ts_ns"].to_numpy()
    return window_at(start, start + windows_["dur_ns"].to_numpy(), ts_ns)


def range_at(trace: Trace, ts_ns: Ints) -> npt.NDArray[np.object_]:
    """Find the recorded name of the outermost range at each instant, stage or not; None outside."""
    ranges = trace.derived(outer_ranges)
    return named(ranges.stage, ranges.row_at(ts_ns))


def range_codes_at(trace: Trace, ts_ns: Ints) -> Coded:
    """Find the name of the outermost range at each instant, coded."""
    ranges = trace.derived(outer_ranges)
    return Coded(codes_at(ranges.stage, ranges.row_at(ts_ns)), ranges.stage.texts)


def stage_names(trace: Trace) -> list[str]:
    """List the stage names for the codes of `stage_at`."""
    return list(trace.derived(outer_stages).stage.texts)
