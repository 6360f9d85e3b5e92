"""Uneven micro-batches, and log-prob passes that the update could replace (Q20, Q24; R17, R31)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import (
    UNIT,
    divide_or_none,
    make_label_headings,
    name_stages,
    phrase_run,
    summarize_step_walls,
)
from tracekit.job.report.instances import list_stage_runs, pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.matrix import list_stage_cells, list_units_with_cells
from tracekit.job.stages.windows import count_steps_of_processes
from tracekit.model.report import Finding, Heading, Instance, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import OCCURRENCE, STEP, TS
from tracekit.model.tables.frame import (
    Frame,
    count_rows,
    divide,
    max_of,
    mean_of,
    median_of,
    min_of,
    narrow_whole_numbers,
    sum_of,
    texts,
    where,
)
from tracekit.model.tables.keys import CAPTURE, PROCESS
from tracekit.model.text.changes import write_change
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


_STAGE_RUN_KEYS = (*CAPTURE, "step", "canonical", "occurrence")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the annotated mini- and micro-batches, one row per batch."""
    batches = trace.derived(list_micro_batches)
    return {"micro_batches": batches} if batches else {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report lengths of micro- and mini-batches by stage; judge R17 and R31."""
    batches = _list_batches(measured)
    redundant, verdicts = _find_redundant_log_probs(measured, batches, thresholds)
    if not len(batches):
        reason = "no mini- or micro-batch is annotated"
        none = Verdict("ragged-micro-batches", "not applicable", reason)
        return ANALYSIS.skipped(reason, verdicts=(none, *verdicts))
    empty_ratio = thresholds.of("ragged-micro-batches")["empty_ratio"]
    instances = _summarize_batches_by_stage_run(batches, empty_ratio)
    ragged = list(_find_ragged_batches(measured, instances, thresholds))
    return ANALYSIS.answered(
        sheets=lambda: (_make_batch_length_table(measured, instances, empty_ratio),),
        findings=(*redundant, *ragged),
        verdicts=(*verdicts, *_list_ragged_batch_abstentions(measured, instances)),
    )


def _list_batches(measured: Measurements) -> Frame:
    """List the measured batches with their canonical stage and `length_ns`: kernel time, or host time without a device."""
    batches = measured.frame("micro_batches")
    on_device = ~batches.is_missing("own_ns")
    return batches.with_columns(
        canonical=name_stages(batches, in_file=True, any_range=True),
        on_device=on_device,
        length_ns=np.where(on_device, batches.integers("own_ns"), batches["dur_ns"]),
    )


def _summarize_batches_by_stage_run(batches: Frame, empty_ratio: float) -> Frame:
    """Summarize the batches of each run of a stage: how many, and how unequal (Q24).

    Columns: the keys of processes, step, canonical, kind; count, total_ns, mean_ns, median_ns, min_ns, max_ns,
    variation (sample standard deviation over mean, missing for one), small (batches of less than
    `empty_ratio` of the median), small_ns, on_device.
    """
    length_ns = batches.number("length_ns")
    by_stage_run = batches.group_by(*dict.fromkeys((*PROCESS, *_STAGE_RUN_KEYS)), "kind")
    small = length_ns < empty_ratio * by_stage_run.each(median_of(length_ns))
    from_mean = length_ns - by_stage_run.each(mean_of("length_ns"))
    instances = by_stage_run.agg(
        count=count_rows(),
        total_ns=sum_of("length_ns"),
        mean_ns=mean_of("length_ns"),
        median_ns=median_of(length_ns),
        min_ns=min_of("length_ns"),
        max_ns=max_of("length_ns"),
        squares=sum_of(from_mean**2),
        small=sum_of(small),
        small_ns=sum_of(np.where(small, batches["length_ns"], 0)),
        on_device=min_of("on_device"),
    )
    std_ns = np.sqrt(instances["squares"] / np.maximum(instances["count"] - 1, 1))
    variation = where(instances["count"] > 1, std_ns)
    return instances.with_columns(variation=divide(variation, instances["mean_ns"]))


def _make_batch_length_table(measured: Measurements, instances: Frame, empty_ratio: float) -> Sheet:
    """Make the table of stages by time in batches, with their spread."""
    lengths = instances.group_by("run", "role", "canonical", "kind").agg(
        per=mean_of("count"),
        count=sum_of("count"),
        total=sum_of("total_ns"),
        variation=median_of("variation"),
        shortest=min_of("min_ns"),
        median=median_of("median_ns"),
        longest=max_of("max_ns"),
        small=sum_of("small"),
        on_device=min_of("on_device"),
    )
    lengths = lengths.with_columns(
        canonical=texts([stage or "(outside any stage)" for stage in lengths.values("canonical")]),
        lengths=texts(["kernel time" if on_device else "host time" for on_device in lengths.values("on_device")]),
        per=narrow_whole_numbers(lengths["per"]),
        median=narrow_whole_numbers(lengths["median"]),
    )
    lengths = lengths.sort("total", "kind", descending=["total"])
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            kind | batches
            per | per stage run | count | Mean over runs of the stage.
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
            count | of | count | All batches.
            lengths | lengths are
        """),
    )
    caption = (
        "Host time includes waiting for other ranks and other load on the machine; kernel time excludes collectives."
    )
    return make_sheet("batches", "Mini- and micro-batches by stage", headings, lengths, caption=caption)


def _list_ragged_batch_abstentions(measured: Measurements, instances: Frame) -> Iterator[Verdict]:
    """List verdicts on runs that R31 cannot judge."""
    for of_run in instances.group_by("run").frames():
        run = phrase_run(measured, of_run.values("run")[0])
        if not of_run["on_device"].any():
            reason = f"without a GPU the length of a batch is host time, which other work also changes{run}"
            yield Verdict("ragged-micro-batches", "insufficient data", reason)
        elif not ((of_run["count"] > 1) & of_run["on_device"]).any():
            reason = f"no stage runs more than one batch{run}"
            yield Verdict("ragged-micro-batches", "not applicable", reason)


def _find_ragged_batches(measured: Measurements, instances: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R31: batches of one stage that differ much, or are nearly empty; one finding per stage."""
    limit = thresholds.of("ragged-micro-batches")
    several = instances.filter(instances["on_device"] & (instances["count"] > 1))
    for of_stage in several.group_by("run", "role", "canonical").frames():
        run, role, stage = next(of_stage.rows("run", "role", "canonical")).values()
        for kind in ("micro", "mini"):
            of_kind = of_stage.filter(of_stage.equals("kind", kind))
            variations = of_kind.number("variation")[~of_kind.is_missing("variation")]
            variation = float(np.median(variations)) if len(variations) else 0.0
            small, count = int(of_kind["small"].sum()), int(of_kind["count"].sum())
            if variation < limit["variation"] and not small:
                continue
            steps = count_steps_of_processes(measured, of_kind)
            gain, ratio = steps.per_step(float(of_kind["small_ns"].sum()))
            uneven = f"vary by {format_quantity(variation, 'ratio')}"
            empty = f"{small} of {count} take less than {format_quantity(limit['empty_ratio'], 'ratio')} of the median"
            caveats = [uneven] if variation >= limit["variation"] else []
            caveats += [empty] if small else []
            yield Finding(
                "ragged-micro-batches",
                thresholds.severity(ratio),
                f"{kind}-batches of {stage or 'no stage'}: {', '.join(caveats)}{phrase_run(measured, run)}",
                "form batches by tokens instead of samples (use_dynamic_bsz), and spread the remainder",
                (
                    Metric("variation", variation, "ratio", "lower", label="standard deviation over mean"),
                    Metric("nearly_empty", small, "count", "lower", label="nearly empty"),
                    Metric("batches", count, "count", label="of"),
                    Metric("longest", int(of_kind["max_ns"].max()), "ns", "lower", label="longest"),
                    Metric("shortest", int(of_kind["min_ns"].min()), "ns", label="shortest"),
                ),
                (Place(run=run, role=role, stage=stage),),
                round(gain),
                ratio,
                ("long batches use a GPU better: the saving of equal batches is unknown",),
                instances=_pick_batches(measured, of_kind),
            )
            break


def _pick_batches(measured: Measurements, stage_runs: Frame) -> tuple[Instance, ...]:
    """Pick the longest and the median batch in some runs of a stage."""
    batches = _list_batches(measured)
    keys = (*dict.fromkeys((*PROCESS, *_STAGE_RUN_KEYS)), "kind")
    return pick_instances(batches.filter(batches.is_among(stage_runs, keys, optional=keys)), "length_ns")


def _find_redundant_log_probs(
    measured: Measurements, batches: Frame, thresholds: Thresholds
) -> tuple[list[Finding], list[Verdict]]:
    """Find R17: log-probs computed separately although the only update pass of the step computes them (Q20)."""
    findings, verdicts = [], []
    cells, units = list_stage_cells(measured), list_units_with_cells(measured)
    cells = cells.filter(cells.equals("state", "measured"))
    most_batches = thresholds.of("redundant-log-prob")["mini_batches"]
    for units_of_run in units.group_by("run").frames():
        run = units_of_run.values("run")[0]
        cells_of_run = cells.filter(cells.equals("run", run))
        passes = cells_of_run.filter(cells_of_run.equals("canonical", "old_log_prob"))
        if not len(passes) or not cells_of_run.equals("canonical", "update_actor").any():
            reason = f"no log-prob pass with an actor update is in the traces{phrase_run(measured, run)}"
            verdicts.append(Verdict("redundant-log-prob", "not applicable", reason))
            continue
        count = _count_mini_batches_per_update(batches.filter(batches.equals("run", run)))
        if count is None:
            reason = f"the mini-batches of the update are not annotated, or not all captured{phrase_run(measured, run)}"
            verdicts.append(Verdict("redundant-log-prob", "insufficient data", reason))
            continue
        if count > most_batches:
            continue
        steps = summarize_step_walls(measured).select_run(run)
        longest = passes.group_by(*UNIT).agg(wall_ns=max_of("wall_ns"))
        gain = int(longest.integers("wall_ns").sum()) / len(units_of_run)
        ratio = divide_or_none(gain, steps.step_ns)
        severity = thresholds.severity(ratio)
        findings.append(
            Finding(
                "redundant-log-prob",
                "low" if severity in ("high", "medium") else severity,
                "old_log_prob runs as a separate pass although each step has a single update"
                + phrase_run(measured, run),
                "use the log-probs of the update's own forward pass, or those of the rollout (bypass mode)",
                (
                    Metric("old_log_prob_wall", round(gain), "ns", "lower", label="per step"),
                    Metric("mini_batches", count, "count", label="mini-batches per update"),
                ),
                (Place(run=run, role=passes.values("role")[0], stage="old_log_prob"),),
                round(gain),
                ratio,
                (
                    "needed if the policy may change before the update (off-policy staleness), or to check the rollout's log-probs",
                ),
                changes=(write_change("remove", "range", stage="old_log_prob"),),
                instances=pick_instances(list_stage_runs(measured, "old_log_prob", run)),
            )
        )
    return findings, verdicts


def _count_mini_batches_per_update(batches: Frame) -> int | None:
    """Count the most mini-batches, over all epochs, of one actor update of one process; None if unknown."""
    updates = batches.filter(batches.equals("canonical", "update_actor") & batches.equals("kind", "mini"))
    is_scheduled = any(re.match(r"mb[0-9]", part or "") for part in batches.distinct("part").values("part"))
    if not len(updates) or is_scheduled:
        return None
    return int(updates.group_by(*_STAGE_RUN_KEYS).agg(count=count_rows())["count"].max())


ANALYSIS = Analysis(
    id="micro-batches",
    title="Are micro-batches alike, and is every pass needed?",
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
