"""Carrying out a change: it alters weights of a graph, and may remove and add edges. Changes compose."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tracekit.model.records import dataclass
from tracekit.process.host.tree import HOLDER
from tracekit.replay.changes import ChangeError, RunChange
from tracekit.replay.edges import (
    ARRIVAL,
    COPY,
    HAND_OVER,
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
)
from tracekit.replay.equalising import equalise_work
from tracekit.replay.overlapping import (
    HAND_OVER_NS,
    Passes,
    list_early_reductions,
    list_gather_passes,
    list_reduction_passes,
    start_earlier,
    wait_later,
)
from tracekit.replay.paths import NEVER
from tracekit.replay.selection import (
    MICRO,
    JobIndex,
    find_repeated_calls,
    mark_windows,
    select_host_edges,
    select_host_transfers,
    select_ops,
)

ASYNC_CALL_NS = 4 * MICRO
"""Host time of an asynchronous copy."""

_HOST_COLLECTIVE = "^(?:gloo|mpi|ucc):"
"""Rows in which a host thread carries out a collective."""

MOST_NS = 10**15
"""Longest time that a change may make of an edge: sums of such times are numbers of 64 bits."""


@dataclass(slots=True)
class Weights:
    """Weights under change: of the edges of the graph, and `added` edges (source, target, weight)."""

    weight: Ints
    added: list[tuple[Ints, Ints, Ints]]

    def copy(self) -> Weights:
        """Copy the state, so that a change can be tried."""
        return Weights(self.weight.copy(), list(self.added))


@dataclass(frozen=True, slots=True)
class Touched:
    """Work that a change touched: ops, calls that waited, and host time. `edges` marks the altered edges."""

    ops: int
    waits: int
    host_ns: int
    edges: Mask


def apply_change(index: JobIndex, weights: Weights, change: RunChange) -> Touched:
    """Carry out a change. Raises `ChangeError` if it selects nothing, or touches what it does not name."""
    before, added = weights.weight.copy(), len(weights.added)
    _VERBS[change.do](index, weights, change)
    altered = before != weights.weight
    if not altered.any() and len(weights.added) == added:
        raise ChangeError(f"nothing in this run matches {change.describe()}", index.suggest(change))
    edges = index.job.edges
    host = np.zeros(len(altered), np.bool_)
    host[index.host_edges] = True
    gone = np.minimum(np.maximum(before - weights.weight, 0), np.maximum(before, 0))
    ops = np.isin(edges.kind, (KERNEL, COPY, TRANSFER)) & altered
    owners = edges.owner[ops]
    return Touched(
        len(np.unique(owners[owners >= 0])) + int((owners < 0).sum()),
        int((altered & (edges.kind == SYNC_RETURN)).sum()),
        int(gone[altered & host].sum()),
        altered,
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
    weights.weight[rows] = np.where(old > NEVER, new, old)


def _multiply(weight: Ints, factor: float) -> Ints:
    """Multiply weights, up to a length that no run has."""
    multiplied: Ints = np.clip(weight * factor, NEVER, MOST_NS).astype(np.int64)
    return multiplied


def _pick_ops(index: JobIndex, change: RunChange) -> Ints:
    ops = select_ops(index, change.where, change.on)
    if not len(ops):
        raise ChangeError(f"no op in this run matches {change.describe()}", index.suggest(change))
    return ops


def _find_lengths(index: JobIndex, ops: Ints) -> Ints:
    """Find the edges that are the length of the ops."""
    edges = index.job.edges
    chosen = np.zeros(int(index.job.first_op[-1]) + 1, np.bool_)
    chosen[ops] = True
    return np.flatnonzero(np.isin(edges.kind, (KERNEL, COPY, TRANSFER)) & chosen[index.edge_op])


def _unwait(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Drop the waits of the selected calls, which then cost nothing."""
    edges = index.job.edges
    rows = np.flatnonzero(edges.kind == SYNC_RETURN)
    rows = rows[_mark_calls(index, change, rows)]
    weights.weight[rows] = NEVER


def _mark_calls(index: JobIndex, change: RunChange, rows: Ints) -> Mask:
    """Mark the returns of calls that a change selects."""
    edges, where = index.job.edges, change.where
    path, at = edges.owner[rows], index.job.time[edges.target[rows]] - 1
    chosen = mark_windows(index, where, index.edge_process[rows], at)
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
    rows = np.flatnonzero((edges.kind == SYNC_RETURN) & chosen[edges.source])
    weights.weight[rows] = NEVER
    ends = np.concatenate((edges.target[rows], index.find_call_ends(ops)))
    host = index.host_edges[np.isin(edges.target[index.host_edges], ends)]
    weights.weight[host] = np.minimum(weights.weight[host], ASYNC_CALL_NS)


def _refuse_several_directions(index: JobIndex, ops: Ints, change: RunChange) -> None:
    """Refuse to make copies of several directions asynchronous: what reads a value back must wait for it."""
    names = {_name_op(index, op) for op in ops.tolist()[:100_000]}
    directions = {name.split("(")[0].strip() for name in names}
    if len(directions) > 1 and not change.where.by:
        raise ChangeError(
            f"op {change.where.op!r} selects {len(directions)} kinds of ops: {', '.join(sorted(directions)[:4])}",
            'name one direction: op="Pageable -> Device", or the op that copies: by=aten::to',
        )


def _name_op(index: JobIndex, op: int) -> str:
    process = int(index.op_process[op])
    graph = index.job.processes[process]
    code = int(graph.ops.name.codes[op - int(index.job.first_op[process])])
    return graph.ops.name.texts[code] if code >= 0 else ""


def _remove(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Remove ops, or a range with its host time, its waits and all ops that it launched."""
    if change.on == "range":
        rows = select_host_edges(index, change.where)
        weights.weight[rows] = np.where(weights.weight[rows] > NEVER, 0, weights.weight[rows])
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
    job, edges, weight = index.job, index.job.edges, weights.weight
    total = int(job.first_op[-1])
    gone = np.zeros(total + 1, np.bool_)
    gone[ops] = True
    owned = gone[index.edge_op]
    has_own_length = np.zeros(len(job.time) + 1, np.bool_)
    has_own_length[edges.target[edges.kind == OWN_LENGTH]] = True
    of_device = np.isin(edges.kind, (KERNEL, COPY))
    weight[owned & of_device] = 0
    transfer = owned & (edges.kind == TRANSFER)
    weight[transfer] = np.where(has_own_length[edges.target[transfer]], NEVER, 0)
    previous = _find_previous(index)
    follows = np.append(previous >= 0, False)
    weight[owned & (edges.kind == LAUNCH) & follows[index.edge_op]] = NEVER
    weight[owned & np.isin(edges.kind, (STREAM_GAP, OVERLAP))] = 0
    is_collective = np.append(index.is_collective, False)
    weight[owned & (edges.kind == STREAM_WAIT) & is_collective[index.edge_op] & follows[index.edge_op]] = NEVER
    weight[owned & (edges.kind == ARRIVAL)] = NEVER
    _pass_waits_on(index, weights, gone, previous)


def _drop_host_collectives(index: JobIndex, weights: Weights, change: RunChange, transfers: Ints) -> None:
    """Remove collectives of host threads: their rows, the waits for them, and with `host` the rows that issue them."""
    edges, weight = index.job.edges, weights.weight
    run = _number_runs(index, index.host_edges[index.match_within(_HOST_COLLECTIVE)[edges.owner[index.host_edges]]])
    gone = np.zeros(int(run.max(initial=0)) + 1, np.bool_)
    gone[run[edges.target[transfers]]] = True
    gone[0] = False
    rows = index.host_edges[gone[run[edges.target[index.host_edges]]]]
    weight[rows] = 0
    weight[transfers] = NEVER
    is_begin, is_end = np.zeros(len(run), np.bool_), np.zeros(len(run), np.bool_)
    is_begin[edges.source[rows]] = is_end[edges.target[rows]] = True
    is_begin, is_end = is_begin & ~is_end, is_end & ~is_begin
    weight[(edges.kind == ARRIVAL) & gone[run[np.minimum(edges.source + 1, len(run) - 1)]] & (edges.owner < 0)] = NEVER
    issues = np.flatnonzero((edges.kind == HAND_OVER) & is_begin[edges.target])
    weight[(edges.kind == HAND_OVER) & (is_begin[edges.target] | is_end[edges.source])] = NEVER
    if change.host:
        calls = index.host_edges[index.match_within(change.host)[edges.owner[index.host_edges]]]
        run = _number_runs(index, calls)
        runs = np.unique(run[edges.source[issues] + 1])
        weight[calls[np.isin(run[edges.target[calls]], runs[runs > 0])]] = 0


def _number_runs(index: JobIndex, rows: Ints) -> Ints:
    """Number the runs of host edges that follow one another, from 1, by the instants that they lead to; 0 elsewhere."""
    inside = np.zeros(len(index.job.time) + 1, np.bool_)
    inside[index.job.edges.target[rows]] = True
    starts = inside & ~np.append(False, inside[:-1])
    return np.where(inside, np.cumsum(starts), 0)


def _find_previous(index: JobIndex) -> Ints:
    """Find the op before each on its stream, as numbered in the job; -1 for none."""
    parts = [
        np.where(graph.ops.previous >= 0, graph.ops.previous + index.job.first_op[number], -1)
        for number, graph in enumerate(index.job.processes)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _pass_waits_on(index: JobIndex, weights: Weights, gone: Mask, previous: Ints) -> None:
    """Drop the waits for removed collectives; the last of each step waits for the collective kept before instead."""
    job, edges, weight = index.job, index.job.edges, weights.weight
    waits = np.flatnonzero((edges.kind == STREAM_WAIT) & (weight > NEVER))
    source = index.find_ops_ending_at(edges.source[waits])
    lost = gone[source] & (source >= 0) & np.append(index.is_collective, False)[source]
    waits, source = waits[lost], source[lost]
    weight[waits] = NEVER
    if not len(waits):
        return
    waiting = edges.owner[waits].astype(np.int64)
    at = job.time[edges.target[waits]]
    process = index.op_process[source]
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
    rows = index.host_edges[within[edges.owner[index.host_edges]]]
    if not len(rows):
        raise ChangeError("host: no row in this run has such a name", index.suggest_names(change.host or ""))
    # Segments of one row follow one another: number their runs, and remove those in which an op was launched.
    run = _number_runs(index, rows)
    gone = np.zeros(len(index.op_start), np.bool_)
    gone[ops] = True
    runs = np.unique(run[index.find_call_ends(ops)])
    kept = np.unique(run[index.find_call_ends(np.flatnonzero(~gone))])
    runs = np.setdiff1d(runs[runs > 0], kept)
    weights.weight[rows[np.isin(run[edges.target[rows]], runs)]] = 0
    waits = np.flatnonzero(edges.kind == SYNC_RETURN)
    weights.weight[waits[np.isin(run[edges.target[waits]], runs)]] = NEVER


def _overlap(
    weights: Weights,
    change: RunChange,
    move_waits: Callable[[JobIndex, Ints, Passes], tuple[Ints, Ints, Ints]],
    index: JobIndex,
    passes: Passes,
) -> None:
    """Move the waits of collectives. Raises `ChangeError` if there are none to move."""
    before = weights.weight.copy()
    added = move_waits(index, weights.weight, passes)
    if np.array_equal(before, weights.weight):
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
    consumers = (edges.kind == STREAM_WAIT) & hidden[edges.source] & ~is_collective[index.edge_op]
    weights.weight[consumers] = NEVER
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
    ops, edges = _pick_ops(index, change), index.job.edges
    chosen = np.zeros(len(index.op_start) + 1, np.bool_)
    chosen[ops] = True
    follows = np.append(chosen[:-1] & chosen[_find_previous(index)], False)
    owned = follows[index.edge_op] & (weights.weight > NEVER)
    if not owned.any():
        raise ChangeError(f"no two ops of {change.describe()} follow one another on a stream", index.suggest(change))
    weights.weight[owned & (edges.kind == STREAM_GAP)] = 0
    weights.weight[owned & (edges.kind == LAUNCH)] = NEVER
    if change.factor is not None:
        rows = _find_lengths(index, ops)
        weights.weight[rows] = _multiply(weights.weight[rows], change.factor)


def _fuse_calls(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Run calls that follow one another on a thread as the first one: the others take `factor` of their time, gaps none."""
    calls, gaps = find_repeated_calls(index, change.where)
    if not len(calls):
        raise ChangeError(f"no two calls of {change.describe()} follow one another", index.suggest(change))
    weights.weight[calls] = _multiply(weights.weight[calls], change.factor or 0.0)
    weights.weight[gaps] = np.minimum(weights.weight[gaps], 0)


def _equalise(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Let each op, or each stretch of host time, last as long as that of the median rank or step at the same place."""
    equalise_work(index, weights.weight, change)


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
    edges = job.edges
    inside = np.zeros(len(job.time) + 1, np.bool_)
    inside[edges.target[rows]] = True
    begins = np.flatnonzero(inside[:-1] & ~np.append(False, inside[:-2]))
    ends = np.flatnonzero(inside[:-1] & ~inside[1:])
    work = job.time[ends] - job.time[begins - 1]
    weights.weight[rows] = 0
    of_end = job.process_of(ends.astype(np.int32))
    same = of_end[1:] == of_end[:-1]
    ready = (work[1:] / (change.workers or 1)).astype(np.int64)
    weights.added.append((ends[:-1][same], ends[1:][same], ready[same]))


def _graph(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Launch all ops of a range with one call."""
    rows = select_host_edges(index, change.where)
    holder = np.append(index.holder, -1)[index.job.edges.owner[rows]]
    rows = rows[(holder >= 0) & (holder != HOLDER["range"])]
    weights.weight[rows] = _multiply(weights.weight[rows], change.factor or 0)


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
