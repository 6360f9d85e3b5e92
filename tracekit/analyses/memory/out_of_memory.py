"""Why did a GPU run out of memory? (memory snapshots; R33)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import (
    canonical_stages,
    in_run,
    run_heading,
    text_or_none,
    whole_or_none,
)
from tracekit.job.memory.device_size import UNKNOWN, with_cards
from tracekit.job.memory.pools import has_pausable
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS, of_snapshot, snapshot_levels
from tracekit.job.memory.survivors import Kept, failures_of, leaks
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.keys import looked_up, row_dicts
from tracekit.model.report import Finding, Heading, Metric, Place, Section, Sheet
from tracekit.model.tables import Column, Table
from tracekit.model.tables.columns import STAGE, STEP
from tracekit.model.tables.snapshots import DEVICE_KEYS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.memory.calls import failed, last_actions
from tracekit.process.memory.replay import replays
from tracekit.process.memory.tables import columns, whose

OOM_CLASSES = ("capacity", "fragmentation", "outside", "unknown")
"""Why memory ran out: too much in use | free pieces too small | others hold the device | not told."""

OUT_OF_MEMORY = Table(
    "out_of_memory",
    "a request that could not be met",
    {
        **DEVICE_KEYS,
        "step": STEP,
        "stage": STAGE,
        "ts_ns": Column("Int64", "When."),
        "entry": Column("int64", "Its place in the history."),
        "cause": Column("category", " | ".join(OOM_CLASSES) + ".", OOM_CLASSES),
        "asked_bytes": Column("int64", "What was requested."),
        "device_free_bytes": Column("Int64", "Free on the device, as the driver told."),
        "reserved_bytes": Column("Int64", "Reserved then."),
        "requested_bytes": Column("int64", "In use then, as requested."),
        "free_bytes": Column(
            "Int64", "Reserved in the pool and stream of the request and in no block in use."
        ),
        "largest_free_bytes": Column(
            "Int64", "The largest free piece of these; <NA>: segments grow in place."
        ),
        "given_back_bytes": Column("int64", "Cache that it gave back to the driver just before."),
        "site": Column("category", "Where in the program."),
    },
)

LAST_ACTIONS = Table(
    "last_actions",
    "one of the 20 entries before a request that could not be met, the last first",
    {
        **DEVICE_KEYS,
        "entry": Column("int64", "Place of the request in the history."),
        "before": Column("int32", "1: the entry before it."),
        "action": Column("category", "As in allocations."),
        "size_bytes": Column("Int64", "As recorded."),
        "site": Column("category", "Where in the program."),
    },
)


_WHY = {
    "capacity": "too much was in use",
    "fragmentation": "enough was free, but in pieces too small",
    "outside": "others held the device's memory",
    "unknown": "what was free where is not told",
}
_ADVICE = {
    "capacity": "lower the micro-batch or tokens per GPU, checkpoint activations or offload; see what is in use at the peak",
    "fragmentation": "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or empty the cache between stages whose sizes differ",
    "outside": "look for other processes on the GPU, and for what NCCL, the CUDA context or a rollout engine takes outside PyTorch's allocator; "
    "lower gpu_memory_utilization",
    "unknown": "see what is in use at the peak, and what was done last",
}


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Every request that could not be met, with what was in use and free then, and what was done before."""
    if not trace.has("allocations"):
        return {}
    rows, before = [], []
    for replay in trace.derived(replays):
        process = whose(replay)
        failures = failed(trace, replay)
        rows.append(pd.DataFrame(failures).assign(**process))
        before += [last_actions(trace, replay, row["entry"]).assign(**process) for row in failures]
    return {"out_of_memory": columns(rows), "last_actions": columns(before)}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Every failed request and why, finding R33; None where no snapshot was read."""
    if not measured.row_count("snapshot_levels"):
        return None
    levels = snapshot_levels(measured)
    rows = measured["out_of_memory"]
    if not len(rows):
        has_history = bool((levels["entry_count"] > 0).any())
        reason = (
            "no request failed in the recorded histories"
            if has_history
            else "no history of allocations was recorded"
        )
        return ANALYSIS.skipped(reason)
    limit, growth = thresholds.of("out-of-memory"), thresholds.of("memory-growth")
    keys = [*SNAPSHOT_KEYS]
    rows = looked_up(rows, levels[[*keys, "who"]], keys, optional=keys)
    rows = with_cards(measured, rows)
    outside = rows["card_bytes"] - rows["reserved_bytes"] - rows["device_free_bytes"]
    # A card smaller than what it holds was told wrong.
    rows["outside_bytes"] = outside.mask(outside < 0)
    rows["cause"] = [_cause(row, limit["outside_ratio"]) for row in row_dicts(rows)]
    rows["stage"] = canonical_stages(rows, any_range=True)
    last = rows.iloc[-1]
    caveats = [
        "free pieces are found by addresses: remainders of up to 1 MiB beside large blocks count as free"
    ]
    if (pausable := has_pausable(measured, rows)).any():
        caveats.append(
            "private pools that an engine may have unmapped count as reserved and in use: use by other processes is unknown"
        )
    if (rows["card_bytes"].isna() & ~pausable).any():
        caveats.append(
            f"{UNKNOWN}: without it what others hold of the device cannot be told from too much in use"
        )
    return ANALYSIS.answered(
        metrics=(
            Metric("failed_requests", len(rows), "count", "lower", label="requests that failed"),
        ),
        sheets=lambda: with_rows(_sheet(measured, rows), _last_sheet(measured, last)),
        findings=tuple(_findings(measured, rows, leaks(measured, growth))),
        caveats=tuple(caveats),
    )


def _cause(row: Mapping[Any, Any], share: float) -> str:
    """The class of one failed request, now that the size of the device may be known."""
    cause = str(row["cause"])
    if cause != "capacity" or pd.isna(row["outside_bytes"]):
        return cause
    outside, card = int(row["outside_bytes"]), int(row["card_bytes"])
    fits = int(row["requested_bytes"]) + int(row["asked_bytes"]) <= card
    return "outside" if fits and outside >= share * card else cause


def _findings(
    measured: Measurements, rows: pd.DataFrame, leaking: Sequence[Kept]
) -> Iterator[Finding]:
    """R33: one finding for each memory and cause, of the last of its failed requests; behind a leak that led to it."""
    by = [*SNAPSHOT_KEYS, "cause"]
    for _, same_failures in rows.groupby(by, dropna=False, sort=False):
        row = same_failures.iloc[-1]
        cause = str(row["cause"])
        of_memory = [leak for leak in leaking if failures_of(same_failures, leak).all()]
        why, advice = _WHY[cause], _ADVICE[cause]
        if of_memory and cause in ("capacity", "unknown"):
            held = show(sum(leak.growth for leak in of_memory), "bytes")
            why = f"{held} had been kept from step to step by {of_memory[0].site}"
            advice = f"fix the growth first (memory-growth); then {advice}"
        times = f", {len(same_failures):,} times" if len(same_failures) > 1 else ""
        stage = text_or_none(row["stage"])
        during = "" if stage is None else f" during {stage}"
        yield Finding(
            "out-of-memory",
            "medium" if of_memory and cause in ("capacity", "unknown") else "high",
            f"{row['who']} ran out of memory{during}{times}: {show(int(row['asked_bytes']), 'bytes')} were asked for, and "
            f"{why}{in_run(measured, row['run'])}",
            advice,
            tuple(
                Metric(name, whole_or_none(row[name]), "bytes", label=label)
                for name, label in (
                    ("asked_bytes", "asked for"),
                    ("requested_bytes", "in use, as requested"),
                    ("reserved_bytes", "reserved"),
                    ("device_free_bytes", "free on the device"),
                    ("free_bytes", "free in its pool and stream"),
                    ("largest_free_bytes", "largest free piece there"),
                    ("card_bytes", f"card, {row['card_origin']}"),
                    ("outside_bytes", "held by others"),
                )
                if name not in ("card_bytes", "outside_bytes") or not pd.isna(row[name])
            ),
            (
                Place(
                    run=text_or_none(row["run"]),
                    source=text_or_none(row["source"]),
                    role=text_or_none(row["role"]),
                    rank=whole_or_none(row["rank"]),
                    device=whole_or_none(row["device"]),
                    step=whole_or_none(row["step"]),
                    stage=stage,
                    name=text_or_none(row["site"]),
                ),
            ),
            caveats=()
            if cause != "unknown"
            else ("segments that grow in place, or none recorded, leave the pieces untold",),
        )


def _sheet(measured: Measurements, rows: pd.DataFrame) -> Sheet:
    headings = (
        *run_heading(measured),
        *as_headings("""
            who | process
            step | step | id
            stage | stage
        """),
        Heading(
            "cause", "why", "text", "capacity | fragmentation | outside (others hold it) | unknown."
        ),
        *as_headings("""
            asked_bytes | asked for | bytes
            requested_bytes | in use | bytes | As requested.
            reserved_bytes | reserved | bytes
            device_free_bytes | free on the device | bytes | As the driver told.
            free_bytes | free in its pool | bytes | Reserved in the pool and stream of the request and not in use.
            largest_free_bytes | largest piece of it | bytes
            given_back_bytes | given back before | bytes | Cache that the allocator returned to the driver in order to meet it.
            card_bytes | card | bytes | All memory of the device.
            card_origin | size of card | text | Where it is known from.
            outside_bytes | held by others | bytes | The card less what is reserved and free.
            site | place in the program
            source | snapshot
        """),
    )
    return sheet("out_of_memory", "Requests that failed", headings, rows)


def _last_sheet(measured: Measurements, row: pd.Series[Any]) -> Sheet:
    rows = of_snapshot(measured["last_actions"], row)
    rows = rows[rows["entry"] == row["entry"]].sort_values("before", kind="stable")
    headings = as_headings("""
        before | entries before | id
        action | what
        size_bytes | size | bytes
        site | place in the program
    """)
    return sheet("last_actions", f"What happened last, {row['who']}", headings, rows)


ANALYSIS = Analysis(
    id="out-of-memory",
    title="Why did memory run out?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations"),
    writes=(OUT_OF_MEMORY, LAST_ACTIONS),
    rests_on=("device_sizes", "memory_pools", "snapshot_levels", "survivors"),
    rules=("out-of-memory",),
    thresholds={
        "out-of-memory": {
            # What others hold of the device, as a share of it, from which on they are named as the cause.
            "outside_ratio": 0.10,
        },
    },
    measure=measure,
    judge=judge,
)
