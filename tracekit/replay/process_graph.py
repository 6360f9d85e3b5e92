"""The dependency graph of one process, built in the worker that read its trace."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.sources import Source
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, Columns, Nullable, concatenate_like_arrays, make_bare, select_rows
from tracekit.model.tables.keys import QUEUE, find_distinct, group_arrays
from tracekit.model.trace import Trace
from tracekit.process.collectives.arguments import ARGS as COLLECTIVE_ARGS
from tracekit.process.collectives.table import Collectives, list_collectives
from tracekit.process.ops.op_classes import classify_device_ops
from tracekit.process.ops.shapes import DIMS, TYPES
from tracekit.process.steps.stage_lookup import select_outer_stages
from tracekit.process.steps.windows import StageWindows, find_steps_and_stages
from tracekit.replay.edges import HAND_OVER, EdgeList, Edges, Ints, Mask, Numbers
from tracekit.replay.process_parts.call_waits import CallWaits, add_call_waits
from tracekit.replay.process_parts.device_ops import DeviceOps, add_device_edges, list_device_ops, list_launched_ops
from tracekit.replay.process_parts.hand_overs import add_hand_overs
from tracekit.replay.process_parts.host_load import HostLoad, measure_host_load
from tracekit.replay.process_parts.host_threads import CallPaths, HostThreads, add_host_edges, build_host_threads
from tracekit.replay.process_parts.kernel_work import KernelWork, number_kernel_work
from tracekit.replay.process_parts.recorded_waits import read_recorded_waits

READS = frozenset(
    {
        *("host_ops", "device_ops", "device_ranges", "syncs", "windows"),
        *("threads", "python_calls", "memory_ops", "thread_states"),
    }
)
"""Raw tables that a graph is built from."""
ARGUMENTS = (*COLLECTIVE_ARGS, DIMS, TYPES, "grid")
"""Recorded arguments that a graph is built from."""

ISSUE_NS = 100_000
"""Longest time that handing a collective to a thread of the library takes by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Collectives of a process: `rows` of the table `collectives`, and the instants between which each takes place.

    `op` is the first device op of each, -1 on the host. There, the instants bound the exchange between ranks, without the copies
    before and after it. Where `begin` is -1 the instants are unknown.
    """

    rows: Columns
    begin: Numbers
    end: Numbers
    op: Ints


@dataclass(frozen=True, slots=True, eq=False)
class StepBounds:
    """Steps of a process, with the instants at which each begins and ends; `number` may be missing."""

    number: Nullable
    begin: Numbers
    end: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class ProcessGraph:
    """Dependency graph of one process: instants, edges between them, and what rows and ops they belong to.

    Instants are those of host threads (`host_count`, in the order of `HostThreads`), then the start and end of each op.
    `path` is what a thread does from each host instant on. `classes` marks the ops of each class (`process.ops.op_classes`).
    `records_waits`: all waits between streams are recorded, and none is inferred from other steps and ranks.
    """

    source: Source
    time: Ints
    host_count: int
    thread: npt.NDArray[np.int32]
    path: Numbers
    paths: CallPaths
    ops: DeviceOps
    classes: Mapping[str, Mask]
    edges: Edges
    meetings: Meetings
    steps: StepBounds
    stages: StageWindows
    waits: CallWaits
    hand_overs: int
    records_waits: bool
    load: HostLoad
    work: KernelWork


def build_process_graph(trace: Trace) -> ProcessGraph:
    """Build the graph of one process from its trace."""
    threads, edges = build_host_threads(trace), EdgeList()
    first = len(threads.time)
    listed = list_device_ops(trace, threads)
    recorded = read_recorded_waits(trace, list_launched_ops(trace, listed))
    ops = add_device_edges(threads, listed, first, edges, recorded)
    waits = add_call_waits(trace, threads, ops, first, edges, recorded)
    meetings = _list_meetings(trace, threads, ops, first, edges)
    hand_overs = add_hand_overs(threads, edges)
    add_host_edges(threads, edges)
    time = np.concatenate((threads.time, np.stack((ops.start, ops.end), 1).reshape(-1)))
    return ProcessGraph(
        trace.source,
        time,
        first,
        threads.thread,
        threads.path,
        threads.paths,
        ops,
        {name: mask[ops.row] for name, mask in classify_device_ops(trace).items()},
        edges.build(),
        meetings,
        _find_step_bounds(trace, threads),
        trace.derived(select_outer_stages),
        waits,
        hand_overs,
        recorded.is_complete,
        measure_host_load(trace),
        number_kernel_work(trace, ops.row),
    )


def _find_step_bounds(trace: Trace, threads: HostThreads) -> StepBounds:
    """Find the instants at which steps begin and end, on the thread with an instant at all of them."""
    steps = trace.derived(find_steps_and_stages).step_rows
    bounds = np.full((2, len(steps)), -1, np.int32)
    for thread in find_distinct(threads.thread).tolist():
        asked = np.full(len(steps), thread, np.int64)
        found = [threads.find_instants(asked, times) for times in (steps.ts_ns, steps.end_ns)]
        exact = [
            (place >= 0) & (np.append(threads.time, 0)[place] == times)
            for place, times in zip(found, (steps.ts_ns, steps.end_ns), strict=True)
        ]
        both = exact[0] & exact[1] & (bounds[0] < 0)
        bounds[:, both] = np.stack(found)[:, both]
    kept = np.flatnonzero(bounds[0] >= 0)
    number = steps.step
    return StepBounds(Nullable(number.values[kept], number.missing[kept]), bounds[0][kept], bounds[1][kept])


def _list_meetings(trace: Trace, threads: HostThreads, ops: DeviceOps, first: int, edges: EdgeList) -> Meetings:
    """List the collectives with their instants; those of the host begin with the call that issued them."""
    listed: Collectives = trace.derived(list_collectives)
    rows = listed.rows
    count = len(rows)
    op = np.full(count, -1, np.int64)
    begin, end = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    if not count:
        return Meetings(rows, begin, end, op)
    start, dur = listed.numbers("ts_ns"), listed.numbers("dur_ns")
    if listed.on_device:
        op = _find_ops_of_collectives(trace, ops, rows)
        known = np.flatnonzero(op >= 0)
        begin[known] = first + 2 * op[known]
        end[known] = first + 2 * op[known] + 1
        return Meetings(rows, begin, end, op)
    thread = _find_threads_of_ranges(trace, start, dur)
    known = np.flatnonzero(thread >= 0)
    begin[known] = threads.find_instants(thread[known], start[known])
    end[known] = threads.find_instants(thread[known], start[known] + dur[known])
    _add_issues(trace, threads, listed, begin, edges)
    _narrow_to_exchange(threads, group_arrays([rows["op"]])[0], begin, end)
    return Meetings(rows, begin, end, op)


def _find_ops_of_collectives(trace: Trace, ops: DeviceOps, rows: Columns) -> Ints:
    """Find the device op that each collective starts with."""
    mine = np.flatnonzero(ops.is_collective)
    asked = [make_bare(rows[name]) for name in ("ts_ns", *QUEUE)]
    recorded: list[Array] = [trace.numbers("device_ops", "ts_ns")]
    recorded += [trace.nullable("device_ops", name) for name in QUEUE]
    of_ops = [select_rows(column, ops.row[mine]) for column in recorded]
    number, _ = group_arrays([concatenate_like_arrays(pair) for pair in zip(of_ops, asked, strict=True)])
    op = np.full(int(number.max(initial=-1)) + 1, -1, np.int64)
    op[number[: len(mine)][::-1]] = mine[::-1]
    found: Ints = op[number[len(mine) :]]
    return found


def _find_threads_of_ranges(trace: Trace, start: Ints, dur: Ints) -> Ints:
    """Find the thread of the row of `host_ops` with each start and duration; -1 for none."""
    columns = [
        np.concatenate((trace.numbers("host_ops", name), asked)) for name, asked in (("ts_ns", start), ("dur_ns", dur))
    ]
    number, _ = group_arrays(columns)
    rows = trace.row_count("host_ops")
    thread = np.full(int(number.max(initial=-1)) + 1, -1, np.int64)
    thread[number[:rows][::-1]] = trace.numbers("host_ops", "thread")[::-1]
    found: Ints = thread[number[rows:]]
    return found


def _narrow_to_exchange(threads: HostThreads, op: Ints, begin: Numbers, end: Numbers) -> None:
    """Narrow host collectives that contain other rows (the copies of gloo) to the stretch in which ranks exchange data.

    Of collectives of one op with equally many instants, it is the stretch between inner rows that is longest in total.
    """
    pieces = np.where(begin >= 0, end - begin, 0).astype(np.int64)
    several = np.flatnonzero(pieces > 1)
    if not len(several):
        return
    length = pieces[several]
    row = np.repeat(np.arange(len(several)), length)
    place = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
    instant = begin[several][row] + place
    own = threads.path[instant] == threads.path[begin[several]][row]
    spent = np.where(own, threads.time[instant + 1] - threads.time[instant], 0)
    kind, _ = group_arrays([op[several], pieces[several]])
    key, of_key = np.unique(np.stack((kind[row], place), 1), axis=0, return_inverse=True)
    total = np.bincount(of_key.reshape(-1), weights=spent)
    order = np.lexsort((total, key[:, 0]))
    last = order[np.append(np.diff(key[order, 0]) != 0, [True])]
    chosen = np.zeros(int(kind.max()) + 1, np.int64)
    chosen[key[last, 0]] = key[last, 1]
    begin[several] += chosen[kind].astype(np.int32)
    end[several] = begin[several] + 1


def _add_issues(trace: Trace, threads: HostThreads, listed: Collectives, begin: Numbers, edges: EdgeList) -> None:
    """Add the edge from each call that issues a host collective to its start on the thread of the library."""
    issue = listed.nullable("issue_ns")
    known = np.flatnonzero(~issue.missing & (begin >= 0))
    starts = trace.numbers("host_ops", "ts_ns")
    order = np.argsort(starts, kind="stable")
    place = np.searchsorted(starts[order], issue.values[known])
    row = order[np.minimum(place, len(order) - 1)] if len(order) else place
    call = threads.find_instants(trace.numbers("host_ops", "thread")[row], issue.values[known])
    fits = (call >= 0) & (threads.thread[call] != threads.thread[begin[known]])
    known, call = known[fits], call[fits]
    lag = np.maximum(threads.time[begin[known]] - threads.time[call], 0)
    edges.add(call, begin[known], np.minimum(lag, ISSUE_NS), HAND_OVER, -1, inferred=True)
