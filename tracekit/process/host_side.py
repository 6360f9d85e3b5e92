"""What the host is busy with, told by names: ops, launches, the optimizer, loading, compiling, allocating."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import Intervals, covered, union, union_all
from tracekit.model.keys import numbered, summed
from tracekit.model.trace import Trace
from tracekit.process.by_name import is_named
from tracekit.process.host_activity import (
    HostActivity,
    SyncCalls,
    host_activity,
    launching_threads,
    sync_calls,
)
from tracekit.process.launches import Launches, launches
from tracekit.process.nesting import Nesting, nesting
from tracekit.process.sound import sound_dur_ns
from tracekit.process.stage_at import outermost_ranges
from tracekit.process.stalls import opening_ns
from tracekit.process.steps import step_at, windows

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SHORT_NS = 10_000
"""A kernel or an op call of less is short: starting it costs about as much as what it does."""

PAUSE_NS = 1_000_000
"""A GPU gap of more is a pause of the host, not the time that one launch takes."""

MAX_NAME = 300
"""How much of a name is looked at."""

_LAUNCH = re.compile(r"(?!\w*LaunchHostFunc)(cuda|cu|hip)\w*Launch")
_GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch")
_SYNC = re.compile(
    r"(cuda|cu|hip)(Stream|Device|Event|Ctx)Synchronize|(cuda|cu|hip)Memcpy(?!\w*Async)"
)
_ALLOCATOR = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostMalloc|HostFree)(?!\w*Async)"
    r"|(cu|hip)Mem(Alloc|Free|Create|Release|Map|Unmap|HostAlloc)(?!\w*Async)"
)
_COMPILING = re.compile(
    r".*(\(dynamo_timed\)|compile_fx|compile_inner|TorchInductor|async_compile|CachingAutotuner"
    r"|[Tt]riton\S{0,80}[ .:]+(compile|jit)|JITFunction|(nv|hip)rtc"
    r"|(cuda|cu|hip)GraphInstantiate"
    r"|(cu|cuda|hip)(Module|Library)Load|cuLink(Create|Add|Complete)|Lazy Function Loading)",
    re.DOTALL,
)
_LOADER = re.compile(r"enumerate\(DataLoader\)#")
_OPTIMIZER = re.compile(r"Optimizer\.step#")
_ANNOTATION = re.compile(r"Optimizer\.|enumerate\(DataLoader\)|ProfilerStep")


@dataclass(frozen=True, slots=True)
class HostSide:
    """Per row of `host_ops`, what it is; `within_optimizer` is the nearest Optimizer.step around it, or -1.

    `leaf`: an op without an op inside it; `call`: an op that no op encloses; `launch`, `sync`, `allocator`,
    `compiling`, `loader`: the outermost of their like, so that a driver call within a runtime call counts once.
    """

    op: Mask
    leaf: Mask
    call: Mask
    launch: Mask
    graph_launch: Mask
    sync: Mask
    allocator: Mask
    compiling: Mask
    loader: Mask
    optimizer: Mask
    within_optimizer: Ints


def host_side(trace: Trace) -> HostSide:
    """What every row of `host_ops` is."""
    host = trace.get("host_ops")
    tree: Nesting = trace.derived(nesting)
    # Profilers of 2021 record annotations as ops.
    op = (host["kind"] == "op").to_numpy() & ~_named(host, _ANNOTATION)
    rows = np.flatnonzero(op)
    above = tree.nearest(op, rows)
    leaf, call = op.copy(), op.copy()
    leaf[above[above >= 0]] = False
    call[rows[above >= 0]] = False
    runtime = (host["kind"] == "runtime").to_numpy()
    timed = host["kind"].isin(("op", "range", "runtime", "overhead")).to_numpy()
    annotated = host["kind"].isin(("op", "range")).to_numpy()
    launch = _outermost(tree, runtime & _named(host, _LAUNCH))
    optimizer = annotated & _named(host, _OPTIMIZER)
    within = np.full(len(host), -1, np.int64)
    if optimizer.any():
        within = tree.nearest(optimizer, np.arange(len(host)))
    return HostSide(
        op,
        leaf,
        call,
        launch,
        launch & _named(host, _GRAPH_LAUNCH),
        _outermost(tree, runtime & _named(host, _SYNC)),
        _outermost(tree, runtime & _named(host, _ALLOCATOR)),
        _outermost(tree, timed & _named(host, _COMPILING)),
        _outermost(tree, annotated & _named(host, _LOADER)),
        optimizer,
        within,
    )


def _named(host: pd.DataFrame, pattern: re.Pattern[str]) -> Mask:
    """Which rows have a name that the pattern matches from its start; never a row without a name."""
    return is_named(host["name"], lambda name: pattern.match(name[:MAX_NAME]))


def _outermost(tree: Nesting, mask: Mask) -> Mask:
    """The rows of the mask that no other row of it encloses."""
    rows = np.flatnonzero(mask)
    out = mask.copy()
    out[rows[tree.nearest(mask, rows) >= 0]] = False
    return out


def step_thread(trace: Trace) -> int | None:
    """The thread on which steps and stages are annotated; None where none is."""
    host, steps_and_stages = trace.get("host_ops"), trace.derived(windows)
    profiled = steps_and_stages.steps[steps_and_stages.steps["origin"].isin(("profiler", "range"))]
    starts = np.concatenate(
        (profiled["ts_ns"].to_numpy(), steps_and_stages.stages["ts_ns"].to_numpy())
    )
    mask = (host["kind"] == "range").to_numpy() & host["ts_ns"].isin(starts).to_numpy()
    threads, counts = np.unique(host["thread"].to_numpy()[mask], return_counts=True)
    return int(threads[counts.argmax()]) if len(threads) else None


@dataclass(frozen=True, slots=True)
class HostWindows:
    """The steps, then their outermost stages by name: where host work is counted.

    `frame` has window, step, occurrence, stage, wall_ns (Σ of equal stages); `steps` and `stages` are windows
    in order of start, `stage_slot` the row of `frame` that each stage belongs to.
    """

    frame: pd.DataFrame
    steps: pd.DataFrame
    stages: pd.DataFrame
    stage_slot: Ints

    def step_at(self, ts_ns: Ints) -> Ints:
        """The row of the step that each instant lies in, -1 outside all."""
        return step_at(self.steps, ts_ns)

    def stage_at(self, ts_ns: Ints) -> Ints:
        """The row of the stage of its step that each instant lies in, -1 outside all."""
        row = step_at(self.stages, ts_ns)
        return np.where(row >= 0, self.stage_slot[row], -1) if len(self.stage_slot) else row

    def both(self, ts_ns: Ints) -> tuple[Ints, Ints]:
        """(positions, rows): each instant once for its step and once for its stage, as far as it has them."""
        step, stage = self.step_at(ts_ns), self.stage_at(ts_ns)
        positions = np.concatenate((np.flatnonzero(step >= 0), np.flatnonzero(stage >= 0)))
        return positions, np.concatenate((step[step >= 0], stage[stage >= 0]))

    def covered(self, busy: Intervals) -> Ints:
        """How much of every row these intervals cover, by time."""
        out = np.zeros(len(self.frame), np.int64)
        for windows_, slot in (
            (self.steps, np.arange(len(self.steps))),
            (self.stages, self.stage_slot),
        ):
            start = windows_["ts_ns"].to_numpy()
            np.add.at(out, slot, covered(busy, start, start + windows_["dur_ns"].to_numpy()))
        return out


def host_windows(trace: Trace) -> HostWindows:
    """The steps and outermost stages of a trace as places to count in."""
    steps, stages = trace.derived(windows).steps, trace.derived(outermost_ranges)
    step_row = step_at(steps, stages["ts_ns"].to_numpy())
    codes = stages["stage"].cat.codes.to_numpy().astype(np.int64)
    width = len(stages["stage"].cat.categories) + 1
    keys, group = numbered((step_row + 1) * width + codes + 1)
    step, name = keys // width - 1, keys % width - 1
    names = np.array([*stages["stage"].cat.categories, None], object)
    wall = summed(group, stages["dur_ns"].to_numpy(), len(keys))
    number = pd.Series(steps["step"].array, dtype="Int64").reindex(step).array
    occurrence = np.array([*steps["occurrence"], 0], np.int32)[step]
    frame = pd.DataFrame(
        {
            "window": ["step"] * len(steps) + ["stage"] * len(keys),
            "step": pd.concat([pd.Series(steps["step"].array), pd.Series(number)]).array,
            "occurrence": np.concatenate((steps["occurrence"].to_numpy(np.int32), occurrence)),
            "stage": np.concatenate((np.full(len(steps), None, object), names[name])),
            "wall_ns": np.concatenate((steps["dur_ns"].to_numpy(), wall)),
        }
    )
    return HostWindows(frame, steps, stages, group.astype(np.int64) + len(steps))


def uncounted(start: Ints, end: Ints) -> Ints:
    """Of each interval, what no interval that began before it covers: adds up to the union of all."""
    order = np.lexsort((-end, start))
    reach = np.maximum.accumulate(end[order])
    before = np.concatenate((start[order][:1], reach[:-1]))
    own_ns = np.empty(len(start), np.int64)
    own_ns[order] = np.maximum(end[order] - np.maximum(start[order], before), 0)
    return own_ns


def device_busy(trace: Trace) -> dict[int, Intervals]:
    """When each device runs anything; by position of the device among those recorded."""
    ops = trace.get("device_ops")
    number, _ = pd.factorize(ops["device"], use_na_sentinel=False)
    start = ops["ts_ns"].to_numpy()
    end = start + trace.derived(sound_dur_ns)
    return {int(n): union(start[number == n], end[number == n]) for n in np.unique(number)}


def launch_gaps(trace: Trace) -> list[Intervals]:
    """Per device, the gaps in which it waits for the launch of a single kernel (the launch-bound idle of Q6).

    A gap before a kernel whose launch began after the device ran dry. Not counted: gaps longer than
    `PAUSE_NS`, before a graph, within Optimizer.step, before the first op of a stage that follows another
    one, or with a synchronising, loading, collecting, compiling or allocating call in them or returning
    as they begin: those have causes, and rules, of their own.
    """
    if not trace.has("device_ops", "host_ops"):
        return []
    ops = trace["device_ops"]
    side, links = trace.derived(host_side), trace.derived(launches)
    start = ops["ts_ns"].to_numpy()
    end = start + trace.derived(sound_dur_ns)
    single = ordinary(trace) & (links.call >= 0)
    single[single] = side.within_optimizer[links.call[single]] < 0
    causes = _elsewhere(trace, side)
    number, _ = pd.factorize(ops["device"], use_na_sentinel=False)
    by_device = []
    for device in np.unique(number):
        rows = np.flatnonzero(number == device)
        rows = rows[np.lexsort((~single[rows], start[rows]))]
        before = np.concatenate((start[rows[:1]], np.maximum.accumulate(end[rows])[:-1]))
        length = start[rows] - before
        bound = (length > 0) & (length <= PAUSE_NS) & single[rows] & (links.ts_ns[rows] >= before)
        bound &= ~np.isin(start[rows], opening_ns(trace, rows))
        begin, stop = before[bound], start[rows][bound]
        free = covered(causes, begin, stop) == 0
        by_device.append(union(begin[free], stop[free]))
    return by_device


def ordinary(trace: Trace) -> Mask:
    """Which device ops are compute kernels with a known launch that was not that of a whole graph."""
    side: HostSide = trace.derived(host_side)
    links: Launches = trace.derived(launches)
    kernel = (trace["device_ops"]["kind"] == "kernel").to_numpy()
    called = np.flatnonzero(links.call >= 0)
    by_graph = np.zeros(len(kernel), np.bool_)
    by_graph[called] = side.graph_launch[links.call[called]]
    return kernel & links.linked & ~by_graph


def _elsewhere(trace: Trace, side: HostSide) -> Intervals:
    """When a launching thread is in a call that explains a gap by itself, or returns from one that waits."""
    host = trace["host_ops"]
    feeding = launching_threads(trace, np.arange(len(trace["device_ops"])))
    syncs: SyncCalls = trace.derived(sync_calls)
    waits = side.sync.copy()
    waits[syncs.row] = True
    rows = np.flatnonzero((waits | side.allocator | side.compiling | side.loader) & feeding)
    start = host["ts_ns"].to_numpy()[rows]
    length = np.maximum(host["dur_ns"].to_numpy()[rows], 1)
    # A gap that begins just as such a call returns follows it.
    length = np.where(waits[rows], host["dur_ns"].to_numpy()[rows] + 1, length)
    did: HostActivity = trace.derived(host_activity)
    return union_all([union(start, start + length), did.loader, did.collection])
