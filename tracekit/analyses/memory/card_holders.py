"""Holders of a GPU's memory over time: snapshots give the memory that PyTorch counts, logs that of the whole GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading
from tracekit.job.memory.card_lines import MAX_LISTED, CardLine, is_of_process, list_card_lines
from tracekit.job.memory.card_timeline import CardMoment, insert_host_values, list_bar_parts, list_card_moments
from tracekit.job.memory.snapshots import snapshot_levels, take_snapshot
from tracekit.job.report.tables import MAX_ROWS, make_sheet, parse_headings
from tracekit.job.run_log.values import HOST_USED, map_run_logs
from tracekit.model.inputs.memory_pieces import HOLDER_TITLES, HOLDERS
from tracekit.model.report import Chart, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Nullable
from tracekit.model.tables.columns import DEVICE, STEP
from tracekit.model.tables.frame import Frame, concat, from_rows, texts
from tracekit.model.tables.snapshots import DEVICE_KEYS, POINT, SLEEP_MARK
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace, derive_once
from tracekit.process.memory.holders import HOLDER_MOMENTS, list_memory_holders
from tracekit.process.memory.replay import add_memory_keys, concatenate_columns, replay_all_devices

_DOCS = {
    "trainer_state": "Parameters, gradients and optimizer state, where categories were recorded.",
    "activations": "Activations, inputs and temporaries, where categories were recorded.",
    "other": "Other memory of the default pool: the trainer's, without a category.",
    "weights": "Weights of the serving engine.",
    "kv_cache": "KV cache of the serving engine.",
    "regions": "Regions of torch_memory_saver.",
    "graphs": "Pools of CUDA graphs.",
    "communication": "Pools of NCCL and symmetric memory.",
    "unknown": "Private pools of unknown use.",
    "pool_cache": "Reserved and not requested in pools that may be unmapped: emptied segments, rounding.",
    "cache": "Reserved and not requested in all other pools: cached by PyTorch, rounding.",
}

CARD_HOLDERS = Table(
    "card_holders",
    "holders of the memory that PyTorch counts on one device at one moment of a snapshot",
    {
        **DEVICE_KEYS,
        "moment": Column("category", " | ".join(HOLDER_MOMENTS) + ".", HOLDER_MOMENTS),
        "step": STEP,
        "at_ns": Column("Int64", "When, ns since the Unix epoch."),
        "until_ns": Column("Int64", "When the next entry of the history follows; <NA>: none."),
        **{f"{name}_bytes": Column("int64", _DOCS[name]) for name in HOLDERS},
        "counted_bytes": Column("int64", "Sum of the holders: reserved, as PyTorch counts it."),
        "pausable_bytes": Column("int64", "Part in pools that may be unmapped."),
    },
)

CARD_LINES = Table(
    "card_lines",
    "a line of a log about the memory of a whole GPU: `device_memory_lines`",
    {
        **KEYS,
        "line": Column("int64", "Line of the log, from 1."),
        "logged_ns": Column("Int64", "When, ns on the log's own clock."),
        "logged_pid": Column("Int64", "Process that printed it."),
        "logged_rank": Column("Int64", "Its rank."),
        "device": DEVICE,
        "step": Column("Int64", "Step whose values the log prints next; <NA>: none."),
        "point": POINT,
        "mark": SLEEP_MARK,
        "allocated_bytes": Column("Int64", "Allocated by PyTorch, unmapped memory included."),
        "reserved_bytes": Column("Int64", "Reserved by PyTorch, unmapped memory included."),
        "used_bytes": Column("Int64", "Used on the GPU by all processes."),
        "total_bytes": Column("Int64", "Memory of the GPU."),
        "freed_bytes": Column("Int64", "Freed by the sleep, as vLLM counts it."),
        "host_used_bytes": Column("Int64", "Used memory of the host."),
    },
)

_COPIED = (
    "line",
    "logged_ns",
    "logged_pid",
    "logged_rank",
    "device",
    "point",
    "mark",
    "allocated_bytes",
    "reserved_bytes",
    "used_bytes",
    "total_bytes",
    "freed_bytes",
    "host_used_bytes",
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the holders at the moments of each memory, and copy the lines of logs about GPUs."""
    if trace.row_count("device_memory_lines"):
        copied = {name: trace.array("device_memory_lines", name) for name in _COPIED}
        return {"card_lines": {**copied, "step": _find_line_steps(trace)}}
    if not trace.has("blocks") or not trace.has("memory_segments"):
        return {}
    parts: list[dict[str, Array]] = []
    for replay in trace.derived(replay_all_devices):
        holders = list_memory_holders(trace, replay)
        if holders is not None:
            parts.append(add_memory_keys(replay, holders))
    return {"card_holders": concatenate_columns(parts)}


def _find_line_steps(trace: Trace) -> Nullable:
    """Find the step of each line about a GPU: that of the next line with values of a step."""
    known = trace.nullable("log_values", "step")
    line, step = trace.numbers("log_values", "line")[~known.missing], known.values[~known.missing]
    order = np.argsort(line, kind="stable")
    place = np.searchsorted(line[order], trace.numbers("device_memory_lines", "line"))
    return Nullable(np.append(step[order], 0)[place], place == len(line))


def judge(measured: Measurements, _thresholds: Thresholds) -> Section | None:
    """Show who has the GPU's memory over time, by snapshots and the log; None without both."""
    if not measured.row_count("card_holders") and not list_card_lines(measured):
        return None
    timeline = list_timeline(measured)
    return ANALYSIS.answered(
        sheets=lambda: (_make_card_timeline(measured, timeline),),
        caveats=lambda: _list_holder_caveats(timeline),
        charts=lambda: _draw_timeline(timeline),
    )


@derive_once
def list_timeline(measured: Measurements) -> tuple[CardMoment, ...]:
    """List the rows of the timeline; too many lines are limited to the last ones of processes with snapshots."""
    moments = _list_moments(measured)
    lines: Sequence[CardLine] = list_card_lines(measured)
    if len(lines) > MAX_LISTED:
        snapshots = list(moments.distinct("who").rows()) if len(moments) else []
        known = [line for line in lines if not line.owner or any(is_of_process(line, each) for each in snapshots)]
        lines = (known or lines)[-MAX_LISTED:]
    timeline = list_card_moments(moments, lines)
    insert_host_values(timeline, _list_host_values(measured))
    return tuple(timeline)


def _list_moments(measured: Measurements) -> Frame:
    """List the moments of all GPUs, by process, step and time."""
    holders, parts = measured.frame("card_holders"), []
    for snapshot in snapshot_levels(measured).rows():
        if snapshot["memory"] == "device":
            of_snapshot = take_snapshot(holders, snapshot)
            pinned = _find_pinned_bytes(measured, snapshot)
            at_end = of_snapshot.equals("moment", "end")
            parts.append(
                of_snapshot.with_columns(
                    who=texts([snapshot["who"]] * len(of_snapshot)),
                    pinned_bytes=Nullable(at_end * (pinned or 0), ~at_end | (pinned is None)),
                )
            )
    return concat(parts).sort("run", "who", "step") if parts else holders.head(0)


def _find_pinned_bytes(measured: Measurements, snapshot: Mapping[str, Any]) -> int | None:
    """Find the pinned host memory that PyTorch counts at the end of the same snapshot; None if not recorded."""
    levels = measured.frame("snapshot_levels")
    on_host = levels.filter(levels.equals("memory", "host") & levels.equals("source", snapshot["source"]))
    sizes = [
        row["end_reserved_bytes"] for row in on_host.rows("end_reserved_bytes", "pid") if row["pid"] == snapshot["pid"]
    ]
    return sizes[0] if sizes else None


_HOLDER_LINES = [
    f"    {name} | {title} | bytes | {_DOCS[name]}" for name, title in zip(HOLDERS, HOLDER_TITLES, strict=True)
]
_IN_USE_LINES, _CACHED_LINES = "\n".join(_HOLDER_LINES[:-2]), "\n".join(_HOLDER_LINES[-2:])

_HEADINGS = f"""
    who | process
    time | time | text | Time of day on the log's clock; UTC where no clock of a log is known.
    step | step | id | Of a line: the step whose values the log prints next.
    moment | moment | text | Of a snapshot: step end, peak or end. Of a line: its name in the log.
    mark | mark | text | By the name of the line: sleep (sleep, offload, pause), wake (wake, resume, onload).
    engine | engine | text | State of the serving engine, after the last line that shows it.
{_IN_USE_LINES}
    in_use | in use, not split | bytes | Allocated by PyTorch at a line, where no snapshot shows the holders.
{_CACHED_LINES}
    counted | counted | bytes | Sum of the columns from trainer state on: reserved, as PyTorch counts it.
    unmapped | unmapped, at least | bytes | PyTorch counts it, and the GPU has it back.
    outside | outside PyTorch, at least | bytes | Other processes, CUDA context, NCCL, libraries.
    free | free | bytes
    total | GPU | bytes | Sum of counted and the three columns before this one.
    used | really held | bytes | Used on the GPU by all processes.
    change | change | bytes | Change of the used memory since the previous line of the process.
    freed | freed | bytes | By the sleep, as vLLM counts it.
    pausable | may be unmapped | bytes | Part of counted in pools of an engine with sleep mode, or of unknown use.
    pinned | pinned | bytes | Pinned host memory that PyTorch reserves at the end of a snapshot.
    host_used | host used | bytes | Used memory of the host, all processes included.
    host_change | host change | bytes | Since the step before.
    source | snapshot
"""

_LEFT_OUT_AT_0 = (*HOLDERS, "pausable")
_OF_LINE = ("used", "total", "freed", "change")


def _make_card_timeline(measured: Measurements, timeline: Sequence[CardMoment]) -> Sheet:
    """List the rows of the timeline, without columns of memory that are always 0."""
    rows = [_list_moment_cells(moment) for moment in timeline[-MAX_ROWS:]]
    used = {name for row in rows for name, size in row.items() if name not in _LEFT_OUT_AT_0 or size}
    headings = [heading for heading in parse_headings(_HEADINGS) if heading.name in used]
    caption = "The columns up to counted sum to it. PyTorch still counts memory that sleep mode has unmapped."
    if any(moment.line is not None for moment in timeline):
        caption += " counted + unmapped (negative) + outside + free = GPU."
    if len(rows) < len(timeline):
        caption += f" The last {len(rows):,} of {len(timeline):,} rows."
    names = ("run", *(heading.name for heading in headings))
    table = from_rows(names, [[row.get(name) for name in names] for row in rows])
    return make_sheet(
        "card_timeline",
        "Holders of GPU memory over time",
        (*make_run_heading(measured), *headings),
        table,
        caption=caption,
    )


def _list_moment_cells(moment: CardMoment) -> dict[str, Any]:
    """List the cells of one row of the timeline."""
    cells: dict[str, Any] = {
        name: getattr(moment, name) for name in ("run", "time", "step", "moment", "mark", "engine", "pausable")
    }
    cells |= {name: getattr(moment, name) for name in ("pinned", "host_used", "host_change", "source")}
    cells["who"] = moment.who or None
    split = moment.get_split()
    cells |= {name: split.get(name) for name in ("unmapped", "outside", "free")}
    if moment.holders is not None:
        cells |= {**moment.holders, "counted": moment.counted}
    elif split.get("allocated") is not None:
        cells |= {"in_use": split["allocated"], "cache": split["cached"], "counted": moment.counted}
    if moment.line is not None:
        cells |= {name: getattr(moment.line, f"{name}_bytes") for name in _OF_LINE}
    return cells


def _list_host_values(measured: Measurements) -> Iterator[tuple[str | None, str, int, int]]:
    """List the used memory of hosts that logs give for steps: (run, name, step, bytes)."""
    for log in map_run_logs(measured).values():
        for name, values in log.series.items():
            if HOST_USED.fullmatch(name):
                known = np.flatnonzero(np.isfinite(values) & (values >= 0) & (values < MAX_HOST_GIB))
                sizes = np.rint(values[known] * 2**30).astype(np.int64).tolist()
                yield from zip(repeat(log.run), repeat(name), log.step[known].tolist(), sizes, strict=False)


MAX_HOST_GIB = 2**20
"""No host has more memory: such a value has another unit."""


def _list_holder_caveats(timeline: Sequence[CardMoment]) -> Iterator[str]:
    """List the limits of the timeline."""
    snapshots = [moment for moment in timeline if moment.source is not None]
    lines = [moment for moment in timeline if moment.line is not None]
    if snapshots:
        yield "sizes of holders are requested bytes; rounding by the allocator counts as cached or unused"
    if any(moment.pausable for moment in snapshots):
        yield "whether a pool is unmapped is not recorded in a snapshot: compare with the log's lines or nvidia-smi"
    if not lines:
        yield "memory outside PyTorch and free memory are unknown: the log has no line with the memory used on the GPU"
        return
    yield "used memory includes all processes on the GPU"
    if any(moment.mark for moment in lines):
        yield "an engine counts as asleep or awake from a line that reports it to the next one"
    if snapshots:
        yield from _list_clock_caveats(lines)


def _list_clock_caveats(lines: Sequence[CardMoment]) -> Iterator[str]:
    """List the limits of placing snapshots between lines of a log."""
    if not any(moment.unix_ns for moment in lines):
        yield "no time zone, or more than one, puts the snapshots into the log: rows are in order of steps, not of time"
    if any(moment.holders is not None for moment in lines):
        yield "holders at a line are those of a snapshot at that time with the same memory, to the precision of the log"


def _draw_timeline(timeline: Sequence[CardMoment]) -> Iterator[Chart]:
    """Draw the GPU with the highest count, a stacked bar per row; the state of the engine is in the names of the rows."""
    drawable = [moment for moment in timeline if any(list_bar_parts(moment))]
    if not drawable:
        return
    # Of a line without holders the process may be unknown.
    highest = max(drawable, key=lambda moment: (moment.holders is not None, moment.counted or 0))
    every = [moment for moment in drawable if (moment.run, moment.who) == (highest.run, highest.who)]
    bars = every[-MAX_DRAWN:]
    parts = [dict(list_bar_parts(moment)) for moment in bars]
    used = [name for name in _TITLES if any(part.get(name) for part in parts)]
    yield Chart(
        "card-holders",
        f"Holders of the memory of {highest.who or 'one GPU'}",
        "bars",
        tuple(_list_holder_marks(parts, used)),
        tuple(_TITLES[name] for name in used),
        tuple(map(_name_bar, bars)),
        unit="bytes",
        caption="A bar with free memory is the whole GPU. Other bars are the memory that PyTorch counts, unmapped memory included.",
        omitted=(len(every) - len(bars)) * len(used),
    )


def _list_holder_marks(parts: Sequence[Mapping[str, int]], names: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """List the marks of bars: (row, series, bytes) of each part that is not empty."""
    for place, part in enumerate(parts):
        yield from ((place, series, part[name]) for series, name in enumerate(names) if part.get(name))


MAX_DRAWN = 40
"""Most rows that are drawn: the last ones."""

_TITLES = {
    **dict(zip(HOLDERS, HOLDER_TITLES, strict=True)),
    "in_use": "in use, not split",
    "mapped_pools": "engine pools, mapped at most",
    "used": "used by all processes",
    "outside": "outside PyTorch",
    "free": "free",
}


def _name_bar(moment: CardMoment) -> str:
    """Name a row of the timeline by its time, or by its step without one: `10:00:40 After rollout offload (asleep)`."""
    step = None if moment.step is None else f"step {moment.step}"
    place = moment.time or step
    is_end = moment.moment == "step end" and step is not None
    text = f"end of {step}" if is_end else moment.moment
    state = f" ({moment.engine})" if moment.engine else ""
    return f"{place} {text}{state}" if place else f"{text}{state}"


ANALYSIS = Analysis(
    id="card-holders",
    title="Who uses the GPU's memory, while engines sleep and wake?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations", "device_memory_lines", "log_values"),
    writes=(CARD_HOLDERS, CARD_LINES),
    rests_on=("run_log", "snapshot_levels"),
    measure=measure,
    judge=judge,
)
