"""Copies between device and host memory by stage: how long they run, and how long nothing else does (Q13)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from tracekit.model.intervals import Intervals, covered, subtract, union, window_at
from tracekit.model.keys import summed
from tracekit.model.trace import Trace
from tracekit.process.copy_names import way_of
from tracekit.process.sound import sound_device_ops
from tracekit.process.stage_at import outermost_ranges
from tracekit.process.steps import step_of, windows

SMALL_BYTES = 64_000
"""Copies of at most so many bytes carry arguments and scalars, no state: left out here."""

RATED_BYTES = 2**20
"""Only copies of at least so many bytes show what a link can do."""

HOST_WAYS = ("HtoD", "DtoH")

_KEYS = ["device", "step", "stage", "direction", "memory"]


def transfers(trace: Trace) -> pd.DataFrame:
    """Copies of more than 64,000 bytes by device, step, outermost stage, direction and memory.

    Columns: those keys; count and size_bytes of the copies that start there; busy_ns and exposed_ns of the
    time there (exposed: no kernel and no collective runs); max_gb_per_s of copies of 1 MiB and more. Direction
    `any` holds both ways between host and device as one union, so that it may be less than their sum.
    """
    ops = trace.derived(sound_device_ops)
    copies = ops[(ops["kind"] == "memcpy") & (ops["size_bytes"] > SMALL_BYTES).fillna(value=False)]
    ways = [way_of(str(name)) for name in copies["name"].cat.categories]
    codes = copies["name"].cat.codes.to_numpy()
    copies = copies.assign(
        direction=np.array([*(way for way, _ in ways), None], object)[codes],
        memory=np.array([*(memory for _, memory in ways), None], object)[codes],
    )
    places = _places(trace)
    frames = []
    work = ops[ops["kind"].isin(("kernel", "collective")).to_numpy()]
    for device in copies["device"].drop_duplicates().sort_values():
        chosen, other = (
            frame[
                (frame["device"].isna() if pd.isna(device) else frame["device"] == device).fillna(
                    value=False
                )
            ]
            for frame in (copies, work)
        )
        busy = _intervals(other)
        for way, memory, rows in _ways(chosen):
            frame = _by_place(rows, busy, places)
            frames.append(frame.assign(device=device, direction=way, memory=memory))
    if not frames:
        return pd.DataFrame(
            columns=[*_KEYS, "count", "size_bytes", "busy_ns", "exposed_ns", "max_gb_per_s"]
        )
    return pd.concat(frames, ignore_index=True)


def _ways(copies: pd.DataFrame) -> Iterator[tuple[str, str | None, pd.DataFrame]]:
    """(direction, memory, rows) of every kind there is, then both ways between host and device."""
    directed = copies[copies["direction"].notna()]
    kinds = directed[["direction", "memory"]].drop_duplicates().sort_values(["direction", "memory"])
    for way, memory in kinds.itertuples(index=False, name=None):
        same = directed["memory"].isna() if pd.isna(memory) else directed["memory"] == memory
        rows = directed[(directed["direction"] == way) & same]
        yield str(way), None if pd.isna(memory) else str(memory), rows
    both = directed[directed["direction"].isin(HOST_WAYS)]
    if len(both):
        yield "any", None, both


def _intervals(ops: pd.DataFrame) -> Intervals:
    start = ops["ts_ns"].to_numpy()
    return union(start, start + ops["dur_ns"].to_numpy())


def _places(trace: Trace) -> pd.DataFrame:
    """Windows that do not overlap, in order: outermost stages, and what they leave of each step."""
    steps, stages = trace.derived(windows).steps, trace.derived(outermost_ranges)
    start = stages["ts_ns"].to_numpy()
    end = start + stages["dur_ns"].to_numpy()
    # Ends jitter by up to a microsecond: a stage begins where the one before it has ended.
    before = np.maximum.accumulate(np.concatenate((start[:1], end)))[:-1]
    start = np.minimum(np.maximum(start, before), end)
    outside_steps = subtract(_intervals(steps), union(start, end))
    inside = pd.DataFrame(
        {
            "step": stages["step"].array,
            "stage": stages["stage"].astype(object).to_numpy(),
            "start": start,
            "end": end,
        }
    )
    outside = pd.DataFrame(
        {
            "step": step_of(steps, outside_steps.start),
            "stage": None,
            "start": outside_steps.start,
            "end": outside_steps.end,
        }
    )
    both = pd.concat([inside, outside.astype({"stage": object})], ignore_index=True)
    return both.sort_values("start", kind="stable", ignore_index=True)


def _by_place(rows: pd.DataFrame, busy: Intervals, places: pd.DataFrame) -> pd.DataFrame:
    """The copies of one kind in every place that any of them touches."""
    running = _intervals(rows)
    begin, end = places["start"].to_numpy(), places["end"].to_numpy()
    length = covered(running, begin, end)
    bare = covered(subtract(running, busy), begin, end)
    assert (bare <= length).all(), "what is exposed is a part of what runs"
    start = rows["ts_ns"].to_numpy()
    size = rows["size_bytes"].to_numpy(np.int64, na_value=0)
    place = window_at(begin, end, start)
    count = np.bincount(place[place >= 0], minlength=len(places))
    moved = summed(place, size, len(places))
    in_places = places[["step", "stage"]].assign(
        count=count, size_bytes=moved, busy_ns=length, exposed_ns=bare
    )
    in_places = in_places[(in_places["busy_ns"] > 0) | (in_places["count"] > 0)]
    sums = in_places.groupby(["step", "stage"], dropna=False, sort=False).sum().reset_index()
    large = (size >= RATED_BYTES) & (rows["dur_ns"].to_numpy() > 0)
    rate = size[large] / rows["dur_ns"].to_numpy()[large]
    return sums.assign(max_gb_per_s=float(rate.max()) if len(rate) else np.nan)
