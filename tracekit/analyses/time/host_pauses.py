"""Pauses of hosts in runs without a device: time of a step in which no op runs (R29)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.analyses import Analysis
from tracekit.job.frames import make_label_headings, make_run_heading, phrase_run
from tracekit.job.idle_time.call_tree import find_culprit_of_pauses
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.job.idle_time.recurring_pauses import RecurringPauses, find_recurring_pauses, select_recurring_pauses
from tracekit.job.rank_groups import EvidenceLack
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import Owner
from tracekit.job.stages.work import phrase_stage_names
from tracekit.model.report import Finding, Instance, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import PLACE, STAGE, STEP, WINDOW
from tracekit.model.tables.frame import Frame, concat, divide
from tracekit.model.tables.slots import HOLDERS
from tracekit.model.text.changes import write_change, write_name_pattern
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.idle_time.host_pauses import PauseSearch, attribute_pauses, measure_host_pauses

HOST_PAUSES = Table(
    "host_pauses",
    "long pauses of the host of a process without a device, between the same two ops of one step and stage",
    {
        **KEYS,
        **PLACE,
        "stage": Column("category", "Outermost range as recorded, stage or not; <NA> outside."),
        "after": Column("category", "Outermost op of the step thread that ends before the pause; <NA> for none."),
        "before": Column("category", "Outermost op of the step thread that begins after it; <NA> for none."),
        "count": Column("int64", "Pauses."),
        "pause_ns": Column("int64", "Their time."),
        "code_ns": Column("int64", "Time in Python functions, or in ranges without content."),
        "max_ns": Column("int64", "The longest."),
        "max_ts_ns": Column("int64", "Start of the longest."),
    },
)

PAUSE_BLAME = Table(
    "pause_blame",
    "pauses of the host of a process without a device in the windows of one name, by call path",
    {
        **KEYS,
        "device": Column("Int64", "Always <NA>."),
        "window": WINDOW,
        "step": STEP,
        "stage": STAGE,
        "node": Column("int64", "Place in the tree; joins `pause_frames`."),
        "gap_count": Column("int64", "Pauses in the window with a part spent there."),
        "idle_ns": Column("int64", "Time of pauses spent there itself, inside the window."),
        "holder": Column("category", "Kind of that place; see `HOLDER_TITLES`.", HOLDERS),
    },
)

PAUSE_FRAMES = Table(
    "pause_frames",
    "a place where the host paused, or one that encloses it, in the tree of its source",
    {
        **KEYS,
        "node": Column("int64", "Number within the source and process; enclosing places first."),
        "parent": Column("int64", "The place that encloses it; -1 at the top."),
        "frame": Column("category", "Name as recorded, without addresses and numbers of instances."),
        "holder": Column("category", "Its kind.", HOLDERS),
    },
)

SHOWN_PLACES, MOST_CHANGES = 30, 8
"""Most places in the table, and in the changes of a finding."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the pauses of a trace without device rows, and where in the call tree they are."""
    if trace.has("device_ops") or not trace.has("host_ops"):
        return {}
    pauses = trace.derived(PauseSearch(make_idle_time_measurement().silence_ns))
    if not len(pauses.start):
        return {"host_pauses": {}}
    return {"host_pauses": measure_host_pauses(trace, pauses), **attribute_pauses(trace, pauses)}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Report pauses that recur in the steps of runs without a device; judge R29. None without such pauses."""
    if not measured.row_count("host_pauses"):
        return None
    limit = thresholds.of("host-silence")
    judged = find_recurring_pauses(measured)
    if not judged:
        return ANALYSIS.answered(
            caveats=("no pause of 1 ms recurs at one place in three quarters of the steps and ranks",)
        )
    costly = {owner: pauses for owner, pauses in judged.items() if pauses.ratio >= limit["step_ratio"]}
    is_proven = {owner: pauses.steps >= limit["min_steps"] for owner, pauses in costly.items()}
    return ANALYSIS.answered(
        sheets=lambda: (_make_pause_table(measured, judged),),
        findings=tuple(
            _report_pauses(measured, owner, pauses, thresholds) for owner, pauses in costly.items() if is_proven[owner]
        ),
        verdicts=tuple(
            _price_unproven_pauses(measured, owner, pauses, limit["min_steps"])
            for owner, pauses in costly.items()
            if not is_proven[owner]
        ),
    )


def _make_pause_table(measured: Measurements, judged: Mapping[Owner, RecurringPauses]) -> Sheet:
    """Make the table of the places where hosts pause in most steps, the longest first."""
    parts = [
        pauses.places.with_columns(
            run=run,
            role=role,
            share_ratio=divide(pauses.places["pause_ns"], pauses.places["pause_ns"] * 0 + pauses.step_ns),
        )
        for (run, role), pauses in judged.items()
    ]
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            after | after | text | Op that ended.
            before | before | text | Op that begins.
            pause_ns | pause | ns | Per step: lower quartile of the steps and ranks.
            share_ratio | of step | ratio | Of the mean step wall.
            code_ns | in Python or ranges | ns | Part of the pause in Python functions or in ranges without content.
        """),
    )
    table = concat(parts).sort("pause_ns", "after", "before", descending=["pause_ns"])
    caption = "Pauses of at least 1 ms in three quarters of the steps of three quarters of the ranks."
    return make_sheet("host_pauses", "Pauses between ops", headings, table, max_rows=SHOWN_PLACES, caption=caption)


def _report_pauses(measured: Measurements, owner: Owner, pauses: RecurringPauses, thresholds: Thresholds) -> Finding:
    """Report R29 for one run and role without a device."""
    run, role = owner
    what, advice, caveats = _describe_largest_pause(measured, owner, pauses)
    total, stages = pauses.total_ns, _list_pausing_stages(pauses)
    return Finding(
        "host-silence",
        thresholds.severity(pauses.ratio),
        f"{_claim_pauses(pauses)}: {what}{phrase_run(measured, run)}",
        advice,
        (
            make_evidence_metric("silent_ns", total - _sum_code(pauses), "no host activity, per step"),
            make_evidence_metric("code_ns", _sum_code(pauses), "in Python or ranges, per step"),
        ),
        tuple(Place(run=run, role=role, stage=stage) for stage in stages[:3]),
        total,
        pauses.ratio,
        caveats,
        changes=tuple(_list_place_changes(pauses, thresholds.of("host-silence")["silence_ns"])),
        instances=_pick_pauses_at(select_recurring_pauses(measured, owner, pauses)),
    )


def _pick_pauses_at(rows: Frame) -> tuple[Instance, ...]:
    """Pick the longest pause of some places, and the median of the longest ones of each step."""
    return pick_instances(rows.with_columns(ts_ns=rows["max_ts_ns"]), "max_ns", length="max_ns")


def _list_place_changes(pauses: RecurringPauses, silence_ns: float) -> Iterator[str]:
    """List the changes of the fix: the host no longer pauses at these places. Half the shortest pause is still that pause."""
    for place in pauses.places.head(MOST_CHANGES).rows():
        at_least_us = round(max(silence_ns, place["shortest_ns"] / 2) / 1000)
        after = None if place["after"] is None else write_name_pattern([place["after"]])
        where = {"stage": place["canonical"] or "", "silent": True, "after": after, "at_least_us": at_least_us}
        yield write_change("set", "host", **where, to_us=0)


def _sum_code(pauses: RecurringPauses) -> int:
    return int(pauses.places["code_ns"].sum())


def _list_pausing_stages(pauses: RecurringPauses) -> list[str | None]:
    """List the stages with pauses, the longest pause first; None for outside any stage."""
    stages: list[str | None] = list(dict.fromkeys(pauses.places.values("canonical")))
    return stages


def _claim_pauses(pauses: RecurringPauses) -> str:
    """Claim the time without an op, with its stages."""
    names = [stage or "" for stage in _list_pausing_stages(pauses)]
    staged = [name for name in names if name]
    where = f", in {phrase_stage_names(staged)}" if staged else ""
    outside = ", outside any stage" if "" in names and not staged else ""
    times = f"{format_quantity(pauses.total_ns, 'ns')} of {format_quantity(pauses.step_ns, 'ns')}"
    return f"no op runs for {times} per step{where}{outside}"


def _describe_largest_pause(
    measured: Measurements, owner: Owner, pauses: RecurringPauses
) -> tuple[str, str, tuple[str, ...]]:
    """Describe the longest pause: (host activity, advice, caveats)."""
    largest = next(pauses.places.rows())
    if 2 * largest["code_ns"] >= largest["pause_ns"]:
        culprit = find_culprit_of_pauses(measured, owner, largest["canonical"])
        place = "the host runs Python" if culprit is None else f"the host is in {culprit.place}"
        return place, "shorten it, or run it ahead of the step, in another thread or process", ()
    ends = [f"{word} {name}" for word, name in (("after", largest["after"]), ("before", largest["before"])) if name]
    around = f" {ends[0]}" if len(ends) == 1 else ""
    if len(ends) > 1:
        around = f" between {largest['after']} and {largest['before']}"
    return (
        f"no host activity is recorded{around}",
        "record the host's activity: with_stack=True, or ranges (record_function); then shorten it",
        ("the host's activity is not in the trace: it may have waited for another process or a file",),
    )


def _price_unproven_pauses(measured: Measurements, owner: Owner, pauses: RecurringPauses, min_steps: float) -> Verdict:
    """Make the abstention on pauses in too few steps."""
    few = f"{pauses.steps} of at least {min_steps:g} steps"
    needs = f"{min_steps:g} steps would show whether the pause recurs"
    lack = EvidenceLack(few, pauses.total_ns, _claim_pauses(pauses), needs)
    return lack.verdict("host-silence", owner[0] if make_run_heading(measured) else None, pauses.step_ns)


ANALYSIS = Analysis(
    id="host-pauses",
    title="Where does the host pause?",
    reads=("host_ops", "python_calls"),
    writes=(HOST_PAUSES, PAUSE_BLAME, PAUSE_FRAMES),
    rests_on=("captures", "recordings"),
    rules=("host-silence",),
    measure=measure,
    judge=judge,
)
