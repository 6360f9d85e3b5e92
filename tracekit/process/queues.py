"""How long launched work waits, and how much of it is queued: definition M11."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import union
from tracekit.model.keys import numbered
from tracekit.model.trace import Trace
from tracekit.process.idle import DeviceIdle
from tracekit.process.launches import Launches, launches
from tracekit.process.stage_at import range_at

Ints = npt.NDArray[np.int64]

FULL_QUEUE = 1024
"""Ops that a stream takes before a launch blocks."""

MAX_STREAMS = 64
"""Most streams of one device that are described, those with most ops."""


def launch_delays(trace: Trace, idle: DeviceIdle) -> pd.DataFrame:
    """One row a stage, and one (stage missing) for all: from a launching call's end to its first op's start.

    Columns: stage, count, negative_count, p50_ns, p95_ns, max_ns. A call that launches many ops (a graph)
    counts once, by the first of them; ops known by their external id alone have no launching call.
    """
    ops, host = trace.get("device_ops"), trace.get("host_ops")
    links: Launches = trace.derived(launches)
    rows = idle.rows[links.call[idle.rows] >= 0]
    calls, number = numbered(links.call[rows])
    begins = np.full(len(calls), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(begins, number, ops["ts_ns"].to_numpy()[rows])
    called = host["ts_ns"].to_numpy()[calls]
    delay = begins - called - host["dur_ns"].to_numpy()[calls]
    of_call = pd.Series(range_at(trace, called), dtype=object)
    has_call = of_call.notna().to_numpy()
    stage = np.concatenate((np.full(len(delay), None, object), of_call[has_call].to_numpy()))
    both = np.concatenate((delay, delay[has_call]))
    frame = pd.DataFrame(
        {"stage": pd.Series(stage, dtype=object), "delay": both, "early": both < 0}
    )
    grouped = frame.groupby("stage", dropna=False, sort=True)
    delays = grouped.agg(
        count=("delay", "size"), negative_count=("early", "sum"), max_ns=("delay", "max")
    )
    delays["p50_ns"] = grouped["delay"].quantile(0.5)
    delays["p95_ns"] = grouped["delay"].quantile(0.95)
    return delays.reset_index()


def queues(trace: Trace, idle: DeviceIdle) -> pd.DataFrame:
    """One row a stream: launched and unfinished ops over time. Columns as in the measured table `queues`."""
    ops = trace.get("device_ops")
    links: Launches = trace.derived(launches)
    rows = idle.rows[links.linked[idle.rows]]
    streams, keys = pd.factorize(ops["stream"].iloc[rows], sort=True, use_na_sentinel=False)
    counts = np.bincount(streams, minlength=len(keys))
    largest = np.argsort(-counts, kind="stable")[:MAX_STREAMS]
    start = links.ts_ns[rows]
    end = (ops["ts_ns"] + ops["dur_ns"]).to_numpy()[rows]
    by_queue = []
    for stream in np.sort(largest).tolist():
        in_queue = streams == stream
        number = pd.NA if pd.isna(keys[stream]) else int(keys[stream])
        by_queue.append({"stream": number, **_depth(start[in_queue], end[in_queue])})
    columns = ["stream", "count", "span_ns", "p50_count", "p95_count", "max_count", "full_ns"]
    frame = pd.DataFrame(by_queue, columns=columns)
    return frame.astype({"stream": "Int64", **dict.fromkeys(columns[1:], "int64")})


def _depth(launched: Ints, finished: Ints) -> Mapping[str, int]:
    """The depth of one queue over time, weighted by time."""
    # An op that clocks show as finished before its launch was queued for no time.
    finished = np.maximum(finished, launched)
    times = np.concatenate((launched, finished))
    order = np.argsort(times, kind="stable")
    depth = np.cumsum(np.repeat(np.array([1, -1]), len(launched))[order])
    times = times[order]
    length = np.diff(times)
    depth = depth[:-1]
    by_depth = np.argsort(depth, kind="stable")
    reached = np.cumsum(length[by_depth])
    span = int(times[-1] - times[0])
    assert union(launched, finished).total == int(length[depth > 0].sum())

    def exceeded_less(numerator: int, denominator: int) -> int:
        if not span:
            return 0
        # Whole numbers throughout: a capture of days times a share would lose nanoseconds.
        place = np.searchsorted(reached, -(-span * numerator // denominator), side="left")
        return int(depth[by_depth[min(int(place), len(depth) - 1)]])

    return {
        "count": len(launched),
        "span_ns": span,
        "p50_count": exceeded_less(1, 2),
        "p95_count": exceeded_less(19, 20),
        "max_count": int(depth[length > 0].max()) if (length > 0).any() else 0,
        "full_ns": int(length[depth >= FULL_QUEUE].sum()),
    }
