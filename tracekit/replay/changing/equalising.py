"""Work as even as on the median rank, or as in the median step of a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.system.freed_memory import release_freed_memory
from tracekit.model.tables.keys import find_distinct, group_arrays
from tracekit.process.host.phases import PAUSE_NS
from tracekit.process.host.tree import HOLDER
from tracekit.replay.changes import ChangeError, RunChange
from tracekit.replay.changing.host_selection import list_host_edges
from tracekit.replay.changing.selection import CHUNK_ROWS, JobIndex, evaluate_in_chunks, select_ops
from tracekit.replay.edges import COPY, KERNEL, Ints, Mask, Numbers, Rows, Weights
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


class _Work(NamedTuple):
    """Work as recorded: its edges (-1: none), processes, times, numbers of its names, and whether it is work or a pause."""

    targets: Rows
    process: Rows
    time: Ints
    name: Ints
    works: Mask

    def take(self, rows: npt.NDArray[Any]) -> _Work:
        """Select work."""
        columns: list[Any] = [column[rows] for column in self]
        return _Work(*columns)


class _Rows(NamedTuple):
    """Rows of work in the order of their units (ranks or steps), places and times: `target` is an edge.

    `chosen` rows are to be made even, `may_go` may vanish, and `counted` show the usual length. `begins` marks the first row
    of a unit at a place, which are in `where`.
    """

    target: Numbers
    chosen: Mask
    may_go: Mask
    counted: Mask
    begins: Mask
    where: Numbers


def _order_placed_work(work: _Work, unit: Rows, where: Numbers, marks: Sequence[Mask]) -> _Rows:
    """Order rows; `marks` are those that are chosen, may go, and are counted."""
    order = np.lexsort((work.time, where, unit))
    unit, where = unit[order], where[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (unit[1:] != unit[:-1]) | (where[1:] != where[:-1])
    chosen, may_go, counted = (mark[order] for mark in marks)
    return _Rows(work.targets[order].astype(np.int32), chosen, may_go, counted, begins, where[begins])


def _place_work(index: JobIndex, change: RunChange) -> _PlacedWork:
    """Place the work that a change selects; the lengths are those of a replay."""
    of_steps = change.across == "step"
    everywhere = replace(change.where, step=None) if of_steps else replace(change.where, rank=None)
    if change.on == "host":
        rows: Rows = list_host_edges(index, everywhere, returns=True)
        process, describe = evaluate_in_chunks(rows, index.find_edge_processes), _describe_host_work(index)
    else:
        rows = select_ops(index, everywhere, "device")
        process, describe = index.op_process[rows], _describe_device_work(index)
    has_own = change.on == "host" and (change.where.step if of_steps else change.where.rank) is not None
    places, stages = _PlacedRows(), _PlacedRows()
    # The rows of a rank are in one part, and those of a step may be anywhere.
    parts = [slice(None)] if of_steps else _split_between_processes(process)
    if parts is None:
        order = np.argsort(process, kind="stable")
        rows, process = rows[order], process[order]
        del order
        parts = _split_between_processes(process) or []
    for part in parts:
        work = describe(rows[part], process[part])
        step = index.step_at(work.process, work.time)
        known = (work.targets >= 0) & ((step >= 0) | (not of_steps))
        work, step = work.take(known), step[known]
        stage = index.stage_at(work.process, work.time, masked=True)
        unit, other = (step, work.process) if of_steps else (work.process, step)
        # Ranks of one role work alike, not those of several.
        alike = other, _number_roles(index)[work.process], stage, work.name
        marks = _mark_rows(index, change, work, step)
        where = places.number(alike, ~work.works & (stage >= 0))
        places.parts.append(_order_placed_work(work, unit, where, marks))
        if has_own:
            on_cpu = np.flatnonzero(work.works & ~_mark_devices(index)[work.process])
            where = stages.number((other[on_cpu], stage[on_cpu]), np.zeros(len(on_cpu), np.bool_))
            of_rows = work.take(on_cpu)
            stages.parts.append(_order_placed_work(of_rows, unit[on_cpu], where, [mark[on_cpu] for mark in marks]))
    del rows, process
    release_freed_memory()
    placed = places.place()
    if has_own:
        placed.of_stages = stages.place()
    return placed


def _mark_rows(index: JobIndex, change: RunChange, work: _Work, step: Ints) -> tuple[Mask, Mask, Mask]:
    """Mark rows: (those to make even, those that may vanish, those that show the usual length)."""
    of_steps, has_own = change.across == "step", change.on == "host"
    only = change.where.step if of_steps else change.where.rank
    chosen = np.isin(step, list(only or ())) if of_steps else _mark_ranks(index, work.process, only or frozenset())
    return chosen | (only is None), chosen & ~work.works & has_own, ~chosen


def _split_between_processes(process: Rows) -> list[slice] | None:
    """Split rows in order of their process into parts of whole processes; None for another order."""
    if (process[1:] < process[:-1]).any():
        return None
    wanted = np.arange(0, len(process), CHUNK_ROWS)
    bounds = np.unique(np.append(np.searchsorted(process, process[wanted]), len(process)))
    return [slice(low, high) for low, high in pairwise(bounds.tolist())]


_NO_MARKS = np.empty(0, np.bool_)
_NO_ROWS = _Rows(np.empty(0, np.int32), _NO_MARKS, _NO_MARKS, _NO_MARKS, _NO_MARKS, np.empty(0, np.int32))


class _PlacedRows:
    """Rows of work under construction, part by part, with the numbers of their places."""

    def __init__(self) -> None:
        self.parts: list[_Rows] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._pauses: set[int] = set()

    def number(self, columns: Sequence[Rows], is_pause: Mask) -> Numbers:
        """Number the places of rows: those with equal columns are at one place. There may be pauses where a row is one."""
        group, first = group_arrays(columns)
        keys = zip(*(column[first].tolist() for column in columns), strict=True)
        numbers = np.array([self._numbers.setdefault(key, len(self._numbers)) for key in keys], np.int32)
        self._pauses.update(find_distinct(numbers[group[is_pause]]).tolist())
        return numbers[group]

    def place(self) -> _PlacedWork:
        """Join the parts, which are freed."""
        may_pause = np.zeros(len(self._numbers), np.bool_)
        may_pause[list(self._pauses)] = True
        columns = [list(column) for column in zip(*(self.parts or [_NO_ROWS]), strict=True)]
        self.parts = []
        joined: list[Any] = []
        while columns:
            joined.append(np.concatenate(columns.pop(0)))
        return _PlacedWork(_Rows(*joined), may_pause)


def _describe_host_work(index: JobIndex) -> Callable[[Rows, Rows], _Work]:
    """Describe stretches of host time, by the edges that they are and their processes."""
    edges, names = index.job.edges, np.append(index.number_names(lambda graph: graph.paths.name), -1)
    works = np.isin(np.append(index.holder, -1), _DOES_WORK)

    def describe(rows: Rows, process: Rows) -> _Work:
        owner, time = edges.owner[rows], index.job.time[edges.target[rows]] - 1
        return _Work(rows, process, time, names[owner], works[owner])

    return describe


def _describe_device_work(index: JobIndex) -> Callable[[Rows, Rows], _Work]:
    """Describe ops, by their numbers and processes: the edges that are their lengths, and their launches."""
    edge_of = np.full(int(index.job.first_op[-1]) + 1, -1, np.int32)
    own = index.list_edges(KERNEL, COPY)
    edge_of[index.job.edges.owner[own]] = own
    names = index.number_names(lambda graph: graph.ops.name)

    def describe(ops: Rows, process: Rows) -> _Work:
        return _Work(edge_of[ops], process, index.op_at_ns[ops], names[ops], np.ones(len(ops), np.bool_))

    return describe


def _mark_devices(index: JobIndex) -> Mask:
    """Mark the processes with device work; the last element is for no process."""
    return np.array([*(len(graph.ops) > 0 for graph in index.job.processes), False])


def _number_roles(index: JobIndex) -> Ints:
    """Number the role of each process; the last element is for no process."""
    roles = [graph.source.role or "" for graph in index.job.processes]
    return np.append(np.unique(np.array(roles, object), return_inverse=True)[1], -1).astype(np.int64)


def _mark_ranks(index: JobIndex, process: Rows, ranks: frozenset[int]) -> Mask:
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

    def __init__(self, rows: _Rows, may_pause: Mask) -> None:
        self.begin, self.rows = np.flatnonzero(rows.begins), np.flatnonzero(rows.chosen)
        self.count = np.diff(np.append(self.begin, len(rows.target)))
        self.targets, self.may_go, self.where, counted = rows.target, rows.may_go, rows.where, rows.counted
        del rows
        most = np.zeros(len(may_pause), np.int64)
        np.maximum.at(most, self.where, self.count)
        self.first = np.cumsum(most) - most
        place = np.arange(len(self.targets), dtype=np.int32)
        place += np.repeat((self.first[self.where] - self.begin).astype(np.int32), self.count)
        is_part_counted = counted[self.begin]
        self.usual_total = _Medians(self.where, is_part_counted, may_pause)
        self.usual_count = _Medians(self.where, is_part_counted, np.zeros(len(most), np.bool_))
        self.usual_length = _Medians(place, counted, np.repeat(may_pause, most))

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
            self.middle = _find_middle_values(self.group, values, self.counted, self.may_pause)
        else:
            is_changed = np.zeros(len(self.middle), np.bool_)
            is_changed[self.group[values != self.values]] = True
            rows = np.flatnonzero(is_changed[self.group] & self.counted)
            found = _find_middle_values(self.group[rows], values[rows], np.ones(len(rows), np.bool_), self.may_pause)
            self.middle = np.where(is_changed, found, self.middle)
        # A job of a thousand ranks has millions of lengths, all of less than two seconds.
        is_narrow = len(values) and int(values.max()) < 2**31 and int(values.min()) >= -(2**31)
        self.values = values.astype(np.int32) if is_narrow else values
        return self.middle


def _find_middle_values(group: Numbers, values: Ints, counted: Mask, may_pause: Mask) -> Ints:
    """Compute the median of each group, or the lower one of two where they differ by a pause; -1 for an empty group."""
    middle = np.full(len(may_pause), -1, np.int64)
    if len(values):
        groups, low, high = _pick_middle_two(group, values, counted, len(may_pause))
        middle[groups] = np.where(may_pause[groups] & (high - low >= PAUSE_NS), low, (low + high) // 2)
    return middle


def _pick_middle_two(group: Numbers, values: Ints, counted: Mask, count: int) -> tuple[Rows, Ints, Ints]:
    """Pick the counted values in the middle of each group: (groups, lower value, upper value: the same in one of odd size)."""
    least = int(values.min())
    stride = int(values.max()) - least + 1
    if stride * (count + 1) >= MOST_KEYS:
        rows = np.flatnonzero(counted)
        order = rows[np.lexsort((values[rows], group[rows]))]
        first = np.flatnonzero(np.diff(group[order], prepend=-1))
        size = np.diff(np.append(first, len(order)))
        return group[order[first]], values[order[first + (size - 1) // 2]], values[order[first + size // 2]]
    # Sorting numbers takes a fraction of the time and memory of sorting rows. What does not count comes last.
    key = group * np.int64(stride)
    key += values
    key -= least
    key[~counted] = stride * count
    key.sort()
    bounds = np.searchsorted(key, np.arange(count + 1) * stride)
    groups = np.flatnonzero(np.diff(bounds))
    first, size = bounds[groups], np.diff(bounds)[groups]
    begin = groups * stride - least
    return groups, key[first + (size - 1) // 2] - begin, key[first + size // 2] - begin
