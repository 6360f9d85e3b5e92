"""Steps and stages of one process: windows on the host, with the device work launched in them (M8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.derived.launches import Launches, launches
from tracekit.derived.nesting import nesting
from tracekit.derived.soundness import sound_dur_ns
from tracekit.intervals import union, union_totals
from tracekit.stages import is_collective, may_be_stage, profiler_step, scope_stage
from tracekit.trace import Trace

Ints = npt.NDArray[np.int64]

MAX_STAGES = 20_000
"""Most ranges of one source kept one by one; beyond it the outermost first, then the longest."""

MAX_WINDOW_ROWS = 50_000_000
"""Most device ops united over all windows of a source: windows that all overlap would never end."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Steps and stages in order of start, as columns of the measured tables `steps` and `stages`.

    `steps` has step, occurrence, origin, ts_ns, dur_ns; `stages` has step, stage, parent, occurrence,
    ts_ns, dur_ns: the annotated ranges of the step thread. `dropped` ranges were beyond the cap.
    """

    steps: pd.DataFrame
    stages: pd.DataFrame
    dropped: int = 0


def windows(trace: Trace) -> Windows:
    """The steps and stages that annotations, or failing them the file itself, tell of."""
    host = trace.get("host_ops")
    names = [str(name) for name in host["name"].cat.categories]
    number = [profiler_step(name) for name in names]
    codes = host["name"].cat.codes.to_numpy()
    is_range = (host["kind"] == "range").to_numpy()
    is_step = is_range & _lookup([n is not None for n in number], codes)
    named = is_range & ~is_step & ~_lookup([is_collective(name) for name in names], codes)
    plausible = named & _lookup([may_be_stage(name) for name in names], codes)
    thread = _busiest_thread(host, next((m for m in (is_step, plausible, named) if m.any()), named))
    on_thread = (host["thread"] == thread).to_numpy() if thread is not None else is_range & False
    kept = named & on_thread
    steps = _profiler_steps(host, np.flatnonzero(is_step & on_thread), number)
    if not len(steps):
        steps = _file_steps(trace, host, np.flatnonzero(plausible & on_thread))
    stages, dropped = _stages(trace, host, kept, steps)
    return Windows(steps, stages, dropped)


def _lookup(by_name: list[bool], codes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """`by_name` of every row; False for a row without a name."""
    found: npt.NDArray[np.bool_] = np.array([*by_name, False], np.bool_)[codes]
    return found


def _busiest_thread(host: pd.DataFrame, mask: npt.NDArray[np.bool_]) -> int | None:
    """The thread on which the chosen rows cover most time; the lowest of equals, None without rows."""
    rows = np.flatnonzero(mask)
    if not len(rows):
        return None
    thread = host["thread"].to_numpy()[rows]
    start = host["ts_ns"].to_numpy()[rows]
    end = start + host["dur_ns"].to_numpy()[rows]
    totals = {int(t): union(start[thread == t], end[thread == t]).total for t in np.unique(thread)}
    return min(totals, key=lambda t: (-totals[t], t))


def _profiler_steps(host: pd.DataFrame, rows: Ints, number: list[int | None]) -> pd.DataFrame:
    """One row a `ProfilerStep#n`."""
    # Of steps with one start the longest comes last, whatever their order: `step_of` takes the last.
    found = host.iloc[rows].sort_values(["ts_ns", "dur_ns", "id"], kind="stable")
    step = pd.array([number[code] for code in found["name"].cat.codes], dtype="Int64")
    by_step = pd.Series(step).groupby(pd.Series(step), dropna=False)
    return pd.DataFrame(
        {
            "step": step,
            "occurrence": by_step.cumcount().to_numpy(np.int32),
            "origin": np.full(len(found), "profiler", object),
            "ts_ns": found["ts_ns"].to_numpy(),
            "dur_ns": found["dur_ns"].to_numpy(),
        }
    )


def _file_steps(trace: Trace, host: pd.DataFrame, plausible: Ints) -> pd.DataFrame:
    """The source as one step, from the first to the last thing the host did (the device, without a host).

    A capture of several steps in a row, named by the first, is told by stages that all come equally
    often: it is divided where the first stage begins anew.
    """
    busy = host[~host["kind"].isin(("overhead",))]
    frame = busy if len(busy) else trace.get("device_ops")
    if not len(frame):
        bounds = np.empty(0, np.int64)
    else:
        begin = frame["ts_ns"].to_numpy()
        last = int((begin + frame["dur_ns"].to_numpy()).max())
        bounds = np.array([int(begin.min()), *_divisions(trace, host, plausible), last], np.int64)
    start, count = bounds[:-1], max(len(bounds) - 1, 0)
    stage = scope_stage(trace.source.scope, trace.source.role)
    step = trace.source.step
    numbers = [pd.NA if step is None else step + k for k in range(count)]
    return pd.DataFrame(
        {
            "step": pd.array(numbers, dtype="Int64"),
            "occurrence": np.arange(count, dtype=np.int32) * (step is None),
            "origin": np.full(count, "file" if stage is None else "stage", object),
            "ts_ns": start,
            "dur_ns": np.diff(bounds),
        }
    )


def _divisions(trace: Trace, host: pd.DataFrame, plausible: Ints) -> list[int]:
    """Where a capture of several steps begins its second, third … step; empty for one step."""
    if scope_stage(trace.source.scope, trace.source.role) is not None:
        return []
    mask = np.zeros(len(host), np.bool_)
    mask[plausible] = True
    outer = plausible[trace.derived(nesting).nearest(mask, plausible) < 0]
    names, counts = np.unique(host["name"].cat.codes.to_numpy()[outer], return_counts=True)
    if len(names) < 2 or counts.min() < 2 or counts.min() != counts.max():
        return []
    start = host["ts_ns"].to_numpy()[outer]
    first = host["name"].cat.codes.to_numpy()[outer[start.argmin()]]
    return sorted(start[host["name"].cat.codes.to_numpy()[outer] == first].tolist())[1:]


def _stages(
    trace: Trace, host: pd.DataFrame, kept: npt.NDArray[np.bool_], steps: pd.DataFrame
) -> tuple[pd.DataFrame, int]:
    """(one row a kept range, how many were beyond the cap); of ranges within their like, the outermost."""
    rows = np.flatnonzero(kept)
    parent = trace.derived(nesting).nearest(kept, rows)
    codes = host["name"].cat.codes.to_numpy()
    nested_like = (parent >= 0) & (codes[parent] == codes[rows])
    rows, parent = rows[~nested_like], parent[~nested_like]
    dur = host["dur_ns"].to_numpy()
    if dropped := max(len(rows) - MAX_STAGES, 0):
        weight = np.where(parent < 0, np.iinfo(np.int64).max, dur[rows])
        chosen = np.sort(np.argsort(-weight, kind="stable")[:MAX_STAGES])
        rows, parent = rows[chosen], parent[chosen]
    start = host["ts_ns"].to_numpy()
    order = np.lexsort((rows, start[rows]))
    rows, parent = rows[order], parent[order]
    categories = host["name"].cat.categories
    step = step_of(steps, start[rows])
    frame = pd.DataFrame(
        {
            "step": step,
            "stage": pd.Categorical.from_codes(codes[rows], categories=categories),
            "parent": pd.Categorical.from_codes(
                np.where(parent >= 0, codes[parent], -1), categories=categories
            ),
            "ts_ns": start[rows],
            "dur_ns": dur[rows],
        }
    )
    keys = [step.to_numpy(np.int64, na_value=-1), codes[rows]]
    frame.insert(3, "occurrence", frame.groupby(keys).cumcount().to_numpy(np.int32))
    return frame, dropped


def step_of(steps: pd.DataFrame, ts_ns: Ints) -> Any:
    """The number of the step that each instant lies in; NA outside all steps, and where it has no number."""
    start = steps["ts_ns"].to_numpy()
    if not len(start):
        return pd.array([pd.NA] * len(ts_ns), dtype="Int64")
    at = np.searchsorted(start, ts_ns, side="right") - 1
    end = start + steps["dur_ns"].to_numpy()
    inside = (at >= 0) & (ts_ns < np.maximum(end[at], start[at] + 1))
    number = steps["step"].array
    missing = ~inside | np.asarray(number.isna())[at]
    return pd.arrays.IntegerArray(number.to_numpy(np.int64, na_value=0)[at], missing)


def work_within(trace: Trace, start: Ints, end: Ints) -> Mapping[str, Any]:
    """Columns `launch_count`, `work_ns`, `work_busy_ns` for each window: device ops launched inside it.

    A launch from any thread counts (backward runs on another one). NA where no device was recorded.
    """
    if not trace.has("device_ops"):
        unknown = pd.array([pd.NA] * len(start), dtype="Int64")
        return {"launch_count": unknown, "work_ns": unknown, "work_busy_ns": unknown}
    device = trace["device_ops"]
    links: Launches = trace.derived(launches)
    rows = np.flatnonzero(links.linked)
    rows = rows[np.argsort(links.ts_ns[rows], kind="stable")]
    launched = links.ts_ns[rows]
    low = np.searchsorted(launched, start, side="left")
    high = np.maximum(np.searchsorted(launched, end, side="left"), low)
    dur = trace.derived(sound_dur_ns)[rows]
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(dur)))
    busy = _busy_by_window(device.iloc[rows], dur, low, high)
    return {"launch_count": high - low, "work_ns": sums[high] - sums[low], "work_busy_ns": busy}


def _busy_by_window(device: pd.DataFrame, dur: Ints, low: Ints, high: Ints) -> Any:
    """For each window, the union per device of rows [low, high), summed over devices.

    Windows may nest, so rows count once for each; windows beyond `MAX_WINDOW_ROWS` in all are NA.
    """
    start = device["ts_ns"].to_numpy()
    end = start + dur
    number, keys = pd.factorize(device["device"], use_na_sentinel=False)
    width = max(len(keys), 1)
    size = high - low
    bound = np.cumsum(size)
    totals = np.zeros(len(low), np.int64)
    affordable = bound <= MAX_WINDOW_ROWS
    for chosen in np.array_split(np.flatnonzero(affordable), 1 + int(bound[-1:].sum()) // 2**21):
        window = np.repeat(np.arange(len(chosen)), size[chosen])
        first = np.repeat(low[chosen] - np.cumsum(size[chosen]) + size[chosen], size[chosen])
        rows = first + np.arange(len(first))
        group = window * width + number[rows]
        by_device = union_totals(start[rows], end[rows], group, len(chosen) * width)
        totals[chosen] = by_device.reshape(len(chosen), width).sum(axis=1)
    return pd.arrays.IntegerArray(totals, ~affordable)
