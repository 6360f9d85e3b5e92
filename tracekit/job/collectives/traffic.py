"""Collective traffic over processes: bytes and rates (M12, M14), communication per rank, waits inside it (Q17)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.collectives.matching import matched
from tracekit.job.frames import (
    canonical_stages,
    grouped,
    number_or_none,
    ordered,
    summed,
    whole_or_none,
)
from tracekit.job.gpu_shares import quotient
from tracekit.job.stages.windows import whole
from tracekit.model.intervals import covered, side_by_side, union, union_totals
from tracekit.model.keys import CAPTURE, PROCESS, joined, numbered_alike, of_keys, records
from tracekit.model.tables.arrays import Nullable, for_pandas, framed
from tracekit.model.tables.arrays import joined as join
from tracekit.model.trace import Measurements

WHO = (*PROCESS, "device")
"""Owner of a number of one rank: a device of a process, or the process itself on the host."""

SIZES = (
    ("< 64 KiB", 2**16),
    ("64 KiB – 1 MiB", 2**20),
    ("1 – 16 MiB", 2**24),
    ("16 – 256 MiB", 2**28),
    ("≥ 256 MiB", 2**63),
)
"""Classes of message sizes, each with its upper bound."""


def wire_factor(op: str, ranks: float | None) -> float | None:
    """Compute how often a message crosses the wire of one rank (bus bandwidth over algorithm bandwidth).

    None where the size of the group is unknown, or is 1: then nothing crosses the wire.

    >>> wire_factor("all_reduce", 4), wire_factor("all_gather", 4), wire_factor("broadcast", None)
    (1.5, 0.75, 1.0)
    """
    if ranks is not None and ranks < 2:
        return None
    if op not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return 1.0
    if ranks is None:
        return None
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


def collectives(measured: Measurements) -> pd.DataFrame:
    """List the rows of `collectives` in their order, with values that depend on other ranks.

    Adds canonical (stage; None outside), wait_ns and transfer_ns (`matched`), wire_bytes (Float64: bytes times
    `wire_factor`), size (class of `SIZES`, None if unknown), and the inputs of `rates`.
    """
    return measured.derived(_collectives)


def _collectives(measured: Measurements) -> pd.DataFrame:
    rows = measured["collectives"]
    rows["canonical"] = canonical_stages(rows)
    rows[["wait_ns", "transfer_ns"]] = matched(measured)[["wait_ns", "transfer_ns"]]
    number, first = of_keys(rows, ["op", "group_size"])
    pairs = records(rows.iloc[first], ["op", "group_size"])
    factors: Any = pd.array([*starmap(wire_factor, pairs)], dtype="Float64")
    rows["wire_bytes"] = rows["size_bytes"].astype("Float64") * factors[number]
    names, edges = zip(*SIZES, strict=True)
    beyond = np.array(edges[:-1], np.int64)
    size = rows["size_bytes"].to_numpy(np.int64, na_value=0)
    labels = np.array(names, object)
    classes = labels[np.searchsorted(beyond, size, side="right")]
    classes[rows["size_bytes"].isna().to_numpy()] = None
    rows["size"] = classes
    return _with_parts(rows)


def _with_parts(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the bytes and times that rates are made of, NA unless both are known."""
    timed = (rows["dur_ns"] > 0) & (rows["size_bytes"] > 0).fillna(value=False)
    wired = timed & rows["wire_bytes"].notna()
    moved = wired & (rows["transfer_ns"] > 0).fillna(value=False)
    dur = rows["dur_ns"].astype("Int64")
    return rows.assign(
        count=1,
        sized_count=rows["size_bytes"].notna().astype("int64"),
        alg_bytes=rows["size_bytes"].where(timed),
        alg_ns=dur.where(timed),
        bus_bytes=rows["wire_bytes"].where(wired),
        bus_ns=dur.where(wired),
        transfer_bytes=rows["wire_bytes"].where(moved),
        moved_ns=rows["transfer_ns"].where(moved),
        max_busbw=(rows["wire_bytes"] / dur).where(wired).astype("Float64"),
    )


RATED = (
    *("count", "sized_count", "size_bytes", "alg_bytes", "alg_ns", "bus_bytes", "bus_ns"),
    *("transfer_bytes", "moved_ns", "max_busbw"),
)
"""Columns that `rates` sums, except times; it takes the maximum of the last one."""


def rates(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Compute counts, Σ of bytes and times, and rates in GB/s (1e9) per distinct `by`, most time first.

    A rate is Σ bytes / Σ time of the collectives with both known: algbw of the message, busbw of the bytes that cross the
    wire, max_busbw of the fastest, transfer_busbw over the shortest time of any rank.
    """
    keys = list(by)
    names = ("dur_ns", "exposed_ns", "wait_ns", *RATED[:-1])
    sums = {name: (name, "known_sum") for name in names}
    out = grouped(rows, keys, **sums, max_busbw=("max_busbw", "max"))
    for name, top, bottom in (
        ("algbw", "alg_bytes", "alg_ns"),
        ("busbw", "bus_bytes", "bus_ns"),
        ("transfer_busbw", "transfer_bytes", "moved_ns"),
    ):
        out[name] = quotient(out[top], out[bottom])
    out["hidden_ratio"] = 1 - quotient(out["exposed_ns"], out["dur_ns"])
    return ordered(out, dur_ns=False, **dict.fromkeys(keys, True))


def size_and_rate(rows: pd.DataFrame) -> tuple[int | None, float | None]:
    """Sum the rows of one operation: (Σ bytes of messages, busbw as in `rates`), None where unknown."""
    columns = {name: (name, "known_sum") for name in ("size_bytes", "bus_bytes", "bus_ns")}
    sums = grouped(rows, ["op"], **columns)
    rate = quotient(sums["bus_bytes"], sums["bus_ns"])
    return whole_or_none(sums["size_bytes"].iloc[0]), number_or_none(rate[0])


def by_rank(measured: Measurements) -> pd.DataFrame:
    """Sum traffic by device of a process, or by process where its host runs the collectives (M14).

    Columns: those of `WHO`, window_ns, comm_ns (any collective runs), exposed_ns (no compute overlaps; NA on the host),
    wait_ns (the part of it that waits for other ranks; NA if unknown), count, size_bytes, wire_bytes, wired_ns (time of
    the collectives with known bytes), comm_ratio, exposed_ratio and wire_gb_per_s.
    """
    return measured.derived(_by_rank)


def _by_rank(measured: Measurements) -> pd.DataFrame:
    rows = collectives(measured)
    on_host = (rows["device"].isna() & rows["exposed_ns"].isna()).to_numpy(np.bool_)
    windows = whole(measured, "gpu_time")[[*PROCESS, *_WINDOW]]
    windows = windows[
        (windows["window"] == "capture") & windows["source"].isin(rows["source"][~on_host])
    ]
    gpu = windows.rename(columns={"exposed_comm_ns": "exposed_ns"})
    gpu["wait_ns"] = exposed_within(waiting(rows), windows)
    by = tuple(dict.fromkeys((*CAPTURE, "device", *WHO)))
    wired = rows[[*by, "ts_ns", "dur_ns"]][rows["wire_bytes"].notna()]
    wire_ns = united(wired, by, "wired_ns")
    frames = [gpu, wire_ns, rows[[*WHO, "count", "size_bytes", "wire_bytes"]]]
    if on_host.any():
        frames.insert(1, _on_hosts(measured, rows[on_host]))
    columns = (
        "window_ns",
        "comm_ns",
        "exposed_ns",
        "wait_ns",
        "count",
        "size_bytes",
        "wire_bytes",
        "wired_ns",
    )
    out = summed(_one_after_another(frames, columns), WHO, columns)
    out["comm_ratio"] = quotient(out["comm_ns"], out["window_ns"])
    out["exposed_ratio"] = quotient(out["exposed_ns"], out["window_ns"])
    out["wire_gb_per_s"] = quotient(out["wire_bytes"], out["wired_ns"])
    out = ordered(out[out["count"].notna()], **dict.fromkeys(WHO, True))
    return out.reset_index(drop=True)


_WINDOW = (
    *("source", "device", "window", "ts_ns", "window_ns"),
    *("comm_ns", "exposed_comm_ns"),
)
"""Columns read from the windows of devices, except their owner."""


def _on_hosts(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """List the captures of processes with host-side collectives, with comm_ns and wait_ns."""
    captures = measured["captures"].assign(device=None)
    captures = captures[captures["source"].isin(rows["source"])]
    busy = united(rows, (*CAPTURE, "device"), "comm_ns")
    host = captures.rename(columns={"dur_ns": "window_ns"})
    host = joined(host, busy.drop(columns="device"), CAPTURE, optional=["pid"])
    host["wait_ns"] = within(waiting(rows), host)
    return host


def _one_after_another(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Stack the frames with the columns of `WHO` and these; missing where a frame lacks one."""
    stacked: dict[str, Any] = {}
    for name in (*WHO, *columns):
        if name in ("run", "role", "host"):
            stacked[name] = np.concatenate([frame[name].to_numpy(object) for frame in frames])
        else:
            stacked[name] = for_pandas(join([_numbers(frame, name) for frame in frames]))
    return framed(stacked, sum(map(len, frames)))


def _numbers(frame: pd.DataFrame, name: str) -> Nullable:
    """List the numbers of a column, all missing where the frame lacks it."""
    kind = np.float64 if name == "wire_bytes" else np.int64
    if name not in frame:
        return Nullable(np.zeros(len(frame), kind), np.ones(len(frame), np.bool_))
    column = frame[name]
    return Nullable(column.to_numpy(kind, na_value=0), column.isna().to_numpy(np.bool_))


def united(rows: pd.DataFrame, by: Sequence[str], name: str) -> pd.DataFrame:
    """Measure the time in which any collective runs, per distinct `by`: the length of the union."""
    number, once = of_keys(rows, by)
    first = rows[list(by)].iloc[once].reset_index(drop=True)
    start = rows["ts_ns"].to_numpy(np.int64)
    first[name] = union_totals(start, start + rows["dur_ns"].to_numpy(np.int64), number, len(first))
    return first


def waiting(rows: pd.DataFrame) -> pd.DataFrame:
    """List the known waits as intervals, from the own start until the last rank came.

    On a device they are at most the exposed time of the collective: a wait hidden behind compute costs nothing.
    """
    names = [*CAPTURE, "device", "ts_ns", "dur_ns", "wait_ns", "exposed_ns"]
    waits = rows[names][rows["wait_ns"].notna()]
    wait, exposed = waits["wait_ns"], waits["exposed_ns"]
    length = wait.where(exposed.isna() | (wait <= exposed).fillna(value=True), exposed)
    return waits.assign(dur_ns=length.to_numpy(np.int64))


def moving(rows: pd.DataFrame) -> pd.DataFrame:
    """List the intervals of transfer without waiting for other ranks.

    A collective needs no longer than on its shortest rank; the rest is waiting. Where no other rank shows it, it counts
    for at most the median of its kind (process, device, op, group).
    """
    dur = rows["dur_ns"].astype("Int64")
    kind = dur.groupby([rows[name] for name in (*CAPTURE, "device", "op", "group")], dropna=False)
    usual = kind.transform("median").round().astype("Int64")
    bound = rows["transfer_ns"].where(rows["transfer_ns"].notna(), usual)
    own_ns = bound.where(bound < dur, dur).to_numpy(np.int64)
    return rows.assign(ts_ns=rows["ts_ns"] + rows["dur_ns"] - own_ns, dur_ns=own_ns)


def within(intervals: pd.DataFrame, windows: pd.DataFrame) -> Any:
    """Measure how much of each window (ts_ns, window_ns) the intervals of its process and device cover; else NA."""
    line = np.concatenate(numbered_alike([*CAPTURE, "device"], intervals, windows))
    count = len(intervals)
    start = np.concatenate([frame["ts_ns"].to_numpy(np.int64) for frame in (intervals, windows)])
    length = [intervals["dur_ns"].to_numpy(np.int64), windows["window_ns"].to_numpy(np.int64)]
    end = start + np.concatenate(length)
    inside_ns = np.zeros(len(windows), np.int64)
    for chosen, shift in side_by_side(line, start, end):
        begin, until = start[chosen] + shift, end[chosen] + shift
        busy_count = int(np.count_nonzero(chosen[:count]))
        busy = union(begin[:busy_count], until[:busy_count])
        inside_ns[chosen[count:]] = covered(busy, begin[busy_count:], until[busy_count:])
    return pd.arrays.IntegerArray(inside_ns, ~np.isin(line[count:], line[:count]))


def exposed_within(intervals: pd.DataFrame, windows: pd.DataFrame) -> Any:
    """Measure how much of the exposed communication of each window of `gpu_time` the intervals cover.

    NA where that device has no interval; at most the exposed time.
    """
    inside_ns = within(intervals, windows)
    exposed = windows["exposed_comm_ns"].to_numpy(np.int64)
    mask = np.asarray(inside_ns.isna())
    return pd.arrays.IntegerArray(
        np.minimum(inside_ns.to_numpy(np.int64, na_value=0), exposed), mask
    )
