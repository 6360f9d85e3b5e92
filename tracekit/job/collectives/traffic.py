"""Collective traffic over processes: bytes and rates (M12, M14), communication per rank, waits inside it (Q17)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.collectives.matching import match_collectives
from tracekit.job.frames import (
    aggregate_by_keys,
    find_canonical_stages,
    sort_by_columns,
    sum_columns_by_keys,
    to_float_or_none,
    to_int_or_none,
)
from tracekit.job.gpu_shares import divide_columns
from tracekit.job.stages.windows import read_undamaged_table
from tracekit.model.intervals import line_up_lanes, measure_coverage, measure_group_unions, merge_intervals
from tracekit.model.keys import CAPTURE, PROCESS, group_rows_by, inner_join, iterate_records, number_frames_alike
from tracekit.model.tables.arrays import Nullable, convert_for_pandas, make_frame
from tracekit.model.tables.arrays import concatenate_like_arrays as join
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


def compute_wire_factor(op: str, ranks: float | None) -> float | None:
    """Compute how often a message crosses the wire of one rank (bus bandwidth over algorithm bandwidth).

    None where the size of the group is unknown, or is 1: then nothing crosses the wire.

    >>> compute_wire_factor("all_reduce", 4), compute_wire_factor("all_gather", 4), compute_wire_factor("broadcast", None)
    (1.5, 0.75, 1.0)
    """
    if ranks is not None and ranks < 2:
        return None
    if op not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return 1.0
    if ranks is None:
        return None
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


def list_rated_collectives(measured: Measurements) -> pd.DataFrame:
    """List the rows of `collectives` in their order, with values that depend on other ranks.

    Adds canonical (stage; None outside), wait_ns and transfer_ns (`match_collectives`), wire_bytes (Float64: bytes times
    `compute_wire_factor`), size (class of `SIZES`, None if unknown), and the inputs of `compute_collective_rates`.
    """
    return measured.derived(_list_rated_collectives)


def _list_rated_collectives(measured: Measurements) -> pd.DataFrame:
    rows = measured["collectives"]
    rows["canonical"] = find_canonical_stages(rows)
    rows[["wait_ns", "transfer_ns"]] = match_collectives(measured)[["wait_ns", "transfer_ns"]]
    number, first = group_rows_by(rows, ["op", "group_size"])
    pairs = iterate_records(rows.iloc[first], ["op", "group_size"])
    factors: Any = pd.array([*starmap(compute_wire_factor, pairs)], dtype="Float64")
    rows["wire_bytes"] = rows["size_bytes"].astype("Float64") * factors[number]
    names, edges = zip(*SIZES, strict=True)
    beyond = np.array(edges[:-1], np.int64)
    size = rows["size_bytes"].to_numpy(np.int64, na_value=0)
    labels = np.array(names, object)
    classes = labels[np.searchsorted(beyond, size, side="right")]
    classes[rows["size_bytes"].isna().to_numpy()] = None
    rows["size"] = classes
    return _add_collective_rate_parts(rows)


def _add_collective_rate_parts(rows: pd.DataFrame) -> pd.DataFrame:
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
"""Columns that `compute_collective_rates` sums, except times; it takes the maximum of the last one."""


def compute_collective_rates(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Compute counts, Σ of bytes and times, and rates in GB/s (1e9) per distinct `by`, most time first.

    A rate is Σ bytes / Σ time of the collectives with both known: algbw of the message, busbw of the bytes that cross the
    wire, max_busbw of the fastest, transfer_busbw over the shortest time of any rank.
    """
    keys = list(by)
    names = ("dur_ns", "exposed_ns", "wait_ns", *RATED[:-1])
    sums = {name: (name, "known_sum") for name in names}
    out = aggregate_by_keys(rows, keys, **sums, max_busbw=("max_busbw", "max"))
    for name, top, bottom in (
        ("algbw", "alg_bytes", "alg_ns"),
        ("busbw", "bus_bytes", "bus_ns"),
        ("transfer_busbw", "transfer_bytes", "moved_ns"),
    ):
        out[name] = divide_columns(out[top], out[bottom])
    out["hidden_ratio"] = 1 - divide_columns(out["exposed_ns"], out["dur_ns"])
    return sort_by_columns(out, dur_ns=False, **dict.fromkeys(keys, True))


def sum_size_and_rate(rows: pd.DataFrame) -> tuple[int | None, float | None]:
    """Sum the rows of one operation: (Σ bytes of messages, busbw as in `compute_collective_rates`), None where unknown."""
    columns = {name: (name, "known_sum") for name in ("size_bytes", "bus_bytes", "bus_ns")}
    sums = aggregate_by_keys(rows, ["op"], **columns)
    rate = divide_columns(sums["bus_bytes"], sums["bus_ns"])
    return to_int_or_none(sums["size_bytes"].iloc[0]), to_float_or_none(rate[0])


def sum_traffic_by_rank(measured: Measurements) -> pd.DataFrame:
    """Sum traffic by device of a process, or by process where its host runs the collectives (M14).

    Columns: those of `WHO`, window_ns, comm_ns (any collective runs), exposed_ns (no compute overlaps; NA on the host),
    wait_ns (the part of it that waits for other ranks; NA if unknown), count, size_bytes, wire_bytes, wired_ns (time of
    the collectives with known bytes), comm_ratio, exposed_ratio and wire_gb_per_s.
    """
    return measured.derived(_sum_traffic_by_rank)


def _sum_traffic_by_rank(measured: Measurements) -> pd.DataFrame:
    rows = list_rated_collectives(measured)
    on_host = (rows["device"].isna() & rows["exposed_ns"].isna()).to_numpy(np.bool_)
    windows = read_undamaged_table(measured, "gpu_time")[[*PROCESS, *_WINDOW]]
    windows = windows[(windows["window"] == "capture") & windows["source"].isin(rows["source"][~on_host])]
    gpu = windows.rename(columns={"exposed_comm_ns": "exposed_ns"})
    gpu["wait_ns"] = measure_exposed_coverage(list_wait_intervals(rows), windows)
    by = tuple(dict.fromkeys((*CAPTURE, "device", *WHO)))
    wired = rows[[*by, "ts_ns", "dur_ns"]][rows["wire_bytes"].notna()]
    wire_ns = measure_collective_union(wired, by, "wired_ns")
    frames = [gpu, wire_ns, rows[[*WHO, "count", "size_bytes", "wire_bytes"]]]
    if on_host.any():
        frames.insert(1, _list_host_collective_captures(measured, rows[on_host]))
    columns = ("window_ns", "comm_ns", "exposed_ns", "wait_ns", "count", "size_bytes", "wire_bytes", "wired_ns")
    out = sum_columns_by_keys(_stack_traffic_frames(frames, columns), WHO, columns)
    out["comm_ratio"] = divide_columns(out["comm_ns"], out["window_ns"])
    out["exposed_ratio"] = divide_columns(out["exposed_ns"], out["window_ns"])
    out["wire_gb_per_s"] = divide_columns(out["wire_bytes"], out["wired_ns"])
    out = sort_by_columns(out[out["count"].notna()], **dict.fromkeys(WHO, True))
    return out.reset_index(drop=True)


_WINDOW = (*("source", "device", "window", "ts_ns", "window_ns"), *("comm_ns", "exposed_comm_ns"))
"""Columns read from the windows of devices, except their owner."""


def _list_host_collective_captures(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """List the captures of processes with host-side collectives, with comm_ns and wait_ns."""
    captures = measured["captures"].assign(device=None)
    captures = captures[captures["source"].isin(rows["source"])]
    busy = measure_collective_union(rows, (*CAPTURE, "device"), "comm_ns")
    host = captures.rename(columns={"dur_ns": "window_ns"})
    host = inner_join(host, busy.drop(columns="device"), CAPTURE, optional=["pid"])
    host["wait_ns"] = measure_window_coverage(list_wait_intervals(rows), host)
    return host


def _stack_traffic_frames(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Stack the frames with the columns of `WHO` and these; missing where a frame lacks one."""
    stacked: dict[str, Any] = {}
    for name in (*WHO, *columns):
        if name in ("run", "role", "host"):
            stacked[name] = np.concatenate([frame[name].to_numpy(object) for frame in frames])
        else:
            stacked[name] = convert_for_pandas(join([_list_traffic_numbers(frame, name) for frame in frames]))
    return make_frame(stacked, sum(map(len, frames)))


def _list_traffic_numbers(frame: pd.DataFrame, name: str) -> Nullable:
    """List the numbers of a column, all missing where the frame lacks it."""
    kind = np.float64 if name == "wire_bytes" else np.int64
    if name not in frame:
        return Nullable(np.zeros(len(frame), kind), np.ones(len(frame), np.bool_))
    column = frame[name]
    return Nullable(column.to_numpy(kind, na_value=0), column.isna().to_numpy(np.bool_))


def measure_collective_union(rows: pd.DataFrame, by: Sequence[str], name: str) -> pd.DataFrame:
    """Measure the time in which any collective runs, per distinct `by`: the length of the union."""
    number, once = group_rows_by(rows, by)
    first = rows[list(by)].iloc[once].reset_index(drop=True)
    start = rows["ts_ns"].to_numpy(np.int64)
    first[name] = measure_group_unions(start, start + rows["dur_ns"].to_numpy(np.int64), number, len(first))
    return first


def list_wait_intervals(rows: pd.DataFrame) -> pd.DataFrame:
    """List the known waits as intervals, from the own start until the last rank came.

    On a device they are at most the exposed time of the collective: a wait hidden behind compute costs nothing.
    """
    names = [*CAPTURE, "device", "ts_ns", "dur_ns", "wait_ns", "exposed_ns"]
    waits = rows[names][rows["wait_ns"].notna()]
    wait, exposed = waits["wait_ns"], waits["exposed_ns"]
    length = wait.where(exposed.isna() | (wait <= exposed).fillna(value=True), exposed)
    return waits.assign(dur_ns=length.to_numpy(np.int64))


def list_transfer_intervals(rows: pd.DataFrame) -> pd.DataFrame:
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


def measure_window_coverage(intervals: pd.DataFrame, windows: pd.DataFrame) -> Any:
    """Measure how much of each window (ts_ns, window_ns) the intervals of its process and device cover; else NA."""
    line = np.concatenate(number_frames_alike([*CAPTURE, "device"], intervals, windows))
    count = len(intervals)
    start = np.concatenate([frame["ts_ns"].to_numpy(np.int64) for frame in (intervals, windows)])
    length = [intervals["dur_ns"].to_numpy(np.int64), windows["window_ns"].to_numpy(np.int64)]
    end = start + np.concatenate(length)
    inside_ns = np.zeros(len(windows), np.int64)
    for chosen, shift in line_up_lanes(line, start, end):
        begin, until = start[chosen] + shift, end[chosen] + shift
        busy_count = int(np.count_nonzero(chosen[:count]))
        busy = merge_intervals(begin[:busy_count], until[:busy_count])
        inside_ns[chosen[count:]] = measure_coverage(busy, begin[busy_count:], until[busy_count:])
    return pd.arrays.IntegerArray(inside_ns, ~np.isin(line[count:], line[:count]))


def measure_exposed_coverage(intervals: pd.DataFrame, windows: pd.DataFrame) -> Any:
    """Measure how much of the exposed communication of each window of `gpu_time` the intervals cover.

    NA where that device has no interval; at most the exposed time.
    """
    inside_ns = measure_window_coverage(intervals, windows)
    exposed = windows["exposed_comm_ns"].to_numpy(np.int64)
    mask = np.asarray(inside_ns.isna())
    return pd.arrays.IntegerArray(np.minimum(inside_ns.to_numpy(np.int64, na_value=0), exposed), mask)
