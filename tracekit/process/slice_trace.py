"""Slicing of a trace to some of its steps or stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, measure_coverage, merge_intervals
from tracekit.model.stages import get_scope_stage, is_possible_stage, parse_numbered_step, parse_profiler_step
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns, Frames, Nullable, select_all_rows
from tracekit.model.trace import Note, Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.device.placement import Placement, place_device_ops
from tracekit.process.memory.replay import replay_all_devices
from tracekit.process.memory.windows import list_snapshot_steps
from tracekit.process.name_filters import mark_wanted_names
from tracekit.process.steps.recording_start import find_early_collective
from tracekit.process.steps.stage_lookup import select_outer_ranges
from tracekit.process.steps.start_up import find_start_up_calls, renumber_start_up_calls
from tracekit.process.steps.windows import StageWindows, StepsAndStages, StepWindows, find_steps_and_stages

READS = frozenset(
    [
        "host_ops",
        "device_ops",
        "device_ranges",
        "allocations",
        "blocks",
        "memory_segments",
        "annotations",
        "log_values",
        "memory_log",
    ]
)
"""Tables that `slice_trace` needs to find and cut steps and stages; every slice reads them."""

StageFilter = Callable[[str, str | None], bool]
"""Filter of stages by recorded name and the role of the process."""


def slice_trace(trace: Trace, steps: frozenset[int] | None, stage: StageFilter | None) -> Trace | None:
    """Slice a trace to the host activity of the chosen steps and stages, and the device work that belongs to it.

    None if nothing of the trace is in them. A trace whose steps have no number is in every step. Device work
    launched before the recording began is left out, with a note.
    """
    if trace.source.tool == "log":
        return _slice_log(trace, steps)
    if trace.source.tool == "torch_memory":
        return _slice_snapshot(trace, steps)
    steps_and_stages: StepsAndStages = trace.derived(find_steps_and_stages)
    chosen = _find_chosen_time(trace, steps_and_stages, steps, stage)
    if chosen is None:
        return trace
    if not len(chosen.start):
        return None
    whole_step = mark_wanted_names(trace.texts("host_ops", "name"), _is_step_range_name)
    start = trace.numbers("host_ops", "ts_ns")
    end = start + np.maximum(trace.numbers("host_ops", "dur_ns"), 1)
    inside = measure_coverage(chosen, start, start + 1) > 0
    inside |= whole_step & (measure_coverage(chosen, start, end) > 0)
    kept_rows = {}
    notes = trace.notes
    if trace.has("host_ops"):
        kept_rows["host_ops"] = inside
        first_calls = renumber_start_up_calls(trace.derived(find_start_up_calls), inside)
    if trace.has("device_ops"):
        place: Placement = trace.derived(place_device_ops)
        keep = place.is_placed & (measure_coverage(chosen, place.ts_ns, place.ts_ns + 1) > 0)
        kept_rows["device_ops"] = keep
        if lost := int((~place.is_placed).sum()):
            message = "device ops launched before the recording began belong to no step: left out"
            notes = (*notes, Note("info", "unlinked-left-out", message, trace.source.name, lost))
    for name in ("memory_ops", "counters", "syncs", "device_ranges"):
        if trace.has(name):
            ts = trace.numbers(name, "ts_ns")
            kept_rows[name] = measure_coverage(chosen, ts, ts + 1) > 0
    part = replace(trace, tables=_select_table_rows(trace, kept_rows), notes=notes)
    part.keep(find_steps_and_stages, _slice_windows(steps_and_stages, chosen, steps))
    if trace.has("host_ops"):
        # Only the whole trace shows which calls come first.
        part.keep(find_start_up_calls, first_calls)
    if trace.has("device_ops"):
        # The slice may lack the annotations and earlier calls that placed its ops.
        part.keep(place_device_ops, Placement(place.how[keep], place.ts_ns[keep]))
    return part


def drop_start_up(trace: Trace) -> Trace:
    """Drop the start-up of a recording without marks, and a collective that waited for a late recording.

    Returns the trace itself if nothing comes before its work. Rows that run across that instant stay whole,
    and so do the launches of the kept ops. With marks only that collective is dropped: it is in a step that
    does not count.
    """
    if trace.source.tool in ("log", "torch_memory") or not trace.has("device_ops"):
        return trace
    recorded: StepsAndStages = trace.derived(find_steps_and_stages)
    begin = None if recorded.step_rows.start_up_ns is None else int(recorded.step_rows.ts_ns[0])
    waited = trace.derived(find_early_collective)
    if begin is None and waited is None:
        return trace
    start, dur = (trace.numbers("device_ops", name) for name in ("ts_ns", "dur_ns"))
    keep = np.ones(len(start), np.bool_) if begin is None else start + dur >= begin
    if waited is not None:
        keep[waited.row] = False
    if begin is None:
        part = replace(trace, tables=_select_table_rows(trace, {"device_ops": keep}))
    else:
        part = _slice_from(trace, keep, begin)
    part.keep(find_steps_and_stages, recorded)
    return part


def _select_table_rows(trace: Trace, kept_rows: Mapping[str, npt.NDArray[np.bool_]]) -> Frames:
    """List the tables of a trace, with only the rows to keep of these."""
    assert isinstance(trace.tables, Frames), "a trace stores its tables this way"
    tables = dict(trace.tables.as_given())
    for name, is_kept in kept_rows.items():
        columns = {column: trace.array(name, column) for column in TABLES[name].columns}
        tables[name] = Columns(int(np.count_nonzero(is_kept)), select_all_rows(columns, is_kept))
    return Frames(tables)


def _slice_from(trace: Trace, keep: npt.NDArray[np.bool_], begin: int) -> Trace:
    """Keep these device ops (the rows to `keep`), and the other rows from `begin` on."""
    first_calls, kept_rows = None, {"device_ops": keep}
    if trace.has("host_ops"):
        links: Launches = trace.derived(find_launches)
        host_start, host_dur = (trace.numbers("host_ops", name) for name in ("ts_ns", "dur_ns"))
        is_left = host_start + host_dur > begin
        is_left[links.call[keep & (links.call >= 0)]] = True
        kept_rows["host_ops"] = is_left
        first_calls = renumber_start_up_calls(trace.derived(find_start_up_calls), is_left)
    for name in ("syncs", "device_ranges"):
        if trace.has(name):
            kept_rows[name] = trace.numbers(name, "ts_ns") + trace.numbers(name, "dur_ns") > begin
    part = replace(trace, tables=_select_table_rows(trace, kept_rows))
    if first_calls is not None:
        part.keep(find_start_up_calls, first_calls)
    return part


def _is_step_range_name(name: str) -> bool:
    """Check whether a range of this name may be a whole step."""
    return parse_profiler_step(name) is not None or parse_numbered_step(name) is not None


def _slice_log(trace: Trace, steps: frozenset[int] | None) -> Trace | None:
    """Slice the lines of a driver's log to the chosen steps; stages are filtered at display time."""
    logged = [name for name in ("log_values", "memory_log") if trace.row_count(name)]
    if steps is None or not logged:
        return trace
    kept_rows = {name: _mark_rows_of_steps(trace.nullable(name, "step"), steps) for name in logged}
    if not any(is_kept.any() for is_kept in kept_rows.values()):
        return None
    return replace(trace, tables=_select_table_rows(trace, kept_rows))


def _slice_snapshot(trace: Trace, steps: frozenset[int] | None) -> Trace | None:
    """Keep a whole snapshot if it has a chosen step or no steps: memory levels need the history before a step."""
    numbers = list_step_numbers(trace)
    return trace if steps is None or not numbers or numbers & steps else None


def list_step_numbers(trace: Trace) -> frozenset[int]:
    """List the numbers of the known steps of a process."""
    step = trace.source.step
    named = frozenset() if step is None else frozenset({step})
    if trace.source.tool == "log":
        columns = [trace.nullable(name, "step") for name in ("log_values", "memory_log")]
    elif trace.source.tool == "torch_memory":
        columns = [list_snapshot_steps(trace, replay).step for replay in trace.derived(replay_all_devices)]
    else:
        columns = [trace.derived(find_steps_and_stages).step_rows.step]
    return named.union(*(column.values[~column.missing].tolist() for column in columns))


def list_stage_names(trace: Trace) -> frozenset[str]:
    """List the recorded names of the stages of a process, and the scope of its file if that is a stage."""
    source = trace.source
    scope = get_scope_stage(source.scope, source.role)
    named = frozenset() if scope is None or source.scope is None else frozenset({source.scope})
    if source.tool in ("log", "torch_memory"):
        return named
    stages = trace.derived(select_outer_ranges).stage
    outermost = (stages.texts[code] for code in np.unique(stages.codes).tolist() if code >= 0)
    return named.union(filter(is_possible_stage, outermost))


def _slice_windows(recorded: StepsAndStages, chosen: Intervals, steps: frozenset[int] | None) -> StepsAndStages:
    """Keep the chosen steps at full length, and the ranges that start in the chosen time."""
    steps_inside, ranges = recorded.step_rows, recorded.stage_rows
    if steps is not None:
        steps_inside = steps_inside.take(_mark_rows_of_steps(steps_inside.step, steps).nonzero()[0])
    is_inside = measure_coverage(chosen, ranges.ts_ns, ranges.ts_ns + 1) > 0
    return StepsAndStages(steps_inside, ranges.take(is_inside.nonzero()[0]), recorded.dropped)


def _find_chosen_time(
    trace: Trace, recorded: StepsAndStages, steps: frozenset[int] | None, stage: StageFilter | None
) -> Intervals | None:
    """Find the chosen time; None if nothing is to be cut."""
    if steps is None and stage is None:
        return None
    rows: StepWindows | StageWindows = recorded.step_rows
    if stage is not None:
        ranges, role = recorded.stage_rows, trace.source.role
        wanted = [*(stage(name, role) for name in ranges.stage.texts), False]
        is_wanted = np.array(wanted, np.bool_)[ranges.stage.codes] & (ranges.parent.codes < 0)
        rows = ranges.take(is_wanted.nonzero()[0])
    if steps is not None:
        rows = rows.take(_mark_rows_of_steps(rows.step, steps).nonzero()[0])
    return merge_intervals(rows.ts_ns, rows.ts_ns + np.maximum(rows.dur_ns, 1))


def _mark_rows_of_steps(numbers: Nullable, steps: frozenset[int]) -> npt.NDArray[np.bool_]:
    """Mark rows of these steps, or of a step without a number."""
    return np.isin(numbers.values, list(steps)) | numbers.missing
