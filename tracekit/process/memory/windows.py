"""Steps and stages of a memory snapshot: its annotations as ranges, else the file as one step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stages import is_collective_range, parse_numbered_step, parse_profiler_step
from tracekit.model.tables.arrays import Coded, Nullable, mask_value, repeat_number, select_rows
from tracekit.model.tables.keys import count_earlier_members, group_arrays
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import Replay
from tracekit.process.name_filters import make_narrow_coded, mark_wanted_names
from tracekit.process.steps.windows import StageWindows, StepWindows, TimeWindows

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class AnnotatedRanges(TimeWindows):
    """Annotated ranges in order of start."""

    name: Coded


def list_annotated_ranges(trace: Trace) -> AnnotatedRanges:
    """List the annotated ranges of the device with most annotations.

    A start is paired with the next end of its name at the same depth. A range whose start or end was not
    recorded begins or ends with the history.
    """
    names, rows = trace.texts("annotations", "name"), _select_annotation_marks(trace)
    if not len(rows):
        none = np.empty(0, np.int64)
        return AnnotatedRanges(none, none, make_narrow_coded(none, names.texts))
    name = names.codes[rows].astype(np.int64)
    ts = trace.nullable("annotations", "ts_ns").values[rows]
    opens = mask_value(trace.texts("annotations", "stage"), "start")[rows]
    # Within a name, marks at one depth alternate: start, end, start, end.
    order = np.argsort(name, kind="stable")
    step = np.where(opens, 1, -1)[order]
    level = np.cumsum(step)
    depth = np.where(opens[order], level, level + 1)
    order = order[np.lexsort((np.arange(len(order)), depth, name[order]))]
    depth_of = np.empty(len(ts), np.int64)
    depth_of[np.argsort(name, kind="stable")] = depth
    is_open, key = opens[order], np.stack((name[order], depth_of[order]))
    same_key = np.append((key[:, 1:] == key[:, :-1]).all(axis=0), False)
    closed = is_open & same_key & ~np.append(is_open[1:], False)
    first, last = _find_history_bounds(trace, ts)
    after = np.append(ts[order][1:], last)
    starts, ends = ts[order][is_open], np.where(closed, after, last)[is_open]
    # An end without a start closes a range that began before the history.
    unmatched = ~is_open & ~np.append(False, closed[:-1])[: len(order)]
    begin = np.concatenate((starts, np.full(int(unmatched.sum()), first)))
    end = np.concatenate((ends, ts[order][unmatched]))
    codes = np.concatenate((name[order][is_open], name[order][unmatched]))
    sort = np.lexsort((-end, begin))
    return AnnotatedRanges(begin[sort], np.maximum(end - begin, 0)[sort], make_narrow_coded(codes[sort], names.texts))


def _select_annotation_marks(trace: Trace) -> Ints:
    """Select the starts and ends with a time and a name, in order, of one device; all devices record the same."""
    ts, device = (trace.nullable("annotations", column) for column in ("ts_ns", "device"))
    is_other = mask_value(trace.texts("annotations", "stage"), "other")
    rows = (~ts.missing & (trace.texts("annotations", "name").codes >= 0) & ~is_other).nonzero()[0]
    number, first = group_arrays([select_rows(device, rows)])
    if len(first) > 1:
        counts = np.bincount(number)
        frequent = select_rows(device, rows[first[counts == counts.max()]])
        lowest = min(frequent.values[~frequent.missing].tolist(), default=None)
        rows = rows[mask_value(select_rows(device, rows), lowest)]
    return rows[np.argsort(ts.values[rows], kind="stable")]


def _find_history_bounds(trace: Trace, ts: Ints) -> tuple[int, int]:
    """Find when the history begins and ends."""
    times = trace.nullable("allocations", "ts_ns")
    times_all = np.concatenate((times.values[~times.missing], ts))
    return int(times_all.min()), int(times_all.max())


def list_snapshot_steps(trace: Trace, replay: Replay) -> StepWindows:
    """List the steps of one device's history in order of start.

    Ranges `ProfilerStep#n`, else ranges that a program numbers, else the whole history with the number of the
    file.
    """
    ranges = trace.derived(list_annotated_ranges)
    numbers: list[int | None] = []
    if replay.timed:
        # If the file itself is a step, the ranges that a program numbers are parts of it.
        for number_of in (parse_profiler_step, parse_numbered_step)[: 1 if trace.source.step is not None else 2]:
            numbers = [number_of(name) for name in ranges.name.texts]
            if any(number is not None for number in numbers):
                break
    chosen = np.array([*(number is not None for number in numbers), False], np.bool_)
    if not chosen.any():
        return _make_file_step(trace, replay)
    rows = chosen[ranges.name.codes].nonzero()[0]
    step = np.array([numbers[code] for code in ranges.name.codes[rows].tolist()], np.int64)
    known = Nullable(step, np.zeros(len(step), np.bool_))
    return StepWindows(ranges.ts_ns[rows], ranges.dur_ns[rows], known, count_earlier_members(step), origin="")


def _make_file_step(trace: Trace, replay: Replay) -> StepWindows:
    """Make the history one step that includes earlier memory; empty without a history."""
    first = replay.ts_ns[:1] - 1
    step = repeat_number(trace.source.step, len(first))
    return StepWindows(first, replay.ts_ns[-1:] - first + 1, step, np.zeros(len(first), np.int32), origin="")


def _is_snapshot_stage_name(name: str) -> bool:
    """Check whether a range of this name may be a stage: neither a step nor a collective."""
    return parse_profiler_step(name) is None and parse_numbered_step(name) is None and not is_collective_range(name)


def list_snapshot_stages(trace: Trace, snapshot_steps: StepWindows) -> StageWindows:
    """List the outermost ranges that are not steps or collectives, in order of start."""
    ranges = trace.derived(list_annotated_ranges)
    rows = mark_wanted_names(ranges.name, _is_snapshot_stage_name).nonzero()[0]
    end = ranges.end_ns[rows]
    # Sorted by start, a range that ends within an earlier one is inside it.
    before = np.maximum.accumulate(end)
    rows = rows[np.append(True, end[1:] > before[:-1])[: len(end)]]
    start, stage = ranges.ts_ns[rows], select_rows(ranges.name, rows)
    step = snapshot_steps.numbers(snapshot_steps.row_at(start))
    return StageWindows(
        start,
        ranges.dur_ns[rows],
        step,
        stage,
        parent=Coded(np.full(len(rows), -1, np.int8), ()),
        occurrence=count_earlier_members(group_arrays([step, stage])[0]),
    )
