"""Tables and charts of collectives: by kind and size, by stage, by rank."""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.collectives.traffic import compute_collective_rates, list_rated_collectives, sum_traffic_by_rank
from tracekit.job.frames import find_equal_rows, make_label_headings, narrow_exact_floats, select_distinct_rows
from tracekit.job.ranks_to_plot import MAX_ROWS, choose_rows_to_plot, list_bar_marks
from tracekit.job.stages.windows import count_steps_of_rows
from tracekit.job.tables import make_sheet, parse_headings
from tracekit.model.keys import iterate_records
from tracekit.model.labels import format_numbered_word, join_phrase
from tracekit.model.report import Chart, Heading, Ranked, Sheet
from tracekit.model.trace import Measurements

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
    series = list(map(str, total.index))

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
