"""Uneven micro-batches, and log-prob passes that the update could replace (Q20, Q24; R17, R31)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import (
    UNIT,
    aggregate_by_keys,
    clear_parts_of_numbered_steps,
    divide_or_none,
    find_canonical_stages,
    find_equal_rows,
    make_label_headings,
    narrow_exact_floats,
    phrase_run,
    sort_by_columns,
    summarize_job_steps,
    to_text_or_none,
)
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.matrix import build_stage_cells, list_timed_units
from tracekit.job.stages.windows import count_steps_of_rows
from tracekit.model.report import Finding, Heading, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import OCCURRENCE, STEP, TS
from tracekit.model.tables.keys import CAPTURE, PROCESS, group_rows_by
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.micro_batches import list_micro_batches

MICRO_BATCHES = Table(
    "micro_batches",
    "one micro- or mini-batch of a stage",
    {
        **KEYS,
        "step": STEP,
        "stage": Column("category", "Outermost stage around it, as recorded."),
        "occurrence": OCCURRENCE,
        "kind": Column("category", "micro | mini.", ("micro", "mini")),
        "ts_ns": TS,
        "dur_ns": Column("int64", "Wall time on the host, ns."),
        "own_ns": Column("Int64", "Kernels launched in it, collectives left out, as a union; <NA> without."),
    },
)


_BATCH_KEYS = ["run", "role", "canonical", "kind"]
_STAGE_RUN_KEYS = [*CAPTURE, "step", "canonical", "occurrence", "kind"]


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the annotated mini- and micro-batches, one row per batch."""
    batches = trace.derived(list_micro_batches)
    return {"micro_batches": batches} if batches else {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report lengths of micro- and mini-batches by stage; judge R17 and R31."""
    rows = _list_batches(measured)
    redundant, verdicts = _find_redundant_log_probs(measured, rows, thresholds)
    if not len(rows):
        reason = "no mini- or micro-batch is annotated"
        none = Verdict("ragged-micro-batches", "not applicable", reason)
        return ANALYSIS.skipped(reason, verdicts=(none, *verdicts))
    empty_ratio = thresholds.of("ragged-micro-batches")["empty_ratio"]
    instances = _summarize_batches_by_stage_run(rows, empty_ratio)
    ragged = list(_find_ragged_batches(measured, instances, thresholds))
    return ANALYSIS.answered(
        sheets=lambda: (_make_batch_length_table(measured, instances, empty_ratio),),
        findings=(*redundant, *ragged),
        verdicts=(*verdicts, *_list_ragged_batch_abstentions(measured, instances)),
    )


def _list_batches(measured: Measurements) -> pd.DataFrame:
    """List the measured batches with their canonical stage and `length_ns`: kernel time, or host time without a device."""
    rows = clear_parts_of_numbered_steps(measured["micro_batches"])
    rows["window"] = measured["micro_batches"]["part"]
    return rows.assign(
        canonical=find_canonical_stages(rows, in_file=True, any_range=True),
        on_device=rows["own_ns"].notna(),
        length_ns=rows["own_ns"].fillna(rows["dur_ns"]).astype("float64"),
    )


def _summarize_batches_by_stage_run(rows: pd.DataFrame, empty_ratio: float) -> pd.DataFrame:
    """Summarize the batches of each run of a stage: how many, and how unequal (Q24).

    Columns: the keys of processes, step, canonical, kind; count, total_ns, mean_ns, median_ns, min_ns, max_ns,
    variation (sample standard deviation over mean, NA for one), small (batches of less than
    `empty_ratio` of the median), small_ns, on_device.
    """
    by = [*PROCESS, *(name for name in _STAGE_RUN_KEYS if name != "pid")]
    number, _ = group_rows_by(rows, by)
    medians = rows["length_ns"].groupby(number, sort=False).median().to_numpy(np.float64)
    small = rows["length_ns"] < empty_ratio * medians[number]
    rows = rows.assign(small=small.astype(int), small_ns=rows["length_ns"].where(small, 0.0))
    out = aggregate_by_keys(
        rows,
        by,
        count=("length_ns", "size"),
        total_ns=("length_ns", "sum"),
        mean_ns=("length_ns", "mean"),
        median_ns=("length_ns", "median"),
        min_ns=("length_ns", "min"),
        max_ns=("length_ns", "max"),
        std_ns=("length_ns", "std"),
        small=("small", "sum"),
        small_ns=("small_ns", "sum"),
        on_device=("on_device", "all"),
    )
    out["variation"] = out["std_ns"] / out["mean_ns"].where(out["mean_ns"] > 0)
    return out


def _make_batch_length_table(measured: Measurements, instances: pd.DataFrame, empty_ratio: float) -> Sheet:
    """Make the table of stages by time in batches, with their spread."""
    out = aggregate_by_keys(
        instances,
        _BATCH_KEYS,
        per=("count", "mean"),
        count=("count", "sum"),
        total=("total_ns", "sum"),
        variation=("variation", "median"),
        shortest=("min_ns", "min"),
        median=("median_ns", "median"),
        longest=("max_ns", "max"),
        small=("small", "sum"),
        on_device=("on_device", "all"),
    )
    out["lengths"] = out["on_device"].map({True: "kernel time", False: "host time"})
    out["canonical"] = out["canonical"].astype(object).fillna("(in no stage)")
    for name in ("per", "shortest", "median", "longest"):
        out[name] = narrow_exact_floats(out[name])
    out = sort_by_columns(out, total=False, kind=True)
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            kind | batches
            per | per run of it | count | Mean over runs of the stage.
            median | median | ns | Of the medians of its runs.
            shortest | shortest | ns
            longest | longest | ns
            variation | variation | ratio | Standard deviation over mean within a run of the stage; median.
        """),
        Heading(
            "small",
            "nearly empty",
            "count",
            f"Of less than {format_quantity(empty_ratio, 'ratio')} of the median of their run.",
        ),
        *parse_headings("""
            count | of | count | All of them.
            lengths | lengths are
        """),
    )
    caption = (
        "Host time holds waiting for other ranks and whatever else the machine did; kernel time leaves collectives out."
    )
    return make_sheet("batches", "Mini- and micro-batches by stage", headings, out, caption=caption)


def _list_ragged_batch_abstentions(measured: Measurements, instances: pd.DataFrame) -> Iterator[Verdict]:
    """List verdicts on runs that R31 cannot judge."""
    for run in instances["run"].unique():
        of_run = instances[find_equal_rows(instances["run"], run)]
        if not of_run["on_device"].any():
            reason = f"without a GPU the length of a batch is host time, which other work changes too{phrase_run(measured, run)}"
            yield Verdict("ragged-micro-batches", "insufficient data", reason)
        elif not ((of_run["count"] > 1) & of_run["on_device"]).any():
            reason = f"no stage runs more than one batch{phrase_run(measured, run)}"
            yield Verdict("ragged-micro-batches", "not applicable", reason)


def _find_ragged_batches(measured: Measurements, instances: pd.DataFrame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R31: batches of one stage that differ much, or are nearly empty; one finding per stage."""
    limit = thresholds.of("ragged-micro-batches")
    rows = instances[instances["on_device"] & (instances["count"] > 1)]
    for key, stage_rows in rows.groupby(["run", "role", "canonical"], dropna=False, sort=False):
        run, role, stage = key
        for kind in ("micro", "mini"):
            of_kind = stage_rows[stage_rows["kind"] == kind]
            variation = float(of_kind["variation"].median()) if len(of_kind) else 0.0
            small, count = int(of_kind["small"].sum()), int(of_kind["count"].sum())
            if variation < limit["variation"] and not small:
                continue
            steps = count_steps_of_rows(measured, of_kind.drop(columns="device", errors="ignore"))
            gain, ratio = steps.per_step(float(of_kind["small_ns"].sum()))
            where = to_text_or_none(stage) or "no stage"
            uneven = f"vary by {format_quantity(variation, 'ratio')}"
            empty = f"{small} of {count} take less than {format_quantity(limit['empty_ratio'], 'ratio')} of the median"
            caveats = [uneven] if variation >= limit["variation"] else []
            caveats += [empty] if small else []
            yield Finding(
                "ragged-micro-batches",
                thresholds.severity(ratio),
                f"{kind}-batches of {where}: {', '.join(caveats)}{phrase_run(measured, run)}",
                "form batches by tokens rather than by samples (use_dynamic_bsz), and spread what is left over",
                (
                    Metric("variation", variation, "ratio", "lower", label="standard deviation over mean"),
                    Metric("nearly_empty", small, "count", "lower", label="nearly empty"),
                    Metric("batches", count, "count", label="of"),
                    Metric("longest", round(float(of_kind["max_ns"].max())), "ns", "lower", label="longest"),
                    Metric("shortest", round(float(of_kind["min_ns"].min())), "ns", label="shortest"),
                ),
                (Place(role=to_text_or_none(role), stage=to_text_or_none(stage)),),
                round(gain),
                ratio,
                ("long batches fill a GPU better: what equal ones would save is not known",),
            )
            break


def _find_redundant_log_probs(
    measured: Measurements, rows: pd.DataFrame, thresholds: Thresholds
) -> tuple[list[Finding], list[Verdict]]:
    """Find R17: log-probs computed separately although the only update pass of the step computes them (Q20)."""
    findings, verdicts = [], []
    stages, walls = build_stage_cells(measured), list_timed_units(measured)
    most_batches = thresholds.of("redundant-log-prob")["mini_batches"]
    for run in walls["run"].unique():
        measured_stages = stages[find_equal_rows(stages["run"], run) & (stages["state"] == "measured")]
        passes = measured_stages[measured_stages["canonical"] == "old_log_prob"]
        if not len(passes) or not (measured_stages["canonical"] == "update_actor").any():
            reason = f"no log-prob pass with an actor update is in the traces{phrase_run(measured, run)}"
            verdicts.append(Verdict("redundant-log-prob", "not applicable", reason))
            continue
        count = _count_mini_batches_per_update(rows[find_equal_rows(rows["run"], run)])
        if count is None:
            reason = f"the mini-batches of the update are not annotated, or not all captured{phrase_run(measured, run)}"
            verdicts.append(Verdict("redundant-log-prob", "insufficient data", reason))
            continue
        if count > most_batches:
            continue
        steps = summarize_job_steps(measured).select_run(run)
        wall = float(passes.groupby(list(UNIT), dropna=False)["wall_ns"].max().sum())
        gain = wall / max(len(walls[find_equal_rows(walls["run"], run)]), 1)
        ratio = divide_or_none(gain, steps.step_ns)
        severity = thresholds.severity(ratio)
        findings.append(
            Finding(
                "redundant-log-prob",
                "low" if severity in ("high", "medium") else severity,
                "old_log_prob is computed apart although each step updates on one mini-batch once"
                + phrase_run(measured, run),
                "take the log-probs from the update's own forward pass, or those of the rollout (bypass mode)",
                (
                    Metric("old_log_prob_wall", round(gain), "ns", "lower", label="per step"),
                    Metric("mini_batches", count, "count", label="mini-batches per update"),
                ),
                (Place(role=to_text_or_none(passes["role"].iloc[0]), stage="old_log_prob"),),
                round(gain),
                ratio,
                (
                    "needed where the policy may change before the update: off-policy data, or a check of the rollout's log-probs",
                ),
            )
        )
    return findings, verdicts


def _count_mini_batches_per_update(rows: pd.DataFrame) -> int | None:
    """Count the most mini-batches, over all epochs, of one actor update of one process; None if unknown."""
    mini_batches = rows[(rows["canonical"] == "update_actor") & (rows["kind"] == "mini")]
    scheduled = rows["window"].dropna().astype(str).str.match(r"mb[0-9]")
    if not len(mini_batches) or scheduled.any():
        return None
    return int(mini_batches.groupby(_STAGE_RUN_KEYS[:-1], dropna=False).size().max())


ANALYSIS = Analysis(
    id="micro-batches",
    title="Are micro-batches alike, and is every pass needed?",
    bases={"redundant-log-prob": "modelled", "ragged-micro-batches": "modelled"},
    reads=("host_ops", "device_ops", "device_ranges"),
    writes=(MICRO_BATCHES,),
    rests_on=("gpu_time", "logged"),
    rules=("redundant-log-prob", "ragged-micro-batches"),
    thresholds={
        "redundant-log-prob": {
            # Most mini-batches per update (over all epochs) at which the update's own forward pass gives the same log-probs.
            "mini_batches": 1
        },
        "ragged-micro-batches": {
            # Standard deviation over mean of the batches of one stage, median over its runs,
            "variation": 0.25,
            # or any batch that takes less than this share of the median.
            "empty_ratio": 0.25,
        },
    },
    measure=measure,
    judge=judge,
)
