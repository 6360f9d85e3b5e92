"""Carrying out a change: it alters weights of a graph, and may remove and add edges. Changes compose."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.system.freed_memory import release_freed_memory
from tracekit.process.host.tree import HOLDER
from tracekit.replay.changes import ChangeError, RunChange
from tracekit.replay.changing.equalising import equalise_work
from tracekit.replay.changing.host_selection import find_repeated_calls, select_host_edges
from tracekit.replay.changing.overlapping import (
    HAND_OVER_NS,
    Passes,
    list_early_reductions,
    list_gather_passes,
    list_reduction_passes,
    start_earlier,
    wait_later,
)
from tracekit.replay.changing.selection import (
    MICRO,
    JobIndex,
    mark_windows,
    select_host_transfers,
    select_ops,
)
from tracekit.replay.edges import (
    ARRIVAL,
    COPY,
    DEVICE_KINDS,
    HAND_OVER,
    HOST_KINDS,
    KERNEL,
    LAUNCH,
    OVERLAP,
    OWN_LENGTH,
    STREAM_GAP,
    STREAM_WAIT,
    SYNC_RETURN,
    TRANSFER,
    Ints,
    Mask,
    Numbers,
    Rows,
    Weights,
)
from tracekit.replay.paths import NEVER

ASYNC_CALL_NS = 4 * MICRO
"""Host time of an asynchronous copy."""

LONGEST_LAUNCH_NS = 100 * MICRO
"""Longest stretch of host time between the begins and ends of rows that launches take; longer ones load, compile or compute."""

_LOADER = r"enumerate\(DataLoader\)"

_HOST_COLLECTIVE = "^(?:gloo|mpi|ucc):"
"""Rows in which a host thread carries out a collective."""

LENGTHS = (KERNEL, COPY, TRANSFER)
"""Edges that are the length of an op."""

MOST_NS = 10**15
"""Longest time that a change may make of an edge: sums of such times are numbers of 64 bits."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Work that a change touched: ops, calls that waited, and host time."""

    ops: int
    waits: int
    host_ns: int


def apply_change(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Carry out a change. Raises `ChangeError` if it selects nothing, or touches what it does not name."""
    mark = weights.mark()
    _VERBS[change.do](index, weights, change)
    # Selections of a thousand ranks leave holes of a few hundred MB.
    release_freed_memory()
    if len(weights.added) == mark[1] and not weights.is_altered(mark):
        raise ChangeError(f"nothing in this run matches {change.describe()}", index.suggest(change))


def count_touched(index: JobIndex, weights: Weights, mark: tuple[int, int]) -> Touched:
    """Count the work that changes since a mark touched."""
    rows, before = weights.list_altered(mark)
    kind, owners = index.job.edges.kind[rows], index.job.edges.owner[rows]
    gone = np.minimum(np.maximum(before - weights.weight[rows], 0), np.maximum(before, 0))
    owners = owners[np.isin(kind, LENGTHS)]
    return Touched(
        len(np.unique(owners[owners >= 0])) + int((owners < 0).sum()),
        int((kind == SYNC_RETURN).sum()),
        int(gone[np.isin(kind, HOST_KINDS)].sum()),
    )


def _scale(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Multiply lengths by a factor, or shorten them to a length; of a range those of the host and of all that it launches."""
    host = (
        select_host_edges(index, change.where, returns=change.do == "scale")
        if change.on in ("host", "range")
        else np.empty(0, np.int64)
    )
    ops = np.empty(0, np.int64)
    if change.on == "range":
        ops = select_ops(index, change.where, "all")
    elif change.on == "collective" and len(transfers := select_host_transfers(index, change.where)):
        host, ops = transfers, select_ops(index, change.where, change.on)
    elif change.on != "host":
        ops = _pick_ops(index, change)
    rows = np.concatenate((host, _find_lengths(index, ops)))
    old = weights.weight[rows]
    if change.do == "scale":
        new = _multiply(old, change.factor or 0)
    else:
        new = np.minimum(old, int((change.to_us or 0) * MICRO))
    weights.put(rows, np.where(old > NEVER, new, old))


def _multiply(weight: Ints, factor: float) -> Ints:
    """Multiply weights, up to a length that no run has."""
    multiplied: Ints = np.clip(weight * factor, NEVER, MOST_NS).astype(np.int64)
    return multiplied


def _pick_ops(index: JobIndex, change: RunChange) -> Ints:
    ops = select_ops(index, change.where, change.on)
    if not len(ops):
        raise ChangeError(f"no op in this run matches {change.describe()}", index.suggest(change))
    return ops


def _find_lengths(index: JobIndex, ops: Ints) -> Rows:
    """Find the edges that are the length of the ops."""
    chosen = np.zeros(int(index.job.first_op[-1]) + 1, np.bool_)
    chosen[ops] = True
    return _list_owned(index, chosen, *LENGTHS)


def _list_owned(index: JobIndex, chosen: Mask, *kinds: int) -> Rows:
    """List the edges that chosen ops own, by kind; the last element of `chosen` is for no op."""
    rows = index.list_edges(*kinds)
    return rows[chosen[index.job.edges.owner[rows]]]


def _unwait(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Drop the waits of the selected calls, which then cost nothing."""
    rows = index.list_edges(SYNC_RETURN)
    weights.put(rows[_mark_calls(index, change, rows)], NEVER)


def _mark_calls(index: JobIndex, change: RunChange, rows: Rows) -> Mask:
    """Mark the returns of calls that a change selects."""
    edges, where = index.job.edges, change.where
    path, at = edges.owner[rows], index.job.time[edges.target[rows]] - 1
    chosen = mark_windows(index, where, index.find_edge_processes(rows), at)
    if where.by:
        chosen &= index.match_within(where.by)[path]
    if where.row:
        chosen &= index.match_paths(where.row)[path]
    return chosen


def _unblock(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Make copies asynchronous; the synchronization after them goes with them."""
    ops, edges = _pick_ops(index, change), index.job.edges
    _refuse_several_directions(index, ops, change)
    chosen = np.zeros(len(index.job.time) + 2, np.bool_)
    chosen[index.op_start[ops] + 1] = True
    rows = index.list_edges(SYNC_RETURN)
    rows = rows[chosen[edges.source[rows]]]
    weights.put(rows, NEVER)
    ends = np.concatenate((edges.target[rows], index.find_call_ends(ops)))
    host = index.list_edges(*HOST_KINDS)
    host = host[np.isin(edges.target[host], ends)]
    weights.put(host, np.minimum(weights.weight[host], ASYNC_CALL_NS))


def _refuse_several_directions(index: JobIndex, ops: Ints, change: RunChange) -> None:
    """Refuse to make copies of several directions asynchronous: what reads a value back must wait for it."""
    directions = index.recall(
        (_list_copy_directions, change.where, change.on), lambda: _list_copy_directions(index, ops)
    )
    if len(directions) > 1 and not change.where.by:
        raise ChangeError(
            f"op {change.where.op!r} selects {len(directions)} kinds of ops: {', '.join(sorted(directions)[:4])}",
            'name one direction: op="Pageable -> Device", or the op that copies: by=aten::to',
        )


def _list_copy_directions(index: JobIndex, ops: Ints) -> set[str]:
    """List the directions of copies, as their names give them."""
    names: set[str] = set()
    for number, (graph, mine) in enumerate(index.split_by_process(index.op_process[ops])):
        codes = np.unique(graph.ops.name.codes[ops[mine] - index.job.first_op[number]])
        names.update((*graph.ops.name.texts, "")[code] for code in codes.tolist())
    return {name.split("(")[0].strip() for name in names}


def _remove(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Remove ops, or a range with its host time, its waits and all ops that it launched."""
    if change.on == "range":
        rows = select_host_edges(index, change.where)
        weights.put(rows, np.where(weights.weight[rows] > NEVER, 0, weights.weight[rows]))
        _unwait(index, weights, change)
        ops = select_ops(index, change.where, "all")
        if not len(rows) and not len(ops):
            raise ChangeError(f"no range in this run matches {change.describe()}", index.suggest(change))
    elif change.on == "collective" and len(transfers := select_host_transfers(index, change.where)):
        _drop_host_collectives(index, weights, change, transfers)
        return
    else:
        ops = _pick_ops(index, change)
    _drop_ops(index, weights, ops)
    if change.host:
        _drop_host_rows(index, weights, change, ops, index.match_within(change.host))
    elif change.where.work:
        for paths in index.list_launching_ops(ops):
            _drop_host_rows(index, weights, change, ops, paths)


def _drop_ops(index: JobIndex, weights: Weights, ops: Ints) -> None:
    """Remove ops. They keep their place on the stream with no length; what the stream waited for still holds.

    A collective's wait for its input goes with it, and so do the waits for it. The last wait of a step for a removed
    collective passes to the collective kept before it on its stream.
    """
    job, edges = index.job, index.job.edges
    gone = np.zeros(int(job.first_op[-1]) + 1, np.bool_)
    gone[ops] = True
    has_own_length = np.zeros(len(job.time) + 1, np.bool_)
    has_own_length[edges.target[index.list_edges(OWN_LENGTH)]] = True
    transfers = _list_owned(index, gone, TRANSFER)
    previous = index.recall(_find_previous, lambda: _find_previous(index))
    followers = gone & np.append(previous >= 0, False)
    weights.put(_list_owned(index, gone, KERNEL, COPY, STREAM_GAP, OVERLAP), 0)
    weights.put(transfers, np.where(has_own_length[edges.target[transfers]], NEVER, 0))
    weights.put(_list_owned(index, followers, LAUNCH), NEVER)
    weights.put(_list_owned(index, followers & np.append(index.is_collective, False), STREAM_WAIT), NEVER)
    weights.put(_list_owned(index, gone, ARRIVAL), NEVER)
    _pass_waits_on(index, weights, gone, previous)


def _drop_host_collectives(index: JobIndex, weights: Weights, change: RunChange, transfers: Rows) -> None:
    """Remove collectives of host threads: their rows, the waits for them, and with `host` the rows that issue them."""
    edges, host = index.job.edges, index.list_edges(*HOST_KINDS)
    arrivals, hand_overs = index.list_edges(ARRIVAL), index.list_edges(HAND_OVER)
    run = _number_runs(index, host[index.match_within(_HOST_COLLECTIVE)[edges.owner[host]]])
    gone = np.zeros(int(run.max(initial=0)) + 1, np.bool_)
    gone[run[edges.target[transfers]]] = True
    gone[0] = False
    rows = host[gone[run[edges.target[host]]]]
    weights.put(rows, 0)
    weights.put(transfers, NEVER)
    is_begin, is_end = np.zeros(len(run), np.bool_), np.zeros(len(run), np.bool_)
    is_begin[edges.source[rows]] = is_end[edges.target[rows]] = True
    is_begin, is_end = is_begin & ~is_end, is_end & ~is_begin
    of_gone = gone[run[np.minimum(edges.source[arrivals] + 1, len(run) - 1)]]
    weights.put(arrivals[of_gone & (edges.owner[arrivals] < 0)], NEVER)
    issues = hand_overs[is_begin[edges.target[hand_overs]]]
    weights.put(np.concatenate((issues, hand_overs[is_end[edges.source[hand_overs]]])), NEVER)
    if change.host:
        calls = host[index.match_within(change.host)[edges.owner[host]]]
        run = _number_runs(index, calls)
        runs = np.unique(run[edges.source[issues] + 1])
        weights.put(calls[np.isin(run[edges.target[calls]], runs[runs > 0])], 0)


def _number_runs(index: JobIndex, rows: Rows) -> Numbers:
    """Number the runs of host edges that follow one another, from 1, by the instants that they lead to; 0 elsewhere."""
    inside = np.zeros(len(index.job.time) + 1, np.bool_)
    inside[index.job.edges.target[rows]] = True
    starts = inside & ~np.append(False, inside[:-1])
    run = np.cumsum(starts, dtype=np.int32)
    run[~inside] = 0
    return run


def _find_previous(index: JobIndex) -> Ints:
    """Find the op before each on its stream, as numbered in the job; -1 for none."""
    parts = [
        np.where(graph.ops.previous >= 0, graph.ops.previous + index.job.first_op[number], -1).astype(np.int32)
        for number, graph in enumerate(index.job.processes)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _pass_waits_on(index: JobIndex, weights: Weights, gone: Mask, previous: Ints) -> None:
    """Drop the waits for removed collectives; the last of each step waits for the collective kept before instead."""
    job, edges = index.job, index.job.edges
    waits = index.list_edges(STREAM_WAIT)
    waits = waits[weights.weight[waits] > NEVER]
    source = index.find_ops_ending_at(edges.source[waits])
    lost = gone[source] & (source >= 0) & np.append(index.is_collective, False)[source]
    waits, source = waits[lost], source[lost]
    weights.put(waits, NEVER)
    if not len(waits):
        return
    waiting = edges.owner[waits].astype(np.int64)
    at = job.time[edges.target[waits]]
    process = index.op_process[source].astype(np.int64)
    key = process * (2**32) + index.step_at(process, at)
    order = np.lexsort((at, key))
    last = order[np.append(np.diff(key[order]) != 0, [True])]
    kept = previous[source[last]]
    while (removed := (kept >= 0) & gone[kept]).any():
        kept[removed] = previous[kept[removed]]
    good = (kept >= 0) & np.append(index.is_collective, False)[kept]
    target = index.op_start[waiting[last[good]]]
    weights.added.append((index.op_start[kept[good]] + 1, target, np.full(int(good.sum()), HAND_OVER_NS)))


def _drop_host_rows(index: JobIndex, weights: Weights, change: RunChange, ops: Ints, within: Mask) -> None:
    """Remove the host time of the rows, of these paths, that launched nothing but these ops."""
    edges = index.job.edges
    rows = index.list_edges(*HOST_KINDS)
    rows = rows[within[edges.owner[rows]]]
    if not len(rows):
        raise ChangeError("host: no row in this run has such a name", index.suggest_names(change.host or ""))
    # Segments of one row follow one another: number their runs, and remove those in which an op was launched.
    run = _number_runs(index, rows)
    gone = np.zeros(len(index.op_start), np.bool_)
    gone[ops] = True
    runs = np.unique(run[index.find_call_ends(ops)])
    kept = np.unique(run[index.find_call_ends(np.flatnonzero(~gone))])
    runs = np.setdiff1d(runs[runs > 0], kept)
    weights.put(rows[np.isin(run[edges.target[rows]], runs)], 0)
    waits = index.list_edges(SYNC_RETURN)
    weights.put(waits[np.isin(run[edges.target[waits]], runs)], NEVER)


def _overlap(
    weights: Weights,
    change: RunChange,
    move_waits: Callable[[JobIndex, Weights, Passes], tuple[Ints, Ints, Ints]],
    index: JobIndex,
    passes: Passes,
) -> None:
    """Move the waits of collectives. Raises `ChangeError` if there are none to move."""
    mark = weights.mark()
    added = move_waits(index, weights, passes)
    if not weights.is_altered(mark):
        raise ChangeError(
            f"the collectives of {change.describe()} already overlap with compute",
            "faster links or fewer bytes: scale collective factor=0.5",
        )
    if len(added[0]):
        weights.added.append(added)


def _hide(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Let only what a row launches wait for the selected collectives, or what waits for the last of each pass."""
    ops, edges = _pick_ops(index, change), index.job.edges
    if change.until is None:
        passes = index.recall(("reductions", change.where), lambda: list_reduction_passes(index, ops))
        _overlap(weights, change, wait_later, index, passes)
        return
    total = int(index.job.first_op[-1])
    hidden = np.zeros(len(index.job.time) + 2, np.bool_)
    hidden[index.op_start[ops] + 1] = True
    is_collective = np.append(index.is_collective, False)
    waits = index.list_edges(STREAM_WAIT)
    weights.put(waits[hidden[edges.source[waits]] & ~is_collective[edges.owner[waits]]], NEVER)
    within = index.match_within(change.until)
    waiting = np.flatnonzero(within[index.op_path] & ~index.is_collective[:total])
    if not len(waiting):
        raise ChangeError(
            f"until: no row in this run that launches work matches {change.until!r}",
            index.suggest_names(change.until),
        )
    for process in np.unique(index.op_process[ops]).tolist():
        mine = ops[index.op_process[ops] == process]
        candidates = waiting[index.op_process[waiting] == process]
        candidates = candidates[np.argsort(index.op_at_ns[candidates], kind="stable")]
        place = np.searchsorted(index.op_at_ns[candidates], index.op_at_ns[mine])
        fits = place < len(candidates)
        target = index.op_start[candidates[place[fits]]] if len(candidates) else place[fits]
        source = index.op_start[mine[fits]] + 1
        weights.added.append((source, target, np.full(len(source), HAND_OVER_NS)))


def _accumulate(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Reduce gradients once per step of the optimizer."""
    chosen = _pick_ops(index, change)
    ops = index.recall(("early reductions", change.where), lambda: list_early_reductions(index, chosen))
    if not len(ops):
        raise ChangeError(
            f"the collectives of {change.describe()} run once per step of an optimizer, as far as one is recorded",
            "remove collective removes all collectives of this name",
        )
    _drop_ops(index, weights, ops)


def _fuse(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Run selected ops that follow one another on a stream as one op: one launch, and no gaps between them."""
    if change.on == "host":
        _fuse_calls(index, weights, change)
        return
    ops = _pick_ops(index, change)
    chosen = np.zeros(len(index.op_start) + 1, np.bool_)
    chosen[ops] = True
    follows = np.append(chosen[:-1] & chosen[_find_previous(index)], False)
    owned = _list_owned(index, follows, *DEVICE_KINDS)
    if not (weights.weight[owned] > NEVER).any():
        raise ChangeError(f"no two ops of {change.describe()} follow one another on a stream", index.suggest(change))
    gaps = _list_owned(index, follows, STREAM_GAP)
    weights.put(gaps[weights.weight[gaps] > NEVER], 0)
    weights.put(_list_owned(index, follows, LAUNCH), NEVER)
    if change.factor is not None:
        rows = _find_lengths(index, ops)
        weights.put(rows, _multiply(weights.weight[rows], change.factor))


def _fuse_calls(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Run calls that follow one another on a thread as the first one: the others take `factor` of their time, gaps none."""
    calls, gaps = find_repeated_calls(index, change.where)
    if not len(calls):
        raise ChangeError(f"no two calls of {change.describe()} follow one another", index.suggest(change))
    weights.put(calls, _multiply(weights.weight[calls], change.factor or 0.0))
    weights.put(gaps, np.minimum(weights.weight[gaps], 0))


def _equalise(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Let each op, or each stretch of host time, last as long as that of the median rank or step at the same place."""
    equalise_work(index, weights, change)


def _prefetch(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Prepare each batch on another thread: it is ready one preparation / workers after the one before.

    A collective begins as early as the one before it could.
    """
    job, where = index.job, change.where
    if change.on == "collective":
        ops = _pick_ops(index, change)
        passes = index.recall(("gathers", change.where), lambda: list_gather_passes(index, ops))
        _overlap(weights, change, start_earlier, index, passes)
        return
    assert where.range is not None, "the verb requires it"
    rows = select_host_edges(index, where)
    if not len(rows):
        raise ChangeError(f"no range in this run matches {where.range!r}", index.suggest(change))
    inside = np.zeros(len(job.time) + 1, np.bool_)
    inside[job.edges.target[rows]] = True
    begins = np.flatnonzero(inside[:-1] & ~np.append(False, inside[:-2]))
    ends = np.flatnonzero(inside[:-1] & ~inside[1:])
    work = job.time[ends] - job.time[begins - 1]
    weights.put(rows, 0)
    of_end = job.process_of(ends.astype(np.int32))
    same = of_end[1:] == of_end[:-1]
    ready = (work[1:] / (change.workers or 1)).astype(np.int64)
    weights.added.append((ends[:-1][same], ends[1:][same], ready[same]))


def _graph(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Launch all ops of a range with one call. Rows that load data, and long stretches within one row, keep their time."""
    rows = select_host_edges(index, change.where)
    owner = index.job.edges.owner[rows]
    holder = np.append(index.holder, -1)[owner]
    launches = (holder >= 0) & (holder != HOLDER["range"]) & ~index.match_within(_LOADER)[owner]
    rows = rows[launches & (weights.weight[rows] <= LONGEST_LAUNCH_NS)]
    weights.put(rows, _multiply(weights.weight[rows], change.factor or 0))


_VERBS: Mapping[str, Callable[[JobIndex, Weights, RunChange], None]] = {
    "scale": _scale,
    "set": _scale,
    "remove": _remove,
    "unwait": _unwait,
    "unblock": _unblock,
    "hide": _hide,
    "accumulate": _accumulate,
    "fuse": _fuse,
    "equalise": _equalise,
    "prefetch": _prefetch,
    "graph": _graph,
}
