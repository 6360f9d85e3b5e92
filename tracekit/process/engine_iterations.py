"""Iterations of a rollout engine (vLLM, SGLang), from annotations: batch, duration and launched work.

Both engines name one range per iteration after the batch that it runs. Of nested ranges (SGLang writes both
spellings) the outermost counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import window_at
from tracekit.model.records import dataclass
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import nesting
from tracekit.process.device.placement import Placement, placement
from tracekit.process.device.work_per_window import work_within
from tracekit.process.name_filters import of_kind
from tracekit.process.steps.engine_batches import Batch, batch
from tracekit.process.steps.windows import Windows, step_of, windows

Ints = npt.NDArray[np.int64]

MAX_ITERATIONS = 20_000
"""Iterations of one source listed one by one; beyond it, neighbors of one phase are merged."""


@dataclass(frozen=True, slots=True)
class Iterations:
    """Iterations of the thread with most of them, in order of start.

    `frame` has the columns of the measured table `iterations` before merging, and `end_ns`, when the range
    and the work launched in it have ended. `elsewhere` counts the omitted iterations of other threads.
    """

    frame: pd.DataFrame
    elsewhere: int


def iterations(trace: Trace) -> Iterations | None:
    """List the engine iterations of a trace, from its annotations; None if it has none."""
    names = trace.texts("host_ops", "name")
    batch_of_name = list(map(batch, names.texts))
    batches = [b for b in batch_of_name if b is not None]
    if not batches:
        return None
    codes, thread = names.codes, trace.numbers("host_ops", "thread")
    named = np.array([*(b is not None for b in batch_of_name), False], np.bool_)[codes]
    named &= of_kind(trace, "host_ops", "range")
    rows = named.nonzero()[0]
    if not len(rows):
        return None
    outer = trace.derived(nesting).nearest(named, rows)
    inner, rows = rows[outer >= 0], rows[outer < 0]
    told_within = _told_within(batch_of_name, codes[inner], outer[outer >= 0])
    threads, counts = np.unique(thread[rows], return_counts=True)
    on_thread = rows[thread[rows] == threads[counts.argmax()]]
    starts = trace.numbers("host_ops", "ts_ns")
    on_thread = on_thread[np.argsort(starts[on_thread], kind="stable")]
    start, dur = starts[on_thread], trace.numbers("host_ops", "dur_ns")[on_thread]
    busy = work_within(trace, start, start + dur)["work_busy_ns"]
    end = np.maximum(start + dur, _work_end(trace, start, start + dur))
    step, occurrence = _steps(trace, start)
    same = pd.DataFrame({"step": step, "occurrence": occurrence}).fillna(-1)
    last = same.ne(same.shift(-1)).any(axis=1).to_numpy()
    place = np.cumsum([b is not None for b in batch_of_name]) - 1
    batch_row = place[codes[on_thread]]
    in_row = [told_within.get(row) for row in on_thread.tolist()] if told_within else []
    columns = dict(zip(Batch._fields, zip(*batches, strict=True), strict=True))
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
                name: _filled(pd.array(columns[name], dtype="Int64")[batch_row], in_row, name)
                for name in Batch._fields
            },
            "busy_ns": pd.arrays.IntegerArray(busy.values, busy.missing),
            "end_ns": end,
        }
    )
    return Iterations(frame, len(rows) - len(on_thread))


def _told_within(
    batch_of_name: Sequence[Batch | None], codes: npt.NDArray[Any], outer: Ints
) -> dict[int, Batch]:
    """Map iteration rows to the batch of an inner range that gives sums; SGLang writes two ranges, one with sums."""
    tells = np.array([b is not None and b.context_tokens is not None for b in batch_of_name])
    chosen = tells[codes].nonzero()[0]
    within = {int(outer[at]): batch_of_name[codes[at]] for at in chosen.tolist()}
    return {row: b for row, b in within.items() if b is not None}


SUMS = ("context_tokens", "attention_pairs")
"""Fields that only some spellings of a batch give."""


def _filled(values: Any, in_row: Sequence[Batch | None], name: str) -> Any:
    """Fill missing values of a column from the inner range."""
    if name not in SUMS or not in_row:
        return values
    more = pd.array([None if b is None else getattr(b, name) for b in in_row], dtype="Int64")
    is_missing = np.asarray(values.isna())
    values[is_missing] = more[is_missing]
    return values


def _work_end(trace: Trace, start: Ints, end: Ints) -> Ints:
    """Find when the last device op of each window ends; the window's start if it has none."""
    device = trace.get("device_ops")
    last = start.copy()
    if len(device):
        place: Placement = trace.derived(placement)
        row = window_at(start, end, place.ts_ns)
        inside = (place.known & (row >= 0)).nonzero()[0]
        ends = device["ts_ns"].to_numpy() + trace.numbers("device_ops", "dur_ns")
        np.maximum.at(last, row[inside], ends[inside])
    return last


def _steps(trace: Trace, start: Ints) -> tuple[Any, Ints]:
    """Find the (step, occurrence) of each iteration: the RL step, not the step of a profiler that counts iterations."""
    steps_and_stages: Windows = trace.derived(windows)
    step = step_of(steps_and_stages.steps, start)
    if len(steps_and_stages.steps) > max(len(start) // 2, 1) or step.isna().all():
        source = trace.source.step
        numbers = [pd.NA if source is None else source] * len(start)
        return pd.array(numbers, dtype="Int64"), np.zeros(len(start), np.int64)
    row = np.searchsorted(steps_and_stages.steps["ts_ns"].to_numpy(), start, "right") - 1
    return step, steps_and_stages.steps["occurrence"].to_numpy().astype(np.int64)[
        np.maximum(row, 0)
    ]


def joined(frame: pd.DataFrame) -> pd.DataFrame:
    """Merge iterations into the rows of the measured table, at most about twice `MAX_ITERATIONS`.

    Neighbors of one step and phase share a row if there are more: times, tokens and counts are sums, requests
    are means. A sum with an unknown part is unknown.
    """
    frame = frame.drop(columns="end_ns")
    iterations_a_row = -(-len(frame) // MAX_ITERATIONS)
    if iterations_a_row <= 1:
        return frame
    number = np.arange(len(frame)) // iterations_a_row
    grouped = frame.groupby(
        [frame["step"], frame["occurrence"], number, frame["prefill"]], dropna=False, sort=False
    )
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


def generation_spans(trace: Trace) -> pd.DataFrame | None:
    """Compute the columns of the measured table `generations`; None for a source without known generations.

    For a rollout replica without annotations, a generation ends with its last device op, else host op.
    """
    iterations_: Iterations | None = trace.derived(iterations)
    if iterations_ is None:
        return _ends_only(trace)
    frame = iterations_.frame
    keys = ["step", "occurrence"]
    start = frame.astype({"ts_ns": "Int64"}).groupby(keys, dropna=False, sort=False)["ts_ns"]
    after = start.shift(-1)
    stop, pause = frame["ts_ns"] + frame["pace_ns"], (after - frame["end_ns"]).clip(lower=0)
    by = frame.assign(stop=stop, pause=pause).groupby(keys, dropna=False, sort=False)
    rows = by.agg(
        ts_ns=("ts_ns", "min"), stop=("stop", "max"), longest_pause_ns=("pause", "max")
    ).reset_index()
    rows["dur_ns"] = rows.pop("stop") - rows["ts_ns"]
    return rows.assign(basis="iterations", elsewhere_count=iterations_.elsewhere)


def _ends_only(trace: Trace) -> pd.DataFrame | None:
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
