"""Work as even as on the median rank, or as in the median step of a rank."""

from __future__ import annotations

from collections.abc import Sequence
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

MOST_KEYS = 2**62
"""Keys of combined values are below this."""

AS_IT_IS, NOWHERE_ELSE = -1, -2
"""Marks of lengths: the rank or step is at most as slow as others there; no other works there."""


def equalise_work(index: JobIndex, weights: Weights, change: RunChange) -> None:
    """Let each op, or each stretch of host time, last as long as that of the median rank or step at the same place."""
    work = index.recall((equalise_work, change), lambda: _place_work(index, change))
    lengths = weights.weight[work.targets]
    left = lengths > NEVER
    if not left.any():
        raise ChangeError(f"nothing in this run matches {change.describe()}", index.suggest(change))
    lengths[~left] = 0
    usual, rows = work.find_usual_lengths(lengths), work.rows
    slower = left[rows] & (usual >= 0)
    weights.put(work.targets[rows[slower]], usual[slower])
    # Work that is done nowhere else at this place: pauses, and code of this rank or step only.
    extra = rows[left[rows] & (usual == NOWHERE_ELSE)]
    weights.put(work.targets[extra[work.may_go[extra]]], 0)
    if work.of_stages is not None and len(extra):
        _shorten_extra_work(work.of_stages, weights, work.targets[extra])


def _shorten_extra_work(of_stages: _PlacedWork, weights: Weights, extra: Numbers) -> None:
    """Shorten CPU work that no other has, as far as the stage is longer with it than the median of the others.

    Ops of one stage can differ between ranks that work equally long, as in a pipeline.
    """
    chosen = np.zeros(int(max(of_stages.targets.max(initial=-1), extra.max())) + 1, np.bool_)
    chosen[extra] = True
    is_extra = chosen[of_stages.targets]
    if not is_extra.any():
        return
    lengths = np.maximum(weights.weight[of_stages.targets], 0)
    total, of_part = of_stages.sum_parts(lengths), of_stages.where
    usual = of_stages.usual_total.find(total)
    longer = of_stages.sum_parts(np.where(is_extra, lengths, 0))
    factor = np.clip((np.maximum(usual, 0)[of_part] - (total - longer)) / np.maximum(longer, 1), 0, 1)
    shorter = (lengths * np.repeat(factor, of_stages.count)).astype(np.int64)
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
    where = _number_places((other, _number_roles(index)[process], stage, name))
    del name
    may_pause = np.zeros(int(where.max(initial=-1)) + 1, np.bool_)
    may_pause[where[~works & (stage >= 0)]] = True
    work = _PlacedWork(targets, chosen | (only is None), may_go, counted, unit, where, at, may_pause)
    if has_own:
        has_device = np.array([*(len(graph.ops) > 0 for graph in index.job.processes), False])[process]
        rows = np.flatnonzero(works & ~has_device)
        place = _number_places((other[rows], stage[rows]))
        of_rows = targets[rows], chosen[rows], may_go[rows], ~chosen[rows], unit[rows], place, at[rows]
        work.of_stages = _PlacedWork(*of_rows)
    return work


def _number_places(columns: Sequence[Ints]) -> Numbers:
    """Number the combinations of values in order of appearance. A job of a thousand ranks has millions of rows."""
    key, room = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low = int(column.min(initial=0))
        count = int(column.max(initial=0)) - low + 1
        room *= count
        if room >= MOST_KEYS:
            return group_arrays(columns)[0].astype(np.int32)
        key *= count
        key += column - low
    return group_arrays([key])[0].astype(np.int32)


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
    """Work of units, which are ranks or steps, by where it is done.

    Rows are in order of unit, place and time: those of one unit at one place are a part, with `count` rows from `begin` on, at
    the place `where`. `targets` are the edges, `rows` those to make even, `may_go` those that may vanish, `counted` those that
    show the usual length. `of_stages` is the work without a device, by stage. `may_pause` marks the places in stages at which no
    work is recorded: outside stages, processes wait for others.
    """

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
        part = _number_parts(unit, where)
        order = np.lexsort((time, part)).astype(np.int32)
        part = part[order]
        self.begin = np.flatnonzero(np.diff(part, prepend=part[:1] - 1))
        del part
        self.count = np.diff(np.append(self.begin, len(order)))
        self.targets, self.may_go = targets[order].astype(np.int32), may_go[order]
        self.where, self.rows = where[order[self.begin]], np.flatnonzero(chosen[order])
        counted = counted[order]
        del order
        most = np.zeros(int(self.where.max(initial=-1)) + 1, np.int64)
        np.maximum.at(most, self.where, self.count)
        self.first = np.cumsum(most) - most
        place = np.arange(len(self.targets), dtype=np.int32)
        place += np.repeat((self.first[self.where] - self.begin).astype(np.int32), self.count)
        pauses = np.zeros(len(most), np.bool_) if may_pause is None else may_pause
        is_part_counted = counted[self.begin]
        self.usual_total = _Medians(self.where, is_part_counted, pauses)
        self.usual_count = _Medians(self.where, is_part_counted, np.zeros(len(most), np.bool_))
        self.usual_length = _Medians(place, counted, np.repeat(pauses, most))

    def sum_parts(self, lengths: Ints) -> Ints:
        """Sum lengths by unit and place."""
        return np.add.reduceat(lengths, self.begin) if len(lengths) else np.empty(0, np.int64)

    def find_usual_lengths(self, lengths: Ints) -> Ints:
        """Find how long the work of `rows` would take in the median of the counted units, `AS_IT_IS` or `NOWHERE_ELSE`.

        Where all do equally many, each takes as long as that at its place; otherwise all are scaled to the usual sum.
        """
        rows = self.rows
        part = np.searchsorted(self.begin, rows, side="right") - 1
        where = self.where[part]
        place = self.first[where] + rows - self.begin[part]
        total = self.sum_parts(np.maximum(lengths, 0))
        usual_total, usual_count = self.usual_total.find(total)[where], self.usual_count.find(self.count)[where]
        own, middle = total[part], self.usual_length.find(lengths)[place]
        scaled = (lengths[rows] * (usual_total / np.maximum(own, 1))).astype(np.int64)
        usual = np.where((usual_count == self.count[part]) & (middle >= 0), middle, scaled)
        return np.where(usual_total < 0, NOWHERE_ELSE, np.where(own > usual_total, usual, AS_IT_IS))


def _number_parts(unit: Ints, where: Numbers) -> Ints:
    """Number the combinations of unit and place, in order of the unit, then of the place."""
    low, places = int(unit.min(initial=0)), int(where.max(initial=-1)) + 1
    if (int(unit.max(initial=0)) - low + 1) * places >= MOST_KEYS:
        low, unit = 0, np.unique(unit, return_inverse=True)[1]
    part = unit - low
    part *= places
    part += where
    return part


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
        if not len(self.values):
            chosen, changed = self.counted, np.arange(len(self.middle))
        else:
            is_changed = np.zeros(len(self.middle), np.bool_)
            is_changed[self.group[values != self.values]] = True
            chosen, changed = is_changed[self.group] & self.counted, np.flatnonzero(is_changed)
        if len(changed):
            self.middle[changed] = _find_middle_values(self.group[chosen], values[chosen], self.may_pause)[changed]
        # A job of a thousand ranks has millions of lengths, all of less than two seconds.
        self.values = values.astype(np.int32) if int(np.abs(values).max(initial=0)) < 2**31 else values
        return self.middle


def _find_middle_values(group: Numbers, values: Ints, may_pause: Mask) -> Ints:
    """Compute the median of each group, or the lower one of two where they differ by a pause; -1 for an empty group."""
    middle = np.full(len(may_pause), -1, np.int64)
    if not len(values):
        return middle
    low, high = _pick_middle_two(group, values, len(may_pause))
    groups = np.flatnonzero(np.bincount(group, minlength=len(may_pause)))
    middle[groups] = np.where(may_pause[groups] & (high - low >= PAUSE_NS), low, (low + high) // 2)
    return middle


def _pick_middle_two(group: Numbers, values: Ints, count: int) -> tuple[Ints, Ints]:
    """Pick the two values in the middle of each group that has any: both are the same in a group of odd size."""
    least = int(values.min())
    stride = int(values.max()) - least + 1
    if stride * count >= MOST_KEYS:
        order = np.lexsort((values, group))
        first = np.flatnonzero(np.diff(group[order], prepend=-1))
        size = np.diff(np.append(first, len(order)))
        return values[order[first + (size - 1) // 2]], values[order[first + size // 2]]
    # Sorting numbers takes a fraction of the time and memory of sorting rows.
    key = group * np.int64(stride)
    key += values
    key -= least
    key.sort()
    bounds = np.searchsorted(key, np.arange(count + 1) * stride)
    groups = np.flatnonzero(np.diff(bounds))
    first, size = bounds[groups], np.diff(bounds)[groups]
    begin = groups * stride - least
    return key[first + (size - 1) // 2] - begin, key[first + size // 2] - begin
