"""Work as even as on the median rank, or as in the median step of a rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracekit.process.host.tree import HOLDER
from tracekit.replay.changes import ChangeError, RunChange
from tracekit.replay.edges import COPY, KERNEL, Ints, Mask
from tracekit.replay.paths import NEVER
from tracekit.replay.selection import JobIndex, select_host_edges, select_ops

_DOES_WORK = [HOLDER[name] for name in ("op", "call", "first_call", "sync")]

AS_IT_IS, NOWHERE_ELSE = -1, -2
"""Marks of lengths: the rank or step is at most as slow as others there; no other works there."""


def equalise_work(index: JobIndex, weight: Ints, change: RunChange) -> None:
    """Let each op, or each stretch of host time, last as long as that of the median rank or step at the same place."""
    edges, of_steps = index.job.edges, change.across == "step"
    everywhere = replace(change.where, step=None) if of_steps else replace(change.where, rank=None)
    if change.on == "host":
        rows = select_host_edges(index, everywhere, returns=True)
        process, at = index.edge_process[rows], index.job.time[edges.target[rows]] - 1
        name = np.append(index.number_names(lambda graph: graph.paths.name), -1)[edges.owner[rows]]
        targets = rows
    else:
        ops = select_ops(index, everywhere, "device")
        process, at = index.op_process[ops], index.op_at_ns[ops]
        name = index.number_names(lambda graph: graph.ops.name)[ops]
        edge_of = np.full(int(index.job.first_op[-1]) + 1, -1, np.int64)
        own = np.flatnonzero(np.isin(edges.kind, (KERNEL, COPY)))
        edge_of[edges.owner[own]] = own
        targets = edge_of[ops]
    step = index.step_at(process, at)
    left = (weight[targets] > NEVER) & ((step >= 0) | (not of_steps))
    if not left.any():
        raise ChangeError(f"nothing in this run matches {change.describe()}", index.suggest(change))
    targets, process, at, name, step = targets[left], process[left], at[left], name[left], step[left]
    unit, other = (step, process) if of_steps else (process, step)
    only = change.where.step if of_steps else change.where.rank
    chosen = np.isin(step, list(only or ())) if of_steps else _mark_ranks(index, process, only or frozenset())
    stage = index.stage_at(process, at)
    work = _PlacedWork(unit, (other, stage, name), at, weight[targets])
    usual = work.find_usual_lengths(np.ones(len(chosen), np.bool_) if only is None else ~chosen)
    of_units = chosen | (only is None)
    slower = of_units & (usual >= 0)
    weight[targets[slower]] = usual[slower]
    if change.on == "host" and only is not None:
        # Time that no other has at this place: pauses, code of this rank or step only, and work of the CPU beyond that of others.
        holder = np.append(index.holder, -1)[edges.owner[targets]]
        works, nowhere_else = np.isin(holder, _DOES_WORK), of_units & (usual == NOWHERE_ELSE)
        weight[targets[nowhere_else & ~works]] = 0
        has_device = np.array([*(len(graph.ops) > 0 for graph in index.job.processes), False])[process]
        on_cpu = np.flatnonzero(works & ~has_device)
        if not (nowhere_else & works)[on_cpu].any():
            return
        columns = unit[on_cpu], (other[on_cpu], stage[on_cpu]), at[on_cpu], weight[targets[on_cpu]]
        weight[targets[on_cpu]] = _shorten_extra_work(_PlacedWork(*columns), nowhere_else[on_cpu], ~chosen[on_cpu])


def _shorten_extra_work(work: _PlacedWork, is_extra: Mask, counted: Mask) -> Ints:
    """Shorten CPU work that no other has, as far as the stage is longer with it than the median of the others.

    Ops of one stage can differ between ranks that work equally long, as in a pipeline.
    """
    parts = np.flatnonzero(counted[work.of_part])
    of_part = work.where[work.of_part]
    usual = _find_middle_values(of_part[parts], work.total[parts], int(work.where.max(initial=-1)) + 1)
    extra = np.bincount(work.part[is_extra], weights=work.lengths[is_extra], minlength=len(work.total))
    room = np.maximum(usual, 0)[of_part] - (work.total - extra)
    factor = np.clip(room / np.maximum(extra, 1), 0, 1)
    shortened: Ints = np.where(is_extra, work.lengths * factor[work.part], work.lengths).astype(np.int64)
    return shortened


def _mark_ranks(index: JobIndex, process: Ints, ranks: frozenset[int]) -> Mask:
    """Mark the work of some ranks."""
    is_chosen = [graph.source.rank in ranks for graph in index.job.processes]
    return np.array([*is_chosen, False])[process]


class _PlacedWork:
    """Work of units, which are ranks or steps, by where it is done: columns that are equal at the same place."""

    def __init__(self, unit: Ints, place: tuple[Ints, ...], time: Ints, lengths: Ints) -> None:
        self.lengths = lengths
        _, where = np.unique(np.stack(place), axis=1, return_inverse=True)
        self.where = where.reshape(-1)
        order = np.lexsort((time, self.where, unit))
        fresh = np.append(True, (np.diff(unit[order]) != 0) | (np.diff(self.where[order]) != 0))
        begin = np.flatnonzero(fresh)
        size = np.diff(np.append(begin, len(order)))
        self.part = np.empty(len(order), np.int64)
        self.part[order] = np.repeat(np.arange(len(begin)), size)
        self.ordinal = np.empty(len(order), np.int64)
        self.ordinal[order] = np.arange(len(order)) - np.repeat(begin, size)
        self.of_part = order[begin]
        self.count = size
        self.total = np.bincount(self.part, weights=np.maximum(lengths, 0)).astype(np.int64)

    def find_usual_lengths(self, counted: Mask) -> Ints:
        """Find how long each op would take in the median of the counted units, `AS_IT_IS` or `NOWHERE_ELSE`.

        Where all do equally many, each takes as long as that at its place; otherwise all are scaled to the usual sum.
        """
        parts = np.flatnonzero(counted[self.of_part])
        of_part = self.where[self.of_part]
        totals = _find_middle_values(of_part[parts], self.total[parts], int(self.where.max(initial=-1)) + 1)
        counts = _find_middle_values(of_part[parts], self.count[parts], int(self.where.max(initial=-1)) + 1)
        usual_total, usual_count = totals[self.where], counts[self.where]
        own = self.total[self.part]
        key = self.where * (int(self.ordinal.max(initial=0)) + 1) + self.ordinal
        distinct, place = np.unique(key, return_inverse=True)
        middle = _find_middle_values(place[counted], self.lengths[counted], len(distinct))[place]
        scaled = (self.lengths * (usual_total / np.maximum(own, 1))).astype(np.int64)
        usual = np.where((usual_count == self.count[self.part]) & (middle >= 0), middle, scaled)
        return np.where(usual_total < 0, NOWHERE_ELSE, np.where(own > usual_total, usual, AS_IT_IS))


def _find_middle_values(group: Ints, values: Ints, count: int) -> Ints:
    """Compute the median of each group 0 … count-1; -1 for an empty one."""
    middle = np.full(count, -1, np.int64)
    order = np.lexsort((values, group))
    first = np.flatnonzero(np.append(True, np.diff(group[order]) != 0)) if len(order) else order
    size = np.diff(np.append(first, len(order)))
    low, high = values[order[first + (size - 1) // 2]], values[order[first + size // 2]]
    middle[group[order[first]]] = (low + high) // 2
    return middle
