"""Stragglers: waits at collectives by late rank and its cause (M13, Q17, Q18; R09)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.collectives.matching import REASONS, list_matched_collectives, measure_clock_offsets
from tracekit.job.frames import UNIT, make_run_heading, summarize_step_walls
from tracekit.job.rank_groups import (
    MEMBER,
    RANK_GROUP,
    divide_by_rank_group_steps,
    list_rank_groups,
    make_member_headings,
    make_rank_group_headings,
)
from tracekit.job.report.ranks_to_plot import MAX_ROWS, choose_rows_to_plot
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stragglers.collective_waits import CollectiveWaits, attribute_collective_waits
from tracekit.job.stragglers.detection import (
    find_late_ranks,
    list_straggler_abstentions,
    list_straggler_findings,
    summarize_rank_group_members,
)
from tracekit.model.report import Chart, Heading, Metric, Ranked, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import repeat_number
from tracekit.model.tables.columns import DEVICE, DUR, STAGE, STEP, TS
from tracekit.model.tables.frame import concat, count_distinct_of, count_rows, divide, min_of, sum_of
from tracekit.model.text.labels import format_numbered_word, join_phrase
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.collectives.arguments import ARGS as COLLECTIVE_ARGS
from tracekit.process.collectives.compute_between_collectives import (
    MAX_ARRIVALS,
    CollectiveSegments,
    measure_collective_segments,
)

_SEGMENT = Column("int64", "0, 1, 2 … between the starts of synchronizing collectives of this device.")

ARRIVALS = Table(
    "arrivals",
    "one synchronizing collective of one process: it ends the segment of the same number",
    {
        **KEYS,
        "device": DEVICE,
        "segment": _SEGMENT,
        "group": Column("category", "Process group, as in collectives."),
        "op": Column("category", "Operation, as in collectives."),
        "ordinal": Column("Int64", "As in collectives: group, op and ordinal name one row."),
        "ts_ns": TS,
        "dur_ns": DUR,
        "blocked_ns": Column("int64", "Time blocked in it; no instant counts twice."),
    },
)

SEGMENTS = Table(
    "segments",
    "one segment in one stage: own and blocked time add up to the time of the segment in it",
    {
        **KEYS,
        "device": DEVICE,
        "segment": _SEGMENT,
        "step": STEP,
        "stage": STAGE,
        "own_ns": Column("int64", "Time not blocked in a collective, ns."),
        "blocked_ns": Column("int64", "Time blocked in collectives of any kind, ns."),
    },
)


MAX_MARKS = 1_500
"""Maximum number of cells in the chart."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure when the process reaches each collective, and its own work between collectives."""
    recorded: CollectiveSegments = trace.derived(measure_collective_segments)
    tables: dict[str, Mapping[str, Any]] = {}
    if len(recorded.segments):
        tables["segments"] = recorded.segments.arrays
        tables["arrivals"] = recorded.arrivals.arrays
    if recorded.cut:
        tables["quality"] = {"name": ["arrivals_left_out"], "count": [recorded.cut]}
    return tables


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report waits by rank, stage and cause, and clock offsets; judge R09."""
    waited = attribute_collective_waits(measured)
    judged = find_late_ranks(measured, waited, thresholds)
    abstained = tuple(list_straggler_abstentions(measured, judged, thresholds))
    if not len(waited.collectives):
        is_single = max((rank_group.members for rank_group in list_rank_groups(measured)), default=0) < 2
        caveats = () if is_single else tuple(_caveat_unmatched_collectives(measured))
        return ANALYSIS.skipped(_explain_missing_waits(measured), caveats=caveats, verdicts=abstained)
    return ANALYSIS.answered(
        metrics=lambda: _list_rank_wait_metrics(measured, waited),
        sheets=lambda: select_filled_sheets(
            _make_wait_cause_table(measured, waited),
            _make_rank_wait_table(measured, waited),
            _make_wait_matrix_table(measured, waited),
            _make_clock_table(measured),
        ),
        findings=tuple(list_straggler_findings(measured, waited, judged, thresholds)),
        caveats=lambda: (*_caveat_unmatched_collectives(measured), *_caveat_partly_recorded_groups(measured)),
        verdicts=abstained,
        charts=lambda: [chart for chart in (_draw_wait_heatmap(measured, waited),) if chart.marks],
    )


def _explain_missing_waits(measured: Measurements) -> str:
    """Explain why no wait can be measured."""
    groups = list_rank_groups(measured)
    if not groups:
        return "no step or stage of a known rank was recorded"
    if max(rank_group.members for rank_group in groups) < 2:
        return "only one rank was recorded: there is no other rank to compare with"
    if not measured.row_count("collectives"):
        return "no collective was recorded"
    return "no collective could be matched between ranks"


def _list_rank_wait_metrics(measured: Measurements, waited: CollectiveWaits) -> tuple[Metric, ...]:
    """List the wait of a rank for others per step: mean, min and max over ranks."""
    lost = waited.collectives.group_by(*RANK_GROUP, *MEMBER).agg(lost_ns=sum_of("lost_ns"))
    per_step = divide_by_rank_group_steps(measured, lost, "lost_ns")
    wait = per_step.values[~per_step.missing]
    if not len(wait):
        return ()
    return (
        Metric(
            "wait",
            float(wait.mean()),
            "ns",
            "lower",
            float(wait.min()),
            float(wait.max()),
            "waiting for other ranks, per rank and step",
        ),
    )


def _make_wait_cause_table(measured: Measurements, waited: CollectiveWaits) -> Sheet:
    """Make the table of late ranks and the stage that made them late, most lost time first."""
    keys = (*RANK_GROUP, "late_rank", "cause", "stage")
    by_cause = waited.booked.group_by(*keys)
    rows = by_cause.agg(lost_ns=sum_of("lost_ns"), ranks=count_distinct_of("rank"))
    rows = rows.with_columns(each_ns=divide(divide_by_rank_group_steps(measured, rows, "lost_ns"), rows["ranks"]))
    rows = rows.sort("lost_ns", *keys, descending=["lost_ns"])
    headings = (
        *make_rank_group_headings(measured),
        *parse_headings("""
            late_rank | late rank | id
            cause | late in | text | Stage of the late rank's own work that made it late; — if its work in stages does not explain it.
            stage | waited for in | text | Stage in which the others issued the collective at which they wait.
            ranks | ranks waiting | count
            each_ns | wait | ns | Per step, mean over the ranks that wait.
        """),
    )
    return make_sheet(
        "waits",
        "Ranks that the others wait for",
        headings,
        rows,
        caption="Time in which a rank could only wait for the last rank of a collective.",
    )


def _make_wait_matrix_table(measured: Measurements, waited: CollectiveWaits) -> Sheet:
    """Make the table of waits by waiting rank and late rank."""
    keys = (*RANK_GROUP, "rank", "stage", "late_rank", "cause")
    rows = waited.booked.group_by(*keys).agg(lost_ns=sum_of("lost_ns"))
    rows = rows.with_columns(per_step=divide_by_rank_group_steps(measured, rows, "lost_ns"))
    rows = rows.sort("lost_ns", *keys, descending=["lost_ns"])
    headings = (
        *make_rank_group_headings(measured),
        *parse_headings("""
            rank | waiting rank | id
            stage | waits in
            late_rank | for rank | id
            cause | which is late in
            per_step | wait | ns | Per step.
        """),
    )
    return make_sheet(
        "wait_matrix",
        "Waits by waiting and late rank",
        headings,
        rows,
        ranked=Ranked("per_step", apart=(*RANK_GROUP, "stage", "late_rank", "cause")),
    )


def _make_rank_wait_table(measured: Measurements, waited: CollectiveWaits) -> Sheet:
    """Make the table of ranks: own work, wait, and how often each is last."""
    parts = []
    for rank_group in list_rank_groups(measured):
        members = summarize_rank_group_members(rank_group, waited)
        run, role, replica = rank_group.labels
        members = members.with_columns(run=run, role=role, replica=repeat_number(replica, len(members)))
        per_step = divide(members["lost_ns"], np.full(len(members), rank_group.steps))
        parts.append(members.with_columns(lost_ns=per_step, last_ratio=divide(members["last"], members["taken"])))
    frame = concat(parts)
    headings = (
        *make_rank_group_headings(measured),
        *make_member_headings(measured),
        *parse_headings("""
            own_ns | own work | ns | Per step: wall time of its stages minus time blocked in collectives.
            beyond_ns | beyond the others | ns | Less the median of the other ranks' own work, per step.
            lost_ns | waits | ns | Per step, for a later rank.
            last_ratio | arrives last | ratio | Of the collectives with a clear last rank.
            taken | of collectives | count | Its matched collectives with an arrival spread above the clock uncertainty.
        """),
    )
    return make_sheet("ranks", "Own work and waits by rank", headings, frame, ranked=Ranked("own_ns"))


def _make_clock_table(measured: Measurements) -> Sheet:
    """Make the table of clock offsets subtracted from each rank, with their uncertainty."""
    rows = measure_clock_offsets(measured)
    rows = rows.filter(rows.group_by("set").each(count_rows()) > 1)
    replicas = () if rows.is_missing("replica").all() else (Heading("replica", "replica", "id"),)
    headings = (
        *make_run_heading(measured),
        Heading("role", "role"),
        *replicas,
        *parse_headings("""
            rank | rank | id
            offset_ns | clock ahead by | ns | Of the first rank's, at the ends of shared collectives; subtracted before ranks are compared.
            uncertainty_ns | uncertain by | ns | Median absolute deviation of those ends; shorter waits are not booked.
            count | collectives | count
        """),
    )
    return make_sheet("clocks", "Clocks of the ranks", headings, rows, ranked=Ranked("offset_ns"))


def _caveat_unmatched_collectives(measured: Measurements) -> Iterator[str]:
    """List caveats on collectives that could not be matched between ranks, by reason."""
    rows = list_matched_collectives(measured)
    for reason, text in REASONS.items():
        if number := int(rows.equals("reason", reason).sum()):
            yield f"{number:,} of {len(rows):,} collectives could not be compared: {text}"
    left_out = measured.frame("quality")
    left_out = left_out.filter(left_out.equals("name", "arrivals_left_out"))
    if len(left_out):
        number = int(left_out["count"].sum())
        yield f"{number:,} collectives beyond the first {MAX_ARRIVALS:,} of a source and device: their waits are not booked"


def _caveat_partly_recorded_groups(measured: Measurements) -> Iterator[str]:
    """Count collectives that only some of their ranks recorded, as a caveat."""
    rows = list_matched_collectives(measured)
    partly = int((rows.number("members") < rows.number("group_size")).sum())
    if partly:
        yield (
            f"{partly:,} collectives were recorded on only some of their ranks: waits are at least as long as shown, and the last rank may be missing"
        )


def _draw_wait_heatmap(measured: Measurements, waited_for: CollectiveWaits) -> Chart:
    """Draw the wait of each rank in each step as a heatmap."""
    walls = summarize_step_walls(measured).walls
    several = len(make_run_heading(measured)) > 0
    cells: dict[str, list[tuple[int, int, int | None]]] = {}
    start = walls["ts_ns"] - walls.group_by("run").each(min_of("ts_ns"))
    times = walls.select(*UNIT).with_columns(start_ns=start, end_ns=start + walls["wall_ns"])
    lost = waited_for.collectives.group_by(*UNIT, "role", "replica", *MEMBER).agg(lost_ns=sum_of("lost_ns"))
    lost = lost.join(times, UNIT, optional=UNIT).sort(*RANK_GROUP, *MEMBER, "step")
    for row in lost.rows():
        run_text = f"{row['run']}:" if several else ""
        replica, rank = format_numbered_word("replica", row["replica"]), f"rank {row['rank']}"
        name = join_phrase(run_text, row["role"], replica, rank)
        cell = row["start_ns"], row["end_ns"], row["lost_ns"]
        cells.setdefault(name, []).append(cell)
    waited = {name: float(sum(c[2] or 0 for c in row_cells)) for name, row_cells in cells.items()}
    row_limit = max(min(MAX_ROWS, MAX_MARKS // max((len(row_cells) for row_cells in cells.values()), default=1)), 1)
    chosen = choose_rows_to_plot(waited, "waiting", row_limit)
    rows = [name for name in cells if name in chosen.rows]
    marks = tuple((number, *cell) for number, name in enumerate(rows) for cell in cells[name])
    total = sum(len(cell) for cell in cells.values())
    return Chart(
        "waits",
        "Waiting for other ranks, by rank and step",
        "heatmap",
        marks,
        rows=tuple(chosen.rows[name] for name in rows),
        caption=f"A pale row among dark ones is the straggler. {chosen.note}".strip(),
        omitted=total - len(marks),
    )


ANALYSIS = Analysis(
    id="stragglers",
    title="Who waits for whom?",
    reads=("host_ops", "device_ops", "device_ranges"),
    args=COLLECTIVE_ARGS,
    writes=(ARRIVALS, SEGMENTS, "quality"),
    rests_on=(*("captures", "collectives", "forward_batches", "host_counts"), *("idle_blame", "idle_frames", "slots")),
    rules=("straggler",),
    thresholds={
        "straggler": {
            # Two ranks suffice: one may be last in enough steps to rule out chance.
            "min_ranks": 2,
            # False discovery rate among the named ranks (one vote per step; Benjamini and Hochberg). Four ranks need four
            # steps, two need six. An earlier rule, last in 60 % of the collectives, blamed an innocent rank in 4 of 8 runs
            # of random tokens, and missed four equal stragglers among 1,000 ranks.
            "false_ratio": 0.05,
            # Wait of the others for them, as a share of the step: a rank of 28 clean simulated jobs costs at most 0.6 %,
            # and faults of 2 % of the step must be found.
            "step_ratio": 0.015,
            # Kernels that are all slower by one factor are evidence in this many steps up to the end of the recording;
            "clock_steps": 2,
            # so is a pause, if it costs this share of the step (the severity medium).
            "seen_ratio": 0.03,
            # No rank is cleared if the waits for late ranks take this share of the step (severity medium).
            "lost_ratio": 0.03,
            # Ranks with a smaller share of the votes are not stragglers: the late rank changes from step to step.
            "rotating_ratio": 0.6,
        }
    },
    measure=measure,
    judge=judge,
)
