"""Why did a GPU run out of memory? (memory snapshots; R33)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading, phrase_run
from tracekit.job.memory.device_size import UNKNOWN, add_card_sizes
from tracekit.job.memory.pools import has_pausable
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS, name_ranges, snapshot_levels, take_snapshot
from tracekit.job.memory.survivors import KeptStack, find_leaks, match_failures
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.report import Finding, Heading, Metric, Place, Section, Severity, Sheet
from tracekit.model.tables import Column, Table
from tracekit.model.tables.arrays import make_nullable_numbers
from tracekit.model.tables.columns import STAGE, STEP
from tracekit.model.tables.frame import Frame, texts
from tracekit.model.tables.snapshots import DEVICE_KEYS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.memory.calls import list_last_actions, list_oom_failures
from tracekit.process.memory.replay import add_memory_keys, concatenate_columns, replay_all_devices

OOM_CLASSES = ("capacity", "fragmentation", "outside", "unknown")
"""Cause of the OOM: too much in use | free pieces too small | other users of the device | unknown."""

OUT_OF_MEMORY = Table(
    "out_of_memory",
    "a request for memory that failed (OOM)",
    {
        **DEVICE_KEYS,
        "step": STEP,
        "stage": STAGE,
        "ts_ns": Column("Int64", "When."),
        "entry": Column("int64", "Its place in the history."),
        "cause": Column("category", " | ".join(OOM_CLASSES) + ".", OOM_CLASSES),
        "asked_bytes": Column("int64", "Requested bytes."),
        "device_free_bytes": Column("Int64", "Free on the device, by the driver."),
        "reserved_bytes": Column("Int64", "Reserved then."),
        "requested_bytes": Column("int64", "Requested bytes in use then."),
        "free_bytes": Column("Int64", "Reserved in the pool and stream of the request and in no block in use."),
        "largest_free_bytes": Column("Int64", "The largest free piece; <NA>: expandable segments."),
        "given_back_bytes": Column("int64", "Cache that it returned to the driver just before."),
        "site": Column("category", "Where in the program."),
    },
)

LAST_ACTIONS = Table(
    "last_actions",
    "one of the 20 entries before a request for memory that failed (OOM), the last first",
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
    "fragmentation": "enough was free, but fragmented",
    "outside": "other users occupied the device's memory",
    "unknown": "the location of free memory was not recorded",
}
_ADVICE = {
    "capacity": "lower the micro-batch or tokens per GPU, checkpoint activations or offload; check the stacks at the peak",
    "fragmentation": "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or empty the cache between stages whose sizes differ",
    "outside": "check for other processes on the GPU, and memory of NCCL, the CUDA context or a rollout engine outside PyTorch's allocator; lower gpu_memory_utilization",
    "unknown": "check the stacks at the peak, and the last actions",
}


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure every failed request: the memory in use and free then, and the entries before it."""
    if not trace.has("allocations"):
        return {}
    rows, before = [], []
    for replay in trace.derived(replay_all_devices):
        for failure in list_oom_failures(trace, replay):
            rows.append({**failure, "memory": replay.memory, "device": replay.device})
            before.append(add_memory_keys(replay, list_last_actions(trace, replay, failure["entry"])))
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    return {"out_of_memory": columns, "last_actions": concatenate_columns(before)}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Explain every failed request (finding R33); None without memory snapshots."""
    if not measured.row_count("snapshot_levels"):
        return None
    levels = snapshot_levels(measured)
    failures = measured.frame("out_of_memory")
    if not len(failures):
        reason = (
            "no request failed in the recorded histories"
            if levels["entry_count"].any()
            else "no history of allocations was recorded"
        )
        return ANALYSIS.skipped(reason)
    owners = levels.select(*SNAPSHOT_KEYS, "who")
    failures = failures.join(owners, SNAPSHOT_KEYS, how="left", optional=SNAPSHOT_KEYS)
    failures = add_card_sizes(measured, failures)
    failures = _find_causes(failures, thresholds.of("out-of-memory")["outside_ratio"])
    caveats = ["free pieces are located by address: remainders of up to 1 MiB next to large blocks count as free"]
    if (is_pausable := has_pausable(measured, failures)).any():
        caveats.append(
            "private pools that an engine may have unmapped count as reserved and in use: use by other processes is unknown"
        )
    if (failures.is_missing("card_bytes") & ~is_pausable).any():
        caveats.append(f"{UNKNOWN}: without it memory of other users cannot be separated from too much in use")
    leaks = find_leaks(measured, thresholds.of("memory-growth"))
    return ANALYSIS.answered(
        metrics=(Metric("failed_requests", len(failures), "count", "lower", label="requests that failed"),),
        sheets=lambda: select_filled_sheets(
            _make_failure_table(measured, failures), _make_last_action_table(measured, failures)
        ),
        findings=tuple(_report_failures(measured, failures, leaks)),
        caveats=tuple(caveats),
    )


def _find_causes(failures: Frame, outside_ratio: float) -> Frame:
    """Set `cause`, `outside_bytes` (held by other processes) and `stage`, with the size of the device if known."""
    causes, outside = [], []
    for row in failures.rows():
        card, cause, held_outside = row["card_bytes"], row["cause"], None
        if None not in (card, row["reserved_bytes"], row["device_free_bytes"]):
            held_outside = card - row["reserved_bytes"] - row["device_free_bytes"]
        if held_outside is not None and held_outside < 0:
            held_outside = None  # the given size of the card is too small
        if cause == "capacity" and held_outside is not None:
            fits = row["requested_bytes"] + row["asked_bytes"] <= card
            if fits and held_outside >= outside_ratio * card:
                cause = "outside"
        causes.append(cause)
        outside.append(held_outside)
    return failures.with_columns(
        cause=texts(causes), outside_bytes=make_nullable_numbers(outside), stage=name_ranges(failures)
    )


def _report_failures(measured: Measurements, failures: Frame, leaks: Sequence[KeptStack]) -> Iterator[Finding]:
    """Report R33: one finding for each memory and cause, of its last failed request, and the leak that led to it."""
    for alike in failures.group_by(*SNAPSHOT_KEYS, "cause").frames():
        (row,) = alike.take(slice(-1, None)).rows()
        cause: str = row["cause"]
        severity: Severity = "high"
        why, advice = _WHY[cause], _ADVICE[cause]
        of_memory = [leak for leak in leaks if match_failures(alike, leak).all()]
        if of_memory and cause in ("capacity", "unknown"):
            held = format_quantity(sum(leak.growth for leak in of_memory), "bytes")
            why = f"{held} were kept from step to step by {of_memory[0].site}"
            advice = f"fix the growth first (memory-growth); then {advice}"
            severity = "medium"
        times = f", {len(alike):,} times" if len(alike) > 1 else ""
        during = "" if row["stage"] is None else f" during {row['stage']}"
        labels = {
            "asked_bytes": "failed request",
            "requested_bytes": "requested, in use",
            "reserved_bytes": "reserved",
            "device_free_bytes": "free on the device",
            "free_bytes": "free in its pool and stream",
            "largest_free_bytes": "largest free piece there",
        }
        if row["card_bytes"] is not None:
            labels["card_bytes"] = f"GPU memory, {row['card_origin']}"
        if row["outside_bytes"] is not None:
            labels["outside_bytes"] = "used by others"
        place = {name: row[name] for name in ("run", "source", "role", "rank", "device", "step", "stage")}
        yield Finding(
            "out-of-memory",
            severity,
            f"{row['who']} ran out of memory (OOM){during}{times}: {format_quantity(row['asked_bytes'], 'bytes')} were requested, and "
            f"{why}{phrase_run(measured, row['run'])}",
            advice,
            tuple(Metric(name, row[name], "bytes", label=label) for name, label in labels.items()),
            (Place(**place, name=row["site"]),),
            instances=pick_instances(
                alike.with_columns(dur_ns=np.ones(len(alike), np.int64), canonical=alike["stage"]),
                "asked_bytes",
                unit="bytes",
            ),
            caveats=("expandable segments, or no recorded segments: free pieces are unknown",)
            if cause == "unknown"
            else (),
        )


def _make_failure_table(measured: Measurements, failures: Frame) -> Sheet:
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            who | process
            step | step | id
            stage | stage
        """),
        Heading("cause", "why", "text", "capacity | fragmentation | outside (other users) | unknown."),
        *parse_headings("""
            asked_bytes | failed request | bytes
            requested_bytes | requested | bytes | In use then; the allocator rounds it up.
            reserved_bytes | reserved | bytes
            device_free_bytes | free on the device | bytes | By the driver.
            free_bytes | free in its pool | bytes | Reserved in the pool and stream of the request and not in use.
            largest_free_bytes | largest piece | bytes
            given_back_bytes | given back before | bytes | Cache that the allocator returned to the driver to serve it.
            card_bytes | GPU memory | bytes | Total memory of the device.
            card_origin | known from | text | Its origin.
            outside_bytes | used by others | bytes | GPU memory less reserved and free memory.
            site | place in the program
            source | snapshot
        """),
    )
    return make_sheet("out_of_memory", "Requests that failed", headings, failures)


def _make_last_action_table(measured: Measurements, failures: Frame) -> Sheet:
    (last,) = failures.take(slice(-1, None)).rows()
    actions = take_snapshot(measured.frame("last_actions"), last)
    actions = actions.filter(actions.equals("entry", last["entry"])).sort("before")
    headings = parse_headings("""
        before | entries before | id
        action | what
        size_bytes | size | bytes
        site | place in the program
    """)
    return make_sheet("last_actions", f"Last actions before the OOM, {last['who']}", headings, actions)


ANALYSIS = Analysis(
    id="out-of-memory",
    title="Why did memory run out (OOM)?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations"),
    writes=(OUT_OF_MEMORY, LAST_ACTIONS),
    rests_on=("device_sizes", "memory_pools", "snapshot_levels", "survivors"),
    rules=("out-of-memory",),
    thresholds={
        "out-of-memory": {
            # What others hold of the device, as a share of it, from which on they are named as the cause.
            "outside_ratio": 0.10
        }
    },
    measure=measure,
    judge=judge,
)
