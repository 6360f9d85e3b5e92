"""Interruptions of steady steps: compilation, module loading, CUDA graph capture, allocator calls (R21, R28, R34)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading, phrase_run
from tracekit.job.idle_time.causes import sum_waits_for_paused_ranks
from tracekit.job.idle_time.interruptions import (
    StepInterruptions,
    is_after_first_steps,
    is_worth_a_finding,
    list_interruptions_by_stage,
    measure_step_interruptions,
)
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_longest_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.intervals import Ints, measure_coverage, merge_interval_sets
from tracekit.model.report import Finding, Heading, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Coded, concatenate_parts, repeat_number, repeat_text, trim_all_texts
from tracekit.model.tables.columns import LONGEST, PLACE, STAGE
from tracekit.model.tables.frame import Frame, sum_of
from tracekit.model.tables.keys import sum_by_keys
from tracekit.model.text.changes import write_change, write_name_pattern
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.extremes import find_longest_by_keys
from tracekit.process.host.phases import (
    HostPhases,
    HostWindows,
    build_host_windows,
    classify_host_rows,
    measure_uncovered_time,
    unite_device_busy_time,
)

INTERRUPTION_KINDS = ("compilation", "allocator", "graph")
"""Kinds of interruption: compiling or loading code, asking the driver for memory, capturing a graph."""

INTERRUPTIONS = Table(
    "interruptions",
    "the calls of one name that compile code, load modules, make graphs or ask the driver for memory, in one place",
    {
        **KEYS,
        "kind": Column("category", "compilation | allocator | graph.", INTERRUPTION_KINDS),
        **PLACE,
        "stage": STAGE,
        "name": Column("category", "Name as recorded; `(others)` beyond a cap."),
        "count": Column("int64", "Calls, those within another of their kind not counted."),
        "dur_ns": Column("int64", "Their time, overlaps counted once: adds up over names and places."),
        "idle_ns": Column("Int64", "Part of it with all devices idle; <NA> without a recorded device."),
        **LONGEST,
    },
)


MAX_NAMES = 50
"""Maximum number of names per kind and source; shorter ones are summed as `(others)`."""

BY_DESIGN = ("gen", "update_weights")
"""Stages around which frameworks empty the allocator's cache on purpose."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the calls of every kind by step, stage and name."""
    if not trace.has("host_ops"):
        return {}
    side: HostPhases = trace.derived(classify_host_rows)
    parts = [
        _count_interruptions(trace, kind, np.flatnonzero(mask))
        for kind, mask in zip(INTERRUPTION_KINDS, (side.compiling, side.allocator, side.graph_capture), strict=True)
        if mask.any()
    ]
    return {"interruptions": trim_all_texts(concatenate_parts(parts))}


def _count_interruptions(trace: Trace, kind: str, rows: Ints) -> dict[str, Array]:
    """Sum the calls of one kind by the step and stage they begin in, and by name."""
    where: HostWindows = trace.derived(build_host_windows)
    start = trace.numbers("host_ops", "ts_ns")[rows]
    dur = trace.numbers("host_ops", "dur_ns")[rows]
    names = trace.texts("host_ops", "name")
    stage = Coded(np.append(where.stage.codes, -1)[where.stage_at(start)], where.stage.texts)
    keys: dict[str, Array] = {
        "kind": repeat_text(kind, len(rows)),
        **where.steps_of(where.step_at(start)),
        "stage": stage,
        "name": _keep_longest_call_names(names.texts, names.codes[rows].astype(np.int64), dur),
    }
    own_ns, end = measure_uncovered_time(start, start + dur), start + dur
    values = {"count": np.ones(len(rows), np.int64), "dur_ns": own_ns, "idle_ns": own_ns}
    if trace.has("device_ops"):
        busy = merge_interval_sets(list(trace.derived(unite_device_busy_time).values()))
        values["idle_ns"] = own_ns - measure_coverage(busy, end - own_ns, end)
    sums: dict[str, Array] = {**sum_by_keys(keys, values), **find_longest_by_keys(keys, start, dur)}
    if not trace.has("device_ops"):
        sums["idle_ns"] = repeat_number(None, len(sums["dur_ns"]))
    return sums


def _keep_longest_call_names(names: Sequence[str], code: Ints, dur: Ints) -> npt.NDArray[Any]:
    """Map each row to its name; names beyond the `MAX_NAMES` with most time become `(others)`."""
    total = np.zeros(len(names), np.float64)
    np.add.at(total, code, dur.astype(np.float64))
    largest = np.argsort(-total, kind="stable")[:MAX_NAMES]
    names_shown = np.full(len(names), "(others)", object)
    names_shown[largest] = [names[place] for place in largest.tolist()]
    return names_shown[code]


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report interruptions by name, in the first steps and after; judge R21, R28 and R34."""
    if not measured.has("interruptions"):
        return ANALYSIS.skipped("no host activity was recorded")
    recorded = measured.recorded or measured
    rows = list_interruptions_by_stage(recorded)
    findings: list[Finding] = []
    verdicts: list[Verdict] = []
    limits = {
        "allocator-calls": thresholds.of("allocator-calls"),
        "recompilation": thresholds.of("recompilation"),
        "graph-capture": thresholds.of("graph-capture"),
    }
    for rule, limit in limits.items():
        for run in measured.frame("steps").distinct("run").values("run"):
            late = measure_step_interruptions(measured, rule, run, thresholds)
            if late is None:
                reason = f"no step after the first {limit['first_steps']:g} was recorded{phrase_run(measured, run)}"
                verdicts.append(Verdict(rule, "insufficient data", reason))
            elif is_worth_a_finding(late, thresholds):
                late = _add_waits_of_other_ranks(measured, late)
                findings.append(_INTERRUPTION_REPORTERS[rule](measured, late, thresholds))
    first_steps = int(thresholds.of("recompilation")["first_steps"])
    return ANALYSIS.answered(
        metrics=(_make_interruption_metric(int(rows["count"].sum())),),
        sheets=lambda: select_filled_sheets(_make_interruption_table(measured, rows, first_steps)),
        findings=tuple(findings),
        verdicts=tuple(verdicts),
    )


def _add_waits_of_other_ranks(measured: Measurements, steady_interruption: StepInterruptions) -> StepInterruptions:
    """Add the time that other ranks wait for the ranks that are interrupted longer."""
    if not measured.has("idle"):
        return steady_interruption
    rows = steady_interruption.rows
    waited = sum_waits_for_paused_ranks(measured, rows.values("run")[0], rows.filter(~rows.is_missing("idle_ns")))
    return replace(steady_interruption, lost_ns=steady_interruption.lost_ns + waited / steady_interruption.steady.count)


def _make_interruption_metric(count: int) -> Metric:
    """Make the metric of all interruptions."""
    return Metric("interruptions", count, "count", "lower", label="compilations, graph captures, allocator calls")


def _report_allocator_calls(
    measured: Measurements, steady_interruption: StepInterruptions, thresholds: Thresholds
) -> Finding:
    """Report R21: steady steps that keep asking the driver for memory."""
    late, severity = steady_interruption.rows, thresholds.severity(steady_interruption.lost_ratio)
    unstaged = late.is_missing("canonical")
    designed = late.is_in("canonical", BY_DESIGN) | (unstaged & ~unstaged.all())
    caveats = ["some memory may be needed: longer sequences need a new allocation"]
    if late["dur_ns"][designed].sum() * 2 > late["dur_ns"].sum():
        severity = "info" if severity == "info" else "low"
        caveats.insert(0, "mostly around the rollout, where frameworks empty the cache on purpose")
    return Finding(
        "allocator-calls",
        severity,
        f"steady steps call the driver for memory {steady_interruption.calls:,.1f} times per step"
        + phrase_run(measured, late.values("run")[0]),
        "keep torch.cuda.empty_cache() out of the loop; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        (
            Metric("calls", steady_interruption.calls, "count", "lower", label="calls per step and process"),
            make_evidence_metric("dur_ns", round(steady_interruption.dur_ns), "time per step"),
        ),
        _locate_interruptions(late),
        round(steady_interruption.lost_ns),
        steady_interruption.lost_ratio,
        tuple(caveats),
        changes=tuple(_write_call_changes(late)),
        instances=pick_longest_instances(late),
    )


def _report_recompilation(
    measured: Measurements, steady_interruption: StepInterruptions, thresholds: Thresholds
) -> Finding:
    """Report R28: steady steps in which code is compiled or modules are loaded."""
    calls = Metric("compilations", steady_interruption.calls, "count", "lower", label="times per step and process")
    return Finding(
        "recompilation",
        thresholds.severity(steady_interruption.lost_ratio),
        f"code is still compiled or loaded in {_count_interrupted_steps(steady_interruption)}"
        + phrase_run(measured, steady_interruption.rows.values("run")[0]),
        "find the changing shape or guard (TORCH_LOGS=recompiles); pad or bucket shapes, mark_dynamic, warm up every shape",
        (calls, make_evidence_metric("dur_ns", round(steady_interruption.dur_ns), "time per step")),
        _locate_interruptions(steady_interruption.rows),
        round(steady_interruption.lost_ns),
        steady_interruption.lost_ratio,
        ("first steps are known by their number: a resumed run compiles again",),
        changes=tuple(_write_call_changes(steady_interruption.rows)),
        instances=pick_longest_instances(steady_interruption.rows),
    )


def _report_graph_capture(
    measured: Measurements, steady_interruption: StepInterruptions, thresholds: Thresholds
) -> Finding:
    """Report R34: steady steps in which graphs are captured and instantiated."""
    calls = Metric("captures", steady_interruption.calls, "count", "lower", label="calls per step and process")
    return Finding(
        "graph-capture",
        thresholds.severity(steady_interruption.lost_ratio),
        f"graphs are still captured in {_count_interrupted_steps(steady_interruption)}"
        + phrase_run(measured, steady_interruption.rows.values("run")[0]),
        "capture every batch size once, before the loop (capture sizes of the engine), and keep the graphs between steps",
        (calls, make_evidence_metric("dur_ns", round(steady_interruption.dur_ns), "time per step")),
        _locate_interruptions(steady_interruption.rows),
        round(steady_interruption.lost_ns),
        steady_interruption.lost_ratio,
        ("an engine that frees its memory between steps may have to capture again",),
        changes=tuple(_write_call_changes(steady_interruption.rows)),
        instances=pick_longest_instances(steady_interruption.rows),
    )


def _write_call_changes(rows: Frame) -> Iterator[str]:
    """List the changes of the fix: the steps no longer make these calls."""
    names = sorted({*rows.values("name")} - {None, "(others)"})
    if names:
        calls = write_name_pattern(names)
        yield write_change("set", "host", by=calls, to_us=0)
        yield write_change("unwait", by=calls)


_INTERRUPTION_REPORTERS = {
    "allocator-calls": _report_allocator_calls,
    "recompilation": _report_recompilation,
    "graph-capture": _report_graph_capture,
}


def _count_interrupted_steps(steady_interruption: StepInterruptions) -> str:
    """Count the steady steps with the interruption, in words."""
    steps = len(steady_interruption.rows.distinct("step"))
    return f"{steps:,} of {len(steady_interruption.steady.walls):,} steady steps"


def _locate_interruptions(late: Frame) -> tuple[Place, ...]:
    """Locate up to three names and stages with most of the time."""
    by_name = late.group_by("run", "role", "canonical", "name").agg(dur_ns=sum_of("dur_ns"))
    longest = by_name.sort("dur_ns", "name", descending=["dur_ns"]).head(3)
    return tuple(
        Place(run=row["run"], role=row["role"], stage=row["canonical"], name=row["name"]) for row in longest.rows()
    )


def _make_interruption_table(measured: Measurements, rows: Frame, first: int) -> Sheet:
    """Make the table of interruptions by name: calls and time in the first steps and after them."""
    late = is_after_first_steps(rows, first)
    pooled = rows.group_by("run", "kind", "canonical", "name").agg(
        early_count=sum_of(rows["count"] * ~late),
        early_ns=sum_of(rows["dur_ns"] * ~late),
        late_count=sum_of(rows["count"] * late),
        late_ns=sum_of(rows["dur_ns"] * late),
        dur_ns=sum_of("dur_ns"),
    )
    pooled = pooled.sort("late_ns", "dur_ns", "name", descending=["late_ns", "dur_ns"])
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            kind | kind
            name | call
            canonical | stage
        """),
        Heading("late_count", "steady calls", "count", f"After the first {first} steps, over all processes."),
        Heading("late_ns", "steady time", "ns", "Overlaps counted once in each process."),
        Heading("early_count", "first calls", "count", f"In the first {first} steps, or outside all steps."),
        Heading("early_ns", "first time", "ns"),
    )
    return make_sheet("interruptions", "Compilation, graph captures and allocator calls", headings, pooled)


ANALYSIS = Analysis(
    id="interruptions",
    title="What interrupts steady steps?",
    reads=("host_ops",),
    writes=(INTERRUPTIONS,),
    rests_on=("idle", "collectives", "segments", "arrivals"),
    rules=("allocator-calls", "recompilation", "graph-capture"),
    thresholds={
        "recompilation": {
            # Steps that warm up: those of a number up to this one are not judged.
            "first_steps": 2,
            # Compiling and loading of code after them, as a share of the step.
            "time_ratio": 0.01,
        },
        "graph-capture": {
            # Steps that warm up, as above.
            "first_steps": 2,
            # Graph captures and instantiations in steady steps, as a share of the step (severity low). None of 169 real files
            # has one. Similar calls take 0.02 to 0.03 % (NCCL checks for a running capture) and, for 70 replays, 0.5 %.
            "time_ratio": 0.01,
        },
    },
    measure=measure,
    judge=judge,
)
