"""Python garbage collection by step and stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import (
    find_canonical_stages,
    make_label_headings,
    phrase_run,
    sort_by_columns,
    sum_columns_by_keys,
    to_int_or_none,
    to_text_or_none,
)
from tracekit.job.idle_time.causes import sum_garbage_collection_idle, sum_waits_for_garbage_collection
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import NO_STEPS, count_gpu_steps, count_steps_of_rows, number_stage_owners
from tracekit.model.intervals import merge_interval_sets, subtract
from tracekit.model.report import Finding, Metric, Place, Section
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Nullable, trim_all_texts
from tracekit.model.tables.columns import PLACE, STAGE
from tracekit.model.tables.keys import list_row_dicts
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.calls.activity import find_garbage_collections
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
        "idle_ns": Column("Int64", "Of it, time in which no device ran anything; <NA> where none was recorded."),
        "max_ns": Column("int64", "The longest single collection."),
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
    count, longest = np.zeros(len(dur), np.int64), np.zeros(len(dur), np.int64)
    positions, rows = where.both(spans.start)
    np.add.at(count, rows, 1)
    np.maximum.at(longest, rows, (spans.end - spans.start)[positions])
    names = ("window", "step", "occurrence", "stage")
    columns = {name: where.columns[name] for name in names}
    values: dict[str, Array] = {"count": count, "dur_ns": dur, "idle_ns": idle, "max_ns": longest}
    return {"garbage_collections": trim_all_texts({**columns, **values})}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Report collections by step and stage; judge R42."""
    if not measured.has("garbage_collections") or not measured.row_count("garbage_collections"):
        return None
    rows = measured["garbage_collections"]
    return ANALYSIS.answered(
        sheets=lambda: (_make_collection_table(measured, rows),),
        findings=tuple(_find_collection_cost(measured, rows, thresholds)),
    )


def _find_collection_cost(measured: Measurements, rows: pd.DataFrame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R42: collections that cost time: GPU idle time during them, or their whole time without a GPU."""
    limit, lost_on_gpus, existing = (
        thresholds.of("garbage-collection"),
        sum_garbage_collection_idle(measured),
        count_gpu_steps(measured),
    )
    is_step = (rows["window"] == "step").to_numpy(np.bool_)
    owners, number = number_stage_owners(rows)
    for place, owner in enumerate(owners):
        of_owner = rows[is_step & (number == place)]
        has_gpu = bool(of_owner["idle_ns"].notna().any())
        steps = existing.get(owner, NO_STEPS) if has_gpu else count_steps_of_rows(measured, of_owner)
        lost_ns = lost_on_gpus.get(owner, 0) if has_gpu else int(of_owner["dur_ns"].sum())
        waited_ns = sum_waits_for_garbage_collection(measured, owner) if has_gpu else 0
        lost, ratio = steps.per_step(lost_ns + waited_ns)
        if ratio is None or ratio < limit["time_ratio"]:
            continue
        count = int(of_owner["count"].sum())
        who = "GPUs wait" if has_gpu else "the host spends"
        doing = "while Python collects garbage" if has_gpu else "on garbage collection"
        waited = steps.mean(waited_ns)
        others = f", {format_quantity(waited, 'ns')} of it for other ranks" if waited else ""
        yield Finding(
            "garbage-collection",
            thresholds.severity(ratio),
            f"{who} {format_quantity(lost, 'ns')} of {format_quantity(steps.step_ns or 0.0, 'ns')} per step {doing}{others}"
            f" ({count:,} {choose_plural(count, 'collection')})" + phrase_run(measured, owner[0]),
            "gc.freeze() after set-up; gc.disable() in the loop and gc.collect() between steps, on all ranks at once",
            (
                make_evidence_metric("collection_ns", round(steps.mean(int(of_owner["dur_ns"].sum()))), "per step"),
                Metric("collections", steps.mean(count), "count", "lower", label="per step"),
                make_evidence_metric("longest_ns", int(of_owner["max_ns"].max()), "longest collection"),
            ),
            tuple(_locate_collections(rows[~is_step & (number == place)], owner[1])),
            round(lost),
            ratio,
        )


def _locate_collections(stages: pd.DataFrame, role: str | None) -> Iterator[Place]:
    """Locate the stages with most collection time, by rank where few ranks collect; the role if none is in a stage."""
    stages = stages.assign(canonical=find_canonical_stages(stages))
    stages = stages[stages["canonical"].notna() & (stages["dur_ns"] > 0)]
    if not len(stages):
        yield Place(role=role)
        return
    are_few = stages["rank"].nunique() <= MOST_PLACES
    by = ["canonical", "rank"] if are_few else ["canonical"]
    largest = sort_by_columns(sum_columns_by_keys(stages, by, ["dur_ns"]), dur_ns=False).head(MOST_PLACES)
    for row in list_row_dicts(largest):
        rank = to_int_or_none(row.get("rank"))
        yield Place(role=role, stage=to_text_or_none(row["canonical"]), rank=rank)


def _make_collection_table(measured: Measurements, rows: pd.DataFrame) -> Any:
    """Make the table of collections by step and stage, longest first."""
    rows = rows[rows["dur_ns"] > 0].assign(canonical=find_canonical_stages)
    pooled = sum_columns_by_keys(rows, ["run", "role", "window", "step", "canonical"], ["count", "dur_ns", "idle_ns"])
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            step | step | id
            canonical | stage
            count | collections | count | Σ over processes.
            dur_ns | time | ns | Σ over processes; overlaps counted once in each.
            idle_ns | GPU idle | ns | Of it, nothing ran on any GPU of the process.
        """),
    )
    pooled = sort_by_columns(pooled, dur_ns=False, step=True, canonical=True)
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
