"""Host ops and launches by stage: many short ones make a stage launch-bound (definitions M11, M16; R03)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import (
    each_run,
    in_run,
    label_headings,
    number_or_none,
    ordered,
    same_text,
    share_of,
    text_or_none,
    units,
)
from tracekit.job.idle_time.call_tree import of_launches
from tracekit.job.idle_time.causes import idle_time
from tracekit.job.idle_time.host_collectives import waiting_for
from tracekit.job.idle_time.launching import (
    COUNTED,
    less_synced,
    of_many_kernels,
    waiting_for_launches,
)
from tracekit.job.stages.windows import ExistingSteps, gpu_steps_of, steps_of
from tracekit.job.stages.work import named_together
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.intervals import intersect
from tracekit.model.keys import row_dicts, sorted_in_groups, summed
from tracekit.model.labels import plural
from tracekit.model.report import Finding, Metric, Place, Section, Verdict
from tracekit.model.stages import canonical
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Coded, Nullable, joined, trimmed
from tracekit.model.tables.columns import PLACE, STAGE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.calls.launches import Launches, launches
from tracekit.process.host.phases import (
    SHORT_NS,
    HostSide,
    HostWindows,
    device_places,
    host_side,
    host_windows,
    single_kernels,
    step_thread,
)
from tracekit.process.idle_time.launch_gaps import launch_gaps
from tracekit.process.idle_time.stalls import StallTime

HOST_COUNTS = Table(
    "host_counts",
    "what the host did in one step, or in all outermost stages of one name in a step",
    {
        **KEYS,
        "window": Column("category", "step | stage.", ("step", "stage")),
        **PLACE,
        "stage": STAGE,
        "wall_ns": Column("int64", "Σ wall time of the windows."),
        "leaf_count": Column("int64", "Ops without an op inside them, on any thread."),
        "leaf_ns": Column("int64", "Σ their duration."),
        "call_count": Column("int64", "Ops that no op encloses: what the program called."),
        "call_p50_ns": Column("Float64", "Their median duration."),
        "short_ns": Column(
            "int64",
            "Σ duration of calls of less than 10 µs outside Optimizer.step, on the step thread.",
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
        "synced_gap_ns": Column(
            "Int64", "Of it, what idle_ns and later_ns of sync_stalls count as well."
        ),
    },
)


Ints = npt.NDArray[np.int64]
Row = Mapping[Any, Any]

NAMED = ("python", "op", "range")
"""Kinds of places that identify the code that launches."""

TOLD = (*COUNTED, "call_p50_ns")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Count ops, launches and kernels of every step and outermost stage; adds ops and launches as metrics."""
    if not trace.has("host_ops"):
        return {}
    side, where = trace.derived(host_side), trace.derived(host_windows)
    if not len(where):
        return {}
    start = trace.numbers("host_ops", "ts_ns")
    dur = trace.numbers("host_ops", "dur_ns")
    table = dict(where.columns)
    short = side.call & (dur < SHORT_NS) & (side.within_optimizer < 0)
    if (thread := trace.derived(step_thread)) is not None:
        short &= trace.numbers("host_ops", "thread") == thread
    for name, mask in (
        ("leaf", side.leaf),
        ("call", side.call),
        ("short", short),
        ("launch", side.launch),
    ):
        rows = np.flatnonzero(mask)
        tally = _tally(where, start[rows], dur[rows])
        all_columns = {f"{name}_count": tally.counts, f"{name}_ns": tally.total_ns}
        table |= {column: values for column, values in all_columns.items() if column in TOLD}
        if f"{name}_p50_ns" in TOLD:
            table[f"{name}_p50_ns"] = tally.median_ns()
        del tally
    table |= _on_device(trace, where)
    return {"host_counts": table, "metrics": _metrics(table)}


def _on_device(trace: Trace, where: HostWindows) -> dict[str, Any]:
    """Count the kernels launched in every window, with their times and launch gaps; empty without a device."""
    if not trace.has("device_ops"):
        return {}
    side: HostSide = trace.derived(host_side)
    links: Launches = trace.derived(launches)
    dur, is_ordinary = trace.numbers("device_ops", "dur_ns"), single_kernels(trace)
    kernels = _tally(where, links.ts_ns[is_ordinary], dur[is_ordinary])
    called = links.call >= 0
    graph = np.zeros(len(called), np.bool_)
    graph[called] = side.graph_launch[links.call[called]]
    updates = np.zeros(len(called), np.bool_)
    updates[called] = side.within_optimizer[links.call[called]] >= 0
    other_kernels = is_ordinary & ~updates
    gaps, synced = _gaps(trace, where)
    devices = int(trace.derived(device_places).max(initial=-1)) + 1
    return {
        "device_count": np.full(len(where), devices, np.int64),
        "kernel_count": kernels.counts,
        "kernel_ns": kernels.total_ns,
        "kernel_p50_ns": _tally(where, links.ts_ns[other_kernels], dur[other_kernels]).median_ns(),
        "graph_kernel_count": _tally(where, links.ts_ns[graph], dur[graph]).counts,
        "launch_gap_ns": gaps,
        "synced_gap_ns": synced,
    }


def _gaps(trace: Trace, where: HostWindows) -> tuple[Ints, Ints]:
    """Sum the time in which devices wait for launches in every window: (all of it, the part that syncs cause)."""
    gaps, synced = np.zeros((2, len(where)), np.int64)
    by_device = launch_gaps(trace)
    for of_device in by_device:
        gaps += where.covered(of_device)
    number = trace.derived(device_places)
    idle = trace.derived(idle_time())
    for device, calls in zip(idle, trace.derived(StallTime(idle_time())), strict=True):
        of_device = by_device[int(number[device.rows[0]])]
        synced += where.covered(intersect(of_device, calls.lost))
    del idle
    # Free the gaps, up to one per op: no later analysis reads them.
    trace.forget(idle_time())
    return gaps, synced


class _Tally(NamedTuple):
    """Events that begin in each window: count and total duration; `slot` and `dur_ns` are per event."""

    counts: Ints
    total_ns: Ints
    slot: Ints
    dur_ns: Ints

    def median_ns(self) -> Nullable:
        """Compute the median duration in every window; NA in windows without an event."""
        values = sorted_in_groups(self.slot, self.dur_ns)
        first = np.cumsum(self.counts) - self.counts
        is_counted = self.counts > 0
        median = np.zeros(len(self.counts))
        low = first[is_counted] + (self.counts[is_counted] - 1) // 2
        high = first[is_counted] + self.counts[is_counted] // 2
        median[is_counted] = (values[low].astype(np.float64) + values[high]) / 2
        return Nullable(median, ~is_counted)


def _tally(where: HostWindows, ts_ns: Ints, dur_ns: Ints) -> _Tally:
    """Tally the events that begin in each window."""
    positions, slot = where.both(ts_ns)
    count, dur_ns = np.bincount(slot, minlength=len(where)), dur_ns[positions]
    return _Tally(count, summed(slot, dur_ns, len(where)), slot, dur_ns)


def _metrics(table: Mapping[str, Any]) -> dict[str, Any]:
    """Make the `metrics` rows of leaf ops and launches by step and stage; other load on the machine does not change counts."""
    named = {"host_ops": table["leaf_count"]}
    if "device_count" in table or table["launch_count"].any():
        named["host_launches"] = table["launch_count"]
    size, times = len(table["wall_ns"]), len(named)
    return {
        "step": joined([table["step"]] * times),
        "stage": joined([table["stage"]] * times),
        "name": trimmed(Coded(np.repeat(np.arange(times), size), tuple(named))),
        "value": np.concatenate(list(named.values())).astype(np.float64),
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report ops and launches of the host by step and stage, over all ranks and steps; judge R03."""
    rows = units(measured["host_counts"])
    if not len(rows) or not rows["leaf_count"].sum() + rows["launch_count"].sum():
        return ANALYSIS.skipped("no host op and no launch was recorded")
    table = less_synced(measured, thresholds)
    findings = tuple(_launch_bound(measured, table, thresholds))
    steps = table[table["canonical"].isna()]
    ops_per_step = float(steps["leaf_count"].sum() / max(steps["process_steps"].sum(), 1))
    return ANALYSIS.answered(
        metrics=(
            Metric("host_ops", round(ops_per_step), "count", "lower", label="host ops per step"),
        ),
        sheets=lambda: with_rows(_sheet(measured, table)),
        findings=findings,
        verdicts=tuple(_abstains(measured, table)),
    )


def _sheet(measured: Measurements, table: pd.DataFrame) -> Any:
    """Make the table of stages by number of ops, the whole step first; counts per step and process."""
    stages = table.copy()
    per = stages["process_steps"].astype("Float64")
    for name in (
        "leaf_count",
        "call_count",
        "short_ns",
        "launch_count",
        "kernel_count",
        "graph_kernel_count",
    ):
        stages[f"{name}_each"] = (_number(stages[name]) / per).round(1)
    # Without a device nothing is launched: show no value, since zeros would look like a result.
    launched = stages["launch_count"].astype("int64").gt(0) | stages["device_wall_ns"].notna()
    stages["launch_count_each"] = stages["launch_count_each"].where(launched)
    leaves, kernels = _number(stages["leaf_count"]), _number(stages["kernel_count"])
    walls = _number(stages["device_wall_ns"])
    stages["leaf_mean_ns"] = _number(stages["leaf_ns"]) / leaves.where(leaves > 0)
    stages["kernel_mean_ns"] = _number(stages["kernel_ns"]) / kernels.where(kernels > 0)
    stages["gap_ratio"] = _number(stages["launch_gap_ns"]) / walls.where(walls > 0)
    stages["whole"] = stages["canonical"].isna()
    stages["canonical"] = stages["canonical"].where(~stages["whole"], "(the whole step)")
    stages = ordered(stages, whole=False, leaf_count=False)
    headings = (
        *label_headings(measured),
        *as_headings("""
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
    caption = "Counted where they begin: a stage has what any thread starts during it."
    return sheet(
        "host_counts",
        "What the host runs and launches, by stage",
        headings,
        stages,
        caption=caption,
    )


def _number(column: pd.Series) -> pd.Series[Any]:
    """Convert the column to floats with NA."""
    return column.astype("Float64")


def _abstains(measured: Measurements, table: pd.DataFrame) -> Iterator[Verdict]:
    """List runs without any host op or kernel that R03 could count."""
    for run, of_run in each_run(table):
        if not of_run["leaf_count"].sum() and not of_run["kernel_count"].dropna().sum():
            reason = "neither host ops nor kernels launched one by one were recorded"
            yield Verdict("launch-bound", "not applicable", reason + in_run(measured, run))


def _launch_bound(
    measured: Measurements, table: pd.DataFrame, thresholds: Thresholds
) -> Iterator[Finding]:
    """Find R03: stages whose GPUs wait for launches of short kernels, else steps of very many short ones."""
    limit = thresholds.of("launch-bound")
    counts = measured["host_counts"]
    for run, of_run in each_run(table):
        name = in_run(measured, run)
        bound_rows = waiting_for_launches(of_run, limit)
        for of_cause in _by_cause(measured, bound_rows or of_many_kernels(of_run, limit)):
            role = of_cause[0][0]["role"]
            owned = counts[same_text(counts["run"], run) & same_text(counts["role"], role)]
            on_gpus = gpu_steps_of(measured, owned[owned["device_count"].notna()])
            yield _gap_finding(of_cause, thresholds, on_gpus, name)
        if bound_rows:
            continue
        staged = of_run[of_run["canonical"].notna()]
        for row in row_dicts(of_run[of_run["canonical"].isna()]):
            same = counts[same_text(counts["run"], run) & same_text(counts["role"], row["role"])]
            if not same["device_count"].notna().any() and _many_ops(row, limit):
                yield _ops_finding(row, staged, thresholds, steps_of(measured, same), name)


def _many_ops(row: Mapping[Any, Any], limit: Mapping[str, float]) -> bool:
    """Check whether a step without a GPU runs very many ops, most of them in short calls.

    Uses the median call rather than the mean, which a few large matmuls and waits for a core dominate.
    """
    each = row["leaf_count"] / row["process_steps"]
    short = not pd.isna(row["call_p50_ns"]) and row["call_p50_ns"] < limit["median_call_ns"]
    return bool(each > limit["ops_per_step"] and short)


def _by_cause(measured: Measurements, rows: Sequence[Row]) -> list[list[tuple[Row, str]]]:
    """Group stages of one role by the place that launches: one finding per cause.

    Each stage comes with the words on its place. Stages without a known place are merged. The stage that waits most comes
    first in its group.
    """
    causes: dict[tuple[object, ...], list[tuple[Row, str]]] = {}
    for row in sorted(rows, key=lambda row: -row["launch_gap_ns"]):
        path, where = _place_of(measured, row)
        causes.setdefault((text_or_none(row["role"]), path, where), []).append((row, where))
    return list(causes.values())


def _place_of(measured: Measurements, row: Row) -> tuple[tuple[str, ...], str]:
    """Locate the launches of one stage: (path from the outermost place inwards without the stage, words for the claim)."""
    culprit, role = of_launches(measured, row), text_or_none(row["role"])
    if culprit is None or culprit.holder not in NAMED:
        return (), ""
    path, place = [], culprit.place
    for name in culprit.names:
        if canonical(name, role) == row["canonical"]:
            place = place.removesuffix(f" in {name}")
        else:
            path.append(name)
    owner = (text_or_none(row["run"]), role)
    waiting = waiting_for(measured, culprit, owner, text_or_none(row["canonical"]))
    return tuple(path), f", most in {place}{waiting}"


def _gap_finding(
    of_cause: Sequence[tuple[Row, str]], thresholds: Thresholds, steps: ExistingSteps, run: str
) -> Finding:
    """Report R03 for the stages of one cause, or for a step, in a run with a device."""
    rows = list(map(itemgetter(0), of_cause))
    totals = dict.fromkeys(("kernel_count", "kernel_ns", "launch_gap_ns", "device_wall_ns"), 0)
    names: list[str] = []
    kernels_each, median_ns = 0.0, None
    for row in rows:
        names.append(row["canonical"] or "the step")
        kernels_each += row["kernel_count"] / row["process_steps"]
        # The evidence must be true of every stage, so take the longest of their medians.
        median_ns = max(filter(None, (median_ns, _float(row["kernel_p50_ns"]))), default=None)
        for name in totals:
            totals[name] += row[name]
    stages = named_together(names)
    # Divide by all steps of the run, since a stage may be in only some of them.
    gap, ratio = steps.per_step(totals["launch_gap_ns"])
    wall = steps.mean(totals["device_wall_ns"])
    mean = totals["kernel_ns"] / totals["kernel_count"]
    claim = (
        f"{stages} {plural(len(rows), 'launches', 'launch')} {round(kernels_each):,} kernels of {show(mean, 'ns')}"
        f" on average one by one{of_cause[0][1]}{run}"
    )
    return Finding(
        "launch-bound",
        thresholds.severity(ratio),
        claim,
        "launch less: CUDA graphs or torch.compile for the repeated part, fused ops, larger batches",
        (
            Metric("kernels", kernels_each, "count", "lower", label="kernels per step"),
            evidence(
                "median_kernel_ns",
                median_ns,
                plural(len(rows), "median kernel", "median kernel at most"),
                better="neither",
            ),
            evidence(
                "gap_ratio",
                share_of(totals["launch_gap_ns"], totals["device_wall_ns"]),
                "waiting for launches",
            ),
            evidence("gap_ns", round(gap), f"of {show(wall, 'ns')} wall"),
        ),
        tuple(Place(role=text_or_none(row["role"]), stage=row["canonical"]) for row in rows),
        round(gap),
        ratio,
        ("upper bound: a profiler makes every launch longer than it is without one",),
    )


def _ops_finding(
    row: Mapping[Any, Any],
    staged: pd.DataFrame,
    thresholds: Thresholds,
    steps: ExistingSteps,
    run: str,
) -> Finding:
    """Report R03 for a step of a run without a device."""
    per = row["process_steps"]
    short, ratio = steps.per_step(row["short_ns"])
    largest = staged.sort_values("leaf_count", ascending=False, kind="stable").head(1)
    stage = None if not len(largest) else largest["canonical"].iloc[0]
    return Finding(
        "launch-bound",
        thresholds.severity(ratio),
        f"a step runs {round(row['leaf_count'] / per):,} ops, half of its calls shorter than {show(row['call_p50_ns'], 'ns')}{run}",
        "do more in one call: vectorise loops over scalars and small tensors, torch.compile, fused or foreach ops",
        (
            Metric("ops", row["leaf_count"] / per, "count", "lower", label="ops per step"),
            evidence("median_call_ns", _float(row["call_p50_ns"]), "median call", better="neither"),
            evidence("short_ns", round(short), "short calls per step"),
        ),
        (Place(role=text_or_none(row["role"]), stage=stage),),
        round(short),
        ratio,
        (
            "no GPU activity was recorded: ops are counted instead of kernels",
            "upper bound: the time of all calls of less than 10 µs, which a profiler makes longer",
        ),
    )


def _float(value: Any) -> float | None:
    """Convert a value to float; None if missing."""
    return number_or_none(value)


ANALYSIS = Analysis(
    id="host",
    title="In how many pieces does the host do its work?",
    bases={"launch-bound": "bound"},
    reads=("host_ops", "device_ranges"),
    writes=(HOST_COUNTS, "metrics"),
    metrics=("host_ops", "host_launches"),
    rests_on=("collectives", "gpu_time", "idle_blame", "idle_frames", "sync_stalls"),
    rules=("launch-bound",),
    thresholds={
        "launch-bound": {
            # A stage is launch-bound if its median kernel, without graphs and Optimizer.step, is shorter than this
            # (at 10 µs, steps that waited for launches for 45 % (median 15 µs) and 32 % (median 22 µs) had no finding),
            "median_kernel_ns": 25_000,
            # and whose GPUs wait for launches for at least this share of it;
            "gap_ratio": 0.10,
            # or a step with more kernels than this (without a GPU: more ops),
            "ops_per_step": 5_000,
            # if the kernels are shorter than this on average,
            "mean_kernel_ns": 5_000,
            # without a GPU: if the median call of an op is shorter than this.
            "median_call_ns": 5_000,
        },
    },
    measure=measure,
    judge=judge,
)
