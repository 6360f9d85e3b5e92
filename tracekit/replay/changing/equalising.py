"""Work as even as on the median rank, or as in the median step of a rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracekit.model.tables.keys import group_arrays
from tracekit.process.host.phases import PAUSE_NS
from tracekit.process.host.tree import HOLDER
from tracekit.replay.changes import ChangeError, RunChange
from tracekit.replay.changing.host_selection import select_host_edges
from tracekit.replay.changing.selection import JobIndex, select_ops
from tracekit.replay.edges import COPY, KERNEL, Ints, Mask, Numbers, Weights
from tracekit.replay.paths import NEVER

_DOES_WORK = [HOLDER[name] for name in ("op", "call", "first_call", "sync")]

AS_IT_IS, NOWHERE_ELSE = -1, -2
"""Marks of lengths: the rank or step is at most as slow as others there; no other works there."""


def equalise_work(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Let each op, or each stretch of host time, last as long as that of the median rank or step at the same place."""
    work = index.recall((equalise_work, change), lambda: _place_work(index, change))
    lengths = weights.weight[work.targets]
    left = lengths > NEVER
    if not left.any():
        raise ChangeError(f"nothing in this run matches {change.describe()}", index.suggest(change))
    usual, rows = work.find_usual_lengths(np.where(left, lengths, 0)), work.rows
    slower = left[rows] & (usual >= 0)
    weights.put(work.targets[rows[slower]], usual[slower])
    # Work that is done nowhere else at this place: pauses, and code of this rank or step only.
    extra = rows[left[rows] & (usual == NOWHERE_ELSE)]
    weights.put(work.targets[extra[work.may_go[extra]]], 0)
    if work.of_stages is not None:
        is_extra = np.zeros(len(left), np.bool_)
        is_extra[extra] = True
        _shorten_extra_work(work, weights, is_extra)


def _shorten_extra_work(work: _PlacedWork, weights: Weights, extra: Mask) -> None:
    """Shorten CPU work that no other has, as far as the stage is longer with it than the median of the others.

    Ops of one stage can differ between ranks that work equally long, as in a pipeline.
    """
    of_stages, rows = work.of_stages, work.on_cpu
    is_extra = extra[rows]
    if of_stages is None or not is_extra.any():
        return
    lengths = np.maximum(weights.weight[of_stages.targets], 0)
    total = of_stages.sum_parts(lengths)
    of_part = of_stages.where[of_stages.of_part]
    usual = of_stages.usual_total.find(total)
    longer = of_stages.sum_parts(np.where(is_extra, lengths, 0))
    factor = np.clip((np.maximum(usual, 0)[of_part] - (total - longer)) / np.maximum(longer, 1), 0, 1)
    shorter = (lengths * factor[of_stages.part]).astype(np.int64)
    weights.put(of_stages.targets[is_extra], shorter[is_extra])


def _place_work(index: JobIndex, change: RunChange) -> _PlacedWork:
    """Place the work that a change selects; the lengths are those of a replay."""
    edges, of_steps = index.job.edges, change.across == "step"
    everywhere = replace(change.where, step=None) if of_steps else replace(change.where, rank=None)
    if change.on == "host":
        targets, process, at, name = _list_host_work(index, select_host_edges(index, everywhere, returns=True))
        works = np.isin(np.append(index.holder, -1)[edges.owner[targets]], _DOES_WORK)
    else:
        targets, process, at, name = _list_device_work(index, select_ops(index, everywhere, "device"))
        works = np.ones(len(targets), np.bool_)
    step = index.step_at(process, at)
    known = (targets >= 0) & ((step >= 0) | (not of_steps))
    if not known.all():
        targets, process, at, name, step = (column[known] for column in (targets, process, at, name, step))
        works = works[known]
    unit, other = (step, process) if of_steps else (process, step)
    only = change.where.step if of_steps else change.where.rank
    chosen = np.isin(step, list(only or ())) if of_steps else _mark_ranks(index, process, only or frozenset())
    has_own = change.on == "host" and only is not None
    may_go = chosen & ~works & has_own
    counted = np.ones(len(chosen), np.bool_) if only is None else ~chosen
    stage = index.stage_at(process, at, masked=True)
    # Ranks of one role work alike, not those of several.
    where, _ = group_arrays([other, _number_roles(index)[process], stage, name])
    del name
    may_pause = np.zeros(int(where.max(initial=-1)) + 1, np.bool_)
    may_pause[where[~works & (stage >= 0)]] = True
    work = _PlacedWork(targets, chosen | (only is None), may_go, counted, unit, where.astype(np.int32), at, may_pause)
    if has_own:
        has_device = np.array([*(len(graph.ops) > 0 for graph in index.job.processes), False])[process]
        work.on_cpu = rows = np.flatnonzero(works & ~has_device)
        place, _ = group_arrays([other[rows], stage[rows]])
        of_rows = targets[rows], chosen[rows], may_go[rows], ~chosen[rows], unit[rows], place.astype(np.int32), at[rows]
        work.of_stages = _PlacedWork(*of_rows)
    return work


def _list_host_work(index: JobIndex, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """List stretches of host time: (their edges, processes, times, and numbers of their rows' names)."""
    edges = index.job.edges
    name = np.append(index.number_names(lambda graph: graph.paths.name), -1)[edges.owner[rows]]
    return rows, index.find_edge_processes(rows), index.job.time[edges.target[rows]] - 1, name


def _list_device_work(index: JobIndex, ops: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """List ops: (the edges that are their lengths, -1 for none; processes, times of launch, and numbers of their names)."""
    edge_of = np.full(int(index.job.first_op[-1]) + 1, -1, np.int64)
    own = index.list_edges(KERNEL, COPY)
    edge_of[index.job.edges.owner[own]] = own
    name = index.number_names(lambda graph: graph.ops.name)[ops]
    return edge_of[ops], index.op_process[ops], index.op_at_ns[ops], name


def _number_roles(index: JobIndex) -> Ints:
    """Number the role of each process; the last element is for no process."""
    roles = [graph.source.role or "" for graph in index.job.processes]
    return np.append(np.unique(np.array(roles, object), return_inverse=True)[1], -1).astype(np.int64)


def _mark_ranks(index: JobIndex, process: Ints, ranks: frozenset[int]) -> Mask:
    """Mark the work of some ranks."""
    is_chosen = [graph.source.rank in ranks for graph in index.job.processes]
    return np.array([*is_chosen, False])[process]


class _PlacedWork:
    """Work of units, which are ranks or steps, by where it is done: `where` is equal at the same place.

    `targets` are its edges, `rows` those to make even, `may_go` those that may vanish, `counted` those that show the usual length.
    `on_cpu` are the rows that work without a device, and `of_stages` the same by stage. `may_pause` marks the places in
    stages at which no work is recorded: outside stages, processes wait for others.
    """

    on_cpu: Ints
    of_stages: _PlacedWork | None = None

    def __init__(
        self,
        targets: Ints,
        chosen: Mask,
        may_go: Mask,
        counted: Mask,
        unit: Ints,
        where: Numbers,
        time: Ints,
        may_pause: Mask | None = None,
    ) -> None:
        self.targets, self.rows, self.may_go, self.where = targets, np.flatnonzero(chosen), may_go, where
        order = np.lexsort((time, where, unit))
        fresh = np.append(True, (np.diff(unit[order]) != 0) | (np.diff(where[order]) != 0))[: len(order)]
        begin = np.flatnonzero(fresh)
        size = np.diff(np.append(begin, len(order)))
        # A job of a thousand ranks has millions of rows.
        self.part, self.place = np.empty(len(order), np.int32), np.empty(len(order), np.int32)
        self.part[order] = np.repeat(np.arange(len(begin), dtype=np.int32), size)
        self.of_part = order[begin]
        self.count = size
        of_part, is_part_counted = where[self.of_part], counted[self.of_part]
        most = np.zeros(int(where.max(initial=-1)) + 1, np.int64)
        np.maximum.at(most, of_part, size)
        first = np.cumsum(most) - most
        self.place[order] = np.arange(len(order)) + np.repeat(first[of_part] - begin, size)
        pauses = np.zeros(len(most), np.bool_) if may_pause is None else may_pause
        self.usual_total = _Medians(of_part, is_part_counted, pauses)
        self.usual_count = _Medians(of_part, is_part_counted, np.zeros(len(most), np.bool_))
        self.usual_length = _Medians(self.place, counted, np.repeat(pauses, most))

    def sum_parts(self, lengths: Ints) -> Ints:
        """Sum lengths by unit and place."""
        return np.bincount(self.part, weights=lengths, minlength=len(self.count)).astype(np.int64)

    def find_usual_lengths(self, lengths: Ints) -> Ints:
        """Find how long the work of `rows` would take in the median of the counted units, `AS_IT_IS` or `NOWHERE_ELSE`.

        Where all do equally many, each takes as long as that at its place; otherwise all are scaled to the usual sum.
        """
        rows = self.rows
        where, part = self.where[rows], self.part[rows]
        total = self.sum_parts(np.maximum(lengths, 0))
        usual_total, usual_count = self.usual_total.find(total)[where], self.usual_count.find(self.count)[where]
        own, middle = total[part], self.usual_length.find(lengths)[self.place[rows]]
        scaled = (lengths[rows] * (usual_total / np.maximum(own, 1))).astype(np.int64)
        usual = np.where((usual_count == self.count[part]) & (middle >= 0), middle, scaled)
        return np.where(usual_total < 0, NOWHERE_ELSE, np.where(own > usual_total, usual, AS_IT_IS))


class _Medians:
    """Medians of the counted values of groups; -1 for none. Groups with the same values as last time are kept.

    `may_pause` is by group. There, a pause that half of the values have is not usual: work can be shared, a pause is not
    needed at all.
    """

    def __init__(self, group: Numbers, counted: Mask, may_pause: Mask) -> None:
        self.group, self.counted, self.may_pause, self.values = group, counted, may_pause, np.zeros(0, np.int64)
        self.middle = np.full(len(may_pause), -1, np.int64)

    def find(self, values: Ints) -> Ints:
        """Find the median of each group."""
        is_changed = np.ones(len(self.middle), np.bool_)
        if len(self.values):
            is_changed[:] = False
            is_changed[self.group[values != self.values]] = True
        rows = np.flatnonzero(is_changed[self.group] & self.counted)
        changed = np.flatnonzero(is_changed)
        self.middle[changed] = _find_middle_values(self.group[rows], values[rows], self.may_pause)[changed]
        self.values = values
        return self.middle


def _find_middle_values(group: Numbers, values: Ints, may_pause: Mask) -> Ints:
    """Compute the median of each group, or the lower one of two where they differ by a pause; -1 for an empty group."""
    middle = np.full(len(may_pause), -1, np.int64)
    order = np.lexsort((values, group))
    first = np.flatnonzero(np.append(True, np.diff(group[order]) != 0)) if len(order) else order
    size = np.diff(np.append(first, len(order)))
    low, high = values[order[first + (size - 1) // 2]], values[order[first + size // 2]]
    groups = group[order[first]]
    middle[groups] = np.where(may_pause[groups] & (high - low >= PAUSE_NS), low, (low + high) // 2)
    return middle
