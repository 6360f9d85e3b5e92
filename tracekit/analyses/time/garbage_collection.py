"""Python garbage collection by step and stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_label_headings, name_stages, phrase_run
from tracekit.job.idle_time.causes import sum_garbage_collection_idle, sum_waits_for_garbage_collection
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import NO_STEPS, count_gpu_steps, count_steps_of_processes
from tracekit.model.intervals import merge_interval_sets, subtract
from tracekit.model.report import Finding, Instance, Metric, Place, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Nullable, trim_all_texts
from tracekit.model.tables.columns import PLACE, STAGE
from tracekit.model.tables.frame import Frame, concat, sum_of
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.text.changes import write_change
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.calls.activity import COLLECTION, COLLECTION_ROW, find_garbage_collections
from tracekit.process.extremes import find_longest_and_median
from tracekit.process.host.phases import HostWindows, build_host_windows, unite_device_busy_time

MOST_PLACES = 3
"""Maximum number of places in a finding."""

GARBAGE = Table(
    "garbage_collections",
    "recorded garbage collection in one step, or in its stages of one name",
    {
        **KEYS,
        "window": Column("category", "step | stage.", ("step", "stage")),
        **PLACE,
        "stage": STAGE,
        "count": Column("int64", "Collections that run in it."),
        "dur_ns": Column("int64", "Their time in it, overlaps counted once."),
        "idle_ns": Column("Int64", "Part of it with all devices idle; <NA> without a recorded device."),
        "max_ns": Column("int64", "The longest single collection that begins in it."),
        "max_ts_ns": Column("Int64", "Its start; <NA> if none begins in it."),
    },
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the collections inside every step and stage."""
    spans = trace.derived(find_garbage_collections)
    if not len(spans.start):
        return {"garbage_collections": {}}
    where: HostWindows = trace.derived(build_host_windows)
    dur = where.covered(spans)
    idle = Nullable(dur, np.ones(len(dur), np.bool_))
    if trace.has("device_ops"):
        busy = merge_interval_sets(list(trace.derived(unite_device_busy_time).values()))
        idle = Nullable(where.covered(subtract(spans, busy)), np.zeros(len(dur), np.bool_))
    positions, rows = where.both(spans.start)
    length = (spans.end - spans.start)[positions]
    longest_ns = np.zeros(len(dur), np.int64)
    np.maximum.at(longest_ns, rows, length)
    count = np.bincount(rows, minlength=len(dur))
    longest = find_longest_and_median(rows, spans.start[positions], length, len(dur))
    names = ("window", "step", "occurrence", "stage")
    columns = {name: where.columns[name] for name in names}
    values: dict[str, Array] = {"count": count, "dur_ns": dur, "idle_ns": idle, "max_ns": longest_ns}
    values["max_ts_ns"] = longest["longest_ts_ns"]
    return {"garbage_collections": trim_all_texts({**columns, **values})}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Report collections by step and stage; judge R42."""
    rows = measured.frame("garbage_collections")
    if not len(rows):
        return None
    rows = rows.with_columns(canonical=name_stages(rows))
    return ANALYSIS.answered(
        sheets=lambda: (_make_collection_table(measured, rows),),
        findings=tuple(_find_collection_cost(measured, rows, thresholds)),
    )


def _find_collection_cost(measured: Measurements, rows: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R42: collections that cost time: GPU idle time during them, or their whole time without a GPU."""
    limit = thresholds.of("garbage-collection")
    lost_on_gpus, existing = sum_garbage_collection_idle(measured), count_gpu_steps(measured)
    for of_owner in rows.group_by("run", "role").frames():
        owner = run, role = of_owner.values("run")[0], of_owner.values("role")[0]
        in_steps = of_owner.filter(of_owner.equals("window", "step"))
        dur_ns, count = int(in_steps["dur_ns"].sum()), int(in_steps["count"].sum())
        has_gpu = not in_steps.is_missing("idle_ns").all()
        if has_gpu:
            steps, lost_ns = existing.get(owner, NO_STEPS), lost_on_gpus.get(owner, 0)
        else:
            steps, lost_ns = count_steps_of_processes(measured, in_steps), dur_ns
        waited_ns = sum_waits_for_garbage_collection(measured, owner) if has_gpu else 0
        lost, ratio = steps.per_step(lost_ns + waited_ns)
        if ratio is None or ratio < limit["time_ratio"]:
            continue
        who = "GPUs wait" if has_gpu else "the host spends"
        doing = "while Python collects garbage" if has_gpu else "on garbage collection"
        waited = steps.mean(waited_ns)
        others = f", {format_quantity(waited, 'ns')} of this for other ranks" if waited else ""
        yield Finding(
            "garbage-collection",
            thresholds.severity(ratio),
            f"{who} {format_quantity(lost, 'ns')} of {format_quantity(steps.step_ns or 0.0, 'ns')} per step {doing}{others}"
            f" ({count:,} {choose_plural(count, 'collection')})" + phrase_run(measured, run),
            "gc.freeze() after set-up; gc.disable() in the loop and gc.collect() between steps, on all ranks at once",
            (
                make_evidence_metric("collection_ns", round(steps.mean(dur_ns)), "per step"),
                Metric("collections", steps.mean(count), "count", "lower", label="per step"),
                make_evidence_metric("longest_ns", int(in_steps["max_ns"].max()), "longest collection"),
            ),
            tuple(_locate_collections(of_owner, run, role)),
            round(lost),
            ratio,
            changes=(write_change("set", "host", by=f"(?i:{COLLECTION.pattern})|{COLLECTION_ROW.pattern}", to_us=0),),
            instances=_pick_collections(of_owner),
        )


def _pick_collections(rows: Frame) -> tuple[Instance, ...]:
    """Pick the longest collection, and the median of the longest ones of each stage and of each step outside stages."""
    in_stages, in_steps = (rows.filter(rows.equals("window", window)) for window in ("stage", "step"))
    # A collection in a stage is also in its step.
    longest = concat([in_stages, in_steps]).distinct(*CAPTURE, "max_ts_ns")
    return pick_instances(longest.with_columns(ts_ns=longest["max_ts_ns"]), "max_ns", length="max_ns")


def _locate_collections(rows: Frame, run: str | None, role: str | None) -> Iterator[Place]:
    """Locate the stages with most collection time, by rank where few ranks collect; the role if none is in a stage."""
    staged = rows.filter(~rows.equals("window", "step") & ~rows.is_missing("canonical") & (rows["dur_ns"] > 0))
    if not len(staged):
        yield Place(run=run, role=role)
        return
    are_few = len({*staged.values("rank")} - {None}) <= MOST_PLACES
    by = ("canonical", "rank") if are_few else ("canonical",)
    sums = staged.group_by(*by).agg(dur_ns=sum_of("dur_ns"))
    for row in sums.sort("dur_ns", descending=["dur_ns"]).head(MOST_PLACES).rows():
        yield Place(run=run, role=role, stage=row["canonical"], rank=row.get("rank"))


def _make_collection_table(measured: Measurements, rows: Frame) -> Sheet:
    """Make the table of collections by step and stage, longest first."""
    by_stage = rows.filter(rows["dur_ns"] > 0).group_by("run", "role", "window", "step", "canonical")
    pooled = by_stage.agg(count=sum_of("count"), dur_ns=sum_of("dur_ns"), idle_ns=sum_of("idle_ns"))
    pooled = pooled.sort("dur_ns", "step", "canonical", descending=["dur_ns"])
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            step | step | id
            canonical | stage
            count | collections | count | Σ over processes.
            dur_ns | time | ns | Σ over processes; overlaps counted once in each.
            idle_ns | GPU idle | ns | Part of it with all GPUs of the process idle.
        """),
    )
    return make_sheet("garbage_collections", "Garbage collection", headings, pooled, max_rows=100)


ANALYSIS = Analysis(
    id="garbage-collection",
    title="How long does Python collect garbage?",
    reads=("host_ops", "python_calls", "device_ops"),
    writes=(GARBAGE,),
    rests_on=("gpu_time", "idle"),
    rules=("garbage-collection",),
    thresholds={
        "garbage-collection": {
            # GPU idle time during collections, or all time of collections without a GPU, as a share of the step.
            "time_ratio": 0.01
        }
    },
    measure=measure,
    judge=judge,
)
