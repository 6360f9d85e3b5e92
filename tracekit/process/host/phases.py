"""Host work by phase, from names: ops, launches, optimizer, data loading, compilation, allocation; host windows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import Intervals, measure_coverage, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, Coded, Nullable, broadcast_value, trim_texts
from tracekit.model.tables.keys import find_distinct, group_arrays, mask_members, number_keys, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import CallTree, build_call_tree
from tracekit.process.name_filters import mark_rows_of_kind
from tracekit.process.steps.stage_lookup import select_outer_ranges
from tracekit.process.steps.start_up import CAPTURING_GRAPH, COMPILING
from tracekit.process.steps.windows import StageWindows, StepWindows, find_steps_and_stages

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SHORT_NS = 10_000
"""Longest kernel or op call that counts as short: launching it costs about as much as its work."""

PAUSE_NS = 1_000_000
"""Longest GPU gap that one launch can explain; a longer gap is a pause of the host."""

MAX_NAME = 300
"""Characters of a name that are matched."""

_LAUNCH, _GRAPH_LAUNCH, _SYNC, _ALLOCATOR, _COMPILING, _LOADER, _OPTIMIZER, _ANNOTATION, _GRAPH = (
    1 << bit for bit in range(9)
)
_PATTERNS = {
    _LAUNCH: re.compile(r"(?!\w*LaunchHostFunc)(cuda|cu|hip)\w*Launch"),
    _GRAPH_LAUNCH: re.compile(r"(cuda|cu|hip)GraphLaunch"),
    _SYNC: re.compile(r"(cuda|cu|hip)(Stream|Device|Event|Ctx)Synchronize|(cuda|cu|hip)Memcpy(?!\w*Async)"),
    _ALLOCATOR: re.compile(
        r"(cuda|hip)(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister)(?!\w*Async)"
        r"|(cu|hip)Mem(Alloc|Free|Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree|HostAlloc|HostRegister"
        r"|HostUnregister)(?!\w*Async)"
    ),
    _COMPILING: COMPILING,
    _GRAPH: CAPTURING_GRAPH,
    _LOADER: re.compile(r"enumerate\(DataLoader\)#"),
    _OPTIMIZER: re.compile(r"Optimizer\.step#"),
    _ANNOTATION: re.compile(r"Optimizer\.|enumerate\(DataLoader\)|ProfilerStep"),
}


@dataclass(frozen=True, slots=True)
class HostPhases:
    """Per row of `host_ops`: the phases that it belongs to.

    `leaf`: an op without an op inside. `call`: an op that no op encloses. `within_optimizer`: the nearest
    Optimizer.step around the row, or -1. `launch`, `sync`, `allocator`, `compiling`, `graph_capture` and
    `loader` mark only the outermost row of their kind, so a driver call inside a runtime call counts once.
    """

    op: Mask
    leaf: Mask
    call: Mask
    launch: Mask
    graph_launch: Mask
    sync: Mask
    allocator: Mask
    compiling: Mask
    graph_capture: Mask
    loader: Mask
    optimizer: Mask
    within_optimizer: sweeps.Rows


def classify_host_rows(trace: Trace) -> HostPhases:
    """Classify every row of `host_ops` by phase."""
    names = trace.texts("host_ops", "name")
    kinds = np.array([*map(_match_phase_patterns, names.texts), 0], np.int16)[names.codes]
    tree: CallTree = trace.derived(build_call_tree)
    # Profilers of 2021 record annotations as ops.
    op = mark_rows_of_kind(trace, "host_ops", "op") & (kinds & _ANNOTATION == 0)
    rows = op.nonzero()[0]
    above = tree.nearest(op, rows)
    leaf, call = op.copy(), op.copy()
    leaf[above[above >= 0]] = False
    call[rows[above >= 0]] = False
    runtime = mark_rows_of_kind(trace, "host_ops", "runtime")
    timed = mark_rows_of_kind(trace, "host_ops", "op", "range", "runtime", "overhead")
    annotated = mark_rows_of_kind(trace, "host_ops", "op", "range")
    launch = _keep_outermost_rows(tree, runtime & (kinds & _LAUNCH != 0))
    optimizer = annotated & (kinds & _OPTIMIZER != 0)
    row_type = sweeps.choose_row_type(len(op))
    within: sweeps.Rows = broadcast_value(row_type(-1), len(op))
    if optimizer.any():
        within = tree.nearest(optimizer, np.arange(len(op))).astype(row_type)
    return HostPhases(
        op,
        leaf,
        call,
        launch,
        launch & (kinds & _GRAPH_LAUNCH != 0),
        _keep_outermost_rows(tree, runtime & (kinds & _SYNC != 0)),
        _keep_outermost_rows(tree, runtime & (kinds & _ALLOCATOR != 0)),
        _keep_outermost_rows(tree, timed & (kinds & _COMPILING != 0)),
        _keep_outermost_rows(tree, runtime & (kinds & _GRAPH != 0)),
        _keep_outermost_rows(tree, annotated & (kinds & _LOADER != 0)),
        optimizer,
        within,
    )


@lru_cache(4096)
def _match_phase_patterns(name: str) -> int:
    """Match a name against the patterns: a bit for each that matches at its start."""
    start, kinds = name[:MAX_NAME], 0
    for kind, pattern in _PATTERNS.items():
        if pattern.match(start):
            kinds |= kind
    return kinds


def _keep_outermost_rows(tree: CallTree, mask: Mask) -> Mask:
    """Keep the rows of the mask that no other row of the mask encloses; an empty result is a broadcast scalar."""
    rows = mask.nonzero()[0]
    if not len(rows):
        return broadcast_value(np.False_, len(mask))
    if len(rows) < 2:
        return mask
    out = mask.copy()
    out[rows[tree.nearest(mask, rows) >= 0]] = False
    return out


def find_step_thread(trace: Trace) -> int | None:
    """Find the thread on which steps and stages are annotated; None if none are."""
    recorded = trace.derived(find_steps_and_stages)
    starts = recorded.stage_rows.ts_ns
    if recorded.step_rows.origin in ("profiler", "range"):
        starts = np.concatenate((recorded.step_rows.ts_ns, starts))
    ranges = mark_rows_of_kind(trace, "host_ops", "range").nonzero()[0]
    rows = ranges[mask_members(trace.numbers("host_ops", "ts_ns")[ranges], starts)]
    threads, counts = np.unique(trace.numbers("host_ops", "thread")[rows], return_counts=True)
    return int(threads[counts.argmax()]) if len(threads) else None


@dataclass(frozen=True, slots=True)
class HostWindows:
    """Windows for counting host work: the steps, then their outermost stages by name.

    `columns` are window, step, occurrence, stage and wall_ns (sum over equal stages). `steps` and `stages`
    are windows in order of start; `stage_slot` is the row of `columns` of each stage.
    """

    step: Nullable
    occurrence: npt.NDArray[np.int32]
    stage: Coded
    columns: Mapping[str, Array]
    steps: StepWindows
    stages: StageWindows
    stage_slot: Ints

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.step)

    def steps_of(self, rows: Ints) -> dict[str, Array]:
        """Select the columns step and occurrence of these rows; row -1 is in no step."""
        values, missing = np.append(self.step.values, 0), np.append(self.step.missing, True)
        occurrence = np.append(self.occurrence, np.int32(0))[rows]
        return {"step": Nullable(values[rows], missing[rows]), "occurrence": occurrence}

    def step_at(self, ts_ns: Ints) -> Ints:
        """Find the row of the step that contains each instant; -1 if outside all steps."""
        return self.steps.or_start_at(ts_ns)

    def stage_at(self, ts_ns: Ints) -> Ints:
        """Find the row of the stage that contains each instant; -1 if outside all stages."""
        row = self.stages.or_start_at(ts_ns)
        return np.where(row >= 0, self.stage_slot[row], -1) if len(self.stage_slot) else row

    def both(self, ts_ns: Ints) -> tuple[Ints, Ints]:
        """List (positions, rows): each instant once for its step and once for its stage, if any."""
        step, stage = self.step_at(ts_ns), self.stage_at(ts_ns)
        positions = np.concatenate(((step >= 0).nonzero()[0], (stage >= 0).nonzero()[0]))
        return positions, np.concatenate((step[step >= 0], stage[stage >= 0]))

    def covered(self, busy: Intervals) -> Ints:
        """Compute how much of every row these intervals cover, ns."""
        of_steps = measure_coverage(busy, self.steps.ts_ns, self.steps.end_ns)
        of_stages = measure_coverage(busy, self.stages.ts_ns, self.stages.end_ns)
        slot = np.concatenate((np.arange(len(self.steps)), self.stage_slot))
        return sum_by_group(slot, np.concatenate((of_steps, of_stages)), len(self))


def build_host_windows(trace: Trace) -> HostWindows:
    """Build the windows for counting host work from the steps and outermost stages of a trace."""
    steps, stages = (trace.derived(find_steps_and_stages).step_rows, trace.derived(select_outer_ranges))
    step_row, texts = steps.or_start_at(stages.ts_ns), stages.stage.texts
    width = len(texts) + 1
    keys, group = number_keys((step_row + 1) * width + stages.stage.codes + 1)
    rows = np.concatenate((np.arange(len(steps)), keys // width - 1))
    wall = sum_by_group(group, stages.dur_ns, len(keys))
    step = steps.numbers(rows)
    no_stage = np.full(len(steps), -1)
    stage = trim_texts(Coded(np.concatenate((no_stage, keys % width - 1)), texts))
    occurrence = np.append(steps.occurrence, np.int32(0))[rows]
    columns: dict[str, Array] = {
        "window": Coded(np.repeat(np.array([0, 1], np.int8), (len(steps), len(keys))), ("step", "stage")),
        "step": step,
        "occurrence": occurrence,
        "stage": stage,
        "wall_ns": np.concatenate((steps.dur_ns, wall)),
    }
    slot = group.astype(np.int64) + len(steps)
    return HostWindows(step, occurrence, stage, columns, steps, stages, slot)


def measure_uncovered_time(start: Ints, end: Ints) -> Ints:
    """Compute the part of each interval that no earlier interval covers; the parts add up to the union."""
    order = np.lexsort((-end, start))
    reach = np.maximum.accumulate(end[order])
    before = np.concatenate((start[order][:1], reach[:-1]))
    own_ns = np.empty(len(start), np.int64)
    own_ns[order] = np.maximum(end[order] - np.maximum(start[order], before), 0)
    return own_ns


def unite_device_busy_time(trace: Trace) -> dict[int, Intervals]:
    """Compute when each device runs anything, by position of the device among those recorded."""
    number = trace.derived(number_devices_by_appearance)
    start = trace.numbers("device_ops", "ts_ns")
    end = start + trace.numbers("device_ops", "dur_ns")
    return {int(n): merge_intervals(start[number == n], end[number == n]) for n in find_distinct(number)}


def number_devices_by_appearance(trace: Trace) -> Ints:
    """Find the position of each op's device among those recorded, in order of appearance."""
    device = trace.nullable("device_ops", "device")
    return group_arrays([np.where(device.missing, -1, device.values)])[0]


def mark_single_kernels(trace: Trace) -> Mask:
    """Mark compute kernels with a known launch of their own, not that of a whole graph."""
    return mark_rows_of_kind(trace, "device_ops", "kernel") & mark_single_device_ops(trace)


def mark_single_device_ops(trace: Trace) -> Mask:
    """Mark compute kernels, copies and fills with a known launch of their own."""
    side: HostPhases = trace.derived(classify_host_rows)
    links: Launches = trace.derived(find_launches)
    called = (links.call >= 0).nonzero()[0]
    by_graph = np.zeros(len(links.linked), np.bool_)
    by_graph[called] = side.graph_launch[links.call[called]]
    works = mark_rows_of_kind(trace, "device_ops", "kernel", "memcpy", "memset")
    return works & links.linked & ~by_graph
