"""Host ops and launches by stage: many short ones make a stage launch-bound (definitions M11, M16; R03, R44)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import divide_or_none, make_label_headings, name_stages, phrase_run
from tracekit.job.idle_time.call_tree import find_culprit_of_launches
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.job.idle_time.host_collectives import phrase_awaited_rank
from tracekit.job.idle_time.launching import (
    COUNTED,
    select_launch_bound_rows,
    select_many_kernel_rows,
    subtract_synced_gaps,
)
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_cost_instances, pick_longest_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.windows import ExistingSteps, count_gpu_steps_of_processes, count_steps_of_processes
from tracekit.job.stages.work import phrase_stage_names
from tracekit.model.intervals import Ints, intersect
from tracekit.model.report import Finding, Instance, Metric, Place, Section, Sheet, Verdict
from tracekit.model.stages import get_canonical_stage
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Coded, Nullable, concatenate_like_arrays, trim_texts
from tracekit.model.tables.columns import LONGEST, NAME, PLACE, STAGE
from tracekit.model.tables.frame import Frame, divide, sum_of, texts, where
from tracekit.model.tables.keys import sort_in_groups, sum_by_group
from tracekit.model.text.changes import write_change, write_name_pattern
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.host.op_runs import measure_op_runs
from tracekit.process.host.phases import (
    SHORT_NS,
    HostPhases,
    HostWindows,
    build_host_windows,
    classify_host_rows,
    find_step_thread,
    mark_single_kernels,
    number_devices_by_appearance,
)
from tracekit.process.idle_time.launch_gaps import find_launch_gaps
from tracekit.process.idle_time.stalls import StallTime

HOST_COUNTS = Table(
    "host_counts",
    "host activity in one step, or in all outermost stages of one name in a step",
    {
        **KEYS,
        "window": Column("category", "step | stage.", ("step", "stage")),
        **PLACE,
        "stage": STAGE,
        "wall_ns": Column("int64", "Σ wall time of the windows."),
        "leaf_count": Column("int64", "Ops without an op inside them, on any thread."),
        "leaf_ns": Column("int64", "Σ their duration."),
        "call_count": Column("int64", "Outermost ops: direct calls of the program."),
        "call_p50_ns": Column("Float64", "Their median duration."),
        "short_ns": Column(
            "int64", "Σ duration of calls of less than 10 µs outside Optimizer.step, on the step thread."
        ),
        "launch_count": Column("int64", "Calls that launch device work; a graph is one."),
        "device_count": Column("Int64", "Devices of the source; <NA> where none was recorded."),
        "kernel_count": Column("Int64", "Compute kernels launched one by one (no graph)."),
        "kernel_ns": Column("Int64", "Σ their duration."),
        "kernel_p50_ns": Column("Float64", "Median of those launched outside Optimizer.step."),
        "graph_kernel_count": Column("Int64", "Device ops launched by graphs."),
        "launch_gap_ns": Column(
            "Int64", "Time devices wait for the launch of a single kernel or copy, Σ over devices."
        ),
        "synced_gap_ns": Column("Int64", "Part of it that idle_ns and later_ns of sync_stalls also count."),
    },
)


Row = Mapping[str, Any]

OP_RUNS = Table(
    "op_runs",
    "short calls of one op that follow one another in a step of a process without a device, 100 or more in a row",
    {
        **KEYS,
        **PLACE,
        "stage": Column("category", "Outermost range as recorded, stage or not; <NA> outside."),
        "name": NAME,
        "run_count": Column("int64", "Rows of such calls."),
        "call_count": Column("int64", "Calls."),
        "op_ns": Column("int64", "Time of the calls."),
        "span_ns": Column("int64", "From the begin of the first call to the end of the last, Σ over rows of calls."),
        **LONGEST,
    },
)

LAUNCH_SITE_KINDS = ("python", "op", "range")
"""Kinds of places that identify the code that launches."""

HOST_COUNT_COLUMNS = (*COUNTED, "call_p50_ns")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Count ops, launches and kernels of every step and outermost stage; adds ops and launches as metrics."""
    if not trace.has("host_ops"):
        return {}
    side, where = trace.derived(classify_host_rows), trace.derived(build_host_windows)
    if not len(where):
        return {}
    start = trace.numbers("host_ops", "ts_ns")
    dur = trace.numbers("host_ops", "dur_ns")
    table = dict(where.columns)
    short = side.call & (dur < SHORT_NS) & (side.within_optimizer < 0)
    if (thread := trace.derived(find_step_thread)) is not None:
        short &= trace.numbers("host_ops", "thread") == thread
    for name, mask in (("leaf", side.leaf), ("call", side.call), ("short", short), ("launch", side.launch)):
        rows = np.flatnonzero(mask)
        tally = _tally_windows(where, start[rows], dur[rows])
        all_columns = {f"{name}_count": tally.counts, f"{name}_ns": tally.total_ns}
        table |= {column: values for column, values in all_columns.items() if column in HOST_COUNT_COLUMNS}
        if f"{name}_p50_ns" in HOST_COUNT_COLUMNS:
            table[f"{name}_p50_ns"] = tally.median_ns()
        del tally
    table |= _count_launched_kernels(trace, where)
    tables = {"host_counts": table, "metrics": _make_host_count_metrics(table)}
    return tables if trace.has("device_ops") else {**tables, "op_runs": measure_op_runs(trace)}


def _count_launched_kernels(trace: Trace, where: HostWindows) -> dict[str, Any]:
    """Count the kernels launched in every window, with their times and launch gaps; empty without a device."""
    if not trace.has("device_ops"):
        return {}
    side: HostPhases = trace.derived(classify_host_rows)
    links: Launches = trace.derived(find_launches)
    dur, is_ordinary = trace.numbers("device_ops", "dur_ns"), mark_single_kernels(trace)
    kernels = _tally_windows(where, links.ts_ns[is_ordinary], dur[is_ordinary])
    called = links.call >= 0
    graph = np.zeros(len(called), np.bool_)
    graph[called] = side.graph_launch[links.call[called]]
    updates = np.zeros(len(called), np.bool_)
    updates[called] = side.within_optimizer[links.call[called]] >= 0
    other_kernels = is_ordinary & ~updates
    gaps, synced = _sum_launch_gaps(trace, where)
    devices = int(trace.derived(number_devices_by_appearance).max(initial=-1)) + 1
    return {
        "device_count": np.full(len(where), devices, np.int64),
        "kernel_count": kernels.counts,
        "kernel_ns": kernels.total_ns,
        "kernel_p50_ns": _tally_windows(where, links.ts_ns[other_kernels], dur[other_kernels]).median_ns(),
        "graph_kernel_count": _tally_windows(where, links.ts_ns[graph], dur[graph]).counts,
        "launch_gap_ns": gaps,
        "synced_gap_ns": synced,
    }


def _sum_launch_gaps(trace: Trace, where: HostWindows) -> tuple[Ints, Ints]:
    """Sum the time in which devices wait for launches in every window: (all of it, the part that syncs cause)."""
    gaps, synced = np.zeros((2, len(where)), np.int64)
    by_device = find_launch_gaps(trace)
    for of_device in by_device:
        gaps += where.covered(of_device)
    number = trace.derived(number_devices_by_appearance)
    idle = trace.derived(make_idle_time_measurement())
    for device, calls in zip(idle, trace.derived(StallTime(make_idle_time_measurement())), strict=True):
        of_device = by_device[int(number[device.rows[0]])]
        synced += where.covered(intersect(of_device, calls.lost))
    del idle
    # Free the gaps, up to one per op: no later analysis reads them.
    trace.forget(make_idle_time_measurement())
    return gaps, synced


class _WindowTally(NamedTuple):
    """Events that begin in each window: count and total duration; `slot` and `dur_ns` are per event."""

    counts: Ints
    total_ns: Ints
    slot: Ints
    dur_ns: Ints

    def median_ns(self) -> Nullable:
        """Compute the median duration in every window; NA in windows without an event."""
        values = sort_in_groups(self.slot, self.dur_ns)
        first = np.cumsum(self.counts) - self.counts
        is_counted = self.counts > 0
        median = np.zeros(len(self.counts))
        low = first[is_counted] + (self.counts[is_counted] - 1) // 2
        high = first[is_counted] + self.counts[is_counted] // 2
        median[is_counted] = (values[low].astype(np.float64) + values[high]) / 2
        return Nullable(median, ~is_counted)


def _tally_windows(where: HostWindows, ts_ns: Ints, dur_ns: Ints) -> _WindowTally:
    """Tally the events that begin in each window."""
    positions, slot = where.both(ts_ns)
    count, dur_ns = np.bincount(slot, minlength=len(where)), dur_ns[positions]
    return _WindowTally(count, sum_by_group(slot, dur_ns, len(where)), slot, dur_ns)


def _make_host_count_metrics(table: Mapping[str, Any]) -> dict[str, Any]:
    """Make the `metrics` rows of leaf ops and launches by step and stage; other load on the machine does not change counts."""
    named = {"host_ops": table["leaf_count"]}
    if "device_count" in table or table["launch_count"].any():
        named["host_launches"] = table["launch_count"]
    size, times = len(table["wall_ns"]), len(named)
    return {
        "step": concatenate_like_arrays([table["step"]] * times),
        "stage": concatenate_like_arrays([table["stage"]] * times),
        "name": trim_texts(Coded(np.repeat(np.arange(times), size), tuple(named))),
        "value": np.concatenate(list(named.values())).astype(np.float64),
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report ops and launches of the host by step and stage, over all ranks and steps; judge R03 and R44."""
    rows = measured.frame("host_counts")
    if not rows["leaf_count"].sum() + rows["launch_count"].sum():
        return ANALYSIS.skipped("no host op and no launch was recorded")
    table = subtract_synced_gaps(measured, thresholds)
    findings = (*_find_launch_bound_stages(measured, table, thresholds), *_find_small_ops(measured, table, thresholds))
    steps = table.filter(table.is_missing("canonical"))
    ops_per_step = float(steps["leaf_count"].sum() / max(steps["process_steps"].sum(), 1))
    return ANALYSIS.answered(
        metrics=(Metric("host_ops", round(ops_per_step), "count", "lower", label="host ops per step"),),
        sheets=lambda: select_filled_sheets(_make_host_count_table(measured, table)),
        findings=findings,
        verdicts=tuple(_list_launch_bound_abstentions(measured, table)),
    )


def _make_host_count_table(measured: Measurements, table: Frame) -> Sheet:
    """Make the table of stages by number of ops, the whole step first; counts per step and process."""
    per_step: dict[str, Any] = {}
    for name in ("leaf_count", "call_count", "short_ns", "launch_count", "kernel_count", "graph_kernel_count"):
        each = divide(table[name], table["process_steps"])
        per_step[f"{name}_each"] = Nullable(each.values.round(1), each.missing)
    # Without a device nothing is launched: show no value, since zeros would look like a result.
    launches = (table["launch_count"] > 0) | ~table.is_missing("device_wall_ns")
    per_step["launch_count_each"] = where(launches, per_step["launch_count_each"])
    stages = table.with_columns(
        **per_step,
        leaf_mean_ns=divide(table["leaf_ns"], table["leaf_count"]),
        kernel_mean_ns=divide(table["kernel_ns"], table["kernel_count"]),
        gap_ratio=divide(table["launch_gap_ns"], table["device_wall_ns"]),
        whole=table.is_missing("canonical"),
        canonical=texts([stage or "(the whole step)" for stage in table.values("canonical")]),
    )
    stages = stages.sort("whole", "leaf_count", descending=["whole", "leaf_count"])
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            leaf_count_each | ops | count | Innermost ops on all threads, per step and process.
            leaf_mean_ns | mean op | ns | Σ duration of innermost ops / their number.
            call_count_each | calls | count | Ops that the program called itself, not from within an op.
            call_p50_ns | median call | ns | Median over steps and ranks of the median duration of a call.
            short_ns_each | short calls | ns | Calls of less than 10 µs on the step's thread, without the optimizer's: Σ per step.
            launch_count_each | launches | count | Calls that launch GPU work, per step and process.
            kernel_count_each | kernels | count | Compute kernels launched one by one, per step and process.
            kernel_mean_ns | mean kernel | ns | Σ duration of those / their number.
            kernel_p50_ns | median kernel | ns | Without those of Optimizer.step.
            graph_kernel_count_each | by graph | count | Device ops launched as parts of a graph.
            gap_ratio | launch gaps | ratio | Time GPUs wait for the launch of one kernel, of the stage.
        """),
    )
    caption = "Counted where they begin: a stage includes work started by any thread during it."
    return make_sheet("host_counts", "Host ops and launches by stage", headings, stages, caption=caption)


def _list_launch_bound_abstentions(measured: Measurements, table: Frame) -> Iterator[Verdict]:
    """List runs without any host op or kernel that R03 could count; of the others, the rule that is not about them."""
    for of_run in table.group_by("run").frames():
        if not of_run["leaf_count"].sum() and not of_run.integers("kernel_count").sum():
            reason = "neither host ops nor kernels launched one by one were recorded"
            yield Verdict("launch-bound", "not applicable", reason + phrase_run(measured, of_run.values("run")[0]))
            continue
        rule, reason = "launch-bound", "no GPU activity was recorded: see small-ops"
        if not of_run.is_missing("device_wall_ns").all():
            rule, reason = "small-ops", "a GPU was recorded: see launch-bound"
        yield Verdict(rule, "not applicable", reason + phrase_run(measured, of_run.values("run")[0]))


def _find_launch_bound_stages(measured: Measurements, table: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R03: stages whose GPUs wait for launches of short kernels, or steps of very many short kernels."""
    limit = thresholds.of("launch-bound")
    counts = measured.frame("host_counts")
    for of_run in table.group_by("run").frames():
        run = of_run.values("run")[0]
        name = phrase_run(measured, run)
        bound_rows = select_launch_bound_rows(of_run, limit)
        for of_cause in _group_launch_stages_by_cause(measured, bound_rows or select_many_kernel_rows(of_run, limit)):
            role = of_cause[0][0]["role"]
            owned = counts.filter(counts.equals("run", run) & counts.equals("role", role))
            on_gpus = owned.filter(~owned.is_missing("device_count"))
            steps = count_gpu_steps_of_processes(measured, on_gpus)
            finding = _report_launch_gaps(of_cause, thresholds, steps, name)
            stages = [row["canonical"] for row, _ in of_cause]
            yield replace(finding, instances=_pick_host_windows(measured, owned, stages, "launch_gap_ns"))


def _pick_host_windows(
    measured: Measurements, counts: Frame, stages: Sequence[str | None], cost: str
) -> tuple[Instance, ...]:
    """Pick the worst and the median run of some stages (None: the steps) by a column of `host_counts`."""
    windows = counts.filter(counts.equals("window", "step" if None in stages else "stage"))
    windows = windows.with_columns(canonical=name_stages(windows))
    if None not in stages:
        windows = windows.filter(windows.is_in("canonical", [stage for stage in stages if stage]))
    return pick_cost_instances(measured, windows, cost)


def _group_launch_stages_by_cause(measured: Measurements, rows: Sequence[Row]) -> list[list[tuple[Row, str]]]:
    """Group stages of one role by the place that launches: one finding per cause.

    Each stage comes with the words on its place. Stages without a known place are merged. The stage that waits most comes
    first in its group.
    """
    causes: dict[tuple[object, ...], list[tuple[Row, str]]] = {}
    for row in sorted(rows, key=lambda row: -row["launch_gap_ns"]):
        path, words = _locate_launches(measured, row)
        causes.setdefault((row["role"], path, words), []).append((row, words))
    return list(causes.values())


def _locate_launches(measured: Measurements, row: Row) -> tuple[tuple[str, ...], str]:
    """Locate the launches of one stage: (path from the outermost place inwards without the stage, words for the claim)."""
    culprit, role = find_culprit_of_launches(measured, row), row["role"]
    if culprit is None or culprit.holder not in LAUNCH_SITE_KINDS:
        return (), ""
    path, place = [], culprit.place
    for name in culprit.names:
        if get_canonical_stage(name, role) == row["canonical"]:
            place = place.removesuffix(f" in {name}")
        else:
            path.append(name)
    waiting = phrase_awaited_rank(measured, culprit, (row["run"], role), row["canonical"])
    return tuple(path), f", most in {place}{waiting}"


ANY_ROW = "."
"""Pattern of all rows, for a step without stages."""


def _report_launch_gaps(
    of_cause: Sequence[tuple[Row, str]], thresholds: Thresholds, steps: ExistingSteps, run: str
) -> Finding:
    """Report R03 for the stages of one cause, or for a step, in a run with a device."""
    rows = [row for row, _ in of_cause]
    totals = dict.fromkeys(("kernel_count", "kernel_ns", "launch_gap_ns", "device_wall_ns"), 0)
    names: list[str] = []
    kernels_each, median_ns = 0.0, None
    for row in rows:
        names.append(row["canonical"] or "the step")
        kernels_each += row["kernel_count"] / row["process_steps"]
        # The evidence must be true of every stage, so take the longest of their medians.
        median_ns = max(filter(None, (median_ns, row["kernel_p50_ns"])), default=None)
        for name in totals:
            totals[name] += row[name]
    stages = phrase_stage_names(names)
    # Divide by all steps of the run, since a stage may be in only some of them.
    gap, ratio = steps.per_step(totals["launch_gap_ns"])
    wall = steps.mean(totals["device_wall_ns"])
    mean = totals["kernel_ns"] / totals["kernel_count"]
    claim = (
        f"{stages} {choose_plural(len(rows), 'launches', 'launch')} {round(kernels_each):,} kernels of {format_quantity(mean, 'ns')}"
        f" on average one by one{of_cause[0][1]}{run}"
    )
    return Finding(
        "launch-bound",
        thresholds.severity(ratio),
        claim,
        "launch fewer kernels: CUDA graphs or torch.compile for the repeated part, fused ops, larger batches",
        (
            Metric("kernels", kernels_each, "count", "lower", label="kernels per step"),
            make_evidence_metric(
                "median_kernel_ns",
                median_ns,
                choose_plural(len(rows), "median kernel", "median kernel at most"),
                better="neither",
            ),
            make_evidence_metric(
                "gap_ratio", divide_or_none(totals["launch_gap_ns"], totals["device_wall_ns"]), "waiting for launches"
            ),
            make_evidence_metric("gap_ns", round(gap), f"of {format_quantity(wall, 'ns')} wall"),
        ),
        tuple(Place(run=row["run"], role=row["role"], stage=row["canonical"]) for row in rows),
        round(gap),
        ratio,
        ("profiling makes every launch longer",),
        changes=tuple(
            write_change("graph", stage=row["canonical"], by=None if row["canonical"] else ANY_ROW) for row in rows
        ),
    )


def _find_small_ops(measured: Measurements, table: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R44: steps of runs without a GPU in which short ops cost much, in rows of calls or in very large numbers."""
    limit, counts = thresholds.of("small-ops"), measured.frame("host_counts")
    runs = measured.frame("op_runs")
    runs = runs.with_columns(canonical=name_stages(runs)) if len(runs) else runs
    for row in table.filter(table.is_missing("canonical")).rows():
        run, role = row["run"], row["role"]
        owned = counts.filter(counts.equals("run", run) & counts.equals("role", role))
        if not owned.is_missing("device_count").all():
            continue
        steps = count_steps_of_processes(measured, owned)
        of_owner = runs.filter(runs.equals("run", run) & runs.equals("role", role)) if len(runs) else runs
        loops = _sum_op_runs(of_owner) if len(of_owner) else of_owner
        _, saved_ratio = steps.per_step(float(loops["lost_ns"].sum()) if len(loops) else 0.0)
        if (saved_ratio or 0.0) >= limit["run_ratio"]:
            finding = _report_op_runs(row, loops, thresholds, steps, phrase_run(measured, run))
            yield replace(finding, instances=pick_longest_instances(of_owner))
        elif _has_many_short_calls(row, limit):
            in_role = table.equals("run", run) & table.equals("role", role) & ~table.is_missing("canonical")
            finding = _report_many_ops(row, table.filter(in_role), thresholds, steps, phrase_run(measured, run))
            yield replace(finding, instances=_pick_host_windows(measured, owned, [None], "leaf_ns"))


def _sum_op_runs(runs: Frame) -> Frame:
    """Sum rows of calls by stage and op, those that cost most first: `lost_ns` is their time without the first calls."""
    columns = ("run_count", "call_count", "op_ns", "span_ns")
    sums = runs.group_by("canonical", "name").agg(**{name: sum_of(name) for name in columns})
    lost_ns = sums["span_ns"] - sums["span_ns"] * sums["run_count"] // np.maximum(sums["call_count"], 1)
    return sums.with_columns(lost_ns=lost_ns).sort("lost_ns", "name", descending=["lost_ns"])


def _has_many_short_calls(row: Row, limit: Mapping[str, float]) -> bool:
    """Check whether a step without a GPU runs very many ops, most of them in short calls.

    Uses the median call rather than the mean, which a few large matmuls and waits for a core dominate.
    """
    each = row["leaf_count"] / row["process_steps"]
    short = row["call_p50_ns"] is not None and row["call_p50_ns"] < limit["median_call_ns"]
    return bool(each > limit["ops_per_step"] and short)


SMALL_OPS_ADVICE = (
    "make fewer calls: vectorize loops over scalars and small tensors, torch.compile, fused or foreach ops"
)

MOST_LOOPS = 8
"""Most loops in the changes of a finding."""


def _report_op_runs(row: Row, loops: Frame, thresholds: Thresholds, steps: ExistingSteps, run: str) -> Finding:
    """Report R44 for calls of one op that follow one another."""
    lost, ratio = steps.per_step(float(loops["lost_ns"].sum()))
    largest = next(loops.rows())
    calls, mean_ns = steps.mean(largest["call_count"]), largest["op_ns"] / largest["call_count"]
    where = f", in {largest['canonical']}" if largest["canonical"] else ""
    more = f"; {len(loops) - 1} more such loops" if len(loops) > 1 else ""
    shown = loops.head(MOST_LOOPS)
    return Finding(
        "small-ops",
        thresholds.severity(ratio),
        f"a step makes {round(calls):,} calls of {largest['name']} one after the other, {format_quantity(mean_ns, 'ns')} each"
        f"{where}{more}{run}",
        SMALL_OPS_ADVICE,
        (
            Metric("calls", steps.mean(int(loops["call_count"].sum())), "count", "lower", label="calls per step"),
            make_evidence_metric("mean_call_ns", round(mean_ns), "mean call", better="neither"),
            make_evidence_metric("loop_ns", round(steps.mean(int(loops["span_ns"].sum()))), "in such loops, per step"),
        ),
        tuple(
            Place(run=row["run"], role=row["role"], stage=stage) for stage in dict.fromkeys(shown.values("canonical"))
        ),
        round(lost),
        ratio,
        ("profiling makes short calls longer",),
        changes=tuple(
            write_change("fuse", "host", stage=loop["canonical"] or "", row=write_name_pattern([loop["name"]]))
            for loop in shown.rows()
        ),
    )


def _report_many_ops(row: Row, staged: Frame, thresholds: Thresholds, steps: ExistingSteps, run: str) -> Finding:
    """Report R44 for a step of very many short ops."""
    per = row["process_steps"]
    short, ratio = steps.per_step(row["short_ns"])
    largest = staged.sort("leaf_count", descending=["leaf_count"]).values("canonical")
    return Finding(
        "small-ops",
        thresholds.severity(ratio),
        f"a step runs {round(row['leaf_count'] / per):,} ops, half of its calls shorter than {format_quantity(row['call_p50_ns'], 'ns')}{run}",
        SMALL_OPS_ADVICE,
        (
            Metric("ops", row["leaf_count"] / per, "count", "lower", label="ops per step"),
            make_evidence_metric("median_call_ns", row["call_p50_ns"], "median call", better="neither"),
            make_evidence_metric("short_ns", round(short), "short calls per step"),
        ),
        (Place(run=row["run"], role=row["role"], stage=largest[0] if largest else None),),
        round(short),
        ratio,
        ("not predicted: calls of different ops follow one another", "profiling makes short calls longer"),
    )


ANALYSIS = Analysis(
    id="host",
    title="How many ops and launches does the host run?",
    reads=("host_ops", "device_ranges"),
    writes=(HOST_COUNTS, OP_RUNS, "metrics"),
    metrics=("host_ops", "host_launches"),
    rests_on=("collectives", "gpu_time", "idle_blame", "idle_frames", "sync_stalls"),
    rules=("launch-bound", "small-ops"),
    thresholds={
        "launch-bound": {
            # A stage is launch-bound if its median kernel, without graphs and Optimizer.step, is shorter than this
            # (at 10 µs, steps that waited for launches for 45 % (median 15 µs) and 32 % (median 22 µs) had no finding),
            "median_kernel_ns": 25_000,
            # and whose GPUs wait for launches for at least this share of it;
            "gap_ratio": 0.10,
            # or a step with more kernels than this,
            "ops_per_step": 5_000,
            # if the kernels are shorter than this on average.
            "mean_kernel_ns": 5_000,
        },
        "small-ops": {
            # Time that calls of one op, 100 or more in a row, take beyond the first, as a share of the step;
            "run_ratio": 0.01,
            # or more ops in a step than this,
            "ops_per_step": 5_000,
            # if the median call of an op is shorter than this.
            "median_call_ns": 5_000,
        },
    },
    measure=measure,
    judge=judge,
)
