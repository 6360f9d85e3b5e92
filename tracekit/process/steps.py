"""Steps and stages of one process: windows on the host (M8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import union, window_at
from tracekit.model.stages import (
    is_collective,
    is_known_stage,
    is_whole_step,
    may_be_stage,
    numbered_step,
    profiler_step,
    scope_stage,
)
from tracekit.model.trace import Trace
from tracekit.process.by_name import is_named
from tracekit.process.nesting import nesting
from tracekit.process.updates import stage_codes

Ints = npt.NDArray[np.int64]

MAX_STAGES = 20_000
"""Most ranges of one source kept one by one; beyond it the outermost first, then the longest."""


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
    number = [profiler_step(str(name)) for name in host["name"].cat.categories]
    is_range = (host["kind"] == "range").to_numpy()
    is_step = is_range & is_named(host["name"], lambda name: profiler_step(name) is not None)
    origin = "profiler"
    if not is_step.any():
        is_step, number, origin = _numbered_ranges(trace, host, is_range), _numbers(host), "range"
    named = is_range & ~is_step & ~is_named(host["name"], is_collective)
    named &= ~_unnumbered_steps(trace, host, is_range)
    plausible = named & is_named(host["name"], may_be_stage)
    thread = _busiest_thread(host, next((m for m in (is_step, plausible, named) if m.any()), named))
    on_thread = (host["thread"] == thread).to_numpy() if thread is not None else is_range & False
    is_stage = named & on_thread
    steps = _annotated_steps(host, np.flatnonzero(is_step & on_thread), number, origin)
    if not len(steps):
        steps = _file_steps(trace, host, np.flatnonzero(plausible & on_thread))
    if len(steps) and any(account.captures for account in trace.source.accounts):
        # A process that was recorded all the time went through other steps too: nobody captured those.
        is_stage &= step_at(steps, host["ts_ns"].to_numpy()) >= 0
    stages, dropped = _stages(trace, host, is_stage, steps)
    return Windows(steps, stages, dropped)


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


def _numbers(host: pd.DataFrame) -> list[int | None]:
    """The number of each name that a program gives to a step of its own."""
    return [numbered_step(str(name)) for name in host["name"].cat.categories]


def _numbered_ranges(
    trace: Trace, host: pd.DataFrame, is_range: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which rows are ranges `step n` that divide the recording: not those within a stage, or within their like.

    Where the file itself is a step or a stage, or its process says which steps it captured, such ranges are
    pieces of that.
    """
    is_numbered = is_range & is_named(host["name"], lambda name: numbered_step(name) is not None)
    source = trace.source
    is_capture = source.step is not None or any(account.captures for account in source.accounts)
    if is_capture or scope_stage(source.scope, source.role) is not None:
        is_numbered[:] = False
    if rows := np.flatnonzero(is_numbered).tolist():
        above = is_numbered | (is_range & is_named(host["name"], is_known_stage))
        nested = trace.derived(nesting).nearest(above, np.array(rows)) >= 0
        is_numbered[np.array(rows)[nested]] = False
    return is_numbered


def _unnumbered_steps(
    trace: Trace, host: pd.DataFrame, is_range: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which rows are ranges `step` or the like around known stages: they would hide what they hold."""
    around = is_range & is_named(host["name"], is_whole_step)
    is_whole = np.zeros(len(host), np.bool_)
    if around.any():
        stages = np.flatnonzero(is_range & is_named(host["name"], is_known_stage))
        outer = trace.derived(nesting).nearest(around, stages)
        is_whole[outer[outer >= 0]] = True
    return is_whole


def _annotated_steps(
    host: pd.DataFrame, rows: Ints, number: list[int | None], origin: str
) -> pd.DataFrame:
    """One row a `ProfilerStep#n` (or a range `step n`)."""
    # Of steps with one start the longest comes last, whatever their order: `step_of` takes the last.
    steps_in_order = host.iloc[rows].sort_values(["ts_ns", "dur_ns", "id"], kind="stable")
    step = pd.array([number[code] for code in steps_in_order["name"].cat.codes], dtype="Int64")
    by_step = pd.Series(step).groupby(pd.Series(step), dropna=False)
    return pd.DataFrame(
        {
            "step": step,
            "occurrence": by_step.cumcount().to_numpy(np.int32),
            "origin": np.full(len(steps_in_order), origin, object),
            "ts_ns": steps_in_order["ts_ns"].to_numpy(),
            "dur_ns": steps_in_order["dur_ns"].to_numpy(),
        }
    )


def _file_steps(trace: Trace, host: pd.DataFrame, plausible: Ints) -> pd.DataFrame:
    """The source as one step, or as the steps that its process says it captured.

    A step lasts from the first to the last thing the host did (the device, without a host). What is recorded
    of Python functions does not count: whether they are is a choice of the profiler. A capture of several
    steps in a row, named by the first, is told by stages that all come equally often: it is divided where the
    first stage begins anew.
    """
    busy = host[~host["kind"].isin(("overhead", "python", "other"))]
    frame = busy if len(busy) else trace.get("device_ops")
    start = frame["ts_ns"].to_numpy()
    end = start + frame["dur_ns"].to_numpy()
    numbers: list[Any] = []
    bounds: list[tuple[int, int]] = []
    for step, first, last in _captured(trace, start):
        inside = (start >= first) & (start < last)
        of_capture = plausible[_starts_within(host, plausible, first, last)]
        ends = [*_divisions(trace, host, of_capture), int(end[inside].max())]
        begins = [int(start[inside].min()), *ends[:-1]]
        bounds += zip(begins, ends, strict=True)
        numbers += [pd.NA if step is None else step + place for place in range(len(begins))]
    stage = scope_stage(trace.source.scope, trace.source.role)
    is_stage = stage is not None or any(account.discrete for account in trace.source.accounts)
    step_numbers = pd.array(numbers, dtype="Int64")
    unknown = np.asarray(step_numbers.isna(), np.int32)
    begin, finish = np.array(bounds, np.int64).reshape(-1, 2).T
    return pd.DataFrame(
        {
            "step": step_numbers,
            "occurrence": np.where(unknown, np.cumsum(unknown, dtype=np.int32) - 1, 0),
            "origin": np.full(len(bounds), "stage" if is_stage else "file", object),
            "ts_ns": begin,
            "dur_ns": finish - begin,
        }
    ).astype({"occurrence": np.int32})


_INT64 = np.iinfo(np.int64)


def _captured(trace: Trace, start: Ints) -> list[tuple[int | None, int, int]]:
    """(step, from, until) of the captures in which something began, in order.

    Where the process said nothing of captures, or of none in this file, that is all of it; but of a process that
    ran beside those that did, only what it did meanwhile.
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
        if trace.meta.get("absolute_time") and ((start >= first) & (start < last)).any()
    ]
    is_helper = bool(captures) and all(not account.name for account in trace.source.accounts)
    if begun or not len(start) or (is_helper and trace.meta.get("absolute_time")):
        return begun
    return [(trace.source.step, _INT64.min, _INT64.max)]


def _starts_within(host: pd.DataFrame, rows: Ints, first: int, last: int) -> npt.NDArray[np.bool_]:
    """Which of some rows of the host begin in a capture."""
    start = host["ts_ns"].to_numpy()[rows]
    return np.asarray((start >= first) & (start < last))


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
    codes, categories = stage_codes(host, trace.derived(nesting), rows, parent)
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
    number = steps["step"].array
    if not len(number):
        return pd.array([pd.NA] * len(ts_ns), dtype="Int64")
    row = step_at(steps, ts_ns)
    missing = (row < 0) | np.asarray(number.isna())[row]
    return pd.arrays.IntegerArray(number.to_numpy(np.int64, na_value=0)[row], missing)


def step_at(steps: pd.DataFrame, ts_ns: Ints) -> Ints:
    """The row of the step, or other window in order of start, that each instant lies in; -1 outside all.

    One without length holds the instant of its start.
    """
    start = steps["ts_ns"].to_numpy()
    return window_at(start, start + np.maximum(steps["dur_ns"].to_numpy(), 1), ts_ns)
