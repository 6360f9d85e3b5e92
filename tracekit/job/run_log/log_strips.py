"""Data of the explorer page from driver logs alone: the steps of each run with the stages that the log times."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.job.driver_log import RunDriverLog, map_run_driver_logs
from tracekit.model.inputs.page_blocks import PageBlocks
from tracekit.model.inputs.sources import Source
from tracekit.model.stages import RL_STAGES
from tracekit.model.tables.arrays import Coded
from tracekit.model.tables.frame import Frame
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
    stage: list[Any]


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

    A stage that would reach past the end of its step begins earlier, so it overlaps the ones before it. In a log that
    times no step, each is as long as its stages together.
    """
    timed = np.fromiter(log.step_ns.keys(), np.int64, len(log.step_ns))
    order, step, length = _order_stages(log.stage_times)
    number = np.union1d(timed, step)
    of_stage = np.searchsorted(number, step)
    whole = np.bincount(of_stage, weights=length, minlength=len(number)).astype(np.int64)
    whole[np.searchsorted(number, timed)] = np.fromiter(log.step_ns.values(), np.int64, len(timed))
    # The k-th stage of every step at once: a step has few stages.
    first = np.searchsorted(of_stage, np.arange(len(number)))
    place_in_step = np.arange(len(of_stage)) - first[of_stage]
    start, at, longest = np.zeros(len(of_stage), np.int64), np.zeros(len(number), np.int64), whole.copy()
    for k in range(int(place_in_step.max(initial=-1)) + 1):
        rows = np.flatnonzero(place_in_step == k)
        steps = of_stage[rows]
        start[rows] = np.maximum(np.minimum(at[steps], whole[steps] - length[rows]), 0)
        at[steps] = start[rows] + length[rows]
        longest[steps] = np.maximum(longest[steps], length[rows])
    begin = np.cumsum(longest) - longest
    names = log.stage_times.take(order).values("canonical")
    return _LogSteps(number, begin, whole, of_stage, begin[of_stage] + start, length, names)


def _order_stages(stages: Frame) -> tuple[Ints, Ints, Ints]:
    """Order stages by step, then as in the pipeline, unknown ones last by name: (places, steps, lengths in this order)."""
    coded = stages["canonical"]
    assert isinstance(coded, Coded), "stages are texts"
    ranked = sorted(coded.texts, key=lambda name: (_RANKS.get(name, len(_RANKS)), name))
    rank = np.array([ranked.index(name) for name in coded.texts], np.int64)
    step, length = stages.integers("step"), stages.integers("dur_ns")
    order = np.lexsort((rank[coded.codes] if len(stages) else step, step))
    return order, step[order], length[order]


_RANKS = {name: place for place, name in enumerate(RL_STAGES)}
