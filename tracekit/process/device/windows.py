"""Steps and stages on the device's time axis: when the host runs ahead, a window lasts until its own work is done."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import measure_coverage, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.trace import Trace
from tracekit.process.device.busy import group_rows_by_device
from tracekit.process.device.placement import Placement, place_device_ops
from tracekit.process.device.work_per_window import measure_work_per_window
from tracekit.process.steps.stage_lookup import select_outer_ranges, select_outer_stages
from tracekit.process.steps.windows import StageWindows, StepsAndStages, StepWindows, find_steps_and_stages

Ints = npt.NDArray[np.int64]
Moved = TypeVar("Moved", StepWindows, StageWindows)

DIFFERS = 0.10
"""Share of a step by which work run and work launched in it must differ, to count as running ahead."""

MOST = 0.5
"""Share of steps in which the host must run ahead before windows move; a queue that fills at first does not count."""

_ON_HOST_ONLY = ("file", "stage")
"""Origins of steps that span a whole file: they already last as long as their work."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWindows:
    """Steps and stages by when their work ran; the host's windows if it did not run ahead."""

    step_rows: StepWindows
    stage_rows: StageWindows
    outer_ranges: StageWindows
    outer_stages: StageWindows


def align_windows_to_device(trace: Trace) -> DeviceWindows:
    """Move the windows of a host that runs ahead to its device work.

    A window begins when its host begins it and all work launched before is done. It ends when its host ends
    it and its own work is done. Windows that follow one another on the host also do on the device.
    """
    recorded: StepsAndStages = trace.derived(find_steps_and_stages)
    on_host = DeviceWindows(
        recorded.step_rows, recorded.stage_rows, trace.derived(select_outer_ranges), trace.derived(select_outer_stages)
    )
    if not _is_host_running_ahead(trace, recorded.step_rows):
        return on_host
    place: Placement = trace.derived(place_device_ops)
    rows = place.is_placed.nonzero()[0]
    rows = rows[np.argsort(place.ts_ns[rows], kind="stable")]
    ends = trace.numbers("device_ops", "ts_ns")[rows] + trace.numbers("device_ops", "dur_ns")[rows]
    done = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, ends))

    def move_to_device(ts_ns: Ints) -> Ints:
        """Find when all work launched before each instant is done, no earlier than the instant itself."""
        return np.maximum(ts_ns, done[np.searchsorted(place.ts_ns[rows], ts_ns, side="left")])

    def move_spans(spans: Moved) -> Moved:
        """Move the begin and end of each span to the device."""
        begin = move_to_device(spans.ts_ns)
        return replace(spans, ts_ns=begin, dur_ns=move_to_device(spans.end_ns) - begin)

    return DeviceWindows(
        move_spans(on_host.step_rows),
        move_spans(on_host.stage_rows),
        move_spans(on_host.outer_ranges),
        move_spans(on_host.outer_stages),
    )


def _is_host_running_ahead(trace: Trace, steps: StepWindows) -> bool:
    """Check whether the work that runs in most steps differs from the work launched in them."""
    if len(steps) < 2 or steps.origin in _ON_HOST_ONLY or not trace.has("device_ops"):
        return False
    launched = measure_work_per_window(trace, steps.ts_ns, steps.end_ns)["work_busy_ns"]
    inside = np.zeros(len(steps), np.int64)
    for _, rows in group_rows_by_device(trace.nullable("device_ops", "device")):
        start = trace.numbers("device_ops", "ts_ns")[rows]
        end = start + trace.numbers("device_ops", "dur_ns")[rows]
        inside += measure_coverage(merge_intervals(start, end), steps.ts_ns, steps.end_ns)
    differs = np.abs(inside - launched.values) > DIFFERS * steps.dur_ns
    return bool(np.count_nonzero(differs & ~launched.missing) >= MOST * len(steps))
