"""Delay from launch to start of GPU work, and depth of the launch queues (definition M11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.analyses import Analysis
from tracekit.job.frames import aggregate_by_keys, find_canonical_stages, make_label_headings, sort_by_columns
from tracekit.job.idle_time.causes import DAMAGED_REASON, make_idle_time_measurement
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.windows import STAGE_KEY, read_undamaged_table
from tracekit.model.report import Ranked, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import concatenate_parts, repeat_number
from tracekit.model.tables.columns import DEVICE, STREAM
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
    if not len(read_undamaged_table(measured, "gpu_time")):
        return ANALYSIS.skipped(DAMAGED_REASON)
    if not (len(read_undamaged_table(measured, "queues")) or _make_launch_delay_table(measured).rows):
        return ANALYSIS.skipped("no device op can be traced back to its launch")
    return ANALYSIS.answered(
        sheets=lambda: select_filled_sheets(_make_launch_delay_table(measured), _make_launch_queue_table(measured))
    )


def _make_launch_delay_table(measured: Measurements) -> Sheet:
    """Make the table of launch delays by the stage of the launch."""
    rows = read_undamaged_table(measured, "launch_delays")
    rows = rows.assign(canonical=find_canonical_stages(rows))
    rows = rows[rows["stage"].isna() | rows["canonical"].notna()]
    rows["canonical"] = rows["canonical"].where(rows["canonical"].notna(), "(all)").astype(object)
    table = aggregate_by_keys(
        rows,
        STAGE_KEY,
        count=("count", "sum"),
        negative_count=("negative_count", "sum"),
        p50_ns=("p50_ns", "median"),
        p95_ns=("p95_ns", "max"),
        max_ns=("max_ns", "max"),
    )
    table = sort_by_columns(table, count=False, canonical=True)
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
    caption = "A long delay is no loss: the GPU is busy with earlier work. Delays of microseconds say that it runs dry."
    return make_sheet("launch_delays", "From launch to start", headings, table, caption=caption)


def _make_launch_queue_table(measured: Measurements) -> Sheet:
    """Make the table of queue depths by stream."""
    rows = read_undamaged_table(measured, "queues")
    by = ["run", "role", "rank", *QUEUE]
    reduced = dict.fromkeys(("count", "span_ns", "full_ns"), "sum")
    reduced.update(dict.fromkeys(("p50_count", "p95_count", "max_count"), "max"))
    table = aggregate_by_keys(rows, by, **{name: (name, how) for name, how in reduced.items()})
    table = sort_by_columns(table, count=False)
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
