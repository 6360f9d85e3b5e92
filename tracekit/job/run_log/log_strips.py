"""Data of the explorer page from driver logs alone: the steps of each run with the stages that the log times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.job.driver_log import RunDriverLog, map_run_driver_logs
from tracekit.model.inputs.page_blocks import PageBlocks
from tracekit.model.inputs.sources import Source
from tracekit.model.stages import RL_STAGES
from tracekit.model.trace import Measurements
from tracekit.process.page_blocks.columns import narrow_numbers

Ints = npt.NDArray[np.int64]

LOG_ROW = 2
"""Kind of a row of a log; 0 is a device, 1 a thread."""

THREAD = "driver log"


def build_log_blocks(measured: Measurements) -> tuple[PageBlocks, ...]:
    """Build the data of the log of each run; none where anything but logs was read."""
    logs = {(source.run, source.name): source for source in measured.sources if source.tool == "log"}
    if len(logs) < len(measured.sources):
        return ()
    found = [(logs.get((run or "", log.source)), log) for run, log in map_run_driver_logs(measured).items()]
    return tuple(_describe_log(source, log) for source, log in found if source is not None)


class _LogSteps(NamedTuple):
    """Steps of a log, one after the other: `number`, `start`, `length`; and their stages with the position of the step."""

    number: Ints
    start: Ints
    length: Ints
    stage_step: Ints
    stage_start: Ints
    stage_length: Ints
    stage: list[str]


def _describe_log(source: Source, log: RunDriverLog) -> PageBlocks:
    """Describe the row of one log."""
    steps = _place_steps(log)
    names = list(dict.fromkeys(steps.stage))
    number = {name: place for place, name in enumerate(names)}
    none, zeros = np.empty(0, np.int64), np.zeros(len(steps.number), np.int64)
    end = int((steps.start + steps.length).max(initial=0))
    columns = {
        "row.kind": [LOG_ROW],
        "row.device": [0],
        "row.thread": [1],
        "row.ranges": [len(steps.stage)],
        "row.stretches": [2],
        **{f"row.{group}": [0] for group in ("lanes", "kernels", "sums", "comm", "curves")},
        "step.row": zeros,
        "step.number": steps.number + 1,
        "step.start": steps.start,
        "step.length": steps.length,
        # What devices did is unknown.
        **{f"step.{name}": zeros for name in ("compute", "communication", "memcpy", "memset", "idle")},
        "range.start": steps.stage_start,
        "range.length": steps.stage_length,
        "range.name": [number[name] for name in steps.stage],
        "range.depth": np.zeros(len(steps.stage), np.int64),
        "range.step": steps.stage_step + 1,
        "timeline.start": [0, end],
        "timeline.state": [0, 0],
        **dict.fromkeys(_EMPTY, none),
        "host.cut_ns": [0],
    }
    numbers = {name: narrow_numbers(np.asarray(column, np.int64)) for name, column in columns.items()}
    return PageBlocks(source, 0, numbers, tuple(names), (THREAD,))


_EMPTY = (
    *("path.parent", "path.name", "lane.kind", "lane.number", "comm.start", "comm.length"),
    *("kernel.cell", "kernel.lane", "kernel.start", "kernel.length", "kernel.name", "kernel.path", "kernel.stage"),
    *("kernel.delay", "kernel.merge"),
    *("sum.step", "sum.range", "sum.path", "sum.name", "sum.kind", "sum.count", "sum.ns"),
    *("curve.start", "curve.allocated", "curve.reserved", "host.thread", "host.start", "host.length", "host.path"),
)
"""Columns of a page without rows in the data of a log."""


def _place_steps(log: RunDriverLog) -> _LogSteps:
    """Place steps one after the other, and stages in each by the order of the pipeline.

    A stage that would reach past the end of its step begins earlier, so it overlaps the ones before it. A step without
    a timer of its own is as long as its stages together.
    """
    of_step: dict[int, list[tuple[str, int]]] = {step: [] for step in sorted(log.step_ns)}
    columns = (log.stage_times.values(name) for name in ("step", "canonical", "dur_ns"))
    for step, stage, length in zip(*columns, strict=True):
        of_step.setdefault(step, []).append((stage, length))
    begin, lines, placed = 0, [], []
    for place, step in enumerate(sorted(of_step)):
        stages = sorted(of_step[step], key=_make_stage_order_key)
        whole = log.step_ns.get(step, sum(length for _, length in stages))
        at = 0
        for stage, length in stages:
            at = max(0, min(at, whole - length))
            placed.append((place, begin + at, length, stage))
            at += length
        lines.append((step, begin, whole))
        begin += max([whole, *(length for _, length in stages)])
    number, start, length = np.array(lines, np.int64).reshape(-1, 3).T
    stage_step, stage_start, stage_length = np.array([line[:3] for line in placed], np.int64).reshape(-1, 3).T
    return _LogSteps(number, start, length, stage_step, stage_start, stage_length, [line[3] for line in placed])


def _make_stage_order_key(stage: tuple[str, int]) -> tuple[int, str]:
    """Make the key by which stages are in the order of the pipeline; unknown ones last, by name."""
    name = stage[0]
    return RL_STAGES.index(name) if name in RL_STAGES else len(RL_STAGES), name
