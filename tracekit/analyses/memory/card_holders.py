"""Holders of a GPU's memory over time: by snapshots what PyTorch counts, by lines of a log what the whole GPU uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading
from tracekit.job.memory.card_lines import MAX_LISTED, PARTS, CardLine, list_card_lines
from tracekit.job.memory.snapshots import snapshot_levels, take_snapshot
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.run_log.values import HOST_USED, map_run_logs
from tracekit.model.report import Chart, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Nullable
from tracekit.model.tables.columns import DEVICE, STEP
from tracekit.model.tables.frame import Frame, concat, from_rows, texts
from tracekit.model.tables.snapshots import DEVICE_KEYS, POINT, SLEEP_MARK
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.memory.holders import HOLDER_MOMENTS, HOLDERS, list_memory_holders
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
        return {"card_lines": {name: trace.array("device_memory_lines", name) for name in _COPIED}}
    if not trace.has("blocks") or not trace.has("memory_segments"):
        return {}
    parts: list[dict[str, Array]] = []
    for replay in trace.derived(replay_all_devices):
        holders = list_memory_holders(trace, replay)
        if holders is not None:
            parts.append(add_memory_keys(replay, holders))
    return {"card_holders": concatenate_columns(parts)}


def judge(measured: Measurements, _thresholds: Thresholds) -> Section | None:
    """Show the holders by moment and the GPU by the log; None without both."""
    holders, lines = measured.frame("card_holders"), list_card_lines(measured)
    if not len(holders) and not lines:
        return None
    moments = _list_moments(measured)
    return ANALYSIS.answered(
        sheets=lambda: select_filled_sheets(
            _make_holder_table(measured, moments), _make_line_table(measured, lines), _make_host_table(measured)
        ),
        caveats=lambda: _list_holder_caveats(moments, bool(lines)),
        charts=lambda: _draw_holders(moments),
    )


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


_HOLDER_HEADINGS = f"""
    who | process
    step | step | id
    moment | moment
    trainer_state_bytes | trainer state | bytes | {_DOCS["trainer_state"]}
    activations_bytes | activations | bytes | {_DOCS["activations"]}
    other_bytes | other in use | bytes | {_DOCS["other"]}
    weights_bytes | engine weights | bytes | {_DOCS["weights"]}
    kv_cache_bytes | KV cache | bytes | {_DOCS["kv_cache"]}
    regions_bytes | paused regions | bytes | {_DOCS["regions"]}
    graphs_bytes | CUDA graphs | bytes | {_DOCS["graphs"]}
    communication_bytes | communication | bytes | {_DOCS["communication"]}
    unknown_bytes | unknown pools | bytes | {_DOCS["unknown"]}
    pool_cache_bytes | unused in engine pools | bytes | {_DOCS["pool_cache"]}
    cache_bytes | cached by PyTorch | bytes | {_DOCS["cache"]}
    counted_bytes | counted | bytes | Sum of the holders: reserved, as PyTorch counts it.
    pausable_bytes | may be unmapped | bytes | Part in pools of an engine with sleep mode, or of unknown use.
    pinned_bytes | pinned | bytes | Pinned host memory that PyTorch reserves at the end.
    source | snapshot
"""


def _make_holder_table(measured: Measurements, moments: Frame) -> Sheet:
    """List the holders at every moment, without columns that are always 0."""
    named = parse_headings(_HOLDER_HEADINGS)
    empty = {f"{name}_bytes" for name in HOLDERS if not len(moments) or not moments[f"{name}_bytes"].any()}
    headings = (*make_run_heading(measured), *(heading for heading in named if heading.name not in empty))
    caption = "The holders sum to counted. PyTorch still counts memory that sleep mode has unmapped."
    rows = moments if len(moments) else from_rows([heading.name for heading in named], [])
    return make_sheet("card_holders", "Holders of GPU memory, as PyTorch counts it", headings, rows, caption=caption)


_LINE_HEADINGS = """
    owner | process
    time | time
    point | point | text | As the log names it.
    mark | mark | text | By the name of the point: sleep (sleep, offload, pause), wake (wake, resume, onload).
    used_bytes | really held | bytes | Used on the GPU by all processes.
    allocated | allocated | bytes | By PyTorch in this process, unmapped memory included.
    cached | cached | bytes | Reserved by PyTorch and not allocated, unmapped memory included.
    unmapped | unmapped, at least | bytes | PyTorch counts it, and the GPU has it back.
    outside | outside PyTorch, at least | bytes | Other processes, CUDA context, NCCL, libraries.
    free | free | bytes
    total_bytes | GPU | bytes | Sum of the five columns before it.
    change_bytes | change | bytes | Change of the used memory since the previous line of the process.
    freed_bytes | freed | bytes | By the sleep, as vLLM counts it.
    host_used_bytes | host used | bytes | Used memory of the host, all processes included.
"""


def _make_line_table(measured: Measurements, lines: Sequence[CardLine]) -> Sheet:
    """List the lines of the logs, each split into parts that sum to the GPU's memory."""
    names = ("run", "owner", "time", "point", "mark", *PARTS, *_LOGGED)
    rows = [
        (
            *(getattr(line, name) for name in ("run", "owner", "time", "point", "mark")),
            *line.split().values(),
            *(getattr(line, name) for name in _LOGGED),
        )
        for line in lines[-MAX_LISTED:]
    ]
    headings = (*make_run_heading(measured), *parse_headings(_LINE_HEADINGS))
    left_out = "" if len(lines) <= MAX_LISTED else f" The last {MAX_LISTED} of {len(lines):,} lines."
    caption = f"allocated + cached + unmapped (negative) + outside + free = GPU.{left_out}"
    return make_sheet("card_lines", "The GPU by lines of the log", headings, from_rows(names, rows), caption=caption)


_LOGGED = ("total_bytes", "used_bytes", "change_bytes", "freed_bytes", "host_used_bytes")


def _make_host_table(measured: Measurements) -> Sheet:
    """List the host memory that the log gives for each step, and its change since the step before."""
    rows: list[tuple[Any, ...]] = []
    for log in map_run_logs(measured).values():
        for name, values in log.series.items():
            if HOST_USED.fullmatch(name):
                known = np.flatnonzero(np.isfinite(values) & (values >= 0) & (values < MAX_HOST_GIB))
                sizes = np.rint(values[known] * 2**30).astype(np.int64)
                changes = [None, *np.diff(sizes).tolist()]
                steps = log.step[known].tolist()
                rows += zip(repeat(log.run), steps, repeat(name), sizes.tolist(), changes, strict=False)
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            step | step | id
            name | value | text | As the log names it.
            used_bytes | host used | bytes
            change_bytes | change | bytes | Since the step before.
        """),
    )
    table = from_rows(("run", "step", "name", "used_bytes", "change_bytes"), rows[-MAX_LISTED:])
    return make_sheet("card_hosts", "Host memory by step, by the log", headings, table)


MAX_HOST_GIB = 2**20
"""No host has more memory: such a value has another unit."""


def _list_holder_caveats(moments: Frame, has_lines: bool) -> Iterator[str]:
    """List the limits of both tables."""
    if len(moments):
        yield "sizes of holders are requested bytes; rounding by the allocator counts as cached or unused"
        if moments["pausable_bytes"].any():
            yield "whether a pool is unmapped is not recorded in a snapshot: compare with the log's lines or nvidia-smi"
        if not has_lines:
            yield "memory outside PyTorch and free memory are unknown: the log has no line with the memory used on the GPU"
    if has_lines:
        yield "used memory includes all processes on the GPU"


def _draw_holders(moments: Frame) -> Iterator[Chart]:
    """Draw the holders of the GPU with the highest peak, a stacked bar per moment."""
    if not len(moments):
        return
    highest = int(moments["counted_bytes"].argmax())
    of_gpu = moments.equals("who", moments.values("who")[highest]) & moments.equals(
        "run", moments.values("run")[highest]
    )
    every = list(moments.filter(of_gpu).rows())
    rows = every[-MAX_DRAWN:]
    used = [name for name in HOLDERS if any(row[f"{name}_bytes"] for row in rows)]
    marks = tuple(
        (place, series, row[f"{name}_bytes"])
        for place, row in enumerate(rows)
        for series, name in enumerate(used)
        if row[f"{name}_bytes"]
    )
    yield Chart(
        "card-holders",
        f"Holders of the memory of {rows[0]['who']}, as PyTorch counts it",
        "bars",
        marks,
        tuple(_TITLES[name] for name in used),
        tuple(_name_moment(row) for row in rows),
        unit="bytes",
        caption="PyTorch still counts memory that sleep mode has unmapped.",
        omitted=(len(every) - len(rows)) * len(used),
    )


MAX_DRAWN = 40
"""Most moments that are drawn: the last ones."""

_TITLES = {heading.name.removesuffix("_bytes"): heading.title for heading in parse_headings(_HOLDER_HEADINGS)}


def _name_moment(row: Mapping[str, Any]) -> str:
    """Name a moment: `step 2, peak`."""
    if row["step"] is None:
        return str(row["moment"])
    return f"step {row['step']}" if row["moment"] == "step end" else f"step {row['step']}, {row['moment']}"


ANALYSIS = Analysis(
    id="card-holders",
    title="Who uses the GPU's memory, while engines sleep and wake?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations", "device_memory_lines"),
    writes=(CARD_HOLDERS, CARD_LINES),
    rests_on=("run_log", "snapshot_levels"),
    measure=measure,
    judge=judge,
)
