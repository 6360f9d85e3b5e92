"""Idle time in tables: by window and cause, by length of gap, and the longest gaps one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import covered
from tracekit.model.tables.slots import CAUSES
from tracekit.model.trace import Trace
from tracekit.process.by_name import named
from tracekit.process.idle import DeviceIdle
from tracekit.process.launches import launches
from tracekit.process.nesting import innermost
from tracekit.process.stage_at import outermost_ranges, range_at
from tracekit.process.steps import Windows, step_of, windows

Ints = npt.NDArray[np.int64]

MAX_GAPS = 200
"""Most gaps of one source kept one by one, the longest."""

_BY = ["window", "step", "stage", "cause"]
_POWERS = np.int64(1) << np.arange(63)


def idle_by_window(trace: Trace, idle: DeviceIdle) -> pd.DataFrame:
    """Columns window, step, stage, cause, gap_count, idle_ns: windows of one name and step together.

    The window `capture` is from the first to the last op of the device. Over causes the rows of a window
    add up to its length less what the device was busy, exactly.
    """
    steps_and_stages: Windows = trace.derived(windows)
    frames = {
        "capture": pd.DataFrame({"ts_ns": [idle.first], "dur_ns": [idle.last - idle.first]}),
        "step": steps_and_stages.steps,
        "stage": trace.derived(outermost_ranges),
    }
    having = {
        cause: covered(part, idle.gaps.start, idle.gaps.end) > 0
        for cause, part in idle.causes.items()
    }
    rows = [_idle_within(window, frame, idle, having) for window, frame in frames.items()]
    rows = [part for part in rows if len(part)]
    if not rows:
        return pd.DataFrame({name: [] for name in (*_BY, "gap_count", "idle_ns")})
    parts = pd.concat(rows, ignore_index=True)
    sums = parts.groupby(_BY, dropna=False, sort=False)[["gap_count", "idle_ns"]].sum()
    return sums.reset_index()


def _idle_within(
    window: str,
    frame: pd.DataFrame,
    idle: DeviceIdle,
    having: Mapping[str, npt.NDArray[np.bool_]],
) -> pd.DataFrame:
    """One row a cause and window of this kind in which the device was idle for it; `having` are the gaps of each."""
    start = frame["ts_ns"].to_numpy()
    end = start + frame["dur_ns"].to_numpy()
    total = covered(idle.gaps, start, end)
    places, counts, times, causes = list[Ints](), list[Ints](), list[Ints](), list[str]()
    for cause in CAUSES:
        inside = covered(idle.causes[cause], start, end)
        total = total - inside
        begins, ends = idle.gaps.start[having[cause]], idle.gaps.end[having[cause]]
        before_end = np.searchsorted(begins, end, side="left")
        count = np.maximum(before_end - np.searchsorted(ends, start, side="right"), 0)
        cells = np.flatnonzero(inside > 0)
        places.append(cells)
        counts.append(count[cells])
        times.append(inside[cells])
        causes += [cause] * len(cells)
    assert (total == 0).all(), "the causes must add up to the idle time of every window"
    place = np.concatenate(places)
    no_step = pd.Series(pd.array([pd.NA] * len(frame), "Int64"))
    no_stage = pd.Series([None] * len(frame), dtype=object)
    return pd.DataFrame(
        {
            "window": window,
            "step": frame.get("step", no_step).array[place],
            "stage": pd.Series(frame.get("stage", no_stage).to_numpy(object)[place], dtype=object),
            "cause": np.array(causes, object),
            "gap_count": np.concatenate(counts),
            "idle_ns": np.concatenate(times),
        }
    )


def main_causes(idle: DeviceIdle) -> tuple[Ints, Ints]:
    """(index into `CAUSES` of each gap's largest part, that part); the first of equal ones."""
    cause = np.zeros(len(idle.gaps.start), np.int64)
    longest_ns = np.zeros(len(idle.gaps.start), np.int64)
    for number, name in enumerate(CAUSES):
        part = covered(idle.causes[name], idle.gaps.start, idle.gaps.end)
        larger = part > longest_ns
        cause[larger], longest_ns[larger] = number, part[larger]
    return cause, longest_ns


def histogram(idle: DeviceIdle) -> pd.DataFrame:
    """Columns cause, low_ns, gap_count, idle_ns: the gaps between first and last op by powers of two."""
    # An op without length at either end does not divide the gap around it.
    start = np.maximum(idle.gaps.start, idle.first)
    end = np.maximum(np.minimum(idle.gaps.end, idle.last), start)
    between = end > start
    place = np.searchsorted(_POWERS, end - start, side="right") - 1
    main, _ = main_causes(idle)
    count = np.zeros((len(CAUSES), len(_POWERS)), np.int64)
    total = np.zeros((len(CAUSES), len(_POWERS)), np.int64)
    np.add.at(count, (main[between], place[between]), 1)
    for number, name in enumerate(CAUSES):
        part = covered(idle.causes[name], start, end)
        np.add.at(total[number], place[between], part[between])
    cause, bin_ = np.nonzero(count + total)
    return pd.DataFrame(
        {
            "cause": np.array(CAUSES, object)[cause],
            "low_ns": _POWERS[bin_],
            "gap_count": count[cause, bin_],
            "idle_ns": total[cause, bin_],
        }
    )


def longest(trace: Trace, devices: Sequence[DeviceIdle]) -> pd.DataFrame:
    """The columns of `idle_gaps` for the longest gaps of all devices, longest first."""
    frames = [_gaps(idle) for idle in devices if len(idle.gaps.start)]
    if not frames:
        return pd.DataFrame()
    all_gaps = pd.concat(frames, ignore_index=True)
    all_gaps = all_gaps.sort_values(
        ["dur_ns", "ts_ns", "device"], ascending=[False, True, True], kind="stable"
    )
    all_gaps = all_gaps.head(MAX_GAPS).reset_index(drop=True)
    start = all_gaps["ts_ns"].to_numpy()
    ops = trace.get("device_ops")
    before, after = all_gaps.pop("before").to_numpy(), all_gaps.pop("after").to_numpy()
    waits = all_gaps["cause"].str.startswith("host_").to_numpy(bool)
    host = _host(trace, after, start, start + all_gaps["dur_ns"].to_numpy(), waits)
    return all_gaps.assign(
        step=step_of(trace.derived(windows).steps, start),
        stage=range_at(trace, start),
        before=named(ops["name"], before),
        after=named(ops["name"], after),
        host=host,
    )


def _gaps(idle: DeviceIdle) -> pd.DataFrame:
    """The longest gaps of one device."""
    length = idle.gaps.end - idle.gaps.start
    cause, cause_ns = main_causes(idle)
    rows = np.sort(np.argsort(-length, kind="stable")[:MAX_GAPS])
    return pd.DataFrame(
        {
            "device": pd.array([idle.device] * len(rows), dtype="Int64"),
            "ts_ns": idle.gaps.start[rows],
            "dur_ns": length[rows],
            "cause": np.array(CAUSES, object)[cause[rows]],
            "cause_ns": cause_ns[rows],
            "before": idle.before[rows],
            "after": idle.after[rows],
        }
    )


def _host(
    trace: Trace, after: Ints, start: Ints, end: Ints, waits: npt.NDArray[np.bool_]
) -> npt.NDArray[np.object_]:
    """What the thread that launched the next op was in halfway through the gap's wait for that launch.

    Where the gap is no such wait (not `waits`), halfway through the rest. None if unknown.
    """
    host, links = trace.get("host_ops"), trace.derived(launches)
    call = np.where(links.call[after] >= 0, links.call[after], links.op[after])
    waiting = np.flatnonzero((after >= 0) & (call >= 0))
    launch = np.clip(links.ts_ns[after], start, end)
    low, high = np.where(waits, start, launch), np.where(waits, launch, end)
    midway = np.full(len(after), -1, np.int64)
    thread = host["thread"].to_numpy()[call[waiting]]
    midway[waiting] = innermost(trace, thread, (low + (high - low) // 2)[waiting])
    return named(host["name"], midway)
