"""What interrupts steady steps? Compiling, loading modules, capturing graphs, and asking the driver for memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import (
    Job,
    canonical_stages,
    count_distinct,
    in_run,
    job,
    ordered,
    run_heading,
    same_text,
    share_of,
    summed,
    text_or_none,
    units,
)
from tracekit.job.tables import as_headings, sheet
from tracekit.model.keys import PROCESS, sums_of
from tracekit.model.report import Finding, Heading, Metric, Place, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Coded, repeated_text, stacked, trimmed_all
from tracekit.model.tables.columns import PLACE, STAGE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.host_side import HostSide, HostWindows, host_side, host_windows, uncounted

KINDS = ("compilation", "allocator", "graph")
"""What an interruption does: it compiles or loads code, asks the driver for memory, captures a graph."""

INTERRUPTIONS = Table(
    "interruptions",
    "the calls of one name that compile code, load modules, make graphs or ask the driver for memory, in one place",
    {
        **KEYS,
        "kind": Column("category", "compilation | allocator | graph.", KINDS),
        **PLACE,
        "stage": STAGE,
        "name": Column("category", "Name as recorded; `(others)` beyond a cap."),
        "count": Column("int64", "Calls, those within another of their kind not counted."),
        "dur_ns": Column(
            "int64", "Their time, overlaps counted once: adds up over names and places."
        ),
    },
)


Ints = npt.NDArray[np.int64]

MAX_NAMES = 50
"""Most names of a kind kept apart in one source, those with most time; the rest is `(others)`."""

BY_DESIGN = ("gen", "update_weights")
"""Stages around which frameworks empty the allocator's cache on purpose."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Calls of every kind by step, stage and name."""
    if not trace.has("host_ops"):
        return {}
    side: HostSide = trace.derived(host_side)
    parts = [
        _counted(trace, kind, np.flatnonzero(mask))
        for kind, mask in zip(
            KINDS, (side.compiling, side.allocator, side.graph_capture), strict=True
        )
        if mask.any()
    ]
    return {"interruptions": trimmed_all(stacked(parts))}


def _counted(trace: Trace, kind: str, rows: Ints) -> dict[str, Array]:
    """Calls of one kind, counted by the step and the stage they begin in, and by name."""
    where: HostWindows = trace.derived(host_windows)
    start = trace.numbers("host_ops", "ts_ns")[rows]
    dur = trace.numbers("host_ops", "dur_ns")[rows]
    names = trace.texts("host_ops", "name")
    stage = Coded(np.append(where.stage.codes, -1)[where.stage_at(start)], where.stage.texts)
    keys: dict[str, Array] = {
        "kind": repeated_text(kind, len(rows)),
        **where.steps_of(where.step_at(start)),
        "stage": stage,
        "name": _largest(names.texts, names.codes[rows].astype(np.int64), dur),
    }
    values = {"count": np.ones(len(rows), np.int64), "dur_ns": uncounted(start, start + dur)}
    return sums_of(keys, values)


def _largest(names: Sequence[str], code: Ints, dur: Ints) -> npt.NDArray[Any]:
    """The name of each row; names beyond `MAX_NAMES` by time as `(others)`."""
    total = np.zeros(len(names), np.float64)
    np.add.at(total, code, dur.astype(np.float64))
    largest = np.argsort(-total, kind="stable")[:MAX_NAMES]
    names_shown = np.full(len(names), "(others)", object)
    names_shown[largest] = [names[place] for place in largest.tolist()]
    return names_shown[code]


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Interruptions by name, in the first steps and after; findings R21, R28 and R34."""
    if not measured.has("interruptions"):
        return ANALYSIS.skipped("no host activity was recorded")
    rows = units(measured["interruptions"])
    rows["canonical"] = canonical_stages(rows)
    findings: list[Finding] = []
    verdicts: list[Verdict] = []
    for rule, kind, judged in (
        ("allocator-calls", "allocator", _allocator),
        ("recompilation", "compilation", _recompilation),
        ("graph-capture", "graph", _graph_capture),
    ):
        first = int(thresholds.of(rule)["first_steps"])
        for run in units(measured["steps"])["run"].drop_duplicates():
            steady = _steady(measured, run, first)
            if not steady.count:
                reason = f"no step after the first {first} was recorded{in_run(measured, run)}"
                verdicts.append(Verdict(rule, "insufficient data", reason))
                continue
            of_kind = rows[same_text(rows["run"], run) & (rows["kind"] == kind)]
            findings += judged(measured, of_kind[_is_late(of_kind, first)], steady, thresholds)
    table = _sheet(measured, rows, int(thresholds.of("recompilation")["first_steps"]))
    return ANALYSIS.answered(
        metrics=(_total(int(rows["count"].sum())),),
        sheets=(table,) if table.rows else (),
        findings=tuple(findings),
        verdicts=tuple(verdicts),
    )


def _total(count: int) -> Metric:
    return Metric(
        "interruptions",
        count,
        "count",
        "lower",
        label="compilations, graph captures, allocator calls",
    )


def _is_late(rows: pd.DataFrame, first: int) -> pd.Series[Any]:
    """Which rows are of steps after the first ones of the run; steps without a number by their order."""
    by_number = (rows["step"] > first).fillna(value=False).astype(bool)
    return by_number | (rows["step"].isna() & (rows["occurrence"] >= first))


def _steady(measured: Measurements, run: object, first: int) -> Job:
    """The steps of one run after its first ones: `count` is over all processes."""
    steps = units(measured["steps"])
    of_run = steps[same_text(steps["run"], run)]
    late = of_run[_is_late(of_run, first)]
    walls = job(measured).of(run).walls
    number = walls["step"]
    steady_walls = walls[(number > first).fillna(value=False).astype(bool) | number.isna()]
    mean = float(steady_walls["wall_ns"].mean()) if len(steady_walls) else None
    count = count_distinct(late, [*PROCESS, "step", "part", "occurrence"])
    return Job(steady_walls, mean, count)


def _allocator(
    measured: Measurements, late: pd.DataFrame, steady: Job, thresholds: Thresholds
) -> Iterator[Finding]:
    """R21: steady steps that ask the driver for memory again and again."""
    limit = thresholds.of("allocator-calls")
    calls, dur = late["count"].sum() / steady.count, late["dur_ns"].sum() / steady.count
    ratio = share_of(dur, steady.step_ns)
    is_often = calls >= limit["calls_per_step"]
    least_ratio = limit["time_ratio"] if is_often else limit["few_calls_time_ratio"]
    if not calls or (ratio or 0.0) < least_ratio:
        return
    run = late["run"].iloc[0]
    staged = late["canonical"].notna()
    designed = late["canonical"].isin(BY_DESIGN) | (~staged & bool(staged.any()))
    on_purpose = late["dur_ns"][designed].sum() * 2 > late["dur_ns"].sum()
    severity = thresholds.severity(ratio)
    caveats = ["memory that is really needed anew, such as for longer sequences, must be asked for"]
    if on_purpose:
        severity = "info" if severity == "info" else "low"
        caveats.insert(
            0, "most of it is around the rollout, where frameworks empty the cache on purpose"
        )
    yield Finding(
        "allocator-calls",
        severity,
        f"steady steps ask the driver for memory {calls:,.1f} times each" + in_run(measured, run),
        "keep torch.cuda.empty_cache() out of the loop; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        (
            Metric("calls", float(calls), "count", "lower", label="calls per step and process"),
            evidence("dur_ns", round(dur), "time per step"),
        ),
        _places(late),
        round(dur),
        ratio,
        tuple(caveats),
    )


def _recompilation(
    measured: Measurements, late: pd.DataFrame, steady: Job, thresholds: Thresholds
) -> Iterator[Finding]:
    """R28: steady steps in which code is compiled or modules are loaded."""
    limit = thresholds.of("recompilation")
    calls, dur = late["count"].sum() / steady.count, late["dur_ns"].sum() / steady.count
    ratio = share_of(dur, steady.step_ns)
    if not calls or (ratio or 0.0) < limit["time_ratio"]:
        return
    yield Finding(
        "recompilation",
        thresholds.severity(ratio),
        f"code is still compiled or loaded in {_steps_with(late, steady)}"
        + in_run(measured, late["run"].iloc[0]),
        "find what changes from step to step (TORCH_LOGS=recompiles); pad or bucket shapes, mark_dynamic, warm up every shape",
        (
            Metric(
                "compilations", float(calls), "count", "lower", label="times per step and process"
            ),
            evidence("dur_ns", round(dur), "time per step"),
        ),
        _places(late),
        round(dur),
        ratio,
        ("a step number says which steps are the first: a resumed run compiles anew",),
    )


def _graph_capture(
    measured: Measurements, late: pd.DataFrame, steady: Job, thresholds: Thresholds
) -> Iterator[Finding]:
    """R34: steady steps in which graphs are captured and made ready."""
    limit = thresholds.of("graph-capture")
    calls, dur = late["count"].sum() / steady.count, late["dur_ns"].sum() / steady.count
    ratio = share_of(dur, steady.step_ns)
    if not calls or (ratio or 0.0) < limit["time_ratio"]:
        return
    yield Finding(
        "graph-capture",
        thresholds.severity(ratio),
        f"graphs are still captured in {_steps_with(late, steady)}"
        + in_run(measured, late["run"].iloc[0]),
        "capture every batch size once, before the loop (capture sizes of the engine), and keep the graphs between steps",
        (
            Metric("captures", float(calls), "count", "lower", label="calls per step and process"),
            evidence("dur_ns", round(dur), "time per step"),
        ),
        _places(late),
        round(dur),
        ratio,
        ("an engine that gives its memory back between steps may have to capture anew",),
    )


def _steps_with(late: pd.DataFrame, steady: Job) -> str:
    """In how many steady steps that was, in words."""
    steps = late["step"].nunique() + int(late["step"].isna().any())
    return f"{steps:,} of {len(steady.walls):,} steady steps"


def _places(late: pd.DataFrame) -> tuple[Place, ...]:
    """Where most of the time is: up to three names and stages."""
    by = ["role", "canonical", "name"]
    longest = ordered(summed(late, by, ["dur_ns"]), dur_ns=False, name=True).head(3)
    return tuple(
        Place(role=text_or_none(role), stage=text_or_none(stage), name=text_or_none(name))
        for role, stage, name in longest[by].itertuples(index=False)
    )


def _sheet(measured: Measurements, rows: pd.DataFrame, first: int) -> Any:
    """Interruptions by name: how often and how long, in the first steps and after them."""
    late = _is_late(rows, first).to_numpy()
    marked = rows.assign(
        late_count=np.where(late, rows["count"], 0),
        late_ns=np.where(late, rows["dur_ns"], 0),
        early_count=np.where(late, 0, rows["count"]),
        early_ns=np.where(late, 0, rows["dur_ns"]),
    )
    sums = ["early_count", "early_ns", "late_count", "late_ns", "dur_ns"]
    by = ["run", "kind", "canonical", "name"]
    pooled = summed(marked, by, sums)
    pooled = ordered(pooled, late_ns=False, dur_ns=False, name=True)
    headings = (
        *run_heading(measured),
        *as_headings("""
            kind | kind
            name | call
            canonical | stage
        """),
        Heading(
            "late_count",
            "steady calls",
            "count",
            f"After the first {first} steps, over all processes.",
        ),
        Heading("late_ns", "steady time", "ns", "Overlaps counted once in each process."),
        Heading(
            "early_count",
            "first calls",
            "count",
            f"In the first {first} steps, or outside all steps.",
        ),
        Heading("early_ns", "first time", "ns"),
    )
    return sheet(
        "interruptions", "Compilation, graph captures and allocator calls", headings, pooled
    )


ANALYSIS = Analysis(
    id="interruptions",
    title="What interrupts steady steps?",
    reads=("host_ops",),
    writes=(INTERRUPTIONS,),
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
            # Captures and instantiations of graphs in steady steps, as a share of the step.
            "time_ratio": 0.01,
        },
    },
    every_step=True,
    measure=measure,
    judge=judge,
)
