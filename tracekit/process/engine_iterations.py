"""Iterations of a rollout engine (vLLM, SGLang), from annotations: batch, duration and launched work.

Both engines name one range per iteration after the batch that it runs. Of nested ranges (SGLang writes both
spellings) the outermost counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import find_window_at
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import (
    Nullable,
    make_nullable_numbers,
    repeat_number,
    repeat_text,
    select_all_rows,
    select_rows,
)
from tracekit.model.tables.keys import group_arrays, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.device.placement import Placement, place_device_ops
from tracekit.process.device.work_per_window import measure_work_per_window
from tracekit.process.name_filters import mark_rows_of_kind
from tracekit.process.steps.engine_batches import EngineBatch, parse_engine_batch
from tracekit.process.steps.windows import find_steps_and_stages

Ints = npt.NDArray[np.int64]

MAX_ITERATIONS = 20_000
"""Iterations of one source listed one by one; beyond it, neighbors of one phase are merged."""


@dataclass(frozen=True, slots=True)
class EngineIterations:
    """Iterations of the thread with most of them, in order of start.

    `columns` are those of the measured table `iterations` before merging, and `end_ns`, when the range
    and the work launched in it have ended. `elsewhere` counts the omitted iterations of other threads.
    """

    columns: Mapping[str, Any]
    elsewhere: int


def list_engine_iterations(trace: Trace) -> EngineIterations | None:
    """List the engine iterations of a trace, from its annotations; None if it has none."""
    names = trace.texts("host_ops", "name")
    batch_of_name = [parse_engine_batch(name) for name in names.texts]
    batches = [b for b in batch_of_name if b is not None]
    if not batches:
        return None
    codes, thread = names.codes, trace.numbers("host_ops", "thread")
    named = np.array([*(b is not None for b in batch_of_name), False], np.bool_)[codes]
    named &= mark_rows_of_kind(trace, "host_ops", "range")
    rows = named.nonzero()[0]
    if not len(rows):
        return None
    outer = trace.derived(build_call_tree).nearest(named, rows)
    inner, rows = rows[outer >= 0], rows[outer < 0]
    told_within = _find_inner_batches(batch_of_name, codes[inner], outer[outer >= 0])
    threads, counts = np.unique(thread[rows], return_counts=True)
    on_thread = rows[thread[rows] == threads[counts.argmax()]]
    starts = trace.numbers("host_ops", "ts_ns")
    on_thread = on_thread[np.argsort(starts[on_thread], kind="stable")]
    start, dur = starts[on_thread], trace.numbers("host_ops", "dur_ns")[on_thread]
    busy = measure_work_per_window(trace, start, start + dur)["work_busy_ns"]
    end = np.maximum(start + dur, _find_iteration_work_ends(trace, start, start + dur))
    step, occurrence = _find_iteration_steps(trace, start)
    number = np.where(step.missing, -1, step.values)
    is_last = np.append((number[1:] != number[:-1]) | (occurrence[1:] != occurrence[:-1]), [True])
    place = np.cumsum([b is not None for b in batch_of_name]) - 1
    of_batches = _make_batch_columns(batches, place[codes[on_thread]], [told_within.get(r) for r in on_thread.tolist()])
    columns = {
        "step": step,
        "occurrence": occurrence,
        "ts_ns": start,
        "dur_ns": dur,
        "pace_ns": np.where(is_last, end - start, np.diff(start, append=end[-1])),
        "count": np.ones(len(on_thread), np.int64),
        "prefill": of_batches["prefill_requests"] > 0,
        **of_batches,
        "busy_ns": busy,
        "end_ns": end,
    }
    return EngineIterations(columns, len(rows) - len(on_thread))


def _find_inner_batches(
    batch_of_name: Sequence[EngineBatch | None], codes: npt.NDArray[Any], outer: Ints
) -> dict[int, EngineBatch]:
    """Map iteration rows to the batch of an inner range that gives sums; SGLang writes two ranges, one with sums."""
    tells = np.array([b is not None and b.context_tokens is not None for b in batch_of_name])
    chosen = tells[codes].nonzero()[0]
    within = {int(outer[at]): batch_of_name[codes[at]] for at in chosen.tolist()}
    return {row: b for row, b in within.items() if b is not None}


SUMS = ("context_tokens", "attention_pairs")
"""Fields that only some spellings of a batch give."""


def _make_batch_columns(
    batches: Sequence[EngineBatch], rows: Ints, inner: Sequence[EngineBatch | None]
) -> dict[str, Any]:
    """Make a column of each field of the batches `rows`; sums that a batch lacks are those of the inner range."""
    columns: dict[str, Any] = {}
    for name, values in zip(EngineBatch._fields, zip(*batches, strict=True), strict=True):
        column = select_rows(make_nullable_numbers(values), rows)
        if name in SUMS:
            within = make_nullable_numbers([None if b is None else getattr(b, name) for b in inner])
            known = np.where(column.missing, within.values, column.values)
            column = Nullable(known, column.missing & within.missing)
        columns[name] = column.values if name.endswith("_requests") else column
    return columns


def _find_iteration_work_ends(trace: Trace, start: Ints, end: Ints) -> Ints:
    """Find when the last device op of each window ends; the window's start if it has none."""
    last = start.copy()
    if trace.row_count("device_ops"):
        place: Placement = trace.derived(place_device_ops)
        row = find_window_at(start, end, place.ts_ns)
        inside = (place.is_placed & (row >= 0)).nonzero()[0]
        ends = trace.numbers("device_ops", "ts_ns") + trace.numbers("device_ops", "dur_ns")
        np.maximum.at(last, row[inside], ends[inside])
    return last


def _find_iteration_steps(trace: Trace, start: Ints) -> tuple[Nullable, Ints]:
    """Find the (step, occurrence) of each iteration: the RL step, not the step of a profiler that counts iterations."""
    steps = trace.derived(find_steps_and_stages).step_rows
    step = steps.number_at(start)
    if len(steps) > max(len(start) // 2, 1) or step.missing.all():
        return repeat_number(trace.source.step, len(start)), np.zeros(len(start), np.int64)
    row = np.searchsorted(steps.ts_ns, start, "right") - 1
    return step, steps.occurrence.astype(np.int64)[np.maximum(row, 0)]


def merge_engine_iterations(iterations: EngineIterations) -> dict[str, Any]:
    """Merge iterations into the rows of the measured table, at most about twice `MAX_ITERATIONS`.

    Neighbors of one step and phase share a row if there are more: times, tokens and counts are sums, requests
    are means. A sum of tokens or pairs with an unknown part is unknown.
    """
    columns = {name: array for name, array in iterations.columns.items() if name != "end_ns"}
    count = len(columns["ts_ns"])
    iterations_a_row = -(-count // MAX_ITERATIONS)
    if iterations_a_row <= 1:
        return columns
    keys = [columns["step"], columns["occurrence"], np.arange(count) // iterations_a_row, columns["prefill"]]
    group, first = group_arrays(keys)
    size = np.bincount(group)
    merged = select_all_rows(columns, first)
    for name in ("dur_ns", "pace_ns", "count"):
        merged[name] = sum_by_group(group, columns[name], len(first))
    for name in ("prefill_requests", "decode_requests"):
        merged[name] = np.rint(sum_by_group(group, columns[name], len(first)) / size).astype(np.int64)
    for name in ("prefill_tokens", "decode_tokens", *SUMS, "busy_ns"):
        column: Nullable = columns[name]
        known = np.bincount(group[~column.missing], minlength=len(first))
        sums = sum_by_group(group, np.where(column.missing, 0, column.values), len(first))
        merged[name] = Nullable(sums, known == 0 if name == "busy_ns" else known < size)
    return merged


def measure_generations(trace: Trace) -> dict[str, Any] | None:
    """Compute the columns of the measured table `generations`; None for a source without known generations.

    For a rollout replica without annotations, a generation ends with its last device op, else host op.
    """
    iterations: EngineIterations | None = trace.derived(list_engine_iterations)
    if iterations is None:
        return _measure_unannotated_generation(trace)
    step, occurrence, start, pace, end = (
        iterations.columns[name] for name in ("step", "occurrence", "ts_ns", "pace_ns", "end_ns")
    )
    group, first = group_arrays([step, occurrence])
    order = np.argsort(group, kind="stable")
    ahead, after = order[:-1], order[1:]
    is_pair = group[ahead] == group[after]
    ahead, after = ahead[is_pair], after[is_pair]
    pause, stop = np.zeros(len(first), np.int64), start[first]
    np.maximum.at(pause, group[ahead], start[after] - end[ahead])
    np.maximum.at(stop, group, start + pace)
    return {
        "step": select_rows(step, first),
        "occurrence": occurrence[first],
        "ts_ns": start[first],
        "dur_ns": stop - start[first],
        "basis": repeat_text("iterations", len(first)),
        "longest_pause_ns": Nullable(pause, np.bincount(group) < 2),
        "elsewhere_count": np.full(len(first), iterations.elsewhere),
    }


def _measure_unannotated_generation(trace: Trace) -> dict[str, Any] | None:
    """Measure begin and end of the work of a rollout replica without annotations."""
    if trace.source.replica is None:
        return None
    table, basis = "device_ops", "device"
    is_work = np.ones(trace.row_count(table), np.bool_)
    if not len(is_work):
        table, basis = "host_ops", "host"
        is_work = ~mark_rows_of_kind(trace, table, "overhead", "other", "python")
    start, dur = trace.numbers(table, "ts_ns")[is_work], trace.numbers(table, "dur_ns")[is_work]
    if not len(start):
        return None
    begin = start.min(keepdims=True)
    return {
        "step": repeat_number(trace.source.step, 1),
        "occurrence": np.zeros(1, np.int64),
        "ts_ns": begin,
        "dur_ns": (start + dur).max() - begin,
        "basis": repeat_text(basis, 1),
        "longest_pause_ns": repeat_number(None, 1),
        "elsewhere_count": np.zeros(1, np.int64),
    }
