"""Iterations of a rollout engine (vLLM, SGLang), from annotations: batch, duration and launched work.

Both engines name one range per iteration after the batch that it runs. Of nested ranges (SGLang writes both
spellings) the outermost counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import find_window_at
from tracekit.model.records import dataclass
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.device.placement import Placement, place_device_ops
from tracekit.process.device.work_per_window import measure_work_per_window
from tracekit.process.name_filters import mark_rows_of_kind
from tracekit.process.steps.engine_batches import EngineBatch, parse_engine_batch
from tracekit.process.steps.windows import StepsAndStages, find_steps_and_stages, look_up_step_numbers

Ints = npt.NDArray[np.int64]

MAX_ITERATIONS = 20_000
"""Iterations of one source listed one by one; beyond it, neighbors of one phase are merged."""


@dataclass(frozen=True, slots=True)
class EngineIterations:
    """Iterations of the thread with most of them, in order of start.

    `frame` has the columns of the measured table `iterations` before merging, and `end_ns`, when the range
    and the work launched in it have ended. `elsewhere` counts the omitted iterations of other threads.
    """

    frame: pd.DataFrame
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
    same = pd.DataFrame({"step": step, "occurrence": occurrence}).fillna(-1)
    last = same.ne(same.shift(-1)).any(axis=1).to_numpy()
    place = np.cumsum([b is not None for b in batch_of_name]) - 1
    batch_row = place[codes[on_thread]]
    in_row = [told_within.get(row) for row in on_thread.tolist()] if told_within else []
    columns = dict(zip(EngineBatch._fields, zip(*batches, strict=True), strict=True))
    frame = pd.DataFrame(
        {
            "step": step,
            "occurrence": occurrence,
            "ts_ns": start,
            "dur_ns": dur,
            "pace_ns": np.where(last, end - start, np.diff(start, append=end[-1])),
            "count": np.ones(len(on_thread), np.int64),
            "prefill": np.array(columns["prefill_requests"])[batch_row] > 0,
            **{
                name: _fill_from_inner_batches(pd.array(columns[name], dtype="Int64")[batch_row], in_row, name)
                for name in EngineBatch._fields
            },
            "busy_ns": pd.arrays.IntegerArray(busy.values, busy.missing),
            "end_ns": end,
        }
    )
    return EngineIterations(frame, len(rows) - len(on_thread))


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


def _fill_from_inner_batches(values: Any, in_row: Sequence[EngineBatch | None], name: str) -> Any:
    """Fill missing values of a column from the inner range."""
    if name not in SUMS or not in_row:
        return values
    more = pd.array([None if b is None else getattr(b, name) for b in in_row], dtype="Int64")
    is_missing = np.asarray(values.isna())
    values[is_missing] = more[is_missing]
    return values


def _find_iteration_work_ends(trace: Trace, start: Ints, end: Ints) -> Ints:
    """Find when the last device op of each window ends; the window's start if it has none."""
    device = trace.get("device_ops")
    last = start.copy()
    if len(device):
        place: Placement = trace.derived(place_device_ops)
        row = find_window_at(start, end, place.ts_ns)
        inside = (place.is_placed & (row >= 0)).nonzero()[0]
        ends = device["ts_ns"].to_numpy() + trace.numbers("device_ops", "dur_ns")
        np.maximum.at(last, row[inside], ends[inside])
    return last


def _find_iteration_steps(trace: Trace, start: Ints) -> tuple[Any, Ints]:
    """Find the (step, occurrence) of each iteration: the RL step, not the step of a profiler that counts iterations."""
    steps_and_stages: StepsAndStages = trace.derived(find_steps_and_stages)
    step = look_up_step_numbers(steps_and_stages.steps, start)
    if len(steps_and_stages.steps) > max(len(start) // 2, 1) or step.isna().all():
        source = trace.source.step
        numbers = [pd.NA if source is None else source] * len(start)
        return pd.array(numbers, dtype="Int64"), np.zeros(len(start), np.int64)
    row = np.searchsorted(steps_and_stages.steps["ts_ns"].to_numpy(), start, "right") - 1
    return step, steps_and_stages.steps["occurrence"].to_numpy().astype(np.int64)[np.maximum(row, 0)]


def merge_engine_iterations(frame: pd.DataFrame) -> pd.DataFrame:
    """Merge iterations into the rows of the measured table, at most about twice `MAX_ITERATIONS`.

    Neighbors of one step and phase share a row if there are more: times, tokens and counts are sums, requests
    are means. A sum with an unknown part is unknown.
    """
    frame = frame.drop(columns="end_ns")
    iterations_a_row = -(-len(frame) // MAX_ITERATIONS)
    if iterations_a_row <= 1:
        return frame
    number = np.arange(len(frame)) // iterations_a_row
    grouped = frame.groupby([frame["step"], frame["occurrence"], number, frame["prefill"]], dropna=False, sort=False)
    sums = [n for n in frame if str(n).endswith(("_ns", "_tokens", "_pairs")) or n == "count"]
    out = grouped[[n for n in sums if n != "ts_ns"]].sum(min_count=1)
    partial = ["prefill_tokens", "decode_tokens", "context_tokens", "attention_pairs"]
    counts = grouped[partial].count()
    for name in partial:
        out[name] = out[name].where(counts[name] == out["count"])
    for name in ("prefill_requests", "decode_requests"):
        out[name] = grouped[name].mean().round().astype("Int64")
    out["ts_ns"] = grouped["ts_ns"].min()
    out = out.reset_index().drop(columns="level_2", errors="ignore")
    return out.sort_values("ts_ns", kind="stable", ignore_index=True)[list(frame.columns)]


def measure_generations(trace: Trace) -> pd.DataFrame | None:
    """Compute the columns of the measured table `generations`; None for a source without known generations.

    For a rollout replica without annotations, a generation ends with its last device op, else host op.
    """
    iterations_: EngineIterations | None = trace.derived(list_engine_iterations)
    if iterations_ is None:
        return _measure_unannotated_generation(trace)
    frame = iterations_.frame
    keys = ["step", "occurrence"]
    start = frame.astype({"ts_ns": "Int64"}).groupby(keys, dropna=False, sort=False)["ts_ns"]
    after = start.shift(-1)
    stop, pause = frame["ts_ns"] + frame["pace_ns"], (after - frame["end_ns"]).clip(lower=0)
    by = frame.assign(stop=stop, pause=pause).groupby(keys, dropna=False, sort=False)
    rows = by.agg(ts_ns=("ts_ns", "min"), stop=("stop", "max"), longest_pause_ns=("pause", "max")).reset_index()
    rows["dur_ns"] = rows.pop("stop") - rows["ts_ns"]
    return rows.assign(basis="iterations", elsewhere_count=iterations_.elsewhere)


def _measure_unannotated_generation(trace: Trace) -> pd.DataFrame | None:
    """Measure begin and end of the work of a rollout replica without annotations."""
    if trace.source.replica is None:
        return None
    ops, basis = trace.get("device_ops"), "device"
    if not len(ops):
        host = trace.get("host_ops")
        ops, basis = host[~host["kind"].isin(("overhead", "other", "python"))], "host"
    if not len(ops):
        return None
    start, dur = ops["ts_ns"].to_numpy(), ops["dur_ns"].to_numpy()
    return pd.DataFrame(
        {
            "step": pd.array([trace.source.step], dtype="Int64"),
            "occurrence": 0,
            "ts_ns": [int(start.min())],
            "dur_ns": [int((start + dur).max() - start.min())],
            "basis": basis,
            "longest_pause_ns": pd.array([pd.NA], dtype="Int64"),
            "elsewhere_count": 0,
        }
    )
