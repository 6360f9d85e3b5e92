"""Collective traffic over processes: bytes and rates (M12, M14), waits inside it (Q17), its tables and charts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np

from tracekit.job.collectives.matching import list_matched_collectives
from tracekit.job.frames import make_label_headings, name_stages
from tracekit.job.report.ranks_to_plot import MAX_ROWS, choose_rows_to_plot, list_bar_marks
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import count_steps_of_processes, list_owners, list_undamaged_rows
from tracekit.model.intervals import line_up_lanes, measure_coverage, measure_group_unions, merge_intervals
from tracekit.model.report import Chart, Heading, Ranked, Sheet
from tracekit.model.tables.arrays import Coded, Nullable
from tracekit.model.tables.frame import (
    Frame,
    concat,
    count_distinct_of,
    count_rows,
    divide,
    max_of,
    median_of,
    narrow_whole_numbers,
    number_alike,
    sum_of,
    texts,
    where,
)
from tracekit.model.tables.keys import CAPTURE, PROCESS
from tracekit.model.text.labels import format_numbered_word, join_phrase
from tracekit.model.trace import Measurements, derive_once

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


@derive_once
def list_rated_collectives(measured: Measurements) -> Frame:
    """List the rows of `list_matched_collectives` with values that depend on stages and other ranks.

    Adds canonical (stage; missing outside), wire_bytes (bytes times `compute_wire_factor`), size (class of `SIZES`,
    missing if unknown), and the inputs of `compute_collective_rates`.
    """
    rows = list_matched_collectives(measured)
    kinds = rows.group_by("op", "group_size")
    factors = np.array([compute_wire_factor(*kind.values()) for kind in kinds.agg().rows()], np.float64)
    wire_bytes = rows.number("size_bytes") * factors[kinds.number]
    bounds = [bound for _, bound in SIZES[:-1]]
    places = np.searchsorted(bounds, rows.integers("size_bytes"), side="right")
    size = Coded(places, tuple(name for name, _ in SIZES))
    rows = rows.with_columns(
        canonical=name_stages(rows),
        wire_bytes=where(~np.isnan(wire_bytes), wire_bytes),
        size=where(~rows.is_missing("size_bytes"), size),
    )
    return _add_collective_rate_parts(rows)


def _add_collective_rate_parts(rows: Frame) -> Frame:
    """Add the bytes and times that rates are made of, missing unless both are known."""
    dur, wire_bytes = rows["dur_ns"], rows["wire_bytes"]
    timed = (dur > 0) & (rows.integers("size_bytes") > 0)
    wired = timed & ~rows.is_missing("wire_bytes")
    moved = wired & (rows.integers("transfer_ns") > 0)
    return rows.with_columns(
        count=1,
        sized_count=(~rows.is_missing("size_bytes")).astype(np.int64),
        alg_bytes=where(timed, rows["size_bytes"]),
        alg_ns=where(timed, dur),
        bus_bytes=where(wired, wire_bytes),
        bus_ns=where(wired, dur),
        transfer_bytes=where(moved, wire_bytes),
        moved_ns=where(moved, rows["transfer_ns"]),
        max_busbw=where(wired, rows.number("wire_bytes") / np.maximum(dur, 1)),
    )


RATED = (
    *("count", "sized_count", "size_bytes", "alg_bytes", "alg_ns", "bus_bytes", "bus_ns"),
    *("transfer_bytes", "moved_ns", "max_busbw"),
)
"""Columns that `compute_collective_rates` sums, except times; it takes the maximum of the last one."""


def compute_collective_rates(rows: Frame, by: Sequence[str]) -> Frame:
    """Compute counts, Σ of bytes and times, and rates in GB/s (1e9) per distinct `by`, most time first.

    A rate is Σ bytes / Σ time of the collectives with both known: algbw of the message, busbw of the bytes that cross the
    wire, max_busbw of the fastest, transfer_busbw over the shortest time of any rank.
    """
    names = ("dur_ns", "exposed_ns", "wait_ns", *RATED[:-1])
    sums = rows.group_by(*by).agg(**{name: sum_of(name) for name in names}, max_busbw=max_of("max_busbw"))
    exposed = divide(sums["exposed_ns"], sums["dur_ns"])
    return sums.with_columns(
        algbw=divide(sums["alg_bytes"], sums["alg_ns"]),
        busbw=divide(sums["bus_bytes"], sums["bus_ns"]),
        transfer_busbw=divide(sums["transfer_bytes"], sums["moved_ns"]),
        hidden_ratio=Nullable(1 - exposed.values, exposed.missing),
    ).sort("dur_ns", *by, descending=["dur_ns"])


@derive_once
def sum_traffic_by_rank(measured: Measurements) -> Frame:
    """Sum traffic by device of a process, or by process where its host runs the collectives (M14).

    Columns: those of `WHO`, window_ns, comm_ns (any collective runs), exposed_ns (no compute overlaps; missing on the host),
    wait_ns (the part of it that waits for other ranks; missing if unknown), count, size_bytes, wire_bytes, wired_ns (time of
    the collectives with known bytes), comm_ratio, exposed_ratio and wire_gb_per_s.
    """
    rows = list_rated_collectives(measured)
    on_host = rows.is_missing("device") & rows.is_missing("exposed_ns")
    sources = set(rows.filter(~on_host).values("source"))
    windows = list_undamaged_rows(measured, "gpu_time")
    windows = windows.filter(windows.equals("window", "capture") & windows.is_in("source", sources))
    wait_ns = measure_exposed_coverage(list_wait_intervals(rows), windows)
    of_gpus = windows.with_columns(exposed_ns=windows["exposed_comm_ns"], wait_ns=wait_ns)
    of_hosts = _list_host_collective_captures(measured, rows.filter(on_host))
    wired = rows.filter(~rows.is_missing("wire_bytes"))
    wired_ns = measure_collective_union(wired, dict.fromkeys((*CAPTURE, *WHO)), "wired_ns")
    timed = ("window_ns", "comm_ns", "wait_ns")
    parts = concat(
        [
            of_gpus.select(*WHO, *timed, "exposed_ns"),
            of_hosts.select(*WHO, *timed),
            wired_ns.select(*WHO, "wired_ns"),
            rows.select(*WHO, "count", "size_bytes", "wire_bytes"),
        ]
    )
    sums = parts.group_by(*WHO).agg(**{name: sum_of(name) for name in parts.drop(*WHO).columns})
    sums = sums.with_columns(
        comm_ratio=divide(sums["comm_ns"], sums["window_ns"]),
        exposed_ratio=divide(sums["exposed_ns"], sums["window_ns"]),
        wire_gb_per_s=divide(sums["wire_bytes"], sums["wired_ns"]),
    )
    return sums.filter(~sums.is_missing("count")).sort(*WHO)


def _list_host_collective_captures(measured: Measurements, rows: Frame) -> Frame:
    """List the captures of processes with host-side collectives, with comm_ns and wait_ns."""
    busy = measure_collective_union(rows, CAPTURE, "comm_ns")
    host = measured.frame("captures").join(busy, CAPTURE, optional=["pid"])
    host = host.with_columns(device=None, window_ns=host["dur_ns"])
    return host.with_columns(wait_ns=measure_window_coverage(list_wait_intervals(rows), host))


def measure_collective_union(rows: Frame, by: Iterable[str], name: str) -> Frame:
    """Measure the time in which any collective runs, per distinct `by`: the length of the union."""
    groups, start = rows.group_by(*by), rows["ts_ns"]
    union_ns = measure_group_unions(start, start + rows["dur_ns"], groups.number, len(groups))
    return groups.agg().with_columns(**{name: union_ns})


def list_wait_intervals(rows: Frame) -> Frame:
    """List the known waits as intervals, from the own start until the last rank arrives.

    On a device they are at most the exposed time of the collective: a wait hidden behind compute costs nothing.
    """
    waits = rows.filter(~rows.is_missing("wait_ns"))
    wait_ns = waits.integers("wait_ns")
    exposed_ns = np.where(waits.is_missing("exposed_ns"), wait_ns, waits.integers("exposed_ns"))
    return waits.with_columns(dur_ns=np.minimum(wait_ns, exposed_ns))


def list_transfer_intervals(rows: Frame) -> Frame:
    """List the intervals of transfer without waiting for other ranks.

    A collective needs no longer than on its shortest rank; the rest is waiting. Where no other rank recorded it, it counts
    for at most the median of its kind (process, device, op, group).
    """
    dur = rows["dur_ns"]
    usual = np.round(rows.group_by(*CAPTURE, "device", "op", "group").each(median_of(rows.number("dur_ns"))))
    bound = np.where(rows.is_missing("transfer_ns"), usual.astype(np.int64), rows.integers("transfer_ns"))
    own_ns = np.minimum(bound, dur)
    return rows.with_columns(ts_ns=rows["ts_ns"] + dur - own_ns, dur_ns=own_ns)


def measure_window_coverage(intervals: Frame, windows: Frame) -> Nullable:
    """Measure how much of each window (ts_ns, window_ns) the intervals of its process and device cover.

    Missing where that device has no interval.
    """
    line = np.concatenate(number_alike([*CAPTURE, "device"], intervals, windows))
    count = len(intervals)
    start = np.concatenate([intervals["ts_ns"], windows["ts_ns"]])
    end = start + np.concatenate([intervals["dur_ns"], windows["window_ns"]])
    inside_ns = np.zeros(len(windows), np.int64)
    for chosen, shift in line_up_lanes(line, start, end):
        begin, until = start[chosen] + shift, end[chosen] + shift
        busy_count = int(np.count_nonzero(chosen[:count]))
        busy = merge_intervals(begin[:busy_count], until[:busy_count])
        inside_ns[chosen[count:]] = measure_coverage(busy, begin[busy_count:], until[busy_count:])
    return Nullable(inside_ns, ~np.isin(line[count:], line[:count]))


def measure_exposed_coverage(intervals: Frame, windows: Frame) -> Nullable:
    """Measure how much of the exposed communication of each window of `gpu_time` the intervals cover.

    Missing where that device has no interval; at most the exposed time.
    """
    inside_ns = measure_window_coverage(intervals, windows)
    return Nullable(np.minimum(inside_ns.values, windows["exposed_comm_ns"]), inside_ns.missing)


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
            size | size | text | Of one message: all_gather's whole output, otherwise the input.
            count | count | count
            size_bytes | bytes | bytes | Σ of messages over all processes and steps.
            dur_ns | time | ns | Σ duration over all processes and steps.
            exposed_ns | exposed | ns | Exposed communication: no compute kernel runs.
            hidden_ratio | overlap | ratio | Of the time, overlapped with a compute kernel.
            wait_ns | waiting | ns | The part until the last rank arrives.
            algbw | algbw | gb_per_s | Σ bytes / Σ time; 1e9 bytes.
            busbw | busbw | gb_per_s | The same for bytes on the wire: bytes × 2(n−1)/n for all_reduce, (n−1)/n for all_gather, reduce_scatter and all_to_all.
            transfer_busbw | busbw moving | gb_per_s | busbw over the shortest time of any rank: without waiting.
            max_busbw | fastest | gb_per_s | busbw of the fastest single one.
        """),
    )
    return make_sheet("collectives", "Collectives by operation, group and size", headings, table)


def make_collective_stage_sheet(measured: Measurements) -> Sheet:
    """Make the table of the communication of a rank per step in each stage."""
    rows = list_rated_collectives(measured)
    steps = {
        list_owners(of_owner)[0]: count_steps_of_processes(measured, of_owner).count
        for of_owner in rows.group_by("run", "role").frames()
    }
    table = compute_collective_rates(rows, ["run", "role", "canonical", "op"])
    counts = np.array([max(steps[owner], 1) for owner in list_owners(table)])
    names = ("count", "size_bytes", "dur_ns", "exposed_ns", "wait_ns")
    table = table.with_columns(
        stage=texts([stage or "(outside any stage)" for stage in table.values("canonical")]),
        **{name: narrow_whole_numbers(divide(table[name], counts)) for name in names},
    )
    headings = (
        *make_label_headings(measured),
        Heading("stage", "stage", doc="In which it was issued."),
        Heading("op", "operation"),
        Heading("count", "count", "count", "Per step and rank."),
        Heading("size_bytes", "bytes", "bytes", "Σ of messages, per step and rank."),
        Heading("dur_ns", "time", "ns", "Σ duration, per step and rank."),
        Heading("exposed_ns", "exposed", "ns", "Exposed communication: no compute kernel runs."),
        Heading("wait_ns", "waiting", "ns", "The part until the last rank arrives."),
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
            window_ns | window | ns | Captured time, summed over sources.
            comm_ns | comm | ns | Any collective running.
            comm_ratio | of window | ratio
            exposed_ns | exposed | ns | Exposed communication: no compute kernel runs.
            exposed_ratio | of window | ratio
            wait_ns | waiting | ns | The part until the last rank arrives.
            count | collectives | count
            size_bytes | bytes | bytes | Σ of messages.
            wire_gb_per_s | network | gb_per_s | Bytes that cross the wire of this rank, over the time in which any collective runs whose bytes are known.
        """),
    )
    return make_sheet("communication_by_rank", "Communication by rank", headings, table, ranked=Ranked("comm_ns"))


def draw_communication_by_rank(measured: Measurements) -> Chart | None:
    """Draw the communication of each rank, split into hidden behind compute, waiting and the rest."""
    ranks = sum_traffic_by_rank(measured)
    ranks = ranks.filter(~ranks.is_missing("comm_ns"))
    if not len(ranks):
        return None
    on_gpu, waits = (not ranks.is_missing(name).all() for name in ("exposed_ns", "wait_ns"))
    comm_ns, wait_ns = ranks.integers("comm_ns"), ranks.integers("wait_ns")
    exposed_ns = np.where(ranks.is_missing("exposed_ns"), comm_ns, ranks.integers("exposed_ns"))
    who, values = _name_communicating_ranks(ranks), exposed_ns.astype(np.float64).tolist()
    bars = choose_rows_to_plot({}, "exposed communication")
    rows = dict(enumerate(who))
    if len(set(who)) > MAX_ROWS:
        bars = choose_rows_to_plot(dict(zip(who, values, strict=True)), "exposed communication")
        rows = {row: bars.rows[name] for row, name in rows.items() if name in bars.rows}
    parts = {"overlapped with compute": comm_ns - exposed_ns}
    parts["exposed" if on_gpu else "running"] = exposed_ns - wait_ns
    parts["waiting"] = wait_ns
    table = np.column_stack(list(parts.values()))
    assert (table >= 0).all(), "the parts of communication must fit into it"
    assert (table.sum(axis=1) == comm_ns).all()
    is_drawn = [on_gpu, True, waits]

    waiting_is = "until the last rank arrives" if waits else "unknown, in the rest"
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


def _name_communicating_ranks(ranks: Frame) -> list[str]:
    """Name each rank: with its run and role where there are several, and its GPU where it has several."""
    several_runs, several_roles = (len(ranks.group_by(name)) > 1 for name in ("run", "role"))
    per_process = ranks.group_by("run", "host", "pid", "rank").agg(devices=count_distinct_of("device"))
    several_gpus = bool((per_process["devices"] > 1).any())
    names = []
    for row in ranks.rows("run", "rank", "role", "device"):
        parts = [format_numbered_word("rank", row["rank"]) or "unknown rank"]
        if several_runs:
            parts.insert(0, str(row["run"]))
        if several_roles:
            parts.append(row["role"])
        if several_gpus:
            parts.append(format_numbered_word("GPU", row["device"]))
        names.append(join_phrase(*parts))
    return names


def draw_message_sizes(measured: Measurements) -> Chart | None:
    """Draw the number of messages by size and operation, in powers of two."""
    rows = list_rated_collectives(measured)
    rows = rows.filter(~rows.equals("op", "barrier"))
    sized = rows.filter(~rows.is_missing("size_bytes"))
    if not len(sized):
        return None
    # frexp gives 0 for 0 and k + 1 for [2^k, 2^(k+1)): exact, as sizes are far below 2^53 or powers of two.
    sized = sized.with_columns(power=np.frexp(sized.number("size_bytes"))[1])
    total = sized.group_by("op").agg(count=count_rows())
    series = total.sort("count", "op", descending=["count"]).values("op")

    marks = []
    for row in sized.group_by("op", "power").agg(count=count_rows()).sort("op", "power").rows():
        low = 2 ** (row["power"] - 1) if row["power"] else 0
        marks.append((series.index(row["op"]), low, max(2 * low, 1), row["count"]))
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
