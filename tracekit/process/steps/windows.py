"""Steps and stages of one process: windows on the host (M8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import find_window_at, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.stages import (
    get_scope_stage,
    is_collective_range,
    is_known_stage,
    is_possible_stage,
    is_whole_step,
    parse_numbered_step,
    parse_profiler_step,
)
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables.arrays import Coded, Columns, Nullable, broadcast_value, repeat_text, select_rows
from tracekit.model.tables.keys import count_earlier_members, number_keys
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import build_call_tree, measure_time_resolution
from tracekit.process.name_filters import make_narrow_coded, mark_rows_of_kind, mark_wanted_names
from tracekit.process.steps.policy_updates import name_stage_ranges
from tracekit.process.steps.recording_start import find_early_collective, find_work_begin
from tracekit.process.steps.repetition import (
    LEAST_TIMES,
    Repetition,
    find_backlog_end,
    find_launch_times,
    find_repetition,
    find_work_end,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max

MAX_WHOLES = 8
"""Nested ranges around everything that are unwrapped at most."""

MAX_STAGES = 20_000
"""Ranges of one source at most; the outermost are kept first, then the longest."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeWindows:
    """Windows in order of start."""

    ts_ns: Ints
    dur_ns: Ints

    def __len__(self) -> int:
        """Count the windows."""
        return len(self.ts_ns)

    @property
    def end_ns(self) -> Ints:
        """End of each window."""
        return self.ts_ns + self.dur_ns

    def row_at(self, ts_ns: Ints) -> Ints:
        """Find the window that contains each instant, the last that began; -1 outside all."""
        return find_window_at(self.ts_ns, self.end_ns, ts_ns)

    def or_start_at(self, ts_ns: Ints) -> Ints:
        """Find the window that contains each instant; a window of zero length contains its start."""
        return find_window_at(self.ts_ns, self.ts_ns + np.maximum(self.dur_ns, 1), ts_ns)


@dataclass(frozen=True, slots=True, eq=False)
class StepWindows(TimeWindows):
    """Steps in order of start, with the columns of the measured table `steps`; `origin` and `name` apply to all.

    Time recorded before each step that is not part of it, or None: `start_up_ns` is the length of start-up,
    `skew_ns` the length of a wait for a rank whose recording had not begun.
    """

    step: Nullable
    occurrence: npt.NDArray[np.int32]
    origin: str
    name: str | None = None
    start_up_ns: Ints | None = None
    skew_ns: Ints | None = None

    @property
    def arrays(self) -> dict[str, Any]:
        """Columns by name."""
        return {
            "step": self.step,
            "occurrence": self.occurrence,
            "origin": repeat_text(self.origin, len(self)),
            "ts_ns": self.ts_ns,
            "dur_ns": self.dur_ns,
        }

    @property
    def before(self) -> dict[str, Ints]:
        """Start-up and skew before each step, as columns of `steps`."""
        none = np.zeros(len(self), np.int64)
        return {
            "start_up_ns": none if self.start_up_ns is None else self.start_up_ns,
            "skew_ns": none if self.skew_ns is None else self.skew_ns,
        }

    def take(self, rows: npt.NDArray[Any]) -> StepWindows:
        """Select rows."""
        return StepWindows(
            self.ts_ns[rows],
            self.dur_ns[rows],
            select_rows(self.step, rows),
            self.occurrence[rows],
            self.origin,
            self.name,
            None if self.start_up_ns is None else self.start_up_ns[rows],
            None if self.skew_ns is None else self.skew_ns[rows],
        )

    def numbers(self, rows: Ints) -> Nullable:
        """Look up the step number of each row; missing for -1, and for steps without a number."""
        values, missing = np.append(self.step.values, 0), np.append(self.step.missing, True)
        return Nullable(values[rows], missing[rows])

    def number_at(self, ts_ns: Ints) -> Nullable:
        """Look up the number of the step that contains each instant; missing outside all, and without a number."""
        return self.numbers(self.or_start_at(ts_ns))


@dataclass(frozen=True, slots=True, eq=False)
class StageWindows(TimeWindows):
    """Ranges in order of start, with the columns of the measured table `stages`."""

    step: Nullable
    stage: Coded
    parent: Coded
    occurrence: npt.NDArray[np.int32]

    @property
    def arrays(self) -> dict[str, Any]:
        """Columns by name."""
        return {
            "step": self.step,
            "stage": self.stage,
            "parent": self.parent,
            "occurrence": self.occurrence,
            "ts_ns": self.ts_ns,
            "dur_ns": self.dur_ns,
        }

    def take(self, rows: npt.NDArray[Any]) -> StageWindows:
        """Select rows."""
        return StageWindows(
            self.ts_ns[rows],
            self.dur_ns[rows],
            select_rows(self.step, rows),
            select_rows(self.stage, rows),
            select_rows(self.parent, rows),
            self.occurrence[rows],
        )


@dataclass(frozen=True)
class StepsAndStages:
    """Steps and stages in order of start; stages are the annotated ranges of the step thread.

    `dropped` counts the ranges beyond the cap.
    """

    step_rows: StepWindows
    stage_rows: StageWindows
    dropped: int = 0

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Steps as a frame: step, occurrence, origin, ts_ns, dur_ns."""
        steps = Columns(len(self.step_rows), self.step_rows.arrays).frame()
        return steps.astype({"origin": object})

    @cached_property
    def stages(self) -> pd.DataFrame:
        """Stages as a frame: step, stage, parent, occurrence, ts_ns, dur_ns."""
        return Columns(len(self.stage_rows), self.stage_rows.arrays).frame()


@dataclass(frozen=True, slots=True, eq=False)
class _HostColumns:
    """Columns of `host_ops` that the search for steps and stages needs."""

    names: Coded
    is_range: Mask
    thread: npt.NDArray[np.int32]
    ts_ns: Ints
    dur_ns: Ints

    def ranges(self, wanted: Callable[[str], object]) -> Mask:
        """Mark rows that are ranges with a wanted name."""
        return self.is_range & mark_wanted_names(self.names, wanted)


def find_steps_and_stages(trace: Trace) -> StepsAndStages:
    """Find the steps and stages of a trace, from annotations, or else from the file itself."""
    host = _HostColumns(
        trace.texts("host_ops", "name"),
        mark_rows_of_kind(trace, "host_ops", "range"),
        *(trace.numbers("host_ops", name) for name in ("thread", "ts_ns", "dur_ns")),
    )
    number_of, origin = parse_profiler_step, "profiler"
    is_step = host.ranges(_is_profiler_step_name)
    if not is_step.any():
        number_of, origin = parse_numbered_step, "range"
        is_step = _mark_numbered_step_ranges(trace, host)
    named = host.is_range & ~is_step & ~mark_wanted_names(host.names, is_collective_range)
    named &= ~_mark_unnumbered_step_ranges(trace, host)
    plausible = named & mark_wanted_names(host.names, is_possible_stage)
    thread = _find_busiest_thread(host, next((m for m in (is_step, plausible, named) if m.any()), named))
    on_thread = host.is_range & False if thread is None else host.thread == thread
    is_stage = named & on_thread
    steps = _make_annotated_steps(trace, host, (is_step & on_thread).nonzero()[0], number_of, origin)
    if not len(steps) and _is_unmarked_device_recording(trace):
        whole = _find_enclosing_ranges(trace, plausible & on_thread)
        is_stage[whole], plausible[whole] = False, False
        repeated = find_repetition(trace, _find_outermost_rows(trace, plausible & on_thread))
        if repeated is not None:
            is_stage[repeated.rows] = False
            steps = _keep_windows_after_start_up(trace, _make_repeated_steps(repeated))
    stage_rows = is_stage.nonzero()[0]
    is_stage[stage_rows[_mark_ranges_around_steps(host, steps, stage_rows, trace.derived(measure_time_resolution))]] = (
        False
    )
    if not len(steps):
        steps = _trim_unmarked_step(trace, _make_file_steps(trace, host, (plausible & on_thread).nonzero()[0]))
    if len(steps) and any(account.captures for account in trace.source.accounts):
        # A process recorded all the time also went through steps that were not captured.
        is_stage &= steps.or_start_at(host.ts_ns) >= 0
    stages, dropped = _make_stages(trace, host, is_stage, steps)
    if steps.start_up_ns is not None:
        stages = _clip_stages(stages, int(steps.ts_ns[0]))
    trace.forget(find_launch_times)
    return StepsAndStages(steps, stages, dropped)


def _trim_unmarked_step(trace: Trace, steps: StepWindows) -> StepWindows:
    """Begin the single step of a recording without marks where its work begins, after start-up.

    A collective's wait for a rank whose recording had not begun is not part of the recording either.
    """
    if len(steps) != 1 or not steps.step.missing.all() or not _is_unmarked_device_recording(trace):
        return steps
    host_begin, end = int(steps.ts_ns[0]), int(steps.end_ns[0])
    skew = trace.derived(find_early_collective)
    begin = host_begin if skew is None else min(max(host_begin, skew.end_ns), end)
    start = min(find_work_begin(trace, begin), end)
    if start == host_begin:
        return steps
    return replace(
        steps,
        ts_ns=np.array([start]),
        dur_ns=np.array([end - start]),
        start_up_ns=np.array([start - begin]),
        skew_ns=np.array([begin - host_begin]),
    )


def _keep_windows_after_start_up(trace: Trace, steps: StepWindows) -> StepWindows:
    """Keep the repeated windows that begin after start-up, if enough are left."""
    rows = (steps.ts_ns >= find_work_begin(trace, int(steps.ts_ns[0]))).nonzero()[0]
    return steps.take(rows) if LEAST_TIMES <= len(rows) < len(steps) else steps


def _clip_stages(stages: StageWindows, begin_ns: int) -> StageWindows:
    """Clip stages to begin at this instant, and drop those mostly before it."""
    stages = stages.take((stages.ts_ns + stages.dur_ns // 2 >= begin_ns).nonzero()[0])
    start = np.maximum(stages.ts_ns, begin_ns)
    return replace(stages, ts_ns=start, dur_ns=stages.end_ns - start)


def _mark_ranges_around_steps(host: _HostColumns, steps: StepWindows, rows: Ints, jitter_ns: int) -> Mask:
    """Mark ranges that contain more than a whole step, except known stages: they are not stages of a step."""
    long = (steps.dur_ns > 0).nonzero()[0]
    start = host.ts_ns[rows]
    end = start + host.dur_ns[rows]
    step = np.searchsorted(steps.ts_ns[long], start)
    step_start, step_end = (np.append(ns[long], _NEVER)[step] for ns in (steps.ts_ns, steps.end_ns))
    # A range as long as a step may end after it by the rounding of times.
    holds = (step_end <= end) & ((start < step_start) | (step_end + jitter_ns < end))
    return holds & ~mark_wanted_names(select_rows(host.names, rows), is_known_stage)


def _is_unmarked_device_recording(trace: Trace) -> bool:
    """Check whether device work was recorded, and neither file, process nor engine gives the step or stage.

    A recording of the host alone is one piece: it is unknown whether its repetitions are the work.
    """
    source = trace.source
    is_capture = source.part is not None and source.part.startswith("capture")
    is_told = is_capture or source.step is not None or source.replica is not None
    is_told |= any(account.captures for account in source.accounts)
    is_told |= get_scope_stage(source.scope, source.role) is not None
    return not is_told and len(trace.numbers("device_ops", "ts_ns")) > 0


def _find_enclosing_ranges(trace: Trace, plausible: Mask) -> Ints:
    """Find ranges that alone enclose all others: they are the recording, and would hide their content."""
    wholes: list[int] = []
    inside = plausible.copy()
    while True:
        outer = _find_outermost_rows(trace, inside)
        if len(outer) != 1 or np.count_nonzero(inside) < 3 or len(wholes) == MAX_WHOLES:
            return np.array(wholes, np.int64)
        name = trace.texts("host_ops", "name").texts[trace.texts("host_ops", "name").codes[outer[0]]]
        if is_known_stage(name):
            return np.array(wholes, np.int64)
        wholes += outer.tolist()
        inside[outer] = False


def _find_outermost_rows(trace: Trace, chosen: Mask) -> Ints:
    """Find the chosen rows that no other chosen row encloses."""
    rows = chosen.nonzero()[0]
    return rows[trace.derived(build_call_tree).nearest(chosen, rows) < 0]


def _make_repeated_steps(repeated: Repetition) -> StepWindows:
    """Make steps of repeated windows, numbered from 1."""
    count = len(repeated.ts_ns)
    return StepWindows(
        repeated.ts_ns,
        repeated.end_ns - repeated.ts_ns,
        Nullable(np.arange(1, count + 1), np.zeros(count, np.bool_)),
        np.zeros(count, np.int32),
        repeated.origin,
        repeated.name,
    )


def _is_profiler_step_name(name: str) -> bool:
    """Check whether a name is `ProfilerStep#n`."""
    return parse_profiler_step(name) is not None


def _is_numbered_step_name(name: str) -> bool:
    """Check whether a name is that of a numbered step."""
    return parse_numbered_step(name) is not None


def _find_busiest_thread(host: _HostColumns, mask: Mask) -> int | None:
    """Find the thread on which the chosen rows cover most time; the lowest of equals, None without rows."""
    rows = mask.nonzero()[0]
    if not len(rows):
        return None
    thread, start = host.thread[rows], host.ts_ns[rows]
    if (thread == thread[0]).all():
        return int(thread[0])
    end = start + host.dur_ns[rows]
    totals = {int(t): merge_intervals(start[thread == t], end[thread == t]).total for t in np.unique(thread)}
    return min(totals, key=lambda t: (-totals[t], t))


def _mark_numbered_step_ranges(trace: Trace, host: _HostColumns) -> Mask:
    """Mark ranges `step n` that divide the recording: not those inside a stage or another such range.

    If the file itself is a step or a stage, or its process lists the captured steps, such ranges are parts of
    that.
    """
    source = trace.source
    is_capture = source.step is not None or any(account.captures for account in source.accounts)
    if is_capture or get_scope_stage(source.scope, source.role) is not None:
        return np.zeros(len(host.ts_ns), np.bool_)
    is_numbered = host.ranges(_is_numbered_step_name)
    rows = is_numbered.nonzero()[0]
    if len(rows):
        above = is_numbered | host.ranges(is_known_stage)
        is_numbered[rows[trace.derived(build_call_tree).nearest(above, rows) >= 0]] = False
    return is_numbered


def _mark_unnumbered_step_ranges(trace: Trace, host: _HostColumns) -> Mask:
    """Mark ranges `step` or similar around known stages: they would hide their content."""
    around = host.ranges(is_whole_step)
    is_whole = np.zeros(len(around), np.bool_)
    if around.any():
        stages = host.ranges(is_known_stage).nonzero()[0]
        outer = trace.derived(build_call_tree).nearest(around, stages)
        is_whole[outer[outer >= 0]] = True
    return is_whole


def _make_annotated_steps(
    trace: Trace, host: _HostColumns, rows: Ints, number_of: Callable[[str], int | None], origin: str
) -> StepWindows:
    """Make steps of annotated ranges `ProfilerStep#n` (or `step n`)."""
    # Of steps with one start the longest comes last in any input order, since `number_at` takes the last.
    ids = trace.numbers("host_ops", "id")
    rows = rows[np.lexsort((ids[rows], host.dur_ns[rows], host.ts_ns[rows]))]
    numbers = [number_of(host.names.texts[code]) for code in host.names.codes[rows].tolist()]
    step = np.array(numbers, np.int64)
    return StepWindows(
        host.ts_ns[rows],
        host.dur_ns[rows],
        Nullable(step, np.zeros(len(step), np.bool_)),
        count_earlier_members(step),
        origin,
    )


def _make_file_steps(trace: Trace, host: _HostColumns, plausible: Ints) -> StepWindows:
    """Make the source one step, or the steps that its process says it captured.

    A step lasts from the first to the last host row, or until the device work launched meanwhile has ended
    (without host rows: from the first to the last op). If the device was late, being busy with work launched
    before the recording, a capture begins with its own device work. Python functions do not count, since
    recording them is a choice of the profiler. A capture of several steps in a row, named by the first, has
    stages that all come equally often: it is divided where the first stage begins again.
    """
    counted = ~mark_rows_of_kind(trace, "host_ops", "overhead", "python", "other")
    start, length = host.ts_ns, host.dur_ns
    if not counted.any():
        start, length = (trace.numbers("device_ops", name) for name in ("ts_ns", "dur_ns"))
        counted = broadcast_value(np.True_, len(start))
    numbers: list[int | None] = []
    bounds: list[tuple[int, int]] = []
    captures = _list_captures(trace, start, counted)
    afterwards = [*(first for _, first, _ in captures[1:]), _INT64.max]
    for (step, first, last), following in zip(captures, afterwards, strict=False):
        begun_ns, finished = _find_rows_extent(start, length, _mark_rows_between(start, counted, first, last))
        begun = host.ts_ns[plausible]
        of_capture = plausible[(begun >= first) & (begun < last)]
        finished = max(finished, min(find_work_end(trace, first, last), following))
        ends = [*_find_capture_divisions(trace, host, of_capture), finished]
        begun_ns = _find_capture_begin(trace, step, begun_ns)
        begins = [min(begun_ns, finished), *ends[:-1]]
        bounds += zip(begins, ends, strict=True)
        numbers += [None if step is None else step + place for place in range(len(begins))]
    stage = get_scope_stage(trace.source.scope, trace.source.role)
    is_stage = stage is not None or any(account.discrete for account in trace.source.accounts)
    unknown = np.array([number is None for number in numbers], np.bool_)
    begin, finish = np.array(bounds, np.int64).reshape(-1, 2).T
    return StepWindows(
        begin,
        finish - begin,
        Nullable(np.array([number or 0 for number in numbers], np.int64), unknown),
        np.where(unknown, np.cumsum(unknown, dtype=np.int32) - 1, 0).astype(np.int32),
        "stage" if is_stage else "file",
    )


_INT64 = np.iinfo(np.int64)


def _mark_rows_between(start: Ints, counted: Mask, first: int, last: int) -> Mask:
    """Mark counted rows that begin from `first` on and before `last`."""
    is_inside: Mask = counted & (start >= first) & (start < last)
    return is_inside


def _find_rows_extent(start: Ints, length: Ints, chosen: Mask) -> tuple[int, int]:
    """Find the (first start, last end) of the chosen rows, without copying columns."""
    begun = start.min(where=chosen, initial=_INT64.max)
    return int(begun), int((start + length).max(where=chosen, initial=_INT64.min))


def _find_capture_begin(trace: Trace, step: int | None, host_begin_ns: int) -> int:
    """Find when a capture begins: with the host, or with its device work if the process lists no captures."""
    if trace.source.accounts or step is not None or not trace.has("host_ops"):
        return host_begin_ns
    return find_backlog_end(trace, host_begin_ns)


def _list_captures(trace: Trace, start: Ints, counted: Mask) -> list[tuple[int | None, int, int]]:
    """List (step, from, until) of the captures in which a counted row began, in order.

    If the process listed no captures, or none in this file, the whole file is one. For a process that ran
    beside those that did, only the captured time counts.
    """
    captures = [
        (
            account_capture.step,
            account_capture.start_unix_ns,
            _INT64.max if account_capture.stop_unix_ns is None else account_capture.stop_unix_ns,
        )
        for account in trace.source.accounts
        for account_capture in account.captures
        if account_capture.start_unix_ns is not None
    ]
    begun = [
        (step, first, last)
        for step, first, last in sorted(captures, key=lambda capture: capture[1:])
        if trace.meta.get("absolute_time") and _mark_rows_between(start, counted, first, last).any()
    ]
    is_helper = bool(captures) and all(not account.name for account in trace.source.accounts)
    if begun or not counted.any() or (is_helper and trace.meta.get("absolute_time")):
        return begun
    return [(trace.source.step, _INT64.min, _INT64.max)]


def _find_capture_divisions(trace: Trace, host: _HostColumns, plausible: Ints) -> list[int]:
    """Find where a capture of several steps begins its second, third … step; empty for one step."""
    if len(plausible) < 4 or get_scope_stage(trace.source.scope, trace.source.role) is not None:
        return []
    is_plausible = np.zeros(len(host.ts_ns), np.bool_)
    is_plausible[plausible] = True
    outer = plausible[trace.derived(build_call_tree).nearest(is_plausible, plausible) < 0]
    codes, start = host.names.codes[outer], host.ts_ns[outer]
    names, counts = np.unique(codes, return_counts=True)
    if len(names) < 2 or counts.min() < 2 or counts.min() != counts.max():
        return []
    return sorted(start[codes == codes[start.argmin()]].tolist())[1:]


def _make_stages(trace: Trace, host: _HostColumns, is_stage: Mask, steps: StepWindows) -> tuple[StageWindows, int]:
    """Make stages of ranges: (stages, number beyond the cap); of nested ranges with one name, the outermost."""
    rows = is_stage.nonzero()[0]
    parent = trace.derived(build_call_tree).nearest(is_stage, rows)
    codes, texts = name_stage_ranges(trace, rows, parent)
    nested_like = (parent >= 0) & (codes[parent] == codes[rows])
    rows, parent = rows[~nested_like], parent[~nested_like]
    if dropped := max(len(rows) - MAX_STAGES, 0):
        weight = np.where(parent < 0, np.iinfo(np.int64).max, host.dur_ns[rows])
        chosen = np.sort(np.argsort(-weight, kind="stable")[:MAX_STAGES])
        rows, parent = rows[chosen], parent[chosen]
    order = np.lexsort((rows, host.ts_ns[rows]))
    rows, parent = rows[order], parent[order]
    # A recorded step may end just after its successor has begun.
    jitter_ns = np.minimum(trace.derived(measure_time_resolution), host.dur_ns[rows] // 2)
    step, stage = steps.number_at(host.ts_ns[rows] + jitter_ns), codes[rows]
    _, step_place = number_keys(np.where(step.missing, -1, step.values))
    stages = StageWindows(
        host.ts_ns[rows],
        host.dur_ns[rows],
        step,
        make_narrow_coded(stage, texts),
        make_narrow_coded(np.where(parent >= 0, codes[parent], -1), texts),
        count_earlier_members(step_place * (len(texts) + 1) + stage + 1),
    )
    return stages, dropped
