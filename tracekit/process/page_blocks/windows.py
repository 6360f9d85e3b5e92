"""Steps and ranges of the rows of the page, with the device's time in each step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, measure_coverage
from tracekit.model.stages import get_canonical_stage
from tracekit.model.tables.arrays import select_rows
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import measure_time_resolution
from tracekit.process.device.windows import DeviceWindows, align_windows_to_device
from tracekit.process.page_blocks.columns import PageTexts
from tracekit.process.steps.stage_lookup import select_outer_stages
from tracekit.process.steps.windows import StageWindows, StepWindows, find_steps_and_stages

Ints = npt.NDArray[np.int64]

_INSTANCE = re.compile(r"[#_ ]?\d+$")


class PageWindows(NamedTuple):
    """Steps and ranges of one process: by the host (`launched_*`), and as shown on a row (`steps`, columns of ranges).

    The outermost ranges come first, in the order of `launched_stages`.
    """

    launched_steps: StepWindows
    launched_stages: StageWindows
    steps: StepWindows
    ranges: dict[str, Ints]


def make_page_windows(trace: Trace, names: PageTexts) -> PageWindows:
    """Make the steps and ranges of one process, those of rows by when their work ran."""
    recorded = trace.derived(find_steps_and_stages)
    aligned: DeviceWindows = trace.derived(align_windows_to_device)
    stages, outer = recorded.stage_rows, trace.derived(select_outer_stages)
    inner = _find_inner_ranges(stages, outer)
    jitter_ns = trace.derived(measure_time_resolution)

    def describe(moved: StageWindows, host: StageWindows, depth: int) -> tuple[Ints, ...]:
        """Describe ranges: start, length, depth, step + 1."""
        early = host.ts_ns + np.minimum(jitter_ns, host.dur_ns // 2)
        return moved.ts_ns, moved.dur_ns, np.full(len(host), depth), recorded.step_rows.or_start_at(early) + 1

    both = (
        describe(aligned.outer_stages, outer, 0),
        describe(aligned.stage_rows.take(inner), stages.take(inner), 1),
    )
    start, length, depth, step = (np.concatenate(columns) for columns in zip(*both, strict=True))
    role = trace.source.role
    outer_names = names.add_column(outer.stage, lambda name: get_canonical_stage(name, role))
    inner_names = names.add_column(select_rows(stages.stage, inner), _remove_instance_number)
    ranges = {
        "range.start": start,
        "range.length": length,
        "range.name": np.concatenate((outer_names, inner_names)),
        "range.depth": depth,
        "range.step": step,
    }
    return PageWindows(recorded.step_rows, outer, aligned.step_rows, ranges)


def _find_inner_ranges(stages: StageWindows, outer: StageWindows) -> Ints:
    """Find the ranges directly inside the outermost ones, and outermost ranges that are not stages."""
    texts = stages.stage.texts
    codes = {text: code for code, text in enumerate(texts)}
    shown = np.zeros(len(texts) + 1, np.bool_)
    shown[[codes[outer.stage.texts[code]] for code in np.unique(outer.stage.codes).tolist()]] = True
    parent_codes = np.array([codes.get(text, -1) for text in stages.parent.texts] + [-1], np.int64)
    parent = parent_codes[stages.parent.codes]
    is_inside = (parent >= 0) & shown[parent]
    is_dropped = (stages.parent.codes < 0) & ~shown[stages.stage.codes]
    rows: Ints = (is_inside | is_dropped).nonzero()[0]
    return rows


def _remove_instance_number(name: str) -> str:
    """Remove the number at the end of a range's name: `micro_batch_3` is `micro_batch`."""
    return _INSTANCE.sub("", name) or name


def make_step_columns(steps: StepWindows, parts: Sequence[Intervals], row: int) -> dict[str, Ints]:
    """Make the columns of the steps of one row: exact times of compute, communication, copies, fills and idle."""
    inside = [measure_coverage(part, steps.ts_ns, steps.end_ns) for part in parts]
    numbers = np.where(steps.step.missing | (steps.step.values < 0), 0, steps.step.values + 1)
    busy = sum(inside, np.zeros(len(steps), np.int64))
    assert (busy <= steps.dur_ns).all(), "the parts are exclusive"
    columns = ("compute", "communication", "memcpy", "memset")
    return {
        "step.row": np.full(len(steps), row),
        "step.number": numbers,
        "step.start": steps.ts_ns,
        "step.length": steps.dur_ns,
        **{f"step.{name}": part for name, part in zip(columns, inside, strict=True)},
        "step.idle": steps.dur_ns - busy,
    }
