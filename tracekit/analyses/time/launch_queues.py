"""Delay from launch to start of GPU work, and depth of the launch queues (definition M11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.analyses import Analysis
from tracekit.job.frames import make_label_headings, name_stages
from tracekit.job.idle_time.causes import DAMAGED_REASON, make_idle_time_measurement
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.windows import STAGE_KEY, list_undamaged_rows
from tracekit.model.report import Ranked, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import concatenate_parts, repeat_number
from tracekit.model.tables.columns import DEVICE, STREAM
from tracekit.model.tables.frame import max_of, median_of, sum_of, texts
from tracekit.model.tables.keys import QUEUE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.idle_time.launch_queues import measure_launch_delays, measure_launch_queues

LAUNCH_DELAYS = Table(
    "launch_delays",
    "from the end of launching calls to the start of their first device op",
    {
        **KEYS,
        "device": DEVICE,
        "stage": Column("category", "Outermost stage of the launch; <NA> for all of the source."),
        "count": Column("int64", "Launching calls."),
        "negative_count": Column("int64", "Those whose op began before the call returned."),
        "p50_ns": Column("Float64", "Median (linear interpolation); negative ones are kept."),
        "p95_ns": Column("Float64", "95th percentile (linear interpolation)."),
        "max_ns": Column("int64", "Longest."),
    },
)

QUEUES = Table(
    "queues",
    "launched and unfinished ops of one stream, over the time from its first launch to its last end",
    {
        **KEYS,
        "device": DEVICE,
        "stream": STREAM,
        "count": Column("int64", "Ops whose launch is known."),
        "span_ns": Column("int64", "From the first launch to the last end."),
        "p50_count": Column("int64", "Depth that is not exceeded half of that time."),
        "p95_count": Column("int64", "Depth that is not exceeded 95 % of that time."),
        "max_count": Column("int64", "Greatest depth."),
        "full_ns": Column("int64", "Time with a depth of at least 1,024."),
    },
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure delays from launch to start by stage, and the depth of every stream's queue."""
    if not trace.has("device_ops"):
        return {}
    tables: dict[str, list[Mapping[str, Any]]] = {"launch_delays": [], "queues": []}
    for idle in trace.derived(make_idle_time_measurement()):
        for name, columns in (
            ("launch_delays", measure_launch_delays(trace, idle)),
            ("queues", measure_launch_queues(trace, idle)),
        ):
            count = len(next(iter(columns.values()), ()))
            tables[name].append({**columns, "device": repeat_number(idle.device, count)})
    return {
        name: concatenate_parts([part for part in parts if len(part["device"])])
        for name, parts in tables.items()
        if parts
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:  # noqa: ARG001
    """Report launch delays and queue depths over all sources; has no rule."""
    if not measured.has("launch_delays"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    if not len(list_undamaged_rows(measured, "gpu_time")):
        return ANALYSIS.skipped(DAMAGED_REASON)
    if not (len(list_undamaged_rows(measured, "queues")) or _make_launch_delay_table(measured).rows):
        return ANALYSIS.skipped("no device op can be traced back to its launch")
    return ANALYSIS.answered(
        sheets=lambda: select_filled_sheets(_make_launch_delay_table(measured), _make_launch_queue_table(measured))
    )


def _make_launch_delay_table(measured: Measurements) -> Sheet:
    """Make the table of launch delays by the stage of the launch."""
    rows = list_undamaged_rows(measured, "launch_delays")
    rows = rows.with_columns(canonical=name_stages(rows))
    rows = rows.filter(rows.is_missing("stage") | ~rows.is_missing("canonical"))
    rows = rows.with_columns(canonical=texts([stage or "(all)" for stage in rows.values("canonical")]))
    table = rows.group_by(*STAGE_KEY).agg(
        count=sum_of("count"),
        negative_count=sum_of("negative_count"),
        p50_ns=median_of("p50_ns"),
        p95_ns=max_of("p95_ns"),
        max_ns=max_of("max_ns"),
    )
    table = table.sort("count", "canonical", descending=["count"])
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | launched in
            count | launches | count | Calls; a graph counts once, by its first op.
            p50_ns | median delay | ns | From the call's end to the op's start; over sources the median of medians.
            p95_ns | 95 % | ns | Of the source with the longest.
            max_ns | longest | ns
            negative_count | before return | count | Ops that began before the call had returned.
        """),
    )
    caption = "A long delay costs nothing: the GPU is busy with earlier work. Delays of a few microseconds show that it runs out of work."
    return make_sheet("launch_delays", "From launch to start", headings, table, caption=caption)


def _make_launch_queue_table(measured: Measurements) -> Sheet:
    """Make the table of queue depths by stream."""
    rows = list_undamaged_rows(measured, "queues")
    table = rows.group_by("run", "role", "rank", *QUEUE).agg(
        **{name: sum_of(name) for name in ("count", "span_ns", "full_ns")},
        **{name: max_of(name) for name in ("p50_count", "p95_count", "max_count")},
    )
    table = table.sort("count", descending=["count"])
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            rank | rank | id
            device | GPU | id
            stream | stream | id
            count | ops | count
            p50_count | median depth | count | Launched and unfinished ops, half of the time no more.
            p95_count | 95 % | count
            max_count | deepest | count
            full_ns | full | ns | Time with 1,024 or more: launches block.
        """),
    )
    return make_sheet(
        "queues", "Queues of launched work", headings, table, ranked=Ranked("count", apart=("run", "role", "stream"))
    )


ANALYSIS = Analysis(
    id="launch-queues",
    title="How long does launched work wait before it runs?",
    reads=("host_ops", "device_ops", "syncs"),
    writes=(LAUNCH_DELAYS, QUEUES),
    rests_on=("gpu_time",),
    measure=measure,
    judge=judge,
)
