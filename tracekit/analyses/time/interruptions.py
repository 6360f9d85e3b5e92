"""Interruptions of steady steps: compilation, module loading, CUDA graph capture, allocator calls (R21, R28, R34)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import (
    in_run,
    ordered,
    run_heading,
    summed,
    text_or_none,
    units,
)
from tracekit.job.idle_time.causes import waited_for
from tracekit.job.idle_time.interruptions import (
    Interruption,
    interruption,
    is_late,
    is_worth_a_finding,
    placed_interruptions,
)
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.intervals import covered, union_all
from tracekit.model.keys import sums_of
from tracekit.model.report import Finding, Heading, Metric, Place, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    repeated_number,
    repeated_text,
    stacked,
    trimmed_all,
)
from tracekit.model.tables.columns import PLACE, STAGE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.host.phases import (
    HostSide,
    HostWindows,
    device_busy,
    host_side,
    host_windows,
    uncounted,
)

KINDS = ("compilation", "allocator", "graph")
"""Kinds of interruption: compiling or loading code, asking the driver for memory, capturing a graph."""

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
        "idle_ns": Column(
            "Int64", "Of it, time in which no device ran anything; <NA> where none was recorded."
        ),
    },
)


Ints = npt.NDArray[np.int64]

MAX_NAMES = 50
"""Maximum number of names per kind and source; shorter ones are summed as `(others)`."""

BY_DESIGN = ("gen", "update_weights")
"""Stages around which frameworks empty the allocator's cache on purpose."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the calls of every kind by step, stage and name."""
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
    """Sum the calls of one kind by the step and stage they begin in, and by name."""
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
    own_ns, end = uncounted(start, start + dur), start + dur
    values = {"count": np.ones(len(rows), np.int64), "dur_ns": own_ns, "idle_ns": own_ns}
    if trace.has("device_ops"):
        busy = union_all(list(trace.derived(device_busy).values()))
        values["idle_ns"] = own_ns - covered(busy, end - own_ns, end)
    sums: dict[str, Array] = {**sums_of(keys, values)}
    if not trace.has("device_ops"):
        sums["idle_ns"] = repeated_number(None, len(sums["dur_ns"]))
    return sums


def _largest(names: Sequence[str], code: Ints, dur: Ints) -> npt.NDArray[Any]:
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
    rows = placed_interruptions(recorded)
    findings: list[Finding] = []
    verdicts: list[Verdict] = []
    limits = {
        "allocator-calls": thresholds.of("allocator-calls"),
        "recompilation": thresholds.of("recompilation"),
        "graph-capture": thresholds.of("graph-capture"),
    }
    for rule, limit in limits.items():
        for run in units(measured["steps"])["run"].drop_duplicates():
            late = interruption(measured, rule, run, thresholds)
            if late is None:
                reason = f"no step after the first {limit['first_steps']:g} was recorded{in_run(measured, run)}"
                verdicts.append(Verdict(rule, "insufficient data", reason))
            elif is_worth_a_finding(late, thresholds):
                late = _with_waits(measured, late)
                findings.append(_FINDINGS[rule](measured, late, thresholds))
    first_steps = int(thresholds.of("recompilation")["first_steps"])
    return ANALYSIS.answered(
        metrics=(_total(int(rows["count"].sum())),),
        sheets=lambda: with_rows(_sheet(measured, rows, first_steps)),
        findings=tuple(findings),
        verdicts=tuple(verdicts),
    )


def _with_waits(measured: Measurements, found: Interruption) -> Interruption:
    """Add the time that other ranks wait for the ranks that are interrupted longer."""
    if not measured.has("idle"):
        return found
    paused = found.rows[found.rows["idle_ns"].notna()]
    waited = waited_for(measured, found.rows["run"].iloc[0], paused)
    return replace(found, lost_ns=found.lost_ns + waited / found.steady.count)


def _total(count: int) -> Metric:
    """Make the metric of all interruptions."""
    return Metric(
        "interruptions",
        count,
        "count",
        "lower",
        label="compilations, graph captures, allocator calls",
    )


def _allocator(measured: Measurements, found: Interruption, thresholds: Thresholds) -> Finding:
    """Report R21: steady steps that keep asking the driver for memory."""
    late, severity = found.rows, thresholds.severity(found.lost_ratio)
    staged = late["canonical"].notna()
    designed = late["canonical"].isin(BY_DESIGN) | (~staged & bool(staged.any()))
    caveats = ["memory that is really needed anew, such as for longer sequences, must be asked for"]
    if late["dur_ns"][designed].sum() * 2 > late["dur_ns"].sum():
        severity = "info" if severity == "info" else "low"
        caveats.insert(
            0, "most of it is around the rollout, where frameworks empty the cache on purpose"
        )
    return Finding(
        "allocator-calls",
        severity,
        f"steady steps ask the driver for memory {found.calls:,.1f} times each"
        + in_run(measured, late["run"].iloc[0]),
        "keep torch.cuda.empty_cache() out of the loop; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        (
            Metric("calls", found.calls, "count", "lower", label="calls per step and process"),
            evidence("dur_ns", round(found.dur_ns), "time per step"),
        ),
        _places(late),
        round(found.lost_ns),
        found.lost_ratio,
        tuple(caveats),
    )


def _recompilation(measured: Measurements, found: Interruption, thresholds: Thresholds) -> Finding:
    """Report R28: steady steps in which code is compiled or modules are loaded."""
    calls = Metric(
        "compilations", found.calls, "count", "lower", label="times per step and process"
    )
    return Finding(
        "recompilation",
        thresholds.severity(found.lost_ratio),
        f"code is still compiled or loaded in {_steps_with(found)}"
        + in_run(measured, found.rows["run"].iloc[0]),
        "find what changes from step to step (TORCH_LOGS=recompiles); pad or bucket shapes, mark_dynamic, warm up every shape",
        (calls, evidence("dur_ns", round(found.dur_ns), "time per step")),
        _places(found.rows),
        round(found.lost_ns),
        found.lost_ratio,
        ("a step number says which steps are the first: a resumed run compiles anew",),
    )


def _graph_capture(measured: Measurements, found: Interruption, thresholds: Thresholds) -> Finding:
    """Report R34: steady steps in which graphs are captured and instantiated."""
    calls = Metric("captures", found.calls, "count", "lower", label="calls per step and process")
    return Finding(
        "graph-capture",
        thresholds.severity(found.lost_ratio),
        f"graphs are still captured in {_steps_with(found)}"
        + in_run(measured, found.rows["run"].iloc[0]),
        "capture every batch size once, before the loop (capture sizes of the engine), and keep the graphs between steps",
        (calls, evidence("dur_ns", round(found.dur_ns), "time per step")),
        _places(found.rows),
        round(found.lost_ns),
        found.lost_ratio,
        ("an engine that gives its memory back between steps may have to capture anew",),
    )


_FINDINGS = {
    "allocator-calls": _allocator,
    "recompilation": _recompilation,
    "graph-capture": _graph_capture,
}


def _steps_with(found: Interruption) -> str:
    """Count the steady steps with the interruption, in words."""
    step = found.rows["step"]
    steps = step.nunique() + int(step.isna().any())
    return f"{steps:,} of {len(found.steady.walls):,} steady steps"


def _places(late: pd.DataFrame) -> tuple[Place, ...]:
    """Locate up to three names and stages with most of the time."""
    by = ["role", "canonical", "name"]
    longest = ordered(summed(late, by, ["dur_ns"]), dur_ns=False, name=True).head(3)
    return tuple(
        Place(role=text_or_none(role), stage=text_or_none(stage), name=text_or_none(name))
        for role, stage, name in longest[by].itertuples(index=False)
    )


def _sheet(measured: Measurements, rows: pd.DataFrame, first: int) -> Any:
    """Make the table of interruptions by name: calls and time in the first steps and after them."""
    late = is_late(rows, first)
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
