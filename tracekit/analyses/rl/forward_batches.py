"""Forward-only passes in micro-batches as small as those of training (R18)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_label_headings, name_stages, phrase_run
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import Owner, find_rows_of_owners
from tracekit.model.intervals import Ints, find_window_at
from tracekit.model.report import Finding, Instance, Metric, Place, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.columns import OCCURRENCE, STAGE, STEP, TS
from tracekit.model.tables.frame import (
    Frame,
    count_distinct_of,
    count_rows,
    max_of,
    mean_of,
    median_of,
    min_of,
    sum_of,
    where,
)
from tracekit.model.tables.keys import CAPTURE, number_keys
from tracekit.model.text.changes import write_change
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.collectives.compute_between_collectives import BACKWARD
from tracekit.process.name_filters import mark_wanted_names
from tracekit.process.ops.shapes import DIMS, TYPES, MatrixProducts, find_matrix_products
from tracekit.process.steps.stage_lookup import find_stage_codes_at, list_outer_stage_names
from tracekit.process.steps.windows import find_steps_and_stages

FORWARD_BATCHES = Table(
    "forward_batches",
    "one micro-batch of one source, by the rows of its forward matrix products",
    {
        **KEYS,
        "step": STEP,
        "stage": STAGE,
        "batch": Column("category", "Range of the micro-batch, as recorded."),
        "occurrence": OCCURRENCE,
        "ts_ns": TS,
        "dur_ns": Column("int64", "Wall time on the host, ns."),
        "row_count": Column("Int64", "M of the forward products with most FLOPs; <NA> without shapes."),
    },
)


FORWARD_ONLY = ("old_log_prob", "ref", "values", "teacher")
"""Stages that only run the model forward."""

TRAINING = ("update_actor", "update_critic")

_MICRO = re.compile(r"micro[_-]?batch", re.IGNORECASE)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the micro-batches of one source, with the rows (M) of their forward matmuls."""
    ranges = trace.derived(find_steps_and_stages).stage_rows
    is_batch = mark_wanted_names(ranges.stage, _MICRO.match)
    if not is_batch.any():
        return {}
    batches = ranges.take(is_batch)
    outer = find_stage_codes_at(trace, batches.ts_ns)
    names = [*list_outer_stage_names(trace), None]
    return {
        "forward_batches": {
            "step": batches.step,
            "stage": np.array(names, object)[outer],
            "batch": batches.stage,
            "occurrence": batches.occurrence,
            "ts_ns": batches.ts_ns,
            "dur_ns": batches.dur_ns,
            "row_count": _find_forward_row_counts(trace, batches.ts_ns, batches.end_ns),
        }
    }


def _find_forward_row_counts(trace: Trace, start: Ints, end: Ints) -> Nullable:
    """Find M of the forward matmuls with most FLOPs in each micro-batch; NA without any."""
    count = len(start)
    unknown = Nullable(np.zeros(count, np.int64), np.ones(count, np.bool_))
    recorded: MatrixProducts = trace.derived(find_matrix_products)
    rows = np.flatnonzero(recorded.number >= 0)
    gemm = np.array([product.kind == "gemm" and product.batch == 1 for _, product in recorded.products], np.bool_)
    rows = rows[gemm[recorded.number[rows]]] if len(recorded.products) else rows
    if not len(rows):
        return unknown
    names = trace.texts("host_ops", "name")
    backward = mark_wanted_names(names, lambda name: name.startswith(BACKWARD))
    rows = rows[trace.derived(build_call_tree).nearest(backward, rows) < 0]
    ts = trace.numbers("host_ops", "ts_ns")[rows]
    window = find_window_at(start, end, ts)
    rows, window = rows[window >= 0], window[window >= 0]
    if not len(rows):
        return unknown
    m = np.array([product.m for _, product in recorded.products], np.int64)[recorded.number[rows]]
    flops = np.array([product.flops for _, product in recorded.products], float)[recorded.number[rows]]
    sizes, which = number_keys(m)
    keys, group = number_keys(window * len(sizes) + which)
    weight = np.bincount(group, flops, minlength=len(keys))
    order = np.lexsort((sizes[keys % len(sizes)], weight))  # the last one written is the heaviest
    out, has_rows = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    out[keys[order] // len(sizes)] = sizes[keys[order] % len(sizes)]
    has_rows[keys // len(sizes)] = True
    return Nullable(out, ~has_rows)


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report micro-batches by stage; judge R18."""
    batches = measured.frame("forward_batches")
    if not len(batches):
        return ANALYSIS.skipped("no micro-batch was annotated")
    pooled = _summarize_forward_batches(batches)
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            count | micro-batches | count | Over all ranks and steps.
            each | per step | number | Mean per rank and step.
            median | rows | number | Median of the rows (tokens) of the largest forward products; — without shapes.
            least | fewest rows | count
            most | most rows | count
            mean_ns | mean | ns | Mean wall of a micro-batch on the host.
        """),
    )
    return ANALYSIS.answered(
        sheets=lambda: (make_sheet("forward_batches", "Micro-batches by stage", headings, pooled),),
        findings=tuple(_find_small_forward_batches(measured, pooled, thresholds)),
        verdicts=tuple(_list_forward_batch_abstentions(pooled)),
    )


def _summarize_forward_batches(batches: Frame) -> Frame:
    """Summarize micro-batches by run, role and stage, longest first."""
    keys = ("run", "role", "canonical")
    batches = batches.with_columns(canonical=name_stages(batches, in_file=True))
    passes = batches.group_by(*keys, "step", "part", *CAPTURE)
    pooled = batches.group_by(*keys).agg(
        count=count_rows(),
        # As floats: the median between two whole numbers is not rounded.
        median=median_of(where(~batches.is_missing("row_count"), batches.number("row_count"))),
        least=min_of("row_count"),
        most=max_of("row_count"),
        mean_ns=mean_of("dur_ns"),
        total_ns=sum_of("dur_ns"),
        passes=count_distinct_of(passes.number),
    )
    pooled = pooled.with_columns(each=pooled["count"] / pooled["passes"])
    return pooled.sort("total_ns", "canonical", descending=["total_ns"])


def _pair_forward_with_training(pooled: Frame) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pair each forward-only stage with the training stage of its role, else of its run."""
    of_role: dict[tuple[Any, ...], dict[str, Any]] = {}
    of_run: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in pooled.filter(pooled.is_in("canonical", TRAINING)).rows():
        of_role.setdefault((row["run"], row["canonical"], row["role"]), row)
        of_run.setdefault((row["run"], row["canonical"]), row)
    for row in pooled.filter(pooled.is_in("canonical", FORWARD_ONLY)).rows():
        wanted = row["run"], "update_critic" if row["canonical"] == "values" else "update_actor"
        training = of_role.get((*wanted, row["role"])) or of_run.get(wanted)
        if training is not None:
            yield row, training


def _list_forward_batch_abstentions(pooled: Frame) -> Iterator[Verdict]:
    """List why R18 does not apply, or lacks data."""
    pairs = list(_pair_forward_with_training(pooled))
    if not pairs:
        reason = "no forward-only pass and training of one role, both in micro-batches"
        yield Verdict(ANALYSIS.rules[0], "not applicable", reason)
    elif all(row["median"] is None or train["median"] is None for row, train in pairs):
        yield Verdict(ANALYSIS.rules[0], "insufficient data", "input shapes were not recorded")


def _find_small_forward_batches(measured: Measurements, pooled: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R18: forward passes, which need less memory, in micro-batches as small as training; one per training stage."""
    limit = thresholds.of("forward-batch-size")
    by_owner: dict[tuple[Any, ...], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for row, train in _pair_forward_with_training(pooled):
        if row["median"] is None or not train["median"]:
            continue
        small = row["median"] <= limit["row_ratio"] * train["median"]
        if small and row["each"] >= limit["micro_batches"]:
            by_owner.setdefault((row["run"], row["role"], train["canonical"]), []).append((row, train))
    for (run, role, _), pairs in by_owner.items():
        names = sorted(row["canonical"] for row, _ in pairs)
        rows = max(row["median"] for row, _ in pairs)
        each = min(row["each"] for row, _ in pairs)
        training = pairs[0][1]["median"]
        yield Finding(
            "forward-batch-size",
            thresholds.severity(None),
            f"{' and '.join(names)}: micro-batches of {rows:,.0f} rows, no larger than training's {training:,.0f}"
            + phrase_run(measured, run),
            "raise the tokens per micro-batch of forward-only passes (log_prob_max_token_len_per_gpu in verl): about twice as many fit without gradients",
            (
                Metric("forward_rows", rows, "", "higher", label="rows, forward only"),
                Metric("training_rows", training, "", label="rows, training"),
                Metric("micro_batches", each, "", "lower", label="micro-batches per step and rank"),
            ),
            tuple(Place(run=run, role=role, stage=name) for name in names),
            None,
            None,
            ("the saving cannot be derived from a trace: try it", "needs free memory"),
            changes=tuple(_write_larger_batches(names)),
            instances=_pick_forward_batches(measured, (run, role), names),
        )


def _pick_forward_batches(measured: Measurements, owner: Owner, stages: Collection[str]) -> tuple[Instance, ...]:
    """Pick the longest and the median forward-only micro-batch in some stages."""
    batches = measured.frame("forward_batches")
    batches = batches.with_columns(canonical=name_stages(batches, in_file=True))
    return pick_instances(batches.filter(find_rows_of_owners(batches, [owner]) & batches.is_in("canonical", stages)))


def _write_larger_batches(stages: list[str]) -> Iterator[str]:
    """List the changes of the fix: half as many micro-batches, so half of the launches and of the gathers.

    The kernels take as long per token as now, which larger products do not.
    """
    for stage in stages:
        yield write_change("graph", stage=stage, factor=0.5)
        yield write_change("scale", "collective", stage=stage, op="AllGather", factor=0.5)


ANALYSIS = Analysis(
    id="forward-batches",
    title="How large are micro-batches?",
    reads=("host_ops",),
    args=(DIMS, TYPES),
    writes=(FORWARD_BATCHES,),
    rules=("forward-batch-size",),
    thresholds={
        "forward-batch-size": {
            # Rows (tokens) of a forward-only micro-batch over those of a training micro-batch: at most this,
            "row_ratio": 1.0,
            # where a forward-only pass has at least this many micro-batches.
            "micro_batches": 2,
        }
    },
    measure=measure,
    judge=judge,
)
