"""Look-up of the outermost stage at an instant, for events on any thread."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.stages import is_possible_stage
from tracekit.model.tables.arrays import Coded
from tracekit.model.tables.keys import find_distinct
from tracekit.model.trace import Trace
from tracekit.process.name_filters import look_up_name_codes, look_up_names, mark_wanted_names
from tracekit.process.steps.windows import StageWindows, find_steps_and_stages

Ints = npt.NDArray[np.int64]


MAX_NAMES = 64
"""Range names that are not stages, at most; more of them are numbered pieces, such as engine iterations."""


def select_outer_ranges(trace: Trace) -> StageWindows:
    """Select the outermost annotated ranges of the step thread, in order of start."""
    ranges = trace.derived(find_steps_and_stages).stage_rows
    return ranges.take((ranges.parent.codes < 0).nonzero()[0])


def select_outer_stages(trace: Trace) -> StageWindows:
    """Select the outermost ranges, without non-stages if these have too many names (`MAX_NAMES`).

    Time in the dropped ranges is outside any range, and belongs to the stage in the file name, if any.
    """
    ranges = trace.derived(select_outer_ranges)
    may_be = mark_wanted_names(ranges.stage, is_possible_stage)
    if len(find_distinct(ranges.stage.codes[~may_be])) <= MAX_NAMES:
        return ranges
    return ranges.take(may_be.nonzero()[0])


def find_stage_codes_at(trace: Trace, ts_ns: Ints) -> Ints:
    """Find the code of the outermost stage at each instant, an index of `list_outer_stage_names`; -1 outside."""
    stages = trace.derived(select_outer_stages)
    codes = np.append(stages.stage.codes.astype(np.int64), -1)
    return codes[stages.row_at(ts_ns)]


def find_range_names_at(trace: Trace, ts_ns: Ints) -> npt.NDArray[np.object_]:
    """Find the recorded name of the outermost range at each instant, stage or not; None outside."""
    ranges = trace.derived(select_outer_ranges)
    return look_up_names(ranges.stage, ranges.row_at(ts_ns))


def find_range_codes_at(trace: Trace, ts_ns: Ints) -> Coded:
    """Find the name of the outermost range at each instant, coded."""
    ranges = trace.derived(select_outer_ranges)
    return Coded(look_up_name_codes(ranges.stage, ranges.row_at(ts_ns)), ranges.stage.texts)


def list_outer_stage_names(trace: Trace) -> list[str]:
    """List the stage names for the codes of `find_stage_codes_at`."""
    return list(trace.derived(select_outer_stages).stage.texts)
