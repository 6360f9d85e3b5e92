"""Caching allocator: how much it allocates, for how long, and when it calls the driver (R21)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading, phrase_run
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS, snapshot_levels
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.report import Chart, Finding, Instance, Metric, Place, Ranked, Section, Sheet, Verdict
from tracekit.model.tables import Column, Table
from tracekit.model.tables.columns import OCCURRENCE, STEP
from tracekit.model.tables.frame import Frame, divide, sum_of, texts
from tracekit.model.tables.snapshots import DEVICE_KEYS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.memory.calls import measure_allocator_steps, measure_block_lifetimes
from tracekit.process.memory.replay import add_memory_keys, concatenate_columns, replay_all_devices

LIFETIMES = Table(
    "lifetimes",
    "allocations by lifetime",
    {
        **DEVICE_KEYS,
        "low_ns": Column("Int64", "From here on; <NA>: not freed in the history."),
        "high_ns": Column("Int64", "To below this."),
        "block_count": Column("int64", "Allocations."),
        "size_bytes": Column("int64", "Their requested bytes."),
    },
)

ALLOCATOR_STEPS = Table(
    "allocator_steps",
    "activity of the allocator in one step",
    {
        **DEVICE_KEYS,
        "step": STEP,
        "occurrence": OCCURRENCE,
        "alloc_count": Column("int64", "Allocations."),
        "alloc_bytes": Column("int64", "Their requested bytes."),
        "driver_alloc_count": Column("int64", "Times that it got memory from the driver."),
        "driver_alloc_bytes": Column("int64", "How much."),
        "driver_free_count": Column("int64", "Times that it gave memory back."),
        "driver_free_bytes": Column("int64", "How much."),
        "retry_count": Column("int64", "Times that it gave its cache back in order to get a segment for a request."),
        "needless_count": Column(
            "Int64", "Segments requested while free pieces added up to the request; <NA>: unknown."
        ),
    },
)


_DRIVER_CALLS = ("driver_alloc_count", "driver_free_count")
_PLACE = ("run", "source", "role", "rank", "step", "device")

_STEP_HEADINGS = parse_headings("""
    alloc_count | allocations | count
    alloc_bytes | requested | bytes | Σ of all requests.
    driver_alloc_count | segments got | count | From the driver; includes mapped pages.
    driver_alloc_bytes | bytes got | bytes
    driver_free_count | given back | count
    driver_free_bytes | bytes given back | bytes
    retry_count | retries | count
    needless_count | although free | count | Segments got while free pieces of their kind added up to the request.
""")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Count the work of the allocator in every step, and sum allocations by their lifetime."""
    if not trace.has("allocations"):
        return {}
    replays = trace.derived(replay_all_devices)
    steps = [add_memory_keys(replay, measure_allocator_steps(trace, replay)) for replay in replays]
    lived = [add_memory_keys(replay, measure_block_lifetimes(replay)) for replay in replays]
    return {"allocator_steps": concatenate_columns(steps), "lifetimes": concatenate_columns(lived)}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Judge calls of the driver by step, churn and lifetimes (finding R21); None without memory snapshots."""
    if not measured.row_count("snapshot_levels"):
        return None
    levels = snapshot_levels(measured)
    steps = measured.frame("allocator_steps")
    if not len(steps):
        return ANALYSIS.skipped("no history of allocations was recorded")
    if not any(steps[name].any() for name in ("alloc_count", *_DRIVER_CALLS)):
        return ANALYSIS.skipped("the recorded histories contain no allocation")
    owners = levels.select(*SNAPSHOT_KEYS, "who")
    steps = steps.join(owners, SNAPSHOT_KEYS, how="left", optional=SNAPSHOT_KEYS)
    on_device = steps.filter(steps.equals("memory", "device"))
    return ANALYSIS.answered(
        sheets=lambda: select_filled_sheets(
            _make_churn_table(measured, steps, levels),
            _make_allocator_step_table(measured, steps),
            _make_lifetime_table(measured),
        ),
        judged=list(_judge_driver_calls(measured, on_device, thresholds)),
        caveats=(
            "a snapshot records when memory was requested from the driver and returned, not how long that took",
            "the history of one snapshot may include unprofiled steps: it starts at the previous snapshot",
        ),
        charts=lambda: _draw_lifetimes(measured),
    )


def _judge_driver_calls(measured: Measurements, steps: Frame, thresholds: Thresholds) -> Iterator[Finding | Verdict]:
    """Judge R21: the allocator still gets memory from the driver, or returns it, in steady steps."""
    limit = thresholds.of("allocator-calls")
    for of_run in steps.group_by("run").frames():
        where = phrase_run(measured, of_run.values("run")[0])
        late = of_run.filter(of_run.number("step") > limit["first_steps"])
        if not len(late):
            reason = f"no snapshot of a step above {limit['first_steps']:g}{where}"
            yield Verdict("allocator-calls", "insufficient data", reason)
            continue
        late = late.with_columns(calls=late["driver_alloc_count"] + late["driver_free_count"])
        count = len(late.group_by("who", "step"))
        calls, retried = float(late["calls"].sum()) / count, int(late["retry_count"].sum())
        if calls < limit["calls_per_step"] and not retried:
            continue
        got_bytes = int(late["driver_alloc_bytes"].sum()) / count
        worst = next(late.sort("calls", descending=["calls"]).rows())
        repeated = f", {retried:,} times after releasing its cache for one request" if retried else ""
        yield Finding(
            "allocator-calls",
            "low",
            f"the caching allocator calls the driver {calls:,.1f} times per steady step and process{repeated}{where}",
            "keep torch.cuda.empty_cache() out of the loop; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if it retries",
            (
                Metric("calls", calls, "count", "lower", label="calls per step and process"),
                make_evidence_metric(
                    "driver_bytes", round(got_bytes), "requested from the driver per step and process"
                ),
                Metric("retries", retried, "count", "lower", label="times that one request emptied the cache"),
                Metric("steps", count, "count", label="steady steps of all processes"),
            ),
            (Place(**{name: worst[name] for name in _PLACE}),),
            instances=_pick_driver_call_steps(measured, late),
            caveats=(
                "the duration of the calls was not recorded",
                "frameworks that share a GPU between training and rollout empty the cache on purpose",
            ),
        )


def _pick_driver_call_steps(measured: Measurements, steps: Frame) -> tuple[Instance, ...]:
    """Pick the steps in which the driver gave and got back most bytes, and a median amount."""
    keys = ("source", "pid", "device", "step")
    history = measured.frame("memory_steps").sort("dur_ns", descending=["dur_ns"]).distinct(*keys)
    spans = history.select(*keys, "ts_ns", "dur_ns")
    moved = steps.with_columns(cost=steps["driver_alloc_bytes"] + steps["driver_free_bytes"])
    return pick_instances(moved.join(spans, keys, optional=keys), "cost", unit="bytes")


def _make_churn_table(measured: Measurements, steps: Frame, levels: Frame) -> Sheet:
    calls = steps.group_by(*SNAPSHOT_KEYS).agg(**{name: sum_of(name) for name in (*_DRIVER_CALLS, "retry_count")})
    churn = levels.filter(levels["alloc_count"] > 0)
    churn = churn.join(calls, SNAPSHOT_KEYS, optional=SNAPSHOT_KEYS)
    churn = churn.with_columns(churn=divide(churn["alloc_bytes"], churn["peak_bytes"]))
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            who | process
            source | snapshot
            window_ns | history | ns | From its first entry to the last.
            alloc_count | allocations | count
            alloc_bytes | requested in all | bytes
            churn | of the peak | factor | Σ requested over the highest level: how often memory is reused.
            driver_alloc_count | segments got | count | From the driver; includes mapped pages.
            driver_free_count | given back | count
            retry_count | retries | count | A request released the cache first (same stack).
        """),
    )
    ranked = Ranked("alloc_bytes", member="who", apart=("run",))
    return make_sheet("churn", "Allocations of each snapshot", headings, churn, ranked=ranked)


def _make_allocator_step_table(measured: Measurements, steps: Frame) -> Sheet:
    numbered = steps.filter(~steps.is_missing("step"))
    by_step = numbered.group_by("run", "who", "step").agg(
        **{heading.name: sum_of(heading.name) for heading in _STEP_HEADINGS}
    )
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            who | process
            step | step | id
        """),
        *_STEP_HEADINGS,
    )
    ranked = Ranked("alloc_bytes", member="who", apart=("run", "step"))
    rows = by_step.sort("who", "step")
    return make_sheet("allocator_steps", "The allocator by step", headings, rows, ranked=ranked)


def _sum_lifetimes(measured: Measurements) -> Frame:
    """Sum the lifetimes of GPU memory over all snapshots, the shortest first; `lived` is the range in words."""
    lifetimes = measured.frame("lifetimes")
    lifetimes = lifetimes.filter(lifetimes.equals("memory", "device") & (lifetimes["block_count"] > 0))
    by_range = lifetimes.group_by("low_ns", "high_ns").agg(
        block_count=sum_of("block_count"), size_bytes=sum_of("size_bytes")
    )
    by_range = by_range.sort("low_ns", "high_ns")
    size = by_range["size_bytes"]
    return by_range.with_columns(
        lived=texts([_name_lifetime(**row) for row in by_range.rows("low_ns", "high_ns")]),
        share_ratio=size / max(int(size.sum()), 1),
    )


def _name_lifetime(low_ns: int | None, high_ns: int) -> str:
    """Name a range of lifetimes: `1.00 ms to 10.0 ms`."""
    if low_ns is None:
        return "not freed in the history"
    if low_ns == 0:
        return f"below {format_quantity(high_ns, 'ns')}"
    if high_ns == np.iinfo(np.int64).max:
        return f"{format_quantity(low_ns, 'ns')} and more"
    return f"{format_quantity(low_ns, 'ns')} to {format_quantity(high_ns, 'ns')}"


def _make_lifetime_table(measured: Measurements) -> Sheet:
    headings = parse_headings("""
        lived | lifetime
        block_count | allocations | count
        size_bytes | requested | bytes | Sum over all snapshots.
        share_ratio | share | ratio | Of all requested memory.
    """)
    return make_sheet("lifetimes", "How long allocations live", headings, _sum_lifetimes(measured))


def _draw_lifetimes(measured: Measurements) -> Iterator[Chart]:
    """Draw requested memory by lifetime."""
    lifetimes = _sum_lifetimes(measured)
    if len(lifetimes) > 1:
        yield Chart(
            "lifetimes",
            "Requested memory by how long it lived",
            "bars",
            tuple((number, 0, size) for number, size in enumerate(lifetimes.values("size_bytes"))),
            ("requested",),
            tuple(lifetimes.values("lived")),
            unit="bytes",
            caption="Sum over all snapshots.",
        )


ANALYSIS = Analysis(
    id="allocator",
    title="How busy is the caching allocator?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations"),
    writes=(LIFETIMES, ALLOCATOR_STEPS),
    rests_on=("memory_steps", "snapshot_levels"),
    rules=("allocator-calls",),
    measure=measure,
    judge=judge,
)
