"""Selections of a change: edges of host threads, and device ops, by the names and windows around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, find_window_at, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.stages import get_canonical_stage
from tracekit.model.tables.arrays import Coded, Nullable
from tracekit.model.units import format_ranges
from tracekit.process.host.tree import HOLDER
from tracekit.process.name_filters import look_up_names
from tracekit.process.steps.engine_batches import parse_engine_batch
from tracekit.process.steps.repetition import mask_numbers
from tracekit.replay.changes import RunChange, Selection
from tracekit.replay.edges import (
    TRANSFER,
    Ints,
    Mask,
    Numbers,
    Rows,
    mark_kinds,
    split_rows,
)
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.process_graph import ProcessGraph

MICRO = 1_000

CHUNK_ROWS = 2**18
"""Rows that are selected at once: a job of a thousand ranks has ten million edges."""

T = TypeVar("T")


class JobIndex:
    """A graph prepared for selections: names, windows and owners of its edges and ops, over all processes."""

    def __init__(self, job: JobGraph) -> None:
        self.job = job
        self.parent = _concatenate(
            job, lambda number: _shift(job.processes[number].paths.parent, job.first_path[number])
        )
        self.holder = _concatenate(job, lambda number: job.processes[number].paths.holder)
        self.op_process = np.repeat(np.arange(len(job.processes), dtype=np.int32), np.diff(job.first_op))
        self.op_path = _concatenate(
            job, lambda number: _shift(job.processes[number].ops.launch_path, job.first_path[number])
        )
        self.op_start = _concatenate(
            job,
            lambda number: (
                job.first[number] + job.processes[number].host_count + 2 * np.arange(len(job.processes[number].ops))
            ),
        )
        self.op_call_end = _concatenate(
            job, lambda number: _shift(job.processes[number].ops.call_end, int(job.first[number]))
        )
        self.op_thread = _concatenate(job, lambda number: _find_launching_threads(job.processes[number]))
        self.is_collective = _concatenate(job, lambda number: job.processes[number].ops.is_collective).astype(np.bool_)
        self.is_copy = _concatenate(job, lambda number: job.processes[number].ops.is_copy).astype(np.bool_)
        self.op_at_ns = _concatenate(job, _find_op_times(job))
        self._paths: dict[str, Mask] = {}
        self._within: dict[str, Mask] = {}
        self._ops: dict[str, Mask] = {}
        self._windows: dict[str, list[Intervals]] = {}
        self._recalled: dict[Hashable, Any] = {}

    def recall(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made under a key, and make it the first time: a plan applies the same changes again and again."""
        if key not in self._recalled:
            self._recalled[key] = make()
        recalled: T = self._recalled[key]
        return recalled

    def list_edges(self, *kinds: int) -> Numbers:
        """List the edges of one or several kinds."""
        return self.recall(kinds, lambda: np.flatnonzero(mark_kinds(self.job.edges.kind, *kinds)).astype(np.int32))

    @property
    def group(self) -> npt.NDArray[np.object_]:
        """The process group of each op, "" for none."""
        return _look_up_groups(self.job)

    @property
    def message_bytes(self) -> npt.NDArray[np.float64]:
        """The bytes of each op's message; infinite for none, and where it was not recorded."""
        return _look_up_message_sizes(self.job)

    @property
    def op_ns(self) -> Ints:
        """The length of each op."""
        length: Ints = self.job.time[self.op_start + 1] - self.job.time[self.op_start]
        return length

    def find_edge_processes(self, rows: Rows) -> Ints:
        """Find the process of each edge; that of its source for an arrival."""
        edges, process_of = self.job.edges, self.job.process_of
        process = process_of(edges.target[rows])
        is_arrival = process == len(self.job.processes)
        process[is_arrival] = process_of(edges.source[rows[is_arrival]])
        return process

    def match_paths(self, pattern: str) -> Mask:
        """Mark the paths that end in a row of a matching name; the last element is for no path."""
        if pattern not in self._paths:
            self._paths[pattern] = np.append(self._match(pattern, lambda graph: graph.paths.name), False)
        return self._paths[pattern]

    def match_within(self, pattern: str) -> Mask:
        """Mark the paths that lead through a row of a matching name; the last element is for no path."""
        if pattern not in self._within:
            self._within[pattern] = self._widen(self.match_paths(pattern))
        return self._within[pattern]

    def _widen(self, paths: Mask) -> Mask:
        """Mark the paths that lead through any marked one."""
        within = paths.copy()
        while True:
            wider = within.copy()
            wider[:-1] |= within[self.parent]
            if np.array_equal(wider, within):
                return within
            within = wider

    def find_call_ends(self, ops: Ints) -> Ints:
        """Find the instants at which the launches of these ops return; ops without a known launch are left out."""
        ends: Ints = self.op_call_end[ops]
        return ends[ends >= 0]

    def find_ops_ending_at(self, instants: Numbers) -> Ints:
        """Find the device op that ends at each instant; -1 for other instants."""
        process = self.job.process_of(instants)
        counts = np.array([graph.host_count for graph in self.job.processes] or [0], np.int64)
        inside = np.minimum(process, len(counts) - 1)
        place = instants - self.job.first[inside] - counts[inside]
        is_end = (process < len(self.job.processes)) & (place >= 0) & (place & 1 == 1)
        return np.where(is_end, self.job.first_op[inside] + (place >> 1), -1)

    def list_launching_ops(self, ops: Ints) -> list[Mask]:
        """List the paths within each host op that launched any of these device ops directly."""
        nearest = self._find_nearest_ops()
        launching = np.unique(nearest[self.op_path[ops]])
        return [self._mark_paths_below(path) for path in launching[launching >= 0].tolist()]

    def _find_nearest_ops(self) -> Ints:
        """Find the nearest path around each that ends in an op, itself included; the last element is for no path."""
        is_op = np.append(self.holder == HOLDER["op"], False)
        nearest = np.append(np.where(is_op[:-1], np.arange(len(self.parent)), self.parent), -1)
        while True:
            open_ = np.flatnonzero((nearest >= 0) & ~is_op[nearest])
            if not len(open_):
                return nearest
            nearest[open_] = np.append(self.parent, -1)[nearest[open_]]

    def _mark_paths_below(self, path: int) -> Mask:
        """Mark a path and all paths within it."""
        only = np.zeros(len(self.parent) + 1, np.bool_)
        only[path] = True
        return self._widen(only)

    def suggest(self, change: RunChange) -> str:
        """Name what a pattern of the change may have meant, for each pattern that no name matches."""
        where, hints = change.where, self._suggest_numbers(change.where)
        for field, is_op in (
            ("range", False),
            ("by", False),
            ("row", False),
            ("before", False),
            ("after", False),
            ("op", True),
        ):
            pattern = getattr(where, field)
            if pattern and not (self.match_ops(pattern) if is_op else self.match_paths(pattern)).any():
                hints.append(f"{field}: {self.suggest_names(pattern, is_op=is_op)}")
        if where.group and not any(re.search(where.group, text) for text in self.group):
            hints.append(f"group: the groups are {', '.join(sorted({text for text in self.group if text})[:6])}")
        return "; ".join(hints) or "each pattern matches something, but nothing matches all of them and is long enough"

    def suggest_names(self, pattern: str, *, is_op: bool = False) -> str:
        """Suggest names of rows or ops for a pattern that none matches."""
        names = {text for graph in self.job.processes for text in (graph.ops if is_op else graph.paths).name.texts}
        letters = _keep_letters(pattern)
        near = sorted(name for name in names if letters and letters in _keep_letters(name))[:3]
        near = near or get_close_matches(pattern, names, 3, 0.4)
        return (
            f"did you mean {', '.join(near)}?"
            if near
            else f"no name matches {pattern!r}; tracekit whatif PATH lists the names on the critical path"
        )

    def _suggest_numbers(self, where: Selection) -> list[str]:
        """List the recorded ranks and steps, if the selection names none of them."""
        ranks = {graph.source.rank for graph in self.job.processes if graph.source.rank is not None}
        steps = {
            int(number)
            for graph in self.job.processes
            for number in graph.steps.number.values[~graph.steps.number.missing]
        }
        recorded = (("rank", where.rank, ranks), ("step", where.step, steps))
        return [
            f"{field}: recorded are {format_ranges(known)}"
            for field, chosen, known in recorded
            if chosen is not None and known and not chosen & known
        ]

    def mark_times_within(self, pattern: str, process: Rows, time: Ints) -> Mask:
        """Mark recorded times at which any thread of the process is in a row of a matching name."""
        if pattern not in self._windows:
            self._windows[pattern] = self._list_windows(self.match_within(pattern))
        return self._mark_inside(self._windows[pattern], process, time)

    @staticmethod
    def _mark_inside(windows: list[Intervals], process: Rows, time: Ints) -> Mask:
        """Mark times within the windows of their process."""
        inside = np.zeros(len(time), np.bool_)
        for (start, end), mine in zip(windows, split_rows(process, len(windows)), strict=True):
            if len(start) and len(mine):
                inside[mine] = find_window_at(start, end, time[mine]) >= 0
        return inside

    def mark_times_of_few_requests(self, below: float, process: Rows, time: Ints) -> Mask:
        """Mark recorded times at which an engine generates for fewer requests than this, without a prompt among them."""
        key = f"requests below {below}"
        if key not in self._windows:
            few = [np.empty(0, np.bool_)]
            for graph in self.job.processes:
                batches = [parse_engine_batch(text) for text in graph.paths.name.texts]
                is_few = [b is not None and not b.prefill_requests and 0 < b.decode_requests < below for b in batches]
                few.append(np.array([*is_few, False])[graph.paths.name.codes])
            self._windows[key] = self._list_windows(self._widen(np.append(np.concatenate(few), False)))
        return self._mark_inside(self._windows[key], process, time)

    def _list_windows(self, within: Mask) -> list[Intervals]:
        """List when each process is in one of the marked paths."""
        windows = []
        for number, graph in enumerate(self.job.processes):
            path = np.where(graph.path >= 0, graph.path + self.job.first_path[number], -1)
            last = np.append(graph.thread[1:] != graph.thread[:-1], True) if len(path) else np.empty(0, np.bool_)
            rows = np.flatnonzero(within[path] & ~last)
            windows.append(merge_intervals(graph.time[rows], graph.time[rows + 1]))
        return windows

    def match_ops(self, pattern: str) -> Mask:
        """Mark the ops of a matching name."""
        if pattern not in self._ops:
            self._ops[pattern] = self._match(pattern, lambda graph: graph.ops.name)
        return self._ops[pattern]

    def number_names(self, name: Callable[[Any], Coded]) -> Ints:
        """Number the names of all paths or ops over all processes; -1 for none."""
        numbers: dict[str, int] = {}
        parts = [np.empty(0, np.int64)]
        for graph in self.job.processes:
            coded = name(graph)
            of_text = [numbers.setdefault(text, len(numbers)) for text in coded.texts]
            parts.append(np.array([*of_text, -1], np.int64)[coded.codes])
        return np.concatenate(parts)

    def _match(self, pattern: str, name: Callable[[Any], Coded]) -> Mask:
        compiled = re.compile(pattern)
        parts = [np.empty(0, np.bool_)]
        for graph in self.job.processes:
            coded = name(graph)
            matches = [compiled.search(text) is not None for text in coded.texts]
            parts.append(np.array([*matches, False])[coded.codes])
        return np.concatenate(parts)

    def split_by_process(self, process: Rows) -> Iterator[tuple[ProcessGraph, Ints]]:
        """Split rows by their process: (its graph, its rows)."""
        return zip(self.job.processes, split_rows(process, len(self.job.processes)), strict=True)

    def step_at(self, process: Rows, time: Ints) -> Ints:
        """Find the number of the step that runs at each recorded time of a process; -1 outside."""
        step = np.full(len(time), -1, np.int64)
        for graph, mine in self.split_by_process(process):
            steps = graph.steps
            if not len(mine) or not len(steps.begin):
                continue
            begin, end = graph.time[steps.begin], graph.time[steps.end]
            order = np.argsort(begin, kind="stable")
            place = order[np.maximum(np.searchsorted(begin[order], time[mine], side="right") - 1, 0)]
            inside = (begin[place] <= time[mine]) & (time[mine] < end[place])
            value = np.where(steps.number.missing, -1, steps.number.values)[place]
            step[mine] = np.where(inside, value, -1)
        return step

    def stage_at(self, process: Rows, time: Ints, *, masked: bool = False) -> Ints:
        """Find the number of the stage, by its name over all processes, at each recorded time; -1 outside.

        Stages whose names differ only in numbers are one if `masked`: without ranges of stages, the outermost range is often that
        of an engine's iteration, and counts its requests.
        """
        numbers = self.recall(("stages", masked), dict[str, int])
        stage = np.full(len(time), -1, np.int64)
        for graph, mine in self.split_by_process(process):
            stages = graph.stages
            if len(mine) and len(stages):
                texts = map(mask_numbers, stages.stage.texts) if masked else stages.stage.texts
                of_text = [numbers.setdefault(text, len(numbers)) for text in texts]
                of_row = np.array([*of_text, -1])[np.append(stages.stage.codes, -1)]
                stage[mine] = of_row[stages.row_at(time[mine])]
        return stage


def evaluate_in_chunks(rows: Rows, evaluate: Callable[[Rows], Any]) -> Any:
    """Evaluate rows in chunks, and concatenate the narrow results: numbers of 32 bits, or booleans."""
    parts = []
    for low in range(0, max(len(rows), 1), CHUNK_ROWS):
        part = evaluate(rows[low : low + CHUNK_ROWS])
        parts.append(part if part.dtype == np.bool_ else part.astype(np.int32))
    return np.concatenate(parts)


def _keep_letters(name: str) -> str:
    """Keep letters and digits, in lower case: `reduce_scatter` is part of `ncclDevKernel_ReduceScatter`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _shift(numbers: Numbers, first: int) -> Numbers:
    """Number rows of a process as those of the job; -1 remains -1."""
    return np.where(numbers >= 0, numbers + np.int32(first), np.int32(-1))


def _concatenate(job: JobGraph, column: Callable[[int], npt.NDArray[Any]]) -> Any:
    parts = [column(number) for number in range(len(job.processes))]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _find_class(job: JobGraph, name: str) -> Callable[[int], Mask]:
    """Find the ops of a class."""

    def find(number: int) -> Mask:
        graph = job.processes[number]
        return graph.classes.get(name, np.zeros(len(graph.ops), np.bool_))

    return find


def _find_launching_threads(graph: ProcessGraph) -> Numbers:
    """Find the thread that launched each op of a process; -1 where it is unknown."""
    thread = np.append(graph.thread, np.int32(-1))[graph.ops.call_begin]
    return np.where(graph.ops.is_launched, thread, np.int32(-1))


def _find_op_times(job: JobGraph) -> Callable[[int], Ints]:
    """Find when each op was launched, or began where its launch is unknown."""

    def find(number: int) -> Ints:
        ops = job.processes[number].ops
        return np.where(ops.is_launched, ops.launch_ns, ops.start)

    return find


def _look_up_groups(job: JobGraph) -> npt.NDArray[np.object_]:
    """Look up the process group of each op, "" for none."""
    group = np.full(int(job.first_op[-1]), "", object)
    for number, graph in enumerate(job.processes):
        rows = np.flatnonzero(graph.meetings.op >= 0)
        if len(rows):
            names = graph.meetings.rows["group"]
            listed = look_up_names(names, rows) if isinstance(names, Coded) else np.asarray(names, object)[rows]
            group[graph.meetings.op[rows] + job.first_op[number]] = ["" if name is None else name for name in listed]
    return group


def _look_up_message_sizes(job: JobGraph) -> npt.NDArray[np.float64]:
    """Look up the bytes of each op's message; infinite for none, and where it was not recorded."""
    size = np.full(int(job.first_op[-1]), np.inf)
    for number, graph in enumerate(job.processes):
        rows = np.flatnonzero(graph.meetings.op >= 0)
        recorded = graph.meetings.rows["size_bytes"] if len(rows) else None
        if isinstance(recorded, Nullable):
            known = rows[~recorded.missing[rows]]
            size[graph.meetings.op[known] + job.first_op[number]] = recorded.values[known]
    return size


def find_path_begins(index: JobIndex, pattern: str) -> Mask:
    """Mark the instants at which a row of a matching name begins that is in no other such row."""
    job, begins = index.job, np.zeros(len(index.job.time), np.bool_)
    outermost = np.append(_find_outermost_matches(index, pattern), -1)
    for number, graph in enumerate(job.processes):
        if not graph.host_count:
            continue
        path = np.where(graph.path >= 0, graph.path + job.first_path[number], -1)
        row = outermost[path]
        before = np.append(-1, row[:-1])
        before[np.append(True, graph.thread[1:] != graph.thread[:-1])] = -1
        begins[job.first[number] : job.first[number] + graph.host_count] = (row >= 0) & (before != row)
    return begins


def _find_outermost_matches(index: JobIndex, pattern: str) -> Ints:
    """Find the outermost path of a matching name on the way to each path; -1 for none."""
    outermost = np.where(index.match_paths(pattern)[:-1], np.arange(len(index.parent)), -1)
    while True:
        above = np.append(outermost, -1)[index.parent]
        wider = np.where(above >= 0, above, outermost)
        if np.array_equal(wider, outermost):
            return wider
        outermost = wider


def select_ops(index: JobIndex, where: Selection, on: str) -> Ints:
    """Select device ops: all, those that are no collectives (`device`), or collectives."""
    return index.recall((select_ops, where, on), lambda: _list_selected_ops(index, where, on))


def _list_selected_ops(index: JobIndex, where: Selection, on: str) -> Ints:
    chosen = mark_windows(index, where, index.op_process, index.op_at_ns)
    if where.op:
        chosen &= index.match_ops(where.op)
    if where.by:
        chosen &= index.match_within(where.by)[index.op_path]
    if where.row:
        chosen &= index.match_paths(where.row)[index.op_path]
    if where.group:
        compiled = re.compile(where.group)
        chosen &= np.array([compiled.search(text) is not None for text in index.group], np.bool_)
    if where.work:
        chosen &= _concatenate(index.job, _find_class(index.job, where.work))
    if where.smaller_bytes:
        chosen &= index.message_bytes < where.smaller_bytes
    if where.longer_than_us:
        chosen &= index.op_ns > where.longer_than_us * MICRO
    if on in ("device", "collective"):
        chosen &= index.is_collective == (on == "collective")
    return np.flatnonzero(chosen)


def select_host_transfers(index: JobIndex, where: Selection) -> Rows:
    """Select the edges that are the transfers of collectives that host threads carry out."""
    if where.work or where.longer_than_us:
        return np.empty(0, np.int64)
    job, edges = index.job, index.job.edges
    rows = index.list_edges(TRANSFER)
    rows = rows[edges.owner[rows] < 0]
    met = index.recall("host collectives", lambda: _index_host_meetings(job))
    place = np.full(len(job.time), -1, np.int64)
    place[met.end] = np.arange(len(met.end))
    place = place[edges.target[rows]]
    rows, place = rows[place >= 0], place[place >= 0]
    process, path = index.find_edge_processes(rows), met.path[place]
    chosen = mark_windows(index, where, process, job.time[met.begin[place]])
    for pattern, texts in ((where.op, met.op), (where.group, met.group)):
        if pattern:
            compiled = re.compile(pattern)
            matches = {text: compiled.search(text) is not None for text in set(texts.tolist())}
            chosen &= np.array([matches[text] for text in texts[place].tolist()], np.bool_)
    if where.by:
        chosen &= index.match_within(where.by)[path]
    if where.row:
        chosen &= index.match_paths(where.row)[path]
    if where.smaller_bytes:
        chosen &= met.message_bytes[place] < where.smaller_bytes
    return rows[chosen]


@dataclass(frozen=True, slots=True, eq=False)
class _HostCollectives:
    """Collectives of host threads: the instants and the path of each, its op and group ("": none), and the bytes of its message."""

    begin: Ints
    end: Ints
    path: Ints
    op: npt.NDArray[np.object_]
    group: npt.NDArray[np.object_]
    message_bytes: npt.NDArray[np.float64]


def _index_host_meetings(job: JobGraph) -> _HostCollectives:
    """Index the collectives of host threads over all processes."""
    parts: list[tuple[npt.NDArray[Any], ...]] = []
    for number, graph in enumerate(job.processes):
        meetings = graph.meetings
        mine = np.flatnonzero((meetings.op < 0) & (meetings.begin >= 0) & (meetings.begin < graph.host_count))
        if not len(mine):
            continue
        begin, end = (column[mine] + job.first[number] for column in (meetings.begin, meetings.end))
        path = _shift(graph.path[meetings.begin[mine]], int(job.first_path[number]))
        texts = []
        for name in ("op", "group"):
            column = meetings.rows[name]
            listed = look_up_names(column, mine) if isinstance(column, Coded) else np.asarray(column, object)[mine]
            texts.append(np.array(["" if text is None else text for text in listed], object))
        size, recorded = np.full(len(mine), np.inf), meetings.rows["size_bytes"]
        if isinstance(recorded, Nullable):
            size = np.where(recorded.missing[mine], np.inf, recorded.values[mine])
        parts.append((begin, end, path, *texts, size))
    if not parts:
        none, text = np.empty(0, np.int64), np.empty(0, object)
        return _HostCollectives(none, none, none, text, text, np.empty(0))
    return _HostCollectives(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def mark_windows(index: JobIndex, where: Selection, process: Rows, time: Ints) -> Mask:
    """Mark what belongs to the selected ranks, steps and ranges."""
    chosen = np.ones(len(process), np.bool_)
    if where.rank is not None:
        ranks = [graph.source.rank in where.rank for graph in index.job.processes]
        chosen &= np.array([*ranks, False])[process]
    if where.stage is not None:
        chosen &= _mark_stage(index, where.stage, process, time)
    if where.range:
        chosen &= index.mark_times_within(where.range, process, time)
    if where.not_range:
        chosen &= ~index.mark_times_within(where.not_range, process, time)
    if where.requests_below:
        chosen &= index.mark_times_of_few_requests(where.requests_below, process, time)
    if where.step is not None:
        chosen &= np.isin(index.step_at(process, time), list(where.step))
    if where.nth is not None and where.range:
        chosen &= _mark_nth(index, where.range, where.nth, process, time)
    return chosen


def _mark_stage(index: JobIndex, stage: str, process: Rows, time: Ints) -> Mask:
    """Mark times at which the process is in a stage."""
    chosen = np.zeros(len(process), np.bool_)
    for graph, mine in index.split_by_process(process):
        stages = graph.stages
        if not len(mine) or not len(stages):
            chosen[mine] = not stage
            continue
        role = graph.source.role
        is_it = [stage in (text, get_canonical_stage(text, role)) for text in stages.stage.texts]
        chosen[mine] = np.array([*is_it, not stage])[np.append(stages.stage.codes, -1)[stages.row_at(time[mine])]]
    return chosen


def _mark_nth(index: JobIndex, pattern: str, nth: frozenset[int], process: Rows, time: Ints) -> Mask:
    """Mark times within the n-th range of a matching name in each step."""
    job, chosen = index.job, np.zeros(len(process), np.bool_)
    begins = index.recall(
        (_mark_nth, pattern), lambda: np.flatnonzero(find_path_begins(index, pattern)).astype(np.int32)
    )
    of_begin, begin_ns = job.process_of(begins), job.time[begins]
    for number in np.unique(process).tolist():
        mine, starts = np.flatnonzero(process == number), np.sort(begin_ns[of_begin == number])
        if not len(starts):
            continue
        step = index.step_at(np.full(len(starts), number), starts)
        ordinal = (
            np.arange(len(starts)) - np.searchsorted(step, step)
            if (np.diff(step) >= 0).all()
            else np.arange(len(starts))
        )
        place = np.searchsorted(starts, time[mine], side="right") - 1
        chosen[mine] = (place >= 0) & np.isin(ordinal[np.maximum(place, 0)], list(nth))
    return chosen
