"""How does the caching allocator work: how much it hands out, for how long, and when it asks the driver? (R21)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import each_run, in_run, run_heading, text_or_none, whole_or_none
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS, snapshot_levels
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.keys import joined, looked_up
from tracekit.model.report import (
    Chart,
    Finding,
    Metric,
    Place,
    Ranked,
    Section,
    Sheet,
    Verdict,
)
from tracekit.model.tables import Column, Table
from tracekit.model.tables.columns import OCCURRENCE, STEP
from tracekit.model.tables.snapshots import DEVICE_KEYS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.memory.calls import lifetimes, steps_of
from tracekit.process.memory.replay import replays
from tracekit.process.memory.tables import columns, whose

LIFETIMES = Table(
    "lifetimes",
    "how much of what was allocated lived so long",
    {
        **DEVICE_KEYS,
        "low_ns": Column("Int64", "From here on; <NA>: not freed in the history."),
        "high_ns": Column("Int64", "To below this."),
        "block_count": Column("int64", "Allocations."),
        "size_bytes": Column("int64", "What they requested."),
    },
)

ALLOCATOR_STEPS = Table(
    "allocator_steps",
    "what the allocator did in one step",
    {
        **DEVICE_KEYS,
        "step": STEP,
        "occurrence": OCCURRENCE,
        "alloc_count": Column("int64", "Allocations."),
        "alloc_bytes": Column("int64", "What they requested."),
        "driver_alloc_count": Column("int64", "Times that it got memory from the driver."),
        "driver_alloc_bytes": Column("int64", "How much."),
        "driver_free_count": Column("int64", "Times that it gave memory back."),
        "driver_free_bytes": Column("int64", "How much."),
        "retry_count": Column(
            "int64",
            "Times that it gave its cache back in order to get a segment for a request.",
        ),
        "needless_count": Column(
            "Int64",
            "Segments got for a request while free pieces added up to it; <NA>: not told.",
        ),
    },
)


_COUNTS = ("driver_alloc_count", "driver_free_count", "retry_count")
_SUMS = (
    "alloc_count",
    "alloc_bytes",
    *_COUNTS,
    "driver_alloc_bytes",
    "driver_free_bytes",
    "needless_count",
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """What the allocator did in every step, and how long what it handed out lived."""
    if not trace.has("allocations"):
        return {}
    steps, lived = [], []
    for replay in trace.derived(replays):
        process = whose(replay)
        steps.append(steps_of(trace, replay).assign(**process))
        lived.append(lifetimes(replay).assign(**process))
    return {"allocator_steps": columns(steps), "lifetimes": columns(lived)}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Calls of the driver by step, churn and lifetimes, and finding R21; None where no snapshot was read."""
    if not measured.row_count("snapshot_levels"):
        return None
    levels = snapshot_levels(measured)
    rows = measured["allocator_steps"]
    if not len(rows):
        return ANALYSIS.skipped("no history of allocations was recorded")
    if not rows[["alloc_count", "driver_alloc_count", "driver_free_count"]].to_numpy().any():
        return ANALYSIS.skipped("no allocation lies in the recorded histories")
    keys = [*SNAPSHOT_KEYS]
    steps = looked_up(rows, levels[[*keys, "who"]], keys, optional=keys)
    judged = list(_calls(measured, steps[steps["memory"] == "device"], thresholds))
    return ANALYSIS.answered(
        sheets=lambda: with_rows(
            _churn_sheet(measured, steps, levels),
            _step_sheet(measured, steps),
            _lifetime_sheet(measured["lifetimes"]),
        ),
        judged=judged,
        caveats=(
            "a snapshot tells when memory was got from the driver and given back, not how long that took",
            "the history of one snapshot may hold steps that were not profiled: it goes back to the one before",
        ),
        charts=lambda: _charts(measured["lifetimes"]),
    )


def _calls(
    measured: Measurements, steps: pd.DataFrame, thresholds: Thresholds
) -> Iterator[Finding | Verdict]:
    """R21: the allocator still gets memory from the driver, or gives it back, in steady steps."""
    limit = thresholds.of("allocator-calls")
    for run, of_run in each_run(steps):
        where = in_run(measured, run)
        late = of_run[(of_run["step"] > limit["first_steps"]).fillna(value=False).to_numpy(bool)]
        if not len(late):
            reason = f"no snapshot of a step above {limit['first_steps']:g}{where}"
            yield Verdict("allocator-calls", "insufficient data", reason)
            continue
        per_step = late.groupby(["who", "step"], dropna=False, sort=False)[list(_COUNTS)].sum()
        count = len(per_step)
        calls = (
            float((per_step["driver_alloc_count"] + per_step["driver_free_count"]).sum()) / count
        )
        retried = int(per_step["retry_count"].sum())
        if calls < limit["calls_per_step"] and not retried:
            continue
        got = int(late["driver_alloc_bytes"].sum()) / count
        driver_calls = late.assign(calls=late["driver_alloc_count"] + late["driver_free_count"])
        worst = driver_calls.sort_values("calls", ascending=False, kind="stable").iloc[0]
        repeated = (
            f", {retried:,} times after giving its cache back for one request" if retried else ""
        )
        yield Finding(
            "allocator-calls",
            "low",
            f"the caching allocator goes to the driver {calls:,.1f} times per steady step and process{repeated}{where}",
            "keep torch.cuda.empty_cache() out of the loop; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where it retries",
            (
                Metric("calls", calls, "count", "lower", label="calls per step and process"),
                evidence("driver_bytes", round(got), "got per step and process"),
                Metric(
                    "retries",
                    retried,
                    "count",
                    "lower",
                    label="times that one request emptied the cache",
                ),
                Metric("steps", count, "count", label="steady steps of all processes"),
            ),
            (
                Place(
                    run=text_or_none(worst["run"]),
                    source=text_or_none(worst["source"]),
                    role=text_or_none(worst["role"]),
                    rank=whole_or_none(worst["rank"]),
                    step=int(worst["step"]),
                    device=whole_or_none(worst["device"]),
                ),
            ),
            caveats=(
                "how long the calls took is not recorded",
                "frameworks that share a GPU between training and rollout empty the cache on purpose",
            ),
        )


def _churn_sheet(measured: Measurements, steps: pd.DataFrame, levels: pd.DataFrame) -> Sheet:
    keys = [*SNAPSHOT_KEYS]
    sums = steps.groupby(keys, dropna=False, sort=False)[
        ["driver_alloc_count", "driver_free_count", "retry_count"]
    ].sum()
    churn = joined(levels[levels["alloc_count"] > 0], sums.reset_index(), keys, optional=keys)
    churn = churn.assign(
        churn=(churn["alloc_bytes"] / churn["peak_bytes"].where(churn["peak_bytes"] > 0)).astype(
            "Float64"
        )
    )
    headings = (
        *run_heading(measured),
        *as_headings("""
            who | process
            source | snapshot
            window_ns | history | ns | From its first entry to the last.
            alloc_count | allocations | count
            alloc_bytes | requested in all | bytes
            churn | of the peak | factor | Σ requested over the highest level: how often memory changes hands.
            driver_alloc_count | segments got | count | From the driver; also mapped pages.
            driver_free_count | given back | count
            retry_count | retries | count | A request gave the cache back first: one stack asked for both.
        """),
    )
    ranked = Ranked("alloc_bytes", member="who", apart=("run",))
    return sheet("churn", "Allocations of each snapshot", headings, churn, ranked=ranked)


def _step_sheet(measured: Measurements, steps: pd.DataFrame) -> Sheet:
    by = ["run", "who", "step"]
    by_step = steps[steps["step"].notna()].groupby(by, dropna=False, sort=False)[list(_SUMS)]
    headings = (
        *run_heading(measured),
        *as_headings("""
            who | process
            step | step | id
            alloc_count | allocations | count
            alloc_bytes | requested | bytes | Σ of all requests.
            driver_alloc_count | segments got | count | From the driver; also mapped pages.
            driver_alloc_bytes | bytes got | bytes
            driver_free_count | given back | count
            driver_free_bytes | bytes given back | bytes
            retry_count | retries | count
            needless_count | although free | count | Segments got while free pieces of their kind added up to the request.
        """),
    )
    rows = by_step.sum(min_count=1).reset_index().sort_values(["who", "step"], kind="stable")
    ranked = Ranked("alloc_bytes", member="who", apart=("run", "step"))
    return sheet("allocator_steps", "The allocator by step", headings, rows, ranked=ranked)


def _lived(rows: pd.DataFrame) -> pd.DataFrame:
    """Lifetimes of GPU memory summed over all snapshots, the shortest first, with `lived` in words."""
    lifetimes = rows[(rows["memory"] == "device") & (rows["block_count"] > 0)]
    by = (
        lifetimes.groupby(["low_ns", "high_ns"], dropna=False)[["block_count", "size_bytes"]]
        .sum()
        .reset_index()
    )
    by = by.sort_values("low_ns", kind="stable", na_position="last")
    bounds = zip(by["low_ns"].tolist(), by["high_ns"].tolist(), strict=True)
    return by.assign(
        lived=[_bin(low, high) for low, high in bounds],
        share_ratio=by["size_bytes"] / max(int(by["size_bytes"].sum()), 1),
    )


def _bin(low: Any, high: Any) -> str:
    """A range of lifetimes in words."""
    if pd.isna(low):
        return "not freed in the history"
    if low == 0:
        return f"below {show(int(high), 'ns')}"
    if high == np.iinfo(np.int64).max:
        return f"{show(int(low), 'ns')} and more"
    return f"{show(int(low), 'ns')} to {show(int(high), 'ns')}"


def _lifetime_sheet(rows: pd.DataFrame) -> Sheet:
    headings = as_headings("""
        lived | lived
        block_count | allocations | count
        size_bytes | requested | bytes | Σ of all snapshots.
        share_ratio | share | ratio | Of what was requested in all.
    """)
    return sheet("lifetimes", "How long allocations live", headings, _lived(rows))


def _charts(rows: pd.DataFrame) -> Iterator[Chart]:
    """What was requested by how long it lived."""
    lived = _lived(rows)
    if len(lived) > 1:
        yield Chart(
            "lifetimes",
            "Requested memory by how long it lived",
            "bars",
            tuple((number, 0, int(size)) for number, size in enumerate(lived["size_bytes"])),
            ("requested",),
            tuple(lived["lived"]),
            unit="bytes",
            caption="Σ of all snapshots.",
        )


ANALYSIS = Analysis(
    id="allocator",
    title="What does the caching allocator do?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations"),
    writes=(LIFETIMES, ALLOCATOR_STEPS),
    rests_on=("snapshot_levels",),
    rules=("allocator-calls",),
    measure=measure,
    judge=judge,
)
