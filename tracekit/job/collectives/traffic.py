"""Collective traffic over processes: bytes and rates (M12, M14), waits inside it (Q17), its tables and charts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.collectives.matching import match_collectives
from tracekit.job.frames import (
    aggregate_by_keys,
    find_canonical_stages,
    find_equal_rows,
    make_label_headings,
    narrow_exact_floats,
    select_distinct_rows,
    sort_by_columns,
    sum_columns_by_keys,
    to_float_or_none,
    to_int_or_none,
)
from tracekit.job.gpu_shares import divide_columns
from tracekit.job.report.ranks_to_plot import MAX_ROWS, choose_rows_to_plot, list_bar_marks
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import count_steps_of_rows, read_undamaged_table
from tracekit.model.intervals import line_up_lanes, measure_coverage, measure_group_unions, merge_intervals
from tracekit.model.report import Chart, Heading, Ranked, Sheet
from tracekit.model.tables.arrays import Nullable, convert_for_pandas, make_frame
from tracekit.model.tables.arrays import concatenate_like_arrays as join
from tracekit.model.tables.keys import CAPTURE, PROCESS, group_rows_by, inner_join, iterate_records, number_frames_alike
from tracekit.model.text.labels import format_numbered_word, join_phrase
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
    factors: Any = pd.array([compute_wire_factor(op, ranks) for op, ranks in pairs], dtype="Float64")
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
    return make_frame(stacked, sum(len(frame) for frame in frames))


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


COLLECTIVE_KIND = ("run", "role", "op", "group", "group_size", "dtype", "size")


def make_collective_kind_sheet(measured: Measurements) -> Sheet:
    """Make the table of collectives by operation, group, type and size, most time first (M12)."""
    table = compute_collective_rates(list_rated_collectives(measured), COLLECTIVE_KIND)
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            op | operation
            group | group | text | Process group: its name, and a hash of its members.
            group_size | ranks | count | Ranks of the group.
            dtype | type
            size | size | text | Of one message: all_gather's whole output, else the input.
            count | count | count
            size_bytes | bytes | bytes | Σ of messages over all processes and steps.
            dur_ns | time | ns | Σ duration over all processes and steps.
            exposed_ns | exposed | ns | Of it, while no compute kernel ran beside it.
            hidden_ratio | hidden | ratio | Of the time, beside a compute kernel.
            wait_ns | waiting | ns | Of the time, until the last rank had come.
            algbw | algbw | gb_per_s | Σ bytes / Σ time; 1e9 bytes.
            busbw | busbw | gb_per_s | The same of what crosses the wire: bytes × 2(n−1)/n for all_reduce, (n−1)/n for all_gather, reduce_scatter and all_to_all.
            transfer_busbw | busbw moving | gb_per_s | busbw over the shortest time of any rank: without waiting.
            max_busbw | fastest | gb_per_s | busbw of the fastest single one.
        """),
    )
    return make_sheet("collectives", "Collectives by operation, group and size", headings, table)


def make_collective_stage_sheet(measured: Measurements) -> Sheet:
    """Make the table of the communication of a rank per step in each stage."""
    rows = list_rated_collectives(measured)
    by = ["run", "role", "canonical", "op"]
    table = compute_collective_rates(rows, by)
    steps = {
        (run, role): count_steps_of_rows(
            measured, rows[find_equal_rows(rows["run"], run) & find_equal_rows(rows["role"], role)]
        )
        for run, role in iterate_records(select_distinct_rows(table, ("run", "role")), ("run", "role"))
    }
    counts = [max(steps[owner].count, 1) for owner in iterate_records(table, ("run", "role"))]
    for name in ("count", "size_bytes", "dur_ns", "exposed_ns", "wait_ns"):
        table[name] = narrow_exact_floats(table[name] / counts)
    table["stage"] = table["canonical"].where(table["canonical"].notna(), "(outside any stage)")
    headings = (
        *make_label_headings(measured),
        Heading("stage", "stage", doc="In which it was issued."),
        Heading("op", "operation"),
        Heading("count", "count", "count", "Per step and rank."),
        Heading("size_bytes", "bytes", "bytes", "Σ of messages, per step and rank."),
        Heading("dur_ns", "time", "ns", "Σ duration, per step and rank."),
        Heading("exposed_ns", "exposed", "ns", "Of it, while no compute kernel ran beside it."),
        Heading("wait_ns", "waiting", "ns", "Of the time, until the last rank had come."),
    )
    return make_sheet("collectives_by_stage", "Collectives by stage, per step and rank", headings, table)


def make_communication_rank_sheet(measured: Measurements) -> Sheet:
    """Make the table of the communication time and rates of each rank (M14)."""
    table = sum_traffic_by_rank(measured)
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            rank | rank | id
            device | GPU | id
            window_ns | window | ns | What was captured, summed over sources.
            comm_ns | comm | ns | Any collective running.
            comm_ratio | of window | ratio
            exposed_ns | exposed | ns | Of it, while no compute kernel ran.
            exposed_ratio | of window | ratio
            wait_ns | waiting | ns | Of it, until the last rank had come.
            count | collectives | count
            size_bytes | bytes | bytes | Σ of messages.
            wire_gb_per_s | network | gb_per_s | Bytes that cross the wire of this rank, over the time in which any collective runs whose bytes are known.
        """),
    )
    return make_sheet("communication_by_rank", "Communication by rank", headings, table, ranked=Ranked("comm_ns"))


def draw_communication_by_rank(measured: Measurements) -> Chart | None:
    """Draw the communication of each rank, split into hidden behind compute, waiting and the rest."""
    ranks = sum_traffic_by_rank(measured)
    ranks = ranks[ranks["comm_ns"].notna()]
    if not len(ranks):
        return None
    on_gpu = bool(ranks["exposed_ns"].notna().any())
    waits = bool(ranks["wait_ns"].notna().any())
    exposed = ranks["exposed_ns"].where(ranks["exposed_ns"].notna(), ranks["comm_ns"])
    who, values = _name_communicating_ranks(ranks), exposed.to_numpy(np.float64).tolist()
    bars = choose_rows_to_plot({}, "exposed communication")
    rows = dict(enumerate(who))
    if len(set(who)) > MAX_ROWS:
        bars = choose_rows_to_plot(dict(zip(who, values, strict=True)), "exposed communication")
        rows = {row: bars.rows[name] for row, name in rows.items() if name in bars.rows}
    parts = {"hidden behind compute": ranks["comm_ns"] - exposed}
    parts["exposed" if on_gpu else "running"] = exposed - ranks["wait_ns"].fillna(0)
    parts["waiting"] = ranks["wait_ns"].fillna(0)
    table = np.column_stack([part.to_numpy(np.int64) for part in parts.values()])
    assert (table >= 0).all(), "the parts of communication must fit into it"
    assert (table.sum(axis=1) == ranks["comm_ns"].to_numpy(np.int64)).all()
    is_drawn = [on_gpu, True, waits]

    waiting_is = "until the last rank came" if waits else "not told apart from the rest"
    return Chart(
        "communication",
        "Communication of each rank",
        "bars",
        list_bar_marks(table[np.ix_(list(rows), is_drawn)]),
        tuple(compress(parts, is_drawn)),
        tuple(rows.values()),
        caption=f"While any collective ran, over the whole capture; waiting: {waiting_is}. {bars.note}".strip(),
        omitted=len(ranks) - len(rows),
    )


def _name_communicating_ranks(ranks: pd.DataFrame) -> list[str]:
    """Name each rank: with its run and role where there are several, and its GPU where it has several."""
    several_runs, several_roles = (len(set(ranks[n].astype(str))) > 1 for n in ("run", "role"))
    per_process = ranks.groupby(["run", "host", "pid", "rank"], dropna=False)["device"].nunique()
    several_gpus = bool((per_process > 1).any())
    names = []
    for run, rank, role, device in iterate_records(ranks, ("run", "rank", "role", "device")):
        parts = [format_numbered_word("rank", rank) or "rank ?"]
        if several_runs:
            parts.insert(0, str(run))
        if several_roles:
            parts.append(role)
        if several_gpus:
            parts.append(format_numbered_word("GPU", device))
        names.append(join_phrase(*parts))
    return names


def draw_message_sizes(measured: Measurements) -> Chart | None:
    """Draw the number of messages by size and operation, in powers of two."""
    rows = list_rated_collectives(measured)
    rows = rows[rows["op"] != "barrier"]
    sized = rows[rows["size_bytes"].notna()]
    if not len(sized):
        return None
    # frexp gives 0 for 0 and k + 1 for [2^k, 2^(k+1)): exact, as sizes are far below 2^53 or powers of two.
    power = np.frexp(sized["size_bytes"].to_numpy(np.float64))[1]
    count = sized.assign(power=power).groupby(["op", "power"], sort=True).size()
    total = count.groupby("op").sum().sort_values(ascending=False, kind="stable")
    series = [str(op) for op in total.index]

    marks: list[tuple[int | float | None, ...]] = []
    keys: list[Any] = list(count.index)
    for (op, exponent), number in zip(keys, count.tolist(), strict=True):
        low = 0 if exponent == 0 else 2 ** (int(exponent) - 1)
        marks.append((series.index(str(op)), low, max(2 * low, 1), int(number)))
    caption = ""
    if unknown := len(rows) - len(sized):
        caption = f"{unknown:,} without a known size are not shown."
    return Chart(
        "message_sizes",
        "Sizes of messages",
        "histogram",
        tuple(marks),
        tuple(series),
        unit="count",
        x_unit="bytes",
        caption=caption,
    )
