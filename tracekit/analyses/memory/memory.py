"""Where does memory go? Peaks, and levels by stage and step (Q26, M15; R20, R23)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading, phrase_run
from tracekit.job.memory.charts import draw_memory_curves
from tracekit.job.memory.device_size import UNKNOWN, device_sizes
from tracekit.job.memory.trend import Allocator, list_memory_stages, list_memory_steps, number_allocators
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.report import Finding, Instance, Metric, Place, Ranked, Section, Sheet, Verdict
from tracekit.model.stages import get_canonical_stage
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Nullable, concatenate_parts, make_nullable_numbers, repeat_number, select_rows
from tracekit.model.tables.columns import DEVICE, OCCURRENCE, STAGE, STEP, TS
from tracekit.model.tables.frame import Frame, count_distinct_of, divide, max_of, min_of, texts
from tracekit.model.tables.keys import group_arrays
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.memory.levels import (
    CPU,
    DRIVER,
    SNAPSHOT,
    MemoryLevels,
    compute_memory_levels,
    find_sample_contexts,
    make_device_size_table,
    select_memory_windows,
)
from tracekit.process.steps.windows import StageWindows, StepWindows

_DEVICE_TYPE = Column(
    "Int64",
    "Owner of the memory: 0 host (CPU), 1 CUDA, 6 HIP, 12 XPU, 20 private, 101 memory from the CUDA driver (includes segments of an allocator); never added together.",
)

_LEVELS = {
    "begin_bytes": Column("Int64", "Allocated when it began."),
    "floor_bytes": Column("Int64", "Minimum allocated."),
    "end_bytes": Column("Int64", "Allocated when it ended."),
    "peak_bytes": Column("Int64", "Peak allocated."),
    "reserved_bytes": Column("Int64", "Peak reserved from the device."),
}

MEMORY_STEPS = Table(
    "memory_steps",
    "the memory of one allocator in one step",
    {
        **KEYS,
        "device_type": _DEVICE_TYPE,
        "device": DEVICE,
        "step": STEP,
        "occurrence": OCCURRENCE,
        "ts_ns": TS,
        "dur_ns": Column("int64", "Wall time of the step on the host, ns."),
        "relative": Column("bool", "Whether levels are relative to the start of the recording."),
        **_LEVELS,
    },
)

MEMORY_STAGES = Table(
    "memory_stages",
    "the memory of one allocator in one outermost stage",
    {
        **KEYS,
        "device_type": _DEVICE_TYPE,
        "device": DEVICE,
        "step": STEP,
        "stage": STAGE,
        "occurrence": OCCURRENCE,
        "ts_ns": TS,
        "dur_ns": Column("int64", "Wall time of the stage on the host, ns."),
        **_LEVELS,
    },
)

MEMORY_PEAKS = Table(
    "memory_peaks",
    "the highest levels of one allocator in one source",
    {
        **KEYS,
        "device_type": _DEVICE_TYPE,
        "device": DEVICE,
        "sample_count": Column("int64", "Allocations and frees."),
        "unsound_count": Column("int64", "Samples without a size or with an impossible one."),
        "relative": Column("bool", "Whether levels are relative to the start of the recording."),
        "peak_bytes": Column("int64", "Most allocated."),
        "peak_ts_ns": Column("int64", "When first, ns on the clock of ts_ns."),
        "peak_step": Column("Int64", "Step of the peak."),
        "peak_stage": Column("category", "Outermost stage around the peak, as recorded."),
        "peak_op": Column("category", "Innermost op around the peak."),
        "reserved_peak_bytes": Column("Int64", "Most reserved from the device."),
        "reserved_ts_ns": Column("Int64", "When first."),
        "reserved_stage": Column("category", "Outermost stage around that, as recorded."),
        "omitted_stage_count": Column("int64", "Stages beyond the cap: not in memory_stages, the shortest first."),
    },
)

DEVICE_SIZES = Table(
    "device_sizes",
    "the memory of one device that a process can see",
    {**KEYS, "device": DEVICE, "size_bytes": Column("int64", "Its total memory, by the driver.")},
)

MEMORY_CURVE = Table(
    "memory_curve",
    "the highest levels of one allocator in one stretch of time: at most 400 a source",
    {
        **KEYS,
        "device_type": _DEVICE_TYPE,
        "device": DEVICE,
        "ts_ns": TS,
        "allocated_bytes": Column("int64", "Most allocated."),
        "reserved_bytes": Column("Int64", "Most reserved."),
    },
)


CURVE_POINTS = 400
"""Most points of one curve."""

MAX_STAGES = 2_000
"""Most stages of one source that are followed one by one: the longest."""

MAX_PLACES = 8

_WHOSE = {CPU: "host", DRIVER: "driver"}
"""Name of the memory of a `device_type` in metrics; any other is a device's."""

REQUESTED = (
    "levels of snapshots are requested bytes; the allocator rounds them up, and its allocated bytes are slightly higher"
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the sizes of devices; the levels of every allocator in each step and outermost stage, its peaks, and its curve."""
    sizes = make_device_size_table(trace)
    if not (trace.has("memory_ops") or trace.has("allocations")):
        return sizes
    tables: dict[str, list[Mapping[str, Any]]] = {name: [] for name in ("steps", "stages", "peaks", "curve")}
    of_steps = []
    for level in compute_memory_levels(trace):
        steps, outer = select_memory_windows(trace, level)
        longest = np.argsort(-outer.dur_ns, kind="stable")[:MAX_STAGES]
        in_steps = _measure_windows(level, steps) | {"relative": np.full(len(steps), level.relative)}
        peak = _measure_peak(trace, level, steps) | _repeat_allocator(level, 1)
        peak["omitted_stage_count"] = np.array([len(outer) - len(longest)])
        of_steps.append((level.device_type, in_steps))
        tables["steps"].append(in_steps)
        tables["stages"].append(_measure_windows(level, outer.take(np.sort(longest))))
        tables["peaks"].append(peak)
        if level.replay is None or level.replay.timed:
            curve = level.curve(CURVE_POINTS)
            tables["curve"].append(curve | _repeat_allocator(level, len(curve["ts_ns"])))
    measured = {f"memory_{name}": concatenate_parts(parts) for name, parts in tables.items()}
    return {**sizes, **measured, **_measure_step_metrics(of_steps)}


def _repeat_allocator(level: MemoryLevels, count: int) -> dict[str, Nullable]:
    """Repeat the columns of the allocator."""
    return {"device_type": repeat_number(level.device_type, count), "device": repeat_number(level.device, count)}


def _measure_windows(level: MemoryLevels, windows: StepWindows | StageWindows) -> dict[str, Any]:
    """List steps or stages with the levels in each."""
    columns = {n: array for n, array in windows.arrays.items() if n not in ("origin", "parent")}
    within = level.within(windows.ts_ns, windows.end_ns)
    return columns | within | _repeat_allocator(level, len(windows))


def _measure_peak(trace: Trace, level: MemoryLevels, steps: StepWindows) -> dict[str, Any]:
    """Measure the peaks of one allocator: its row of `memory_peaks` without the columns of its process."""
    reserved = level.reserved
    entries = [int(level.allocated.argmax())]
    entries += [] if reserved is None else [int(reserved.argmax())]
    stage, op = find_sample_contexts(trace, level, np.array(entries))
    last = entries[-1]
    no_reserved = np.array([reserved is None])
    return {
        "sample_count": np.array([len(level.ts_ns) + level.unsound]),
        "unsound_count": np.array([level.unsound]),
        "relative": np.array([level.relative]),
        "peak_bytes": level.allocated[entries[:1]],
        "peak_ts_ns": level.ts_ns[entries[:1]],
        "peak_step": steps.number_at(level.ts_ns[entries[:1]]),
        "peak_stage": np.array(stage[:1], object),
        "peak_op": np.array(op[:1], object),
        "reserved_peak_bytes": Nullable(np.array([0 if reserved is None else reserved[last]]), no_reserved),
        "reserved_ts_ns": Nullable(level.ts_ns[[last]], no_reserved),
        "reserved_stage": np.array(stage[1:] or [None], object),
    }


def _measure_step_metrics(of_steps: Sequence[tuple[int | None, Mapping[str, Any]]]) -> Mapping[str, Mapping[str, Any]]:
    """Measure each step for compare and gates: the highest level of any GPU, and that of the host.

    `of_steps` are the rows of `memory_steps` of each allocator, with its `device_type`.
    """
    parts = []
    for device_type, columns in of_steps:
        kind = "device" if device_type is None else _WHOSE.get(device_type, "device")
        counted = "requested" if device_type == SNAPSHOT else "allocated"
        for column, what in (("peak_bytes", counted), ("reserved_bytes", "reserved")):
            name = f"{kind}_peak_{what}"
            if name in ANALYSIS.metrics:
                has_level = ~columns[column].missing
                step = select_rows(columns["step"], has_level)
                order = np.lexsort((step.values, step.missing))
                value = columns[column].values[has_level][order]
                names = np.full(len(order), name, object)
                parts.append({"step": select_rows(step, order), "name": names, "value": value})
    rows: Mapping[str, Any] = concatenate_parts(parts)
    if not rows or not len(rows["name"]):
        return {}
    group, first = group_arrays([rows["step"], rows["name"]])
    highest = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(highest, group, rows["value"])
    return {
        "metrics": {
            "step": select_rows(rows["step"], first),
            "name": select_rows(rows["name"], first),
            "value": Nullable(highest.astype(np.float64), np.zeros(len(first), np.bool_)),
        }
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Judge peaks, and levels by step and stage, of every allocator (findings R20, R23)."""
    if not measured.row_count("memory_peaks"):
        return ANALYSIS.skipped("no memory was profiled (profile_memory=True of torch.profiler records it)")
    peaks = _pool_peaks(measured)
    judged: list[Finding | Verdict] = [
        *_judge_card_limit(measured, peaks, thresholds),
        *_judge_memory_imbalance(measured, peaks, thresholds),
    ]
    return ANALYSIS.answered(
        metrics=lambda: _headline_peaks(peaks),
        sheets=lambda: select_filled_sheets(
            _make_allocator_peak_table(measured, peaks),
            _make_memory_stage_table(measured),
            _make_memory_step_table(measured),
        ),
        judged=judged,
        caveats=lambda: _list_peak_caveats(peaks),
        charts=lambda: draw_memory_curves(measured),
    )


def _pool_peaks(measured: Measurements) -> Frame:
    """Pool the sources of each allocator to its highest peaks, the highest first, and add the size of its card."""
    rows = measured.frame("memory_peaks").sort("peak_bytes", descending=["peak_bytes"])
    by_allocator = rows.group_by(*Allocator._fields)
    peaks = rows.take(by_allocator.first)
    order = rows.order("reserved_peak_bytes", descending=["reserved_peak_bytes"])
    highest = np.flatnonzero(by_allocator.position(order) == 0)
    reserved = rows.take(highest[np.argsort(by_allocator.number[highest])])
    sizes, cards = device_sizes(measured), []
    owners = [Allocator(**owner) for owner in peaks.rows(*Allocator._fields)]
    for owner in owners:
        on_card = owner.device is not None and owner.kind != "CPU"
        cards.append(sizes.limit(owner.run, owner.rank, owner.device) if on_card else None)
    return peaks.with_columns(
        reserved_peak_bytes=reserved["reserved_peak_bytes"],
        reserved_stage=reserved["reserved_stage"],
        reserved_source=reserved["source"],
        who=texts([owner.process for owner in owners]),
        memory=texts([owner.memory for owner in owners]),
        kind=texts([owner.kind for owner in owners]),
        card_bytes=make_nullable_numbers([None if card is None else card.size_bytes for card in cards]),
        card_origin=texts([None if card is None else card.origin for card in cards]),
    )


def _list_peak_caveats(peaks: Frame) -> Iterator[str]:
    if peaks["relative"].any():
        yield ("relative levels start at 0 with the recording and exclude earlier allocations")
    if peaks.equals("device_type", SNAPSHOT).any():
        yield REQUESTED
    if unsound := int(peaks["unsound_count"].sum()):
        yield f"{unsound:,} samples have no size or an impossible one: left out"
    if omitted := int(peaks["omitted_stage_count"].max()):
        yield f"a source has {omitted:,} more stages than the limit: the shortest are left out"


def _headline_peaks(peaks: Frame) -> Iterator[Metric]:
    """Report the highest peaks of any GPU."""
    on_card = peaks.filter(~peaks.equals("kind", "CPU"))
    kinds = on_card.integers("device_type", missing=-1)
    kinds = np.where(np.isin(kinds, (DRIVER, SNAPSHOT)), kinds, -1)
    # An allocator's counts are better than requested bytes, and those than what the driver gave it.
    kind = next((k for k in (-1, SNAPSHOT, DRIVER) if (kinds == k).any()), -1)
    on_card, counted = on_card.filter(kinds == kind), "allocated"
    if kind == SNAPSHOT:
        counted = "requested"
    for name, column, text in (
        (f"peak_{counted}", "peak_bytes", f"peak {counted} on one GPU"),
        ("peak_reserved", "reserved_peak_bytes", "peak reserved on one GPU"),
    ):
        known = [value for value in on_card.values(column) if value is not None]
        if known:
            yield Metric(name, max(known), "bytes", "lower", label=text)


def _place_allocator(peak: Mapping[str, Any], source: str, stage: str | None) -> Place:
    """Locate an allocator."""
    device = None if peak["kind"] == "CPU" else peak["device"]
    run, role, rank = peak["run"], peak["role"], peak["rank"]
    return Place(run=run, role=role, rank=rank, device=device, source=source, stage=stage)


def _judge_card_limit(measured: Measurements, peaks: Frame, thresholds: Thresholds) -> Iterator[Finding | Verdict]:
    """Judge R20: the reserved memory of a process comes near all of its GPU's."""
    limit = thresholds.of("memory-near-limit")
    for of_run in peaks.group_by("run").frames():
        is_sized = ~(of_run.is_missing("card_bytes") | of_run.is_missing("reserved_peak_bytes"))
        sized = of_run.filter(is_sized)
        where = phrase_run(measured, of_run.values("run")[0])
        if not len(sized):
            on_card = not of_run.equals("kind", "CPU").all()
            reason = _explain_unsized(of_run) if on_card else "no GPU memory was recorded"
            yield Verdict("memory-near-limit", "insufficient data" if on_card else "not applicable", reason + where)
            continue
        share = sized.integers("reserved_peak_bytes") / sized.integers("card_bytes")
        if (share > 1).any():
            reason = f"reserved memory exceeds the GPU's size ({sized.values('card_origin')[0]})"
            yield Verdict("memory-near-limit", "insufficient data", reason + where)
        near = sized.with_columns(share=share)
        near = near.filter((share <= 1) & (share >= limit["reserved_ratio"]))
        if not len(near):
            continue
        rows = list(near.sort("share", descending=["share"]).head(MAX_PLACES).rows())
        worst, ratio = rows[0], rows[0]["share"]
        stage = _name_stage(worst["reserved_stage"], worst["role"])
        during = "" if stage is None else f" during {stage}"
        card_label = f"GPU memory, {worst['card_origin']}"
        yield Finding(
            "memory-near-limit",
            "high" if ratio >= limit["high_ratio"] else "medium",
            f"{worst['memory']} of {worst['who']} has {format_quantity(ratio, 'ratio')} of its memory reserved{during}{where}",
            "lower gpu_memory_utilization of the rollout engine (KV cache), the micro-batch or tokens per GPU of that stage, or offload unused state",
            (
                make_evidence_metric("reserved_ratio", ratio, "of GPU memory"),
                make_evidence_metric("reserved_bytes", worst["reserved_peak_bytes"], "reserved"),
                make_evidence_metric("card_bytes", worst["card_bytes"], card_label, better="neither"),
                Metric("devices", len(near), "count", label="devices above the limit"),
            ),
            tuple(_place_allocator(row, row["reserved_source"], row["reserved_stage"]) for row in rows),
            instances=_pick_levels(measured, near, "reserved_bytes"),
            caveats=(
                "excludes other processes on the GPU, the CUDA context and the pools of a sleeping rollout engine",
            ),
        )


def _pick_levels(measured: Measurements, peaks: Frame, column: str) -> tuple[Instance, ...]:
    """Pick the stages with the highest and with a median level of some allocators; the steps where no stage is known."""
    keys = Allocator._fields
    for rows in (list_memory_stages(measured), measured.frame("memory_steps")):
        instances = pick_instances(rows.filter(rows.is_among(peaks, keys, optional=keys)), column, unit="bytes")
        if instances:
            return instances
    return ()


def _explain_unsized(of_run: Frame) -> str:
    """Explain why R20 cannot be judged."""
    is_unknown = of_run.is_missing("reserved_peak_bytes").all()
    return "reserved memory was not recorded" if is_unknown else UNKNOWN


def _judge_memory_imbalance(
    measured: Measurements, peaks: Frame, thresholds: Thresholds
) -> Iterator[Finding | Verdict]:
    """Judge R23: one rank needs so much more memory than the others that it alone limits the batch."""
    limit = thresholds.of("memory-imbalance")
    on_card = peaks.filter(~peaks.equals("kind", "CPU"))
    if not len(on_card):
        yield Verdict("memory-imbalance", "not applicable", "no GPU memory was recorded")
    for of_kind in on_card.group_by("run", "role", "kind").frames():
        top = next(of_kind.rows())
        of_run = phrase_run(measured, top["run"])
        where = of_run if top["role"] is None else f" of {top['role']}{of_run}"
        if len(of_kind) < 2:
            reason = f"GPU memory of one device only{where}"
            yield Verdict("memory-imbalance", "not applicable", reason)
            continue
        is_relative = of_kind["relative"].any()
        if is_relative or of_kind.is_missing("card_bytes").any():
            reason = UNKNOWN
            if is_relative:
                reason = "levels are relative to the start of the recording"
            yield Verdict("memory-imbalance", "insufficient data", reason + where)
            continue
        middle = float(np.median(of_kind["peak_bytes"]))
        skew = (top["peak_bytes"] - middle) / middle if middle > 0 else 0.0
        filled = top["peak_bytes"] / top["card_bytes"]
        if skew < limit["skew_ratio"] or filled < limit["card_ratio"]:
            continue
        yield Finding(
            "memory-imbalance",
            "low",
            f"{top['memory']} of {top['who']} needs {format_quantity(skew, 'ratio')} more memory than the median of {len(of_kind)} devices{of_run}",
            "balance tokens or layers over ranks; check memory of that rank only (logits of the last pipeline stage, embeddings, gathered states)",
            (
                make_evidence_metric("skew_ratio", skew, "above the median device"),
                make_evidence_metric("peak_bytes", top["peak_bytes"], "its peak"),
                make_evidence_metric("median_bytes", round(middle), "median peak", better="neither"),
                make_evidence_metric("card_ratio", filled, "its peak, share of GPU memory"),
            ),
            (_place_allocator(top, top["source"], top["peak_stage"]),),
            instances=_pick_levels(measured, of_kind.head(1), "peak_bytes"),
            caveats=("the first and last pipeline stages need more by design",),
        )


def _make_allocator_peak_table(measured: Measurements, peaks: Frame) -> Sheet:
    stages = [_name_stage(row["peak_stage"], row["role"]) for row in peaks.rows("peak_stage", "role")]
    peaks = peaks.with_columns(
        card_ratio=divide(peaks["reserved_peak_bytes"], peaks["card_bytes"]),
        basis=texts(["relative" if relative else None for relative in peaks["relative"]]),
        stage=texts(stages),
    )
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            who | process
            memory | memory of
            peak_bytes | peak allocated | bytes | Most allocated at one time.
            stage | in stage
            peak_op | in op | text | Innermost op that ran at the peak.
            peak_step | in step | id
            reserved_peak_bytes | peak reserved | bytes | Peak of the caching allocator's reserved memory.
            card_bytes | GPU memory | bytes | Total memory of the device.
            card_ratio | reserved of GPU | ratio
            card_origin | known from | text | Its origin.
            basis | levels | text | relative: counted from the start of the recording.
        """),
    )
    ranked = Ranked("peak_bytes", member="who", apart=("run", "basis"), kind="memory")
    return make_sheet("memory_peaks", "Peaks of each process and device", headings, peaks, ranked=ranked)


def _name_stage(recorded: str | None, role: str | None) -> str | None:
    """Return the canonical name of a recorded stage."""
    return None if recorded is None else get_canonical_stage(recorded, role)


def _sort_by_allocator(rows: Frame) -> Frame:
    """Sort rows by allocator, and name it: `who` and `memory`."""
    owners, number = number_allocators(rows)
    named = rows.with_columns(
        who=select_rows(texts([owner.process for owner in owners]), number),
        memory=select_rows(texts([owner.memory for owner in owners]), number),
    )
    return named.take(np.argsort(number, kind="stable"))


def _make_memory_stage_table(measured: Measurements) -> Sheet:
    rows = _sort_by_allocator(list_memory_stages(measured))
    stages = rows.group_by("run", "memory", "canonical").agg(
        peak_bytes=max_of("peak_bytes"),
        end_bytes=max_of("end_bytes"),
        floor_bytes=min_of("floor_bytes"),
        reserved_bytes=max_of("reserved_bytes"),
        processes=count_distinct_of("who"),
    )
    stages = stages.filter(~stages.is_missing("peak_bytes"))
    stages = stages.sort("memory", "peak_bytes", descending=["memory", "peak_bytes"])
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            memory | memory of
            canonical | stage
            peak_bytes | peak | bytes | Most allocated, highest process and step.
            floor_bytes | least | bytes | Least allocated, lowest process and step.
            end_bytes | at its end | bytes | Highest process and step.
            reserved_bytes | peak reserved | bytes
            processes | processes | count
        """),
    )
    return make_sheet("memory_stages", "Memory by stage", headings, stages)


def _make_memory_step_table(measured: Measurements) -> Sheet:
    steps = _sort_by_allocator(list_memory_steps(measured))
    # A snapshot without a step is a file, which the peaks list.
    is_file = steps.equals("device_type", SNAPSHOT) & steps.is_missing("step")
    steps = steps.filter(~(is_file | steps.is_missing("floor_bytes")))
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            who | process
            memory | memory of
            step | step | id
            part | capture
            floor_bytes | least | bytes | Least allocated at any time of the step.
            end_bytes | at its end | bytes
            peak_bytes | peak | bytes
            reserved_bytes | peak reserved | bytes
        """),
    )
    ranked = Ranked("peak_bytes", member="who", apart=("run", "step", "part"), kind="memory")
    return make_sheet("memory_steps", "Memory by step", headings, steps, ranked=ranked)


ANALYSIS = Analysis(
    id="memory",
    title="Where does memory go?",
    reads=("host_ops", "memory_ops", "allocations", "memory_segments", "blocks", "annotations"),
    writes=(MEMORY_STEPS, MEMORY_STAGES, MEMORY_PEAKS, DEVICE_SIZES, MEMORY_CURVE, "metrics"),
    rests_on=("memory_pools",),
    metrics=(
        "device_peak_allocated",
        "device_peak_requested",
        "device_peak_reserved",
        "host_peak_allocated",
        "host_peak_reserved",
        "driver_peak_allocated",
    ),
    rules=("memory-near-limit", "memory-imbalance"),
    thresholds={
        "memory-near-limit": {
            # Peak reserved memory as a share of the card;
            "reserved_ratio": 0.90,
            # from here on high.
            "high_ratio": 0.97,
        },
        "memory-imbalance": {
            # How far the largest peak lies above the median peak of the devices,
            "skew_ratio": 0.20,
            # and which share of the card it fills.
            "card_ratio": 0.50,
        },
    },
    measure=measure,
    judge=judge,
    whole_recording=True,
)
