"""GPU idle time by cause, and the longest idle gaps (definitions M6, M16, Q6; R29)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import (
    divide_or_none,
    make_label_headings,
    make_run_heading,
    name_stages,
    phrase_run,
)
from tracekit.job.idle_time.call_tree import draw_idle_call_tree, make_idle_call_tree_sheets
from tracekit.job.idle_time.causes import (
    DAMAGED_REASON,
    PAUSE_CAUSES,
    HostPauses,
    find_host_pauses,
    find_pausing_steps,
    find_rows_of_pauses,
    make_idle_time_measurement,
    sum_idle_rows_by_cause,
    sum_judged_idle_by_cause,
    sum_waits_for_pauses,
)
from tracekit.job.idle_time.pause_phrases import describe_host_pauses, is_mostly_outside_stages
from tracekit.job.rank_groups import EvidenceLack
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances, pick_window_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.windows import (
    NO_STEPS,
    STAGE_KEY,
    ExistingSteps,
    Owner,
    count_gpu_steps,
    find_rows_of_owners,
    list_rows_of_windows,
    list_stage_keys,
    list_stage_windows,
    list_undamaged_rows,
)
from tracekit.model.report import Chart, Finding, Heading, Instance, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import (
    Array,
    concatenate_parts,
    repeat_number,
    repeat_text,
    select_rows,
    trim_all_texts,
    trim_texts,
)
from tracekit.model.tables.columns import DEVICE, STAGE, STEP, WINDOW
from tracekit.model.tables.frame import Frame, concat, divide, min_of, sum_of, texts
from tracekit.model.tables.keys import sum_by_keys
from tracekit.model.tables.slots import CAUSE_TITLES, CAUSES, HOLDERS
from tracekit.model.text.changes import write_change
from tracekit.model.text.labels import choose_plural, join_phrase
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity, format_ranges
from tracekit.process.idle_time.attribution import attribute_idle_time
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.idle_time.tables import (
    find_main_causes,
    list_longest_gaps,
    make_gap_histogram,
    sum_idle_time_by_window,
)
from tracekit.process.name_filters import mark_wanted_names

_CAUSE = Column("category", "Why nothing ran; see the rule pages.", CAUSES)

_HOST = Column("category", "Innermost host call or range halfway through the gap.")

IDLE = Table(
    "idle",
    "idle time of one device in the windows of one name, by cause: over causes it is gpu_time.idle_ns",
    {
        **KEYS,
        "device": DEVICE,
        "window": WINDOW,
        "step": STEP,
        "stage": STAGE,
        "cause": _CAUSE,
        "gap_count": Column("int64", "Gaps in the window with a part of that cause."),
        "idle_ns": Column("int64", "Time of those parts inside the window."),
    },
)

IDLE_GAPS = Table(
    "idle_gaps",
    "one of the longest gaps of a source",
    {
        **KEYS,
        "device": DEVICE,
        "step": STEP,
        "stage": Column("category", "Outermost stage in which the gap begins."),
        "ts_ns": Column("int64", "Start of the gap."),
        "dur_ns": Column("int64", "Length of the gap."),
        "cause": Column("category", "Cause of its largest part.", CAUSES),
        "cause_ns": Column("int64", "That part."),
        "before": Column("category", "Device op that ended; <NA> before the first."),
        "after": Column("category", "Device op that begins; <NA> after the last."),
        "host": _HOST,
    },
)

IDLE_HISTOGRAM = Table(
    "idle_histogram",
    "gaps between the first and the last op of a device, by length and cause",
    {
        **KEYS,
        "device": DEVICE,
        "cause": _CAUSE,
        "low_ns": Column("int64", "Gaps of at least this length and below twice this length."),
        "gap_count": Column("int64", "Gaps whose largest part has that cause."),
        "idle_ns": Column("int64", "Time of that cause in all gaps of that length."),
    },
)

IDLE_BLAME = Table(
    "idle_blame",
    "idle time of one device in the windows of one name, by call path: over rows it is gpu_time.idle_ns",
    {
        **KEYS,
        "device": DEVICE,
        "window": WINDOW,
        "step": STEP,
        "stage": STAGE,
        "node": Column("int64", "Place in the tree; joins `idle_frames`."),
        "gap_count": Column("int64", "Gaps in the window with a part spent there."),
        "idle_ns": Column("int64", "Idle time spent there itself, inside the window."),
        "holder": Column("category", "Kind of that place; see `HOLDER_TITLES`.", HOLDERS),
    },
)

IDLE_FRAMES = Table(
    "idle_frames",
    "a place where idle time was spent, or one that encloses it, in the tree of its source",
    {
        **KEYS,
        "node": Column("int64", "Number within the source and process; enclosing places first."),
        "parent": Column("int64", "The place that encloses it; -1 at the top."),
        "frame": Column(
            "category",
            "Name as recorded, without addresses and numbers of instances; `(other)` for many small places together.",
        ),
        "holder": Column("category", "Its kind.", HOLDERS),
    },
)


SHOWN_GAPS = 30
MAX_CHART_ROWS = 60

HOST_WAIT_CAUSES = tuple(cause for cause in CAUSES if cause.startswith("host_"))


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure idle time by window and cause, and idle gaps; empty without a device."""
    if not trace.has("device_ops"):
        return {}
    devices = trace.derived(make_idle_time_measurement())
    if not devices:
        return {"idle": {}}
    by_window = concatenate_parts(
        [_add_idle_device_column(sum_idle_time_by_window(trace, idle), idle) for idle in devices]
    )
    main = [find_main_causes(idle) for idle in devices]
    by_length = [
        _add_idle_device_column(make_gap_histogram(idle, cause), idle)
        for idle, (cause, _) in zip(devices, main, strict=True)
    ]
    gaps = list_longest_gaps(trace, devices, main)
    del main
    return {
        "idle": trim_all_texts(by_window),
        "idle_histogram": concatenate_parts(by_length),
        "idle_gaps": gaps,
        **attribute_idle_time(trace, devices),
        "metrics": _sum_host_wait_metrics(by_window),
    }


def _add_idle_device_column(columns: dict[str, Array], idle: DeviceIdle) -> dict[str, Array]:
    """Add the column `device`."""
    return {**columns, "device": repeat_number(idle.device, len(columns["idle_ns"]))}


def _sum_host_wait_metrics(idle: Mapping[str, Any]) -> Mapping[str, Any]:
    """Sum idle time that waits for the host by step and stage as `metrics` rows, for compare and gates."""
    is_wait = mark_wanted_names(idle["cause"], HOST_WAIT_CAUSES.__contains__)
    rows = np.flatnonzero(is_wait & mark_wanted_names(idle["window"], ("step", "stage").__contains__))
    keys = {name: select_rows(idle[name], rows) for name in ("window", "step", "stage")}
    sums: Mapping[str, Any] = sum_by_keys(keys, {"idle_ns": idle["idle_ns"][rows]})
    return {
        "step": sums["step"],
        "stage": trim_texts(sums["stage"]),
        "name": repeat_text("host_wait", len(sums["idle_ns"])),
        "value": sums["idle_ns"].astype(np.float64),
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report idle time of stages and captures by cause; judge R29."""
    if not measured.has("idle") or not measured.row_count("gpu_time"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    if not len(list_undamaged_rows(measured, "gpu_time")):
        return ANALYSIS.skipped(DAMAGED_REASON)
    shares = cache(lambda: _sum_idle_by_place(measured))
    return ANALYSIS.answered(
        metrics=lambda: _list_host_wait_metrics(shares()),
        sheets=lambda: select_filled_sheets(
            *make_idle_call_tree_sheets(measured),
            _make_idle_cause_table(measured, shares()),
            _make_idle_gap_table(measured),
        ),
        findings=tuple(_find_host_silence(measured, thresholds)),
        verdicts=tuple(_list_host_silence_abstentions(measured)),
        charts=lambda: [
            chart
            for chart in (_draw_idle_causes(measured), draw_idle_call_tree(measured), _draw_gap_lengths(measured))
            if chart.marks
        ],
    )


def _sum_idle_by_place(measured: Measurements) -> Frame:
    """Sum window and idle time by stage, and by role for the whole capture (`window` is "capture"), one column per cause.

    Causes add up to `idle_ns`; rows of each kind are sorted by `window_ns`, longest first.
    """
    tables = [list_undamaged_rows(measured, name) for name in ("gpu_time", "idle")]
    captures = [rows.filter(rows.equals("window", "capture")).with_columns(canonical=None) for rows in tables]
    judged = [list_rows_of_windows(measured, name) for name in ("gpu_time", "idle")]
    parts = []
    for window, (on_gpu, idle) in (("judged", judged), ("capture", captures)):
        sums = on_gpu.group_by(*STAGE_KEY).agg(window_ns=sum_of("window_ns"), idle_ns=sum_of("idle_ns"))
        by_cause = sum_idle_rows_by_cause(idle)
        keys = list_stage_keys(sums)
        causes = {cause: np.array([by_cause.get((*key, cause), 0) for key in keys], np.int64) for cause in CAUSES}
        assert (np.sum([*causes.values()], axis=0) == sums["idle_ns"]).all(), "causes add up to the idle time"
        parts.append(sums.with_columns(window=window, **causes).sort("window_ns", descending=["window_ns"]))
    return concat(parts)


_WHOLE_WINDOWS = {"judged": "(the step)", "capture": "(first to last device op)"}
"""Titles of windows without a stage."""


def _make_idle_cause_table(measured: Measurements, shares: Frame) -> Sheet:
    """Make the table of idle time by stage and cause, as shares of the stage's wall."""
    stages = [row["canonical"] or _WHOLE_WINDOWS[row["window"]] for row in shares.rows("canonical", "window")]
    causes = [cause for cause in CAUSES if shares[cause].sum()]
    table = shares.with_columns(
        stage=texts(stages),
        idle_ratio=divide(shares["idle_ns"], shares["window_ns"]),
        **{cause: divide(shares[cause], shares["window_ns"]) for cause in causes},
    )
    return make_sheet(
        "idle_causes",
        "GPU idle time by cause",
        (
            *make_label_headings(measured),
            *parse_headings("""
            stage | stage
            window_ns | wall Σ | ns | Summed over ranks, GPUs and steps.
            idle_ratio | idle | ratio | Nothing running, of the wall; the causes add up to it.
        """),
            *(Heading(cause, CAUSE_TITLES[cause][0], "ratio", CAUSE_TITLES[cause][1]) for cause in causes),
        ),
        table,
        caption="Until the next op is launched, the GPU waits for the host: that time is split by host activity. After the launch, it waits for its stream.",
    )


def _list_host_wait_metrics(shares: Frame) -> tuple[Metric, ...]:
    """List the share of the capture that waits for the host, and the share idle before an op with an unknown launch."""
    rows = shares.filter(shares.equals("window", "capture"))
    window = int(rows["window_ns"].sum())
    waits = sum(int(rows[cause].sum()) for cause in HOST_WAIT_CAUSES)
    return (
        make_evidence_metric("host_wait_ratio", divide_or_none(waits, window), "waiting for the host"),
        make_evidence_metric(
            "launch_unknown_ratio",
            divide_or_none(int(rows["unknown"].sum()), window),
            "idle before an op with unknown launch",
            better="neither",
        ),
    )


def _make_idle_gap_table(measured: Measurements) -> Sheet:
    """Make the table of the longest gaps over all sources."""
    gaps = list_undamaged_rows(measured, "idle_gaps")
    rows = gaps.sort("dur_ns", "source", "ts_ns", descending=["dur_ns"]).head(SHOWN_GAPS)
    begin = measured.frame("captures").group_by("source").agg(begin_ns=min_of("ts_ns"))
    rows = rows.with_columns(
        canonical=name_stages(rows),
        at_ns=rows["ts_ns"] - rows.join(begin, ["source"], "left").integers("begin_ns"),
        why=texts([CAUSE_TITLES[cause][0] for cause in rows.values("cause")]),
    )
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            rank | rank | id
            device | GPU | id
            step | step | id
            canonical | stage | text | Where the gap begins.
            at_ns | at | ns | Since the start of the file's activity.
            dur_ns | idle | ns
            why | mostly
            host | host in | text | Activity of the launching thread halfway through the wait.
            before | after | text | Device op that ended.
            after | before | text | Device op that began.
        """),
    )
    total = int(list_undamaged_rows(measured, "idle_histogram")["gap_count"].sum())
    caption = f"The longest of {max(total, len(gaps)):,} gaps; each source keeps its longest 200."
    sheet = make_sheet("idle_gaps", "Longest gaps", headings, rows, caption=caption)
    return replace(sheet, omitted=len(gaps) - len(rows))


def _draw_idle_causes(measured: Measurements) -> Chart:
    """Draw the idle time of every stage by cause, per step and GPU."""
    idle_ns = sum_judged_idle_by_cause(measured)
    windows = list_stage_windows(measured)
    drawn_windows = windows[:MAX_CHART_ROWS]
    series = [cause for cause in CAUSES if any((*s.key, cause) in idle_ns for s in drawn_windows)]
    marks = tuple(
        (row, number, round(window.steps.mean(idle_ns[(*window.key, cause)])))
        for row, window in enumerate(drawn_windows)
        for number, cause in enumerate(series)
        if (*window.key, cause) in idle_ns
    )
    names = tuple(join_phrase(window.role, window.name) for window in drawn_windows)
    return Chart(
        "idle-causes",
        "GPU idle time per step, by cause",
        "bars",
        marks,
        tuple(CAUSE_TITLES[cause][0] for cause in series),
        names,
        caption="Mean over steps and GPUs.",
        omitted=len(windows) - len(drawn_windows),
    )


def _draw_gap_lengths(measured: Measurements) -> Chart:
    """Draw the histogram of idle time by length of gap."""
    rows = list_undamaged_rows(measured, "idle_histogram")
    sums = rows.group_by("cause", "low_ns").agg(idle_ns=sum_of("idle_ns")).sort("cause", "low_ns")
    series = [cause for cause in CAUSES if sums.equals("cause", cause).any()]
    marks = tuple(
        (series.index(row["cause"]), row["low_ns"], 2 * row["low_ns"], row["idle_ns"])
        for row in sums.rows()
        if row["idle_ns"]
    )
    return Chart(
        "idle-gaps",
        "GPU idle time by length of gap",
        "histogram",
        marks,
        tuple(CAUSE_TITLES[cause][0] for cause in series),
        caption="Σ over all sources, between the first and the last device op.",
    )


def _find_host_silence(measured: Measurements, thresholds: Thresholds) -> list[Finding]:
    """Find R29: GPUs that wait long for a host that launches nothing, either in Python or without recorded activity."""
    existing = count_gpu_steps(measured)
    findings = []
    for owner, lost in find_host_pauses(measured, thresholds).items():
        steps = existing.get(owner, NO_STEPS)
        total = steps.mean(lost.total_ns)
        waited = steps.mean(sum_waits_for_pauses(measured, owner, lost))
        ratio = divide_or_none(total + waited, steps.step_ns)
        gaps = _select_pause_gaps(measured, owner, lost)
        others = f", and {format_quantity(waited, 'ns')} for ranks with longer pauses" if waited else ""
        outside = ", outside any stage" if is_mostly_outside_stages(lost) else ""
        what, advice, caveats = describe_host_pauses(measured, owner, lost)
        findings.append(
            Finding(
                "host-silence",
                thresholds.severity(ratio),
                f"GPUs wait {format_quantity(total, 'ns')} of {format_quantity(steps.step_ns, 'ns')} per step while {what}"
                f"{outside}{others}{_describe_pausing_steps(measured, owner, lost)}{phrase_run(measured, owner[0])}",
                advice,
                (
                    *_list_pause_evidence(lost, waited, steps),
                    make_evidence_metric(
                        "longest_ns", int(gaps["cause_ns"].max()) if len(gaps) else None, "longest pause"
                    ),
                ),
                tuple(_locate_pauses(lost, gaps)),
                round(total + waited),
                ratio,
                caveats,
                changes=tuple(_list_pause_changes(lost, thresholds.of("host-silence")["silence_ns"])),
                instances=_pick_pauses(measured, lost, gaps),
            )
        )
    return findings


def _list_pause_changes(lost: HostPauses, silence_ns: float) -> Iterator[str]:
    """List the changes of the fix: the host no longer pauses in these stages, and outside any stage where it does there."""
    stages = [window.canonical or "" for window in lost.windows]
    for stage in dict.fromkeys([*stages, *([""] if is_mostly_outside_stages(lost) else [])]):
        yield write_change("set", "host", stage=stage, silent=True, at_least_us=silence_ns / 1000, to_us=0)


def _locate_pauses(lost: HostPauses, gaps: Frame) -> Iterator[Place]:
    """Locate the longest gap of each stage, else the stages of the pauses.

    Pauses outside any stage get no stage, although their gap may begin within one.
    """
    longest_of_stages_first = np.argsort(gaps.group_by("canonical").position() > 0, kind="stable")
    places = [_locate_idle_gap(row) for row in gaps.take(longest_of_stages_first).head(3).rows()]
    for place in places or [window.place for window in lost.windows[:3]]:
        yield replace(place, stage=None) if is_mostly_outside_stages(lost) else place


def _pick_pauses(measured: Measurements, lost: HostPauses, gaps: Frame) -> tuple[Instance, ...]:
    """Pick the worst and the median of the longest gaps, by the part of their cause. Without gaps, pick stages by idle time."""
    if not len(gaps):
        return pick_window_instances(measured, {window.key for window in lost.windows}, "idle_ns")
    is_outside = is_mostly_outside_stages(lost)
    return pick_instances(gaps.with_columns(canonical=None) if is_outside else gaps, "cause_ns")


def _describe_pausing_steps(measured: Measurements, owner: Owner, lost: HostPauses) -> str:
    """List the steps with pauses, if only few steps have them."""
    steps = set() if is_mostly_outside_stages(lost) else find_pausing_steps(measured, owner, lost)
    return f", nearly all in {choose_plural(len(steps), 'step')} {format_ranges(steps)}" if steps else ""


def _list_pause_evidence(lost: HostPauses, waited: float, steps: ExistingSteps) -> Iterator[Metric]:
    """List the parts of the pauses of one run and role, and the waits for other ranks that pause, in ns per step."""
    yield make_evidence_metric("silent_ns", round(steps.mean(lost.silent_ns)), "no host activity, per step")
    if lost.code_ns:
        yield make_evidence_metric("code_ns", round(steps.mean(lost.code_ns)), "in Python or ranges, per step")
    if lost.short_ns:
        yield make_evidence_metric("short_ns", round(steps.mean(lost.short_ns)), "between ops, per step")
    if lost.outside_ns:
        yield make_evidence_metric("outside_ns", round(steps.mean(lost.outside_ns)), "outside any stage")
    if waited:
        yield make_evidence_metric("waited_ns", round(waited), "waiting for ranks with longer pauses, per step")


def _select_pause_gaps(measured: Measurements, owner: Owner, lost: HostPauses) -> Frame:
    """Select the longest gaps mostly spent in such a pause, in the stages that have the pauses."""
    rows = list_undamaged_rows(measured, "idle_gaps")
    rows = rows.filter(find_rows_of_owners(rows, [owner]) & rows.is_in("cause", PAUSE_CAUSES))
    rows = rows.with_columns(canonical=name_stages(rows))
    if not lost.outside_ns and all(window.canonical for window in lost.windows):
        rows = rows.filter(find_rows_of_pauses(rows, lost))
    return rows.sort("cause_ns", "source", "ts_ns", descending=["cause_ns"])


def _locate_idle_gap(row: Mapping[str, Any]) -> Place:
    """Locate a gap: source, role, rank, device, step, stage and times."""
    return Place(
        row["source"],
        row["role"],
        row["rank"],
        row["device"],
        row["step"],
        row["canonical"],
        None,
        row["ts_ns"],
        row["ts_ns"] + row["dur_ns"],
        run=row["run"],
    )


def _list_host_silence_abstentions(measured: Measurements) -> list[Verdict]:
    """List verdicts on runs without host activity, or without both a stage and a counted step."""
    captures = measured.frame("captures")
    with_device = captures.filter((captures.integers("device_op_count") > 0) & ~captures.is_missing("run"))
    hosts = with_device.group_by("run").agg(count=sum_of("host_op_count"))
    framed = {window.run for window in list_stage_windows(measured) if window.origin != "file"}
    reasons = {
        run: "no host activity was recorded"
        if not count
        else "no stage and no counted step is annotated: a host may pause by design"
        for run, count in zip(hosts.values("run"), hosts.values("count"), strict=True)
        if not count or run not in framed
    }
    return [_price_silence_abstention(measured, run, why) for run, why in reasons.items()]


def _price_silence_abstention(measured: Measurements, run: str, why: str) -> Verdict:
    """Make the abstention on a run, with the idle time per step during which no host activity was recorded."""
    rows = list_undamaged_rows(measured, "idle")
    is_silent = rows.equals("window", "step") & rows.equals("cause", "host_silent") & rows.equals("run", run)
    owners = [steps for owner, steps in count_gpu_steps(measured).items() if owner[0] == run]
    count = sum(steps.count for steps in owners)
    price = int(rows["idle_ns"][is_silent].sum()) / count if count else 0.0
    step_ns = max((steps.step_ns or 0.0 for steps in owners), default=0.0)
    claim = "no host activity while GPUs wait"
    lack = EvidenceLack(why, price, claim, "a range around each stage would prove it")
    named = run if make_run_heading(measured) else None
    return lack.verdict(ANALYSIS.rules[0], named, step_ns or None)


ANALYSIS = Analysis(
    id="idle",
    title="Why were GPUs idle?",
    reads=(*("host_ops", "device_ops", "syncs", "windows", "python_calls"), *("cpu_samples", "thread_states")),
    writes=(IDLE, IDLE_GAPS, IDLE_HISTOGRAM, IDLE_BLAME, IDLE_FRAMES, "metrics"),
    metrics=("host_wait",),
    rests_on=(
        *("arrivals", "collectives", "gpu_time", "host_counts", "interruptions", "segments"),
        *("stage_edges", "sync_stalls"),
    ),
    rules=("host-silence",),
    measure=measure,
    judge=judge,
    whole_recording=True,
)
