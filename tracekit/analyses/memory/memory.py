"""Where does memory go? Peaks, and levels by stage and step (Q26, M15; R20, R23)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.charts import memory_lines
from tracekit.job.evidence import evidence
from tracekit.job.frames import each_run, grouped, in_run, run_heading, text_or_none
from tracekit.job.memory.device_size import UNKNOWN, device_sizes
from tracekit.job.memory.trend import Allocator, allocators, stages, steps
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.keys import of_arrays, row_dicts
from tracekit.model.report import Finding, Metric, Place, Ranked, Section, Sheet, Verdict
from tracekit.model.stages import canonical
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Nullable, at_rows, repeated_number, stacked
from tracekit.model.tables.columns import DEVICE, OCCURRENCE, STAGE, STEP, TS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.memory.levels import (
    CPU,
    DRIVER,
    SNAPSHOT,
    Levels,
    levels,
    places,
    sizes_of,
    windows_of,
)
from tracekit.process.steps.windows import Stages, Steps

_DEVICE_TYPE = Column(
    "Int64",
    "Whose memory: 0 host (CPU), 1 CUDA, 6 HIP, 12 XPU, 20 private, 101 what was got from the CUDA driver "
    "(segments of an allocator among it); never added together.",
)

_LEVELS = {
    "floor_bytes": Column("Int64", "Least allocated at any time of it."),
    "end_bytes": Column("Int64", "Allocated when it ended."),
    "peak_bytes": Column("Int64", "Most allocated at any time of it."),
    "reserved_bytes": Column("Int64", "Most reserved from the device at any time of it."),
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
        "relative": Column("bool", "Whether levels count from the start of the recording."),
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
        "relative": Column("bool", "Whether levels count from the start of the recording."),
        "peak_bytes": Column("int64", "Most allocated."),
        "peak_ts_ns": Column("int64", "When first, ns on the clock of ts_ns."),
        "peak_step": Column("Int64", "Step of the peak."),
        "peak_stage": Column("category", "Outermost stage around the peak, as recorded."),
        "peak_op": Column("category", "Innermost op around the peak."),
        "reserved_peak_bytes": Column("Int64", "Most reserved from the device."),
        "reserved_ts_ns": Column("Int64", "When first."),
        "reserved_stage": Column("category", "Outermost stage around that, as recorded."),
        "omitted_stage_count": Column(
            "int64", "Stages beyond the cap: not in memory_stages, the shortest first."
        ),
    },
)

DEVICE_SIZES = Table(
    "device_sizes",
    "the memory of one device that a process can see",
    {
        **KEYS,
        "device": DEVICE,
        "size_bytes": Column("int64", "All of its memory, as the driver tells."),
    },
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
"""How metrics call the memory of a `device_type`; any other is a device's."""

REQUESTED = "levels of snapshots are bytes as requested, which the allocator rounds up: what it counts as allocated is a little more"


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """The sizes of devices; the levels of every allocator in each step and outermost stage, its peaks, and its curve."""
    sizes = sizes_of(trace)
    if not (trace.has("memory_ops") or trace.has("allocations")):
        return sizes
    tables: dict[str, list[Mapping[str, Any]]] = {
        name: [] for name in ("steps", "stages", "peaks", "curve")
    }
    of_steps = []
    for level in levels(trace):
        steps, outer = windows_of(trace, level)
        longest = np.argsort(-outer.dur_ns, kind="stable")[:MAX_STAGES]
        in_steps = _within(level, steps) | {"relative": np.full(len(steps), level.relative)}
        peak = _peak(trace, level, steps) | _whose(level, 1)
        peak["omitted_stage_count"] = np.array([len(outer) - len(longest)])
        of_steps.append((level.device_type, in_steps))
        tables["steps"].append(in_steps)
        tables["stages"].append(_within(level, outer.at(np.sort(longest))))
        tables["peaks"].append(peak)
        if level.replay is None or level.replay.timed:
            curve = level.curve(CURVE_POINTS)
            tables["curve"].append(curve | _whose(level, len(curve["ts_ns"])))
    measured = {f"memory_{name}": stacked(parts) for name, parts in tables.items()}
    return {**sizes, **measured, **_metrics(of_steps)}


def _whose(level: Levels, count: int) -> dict[str, Nullable]:
    """The columns that tell whose memory it is, so many times."""
    return {
        "device_type": repeated_number(level.device_type, count),
        "device": repeated_number(level.device, count),
    }


def _within(level: Levels, windows: Steps | Stages) -> dict[str, Any]:
    """The columns of steps or stages with the levels in each."""
    columns = {n: array for n, array in windows.arrays.items() if n not in ("origin", "parent")}
    within = level.within(windows.ts_ns, windows.end_ns)
    return columns | within | _whose(level, len(windows))


def _peak(trace: Trace, level: Levels, steps: Steps) -> dict[str, Any]:
    """The row of `memory_peaks` of one allocator, but for whose it is."""
    reserved = level.reserved
    entries = [int(level.allocated.argmax())]
    entries += [] if reserved is None else [int(reserved.argmax())]
    stage, op = places(trace, level, np.array(entries))
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
        "reserved_peak_bytes": Nullable(
            np.array([0 if reserved is None else reserved[last]]), no_reserved
        ),
        "reserved_ts_ns": Nullable(level.ts_ns[[last]], no_reserved),
        "reserved_stage": np.array(stage[1:] or [None], object),
    }


def _metrics(
    of_steps: Sequence[tuple[int | None, Mapping[str, Any]]],
) -> Mapping[str, Mapping[str, Any]]:
    """What compare and gates see of each step: the highest level of any GPU, and that of the host.

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
                step = at_rows(columns["step"], has_level)
                order = np.lexsort((step.values, step.missing))
                value = columns[column].values[has_level][order]
                names = np.full(len(order), name, object)
                parts.append({"step": at_rows(step, order), "name": names, "value": value})
    rows: Mapping[str, Any] = stacked(parts)
    if not rows or not len(rows["name"]):
        return {}
    group, first = of_arrays([rows["step"], rows["name"]])
    highest = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(highest, group, rows["value"])
    return {
        "metrics": {
            "step": at_rows(rows["step"], first),
            "name": at_rows(rows["name"], first),
            "value": Nullable(highest.astype(np.float64), np.zeros(len(first), np.bool_)),
        }
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Peaks, levels by step and stage, of every allocator; findings R20, R23."""
    if not measured.row_count("memory_peaks"):
        reason = "no memory was profiled (profile_memory=True of torch.profiler records it)"
        return ANALYSIS.skipped(reason)
    peaks = _peaks(measured)
    judged: list[Finding | Verdict] = [
        *_near_limit(measured, peaks, thresholds),
        *_imbalance(measured, peaks, thresholds),
    ]
    return ANALYSIS.answered(
        metrics=lambda: _headline(peaks),
        sheets=lambda: with_rows(
            _peak_sheet(measured, peaks), _stage_sheet(measured), _step_sheet(measured)
        ),
        judged=judged,
        caveats=lambda: _caveats(peaks),
        charts=lambda: memory_lines(measured),
    )


def _peaks(measured: Measurements) -> pd.DataFrame:
    """One row an allocator: the highest of its sources, highest first, with `of`, the Allocator."""
    rows = measured["memory_peaks"]
    rows = rows.sort_values("peak_bytes", ascending=False, kind="stable")
    owners, number = allocators(rows)
    if not owners:
        return pd.DataFrame()
    by_reserved = rows.assign(number=number).sort_values(
        "reserved_peak_bytes", ascending=False, kind="stable"
    )
    by_reserved = by_reserved.drop_duplicates("number").sort_values("number")
    top = rows.iloc[np.unique(number, return_index=True)[1]].reset_index(drop=True)
    reserved = {str(name): by_reserved[name].array for name in top.filter(like="reserved")}
    sizes = device_sizes(measured)
    on_card = [owner.device is not None and owner.kind != "CPU" for owner in owners]
    cards = [
        sizes.limit(owner.run, owner.rank, owner.device) if on else None
        for owner, on in zip(owners, on_card, strict=True)
    ]
    return top.assign(
        **reserved,
        of=pd.Series(owners, dtype=object),
        card_bytes=pd.array(
            [pd.NA if card is None else card.size_bytes for card in cards], dtype="Int64"
        ),
        card_origin=pd.Series([card and card.origin for card in cards], dtype=object),
        reserved_source=by_reserved["source"].array,
        who=[owner.process for owner in owners],
        memory=[owner.memory for owner in owners],
    )


def _caveats(peaks: pd.DataFrame) -> Iterator[str]:
    if peaks["relative"].any():
        yield (
            "levels marked relative count from the start of the recording: "
            "what was allocated before it is not in them"
        )
    if (peaks["device_type"] == SNAPSHOT).any():
        yield REQUESTED
    if unsound := int(peaks["unsound_count"].sum()):
        yield f"{unsound:,} samples have no size or an impossible one: left out"
    if omitted := int(peaks["omitted_stage_count"].max()):
        yield f"a source has {omitted:,} more stages than are followed one by one: the shortest"


def _headline(peaks: pd.DataFrame) -> Iterator[Metric]:
    """The highest peaks of any GPU."""
    on_card = _on_card(peaks)
    kinds = on_card["device_type"].where(on_card["device_type"].isin((DRIVER, SNAPSHOT)), -1)
    # What an allocator counts says more than what was requested, and that more than what the driver gave it.
    kind = next((k for k in (-1, SNAPSHOT, DRIVER) if (kinds == k).any()), -1)
    on_card, counted = on_card[kinds == kind], "requested" if kind == SNAPSHOT else "allocated"
    for name, column, text in (
        (f"peak_{counted}", "peak_bytes", f"most {counted} on one GPU"),
        ("peak_reserved", "reserved_peak_bytes", "most reserved on one GPU"),
    ):
        if on_card[column].notna().any():
            yield Metric(name, int(on_card[column].max()), "bytes", "lower", label=text)


def _on_card(peaks: pd.DataFrame) -> pd.DataFrame:
    """The peaks of all memory but that of hosts."""
    return peaks[np.array([owner.kind != "CPU" for owner in peaks["of"]], np.bool_)]


def _place(of: Allocator, **more: Any) -> Place:
    """Where an allocator is."""
    device = None if of.kind == "CPU" else of.device
    return Place(run=of.run, role=of.role, rank=of.rank, device=device, **more)


def _near_limit(
    measured: Measurements, peaks: pd.DataFrame, thresholds: Thresholds
) -> Iterator[Finding | Verdict]:
    """R20: what a process reserves comes near all that its GPU has."""
    limit = thresholds.of("memory-near-limit")
    for run, of_run in each_run(peaks):
        sized = of_run[of_run["card_bytes"].notna() & of_run["reserved_peak_bytes"].notna()]
        where = in_run(measured, run)
        if not len(sized):
            on_card = any(owner.kind != "CPU" for owner in of_run["of"])
            reason = _untold(of_run) if on_card else "no GPU memory was recorded"
            yield Verdict(
                "memory-near-limit",
                "insufficient data" if on_card else "not applicable",
                reason + where,
            )
            continue
        share = (sized["reserved_peak_bytes"] / sized["card_bytes"]).astype(float)
        if bool((share > 1).any()):
            reason = f"more is reserved than the card has ({sized['card_origin'].iloc[0]})"
            yield Verdict("memory-near-limit", "insufficient data", reason + where)
            share = share[share <= 1]
        order = share.sort_values(ascending=False, kind="stable").index
        near = sized.loc[[i for i in order if share[i] >= limit["reserved_ratio"]]]
        if not len(near):
            continue
        worst, ratio = near.iloc[0], float(share[near.index[0]])
        stage = _stage(worst["reserved_stage"], worst["of"])
        during = "" if stage is None else f" during {stage}"
        yield Finding(
            "memory-near-limit",
            "high" if ratio >= limit["high_ratio"] else "medium",
            f"{worst['memory']} of {worst['who']} has {show(ratio, 'ratio')} of its memory reserved{during}{where}",
            "lower gpu_memory_utilization of the rollout engine, the micro-batch or tokens per GPU of "
            "that stage, or offload what it does not need",
            (
                evidence("reserved_ratio", ratio, "of the card"),
                evidence("reserved_bytes", int(worst["reserved_peak_bytes"]), "reserved"),
                evidence(
                    "card_bytes",
                    int(worst["card_bytes"]),
                    f"card, {worst['card_origin']}",
                    better="neither",
                ),
                Metric("devices", len(near), "count", label="devices so near"),
            ),
            tuple(
                _place(
                    row["of"],
                    source=row["reserved_source"],
                    stage=text_or_none(row["reserved_stage"]),
                )
                for row in row_dicts(near.iloc[:MAX_PLACES])
            ),
            caveats=(
                "other processes on the GPU, the CUDA context and the pools of a sleeping rollout engine are not in it",
            ),
        )


def _untold(mine: pd.DataFrame) -> str:
    """What keeps R20 from being judged."""
    reserved = bool(mine["reserved_peak_bytes"].notna().any())
    return UNKNOWN if reserved else "reserved memory was not recorded"


def _imbalance(
    measured: Measurements, peaks: pd.DataFrame, thresholds: Thresholds
) -> Iterator[Finding | Verdict]:
    """R23: one rank needs so much more memory than the others that it alone decides what fits."""
    limit = thresholds.of("memory-imbalance")
    on_card = _on_card(peaks).assign(kind=lambda frame: [owner.kind for owner in frame["of"]])
    if not len(on_card):
        yield Verdict("memory-imbalance", "not applicable", "no GPU memory was recorded")
    for (run, role, _), of_kind in on_card.groupby(
        ["run", "role", "kind"], dropna=False, sort=False
    ):
        where = ("" if text_or_none(role) is None else f" of {role}") + in_run(measured, run)
        if len(of_kind) < 2:
            reason = f"GPU memory of one device only{where}"
            yield Verdict("memory-imbalance", "not applicable", reason)
            continue
        if of_kind["card_bytes"].isna().any() or of_kind["relative"].any():
            reason = (
                "levels count from the start of the recording"
                if of_kind["relative"].any()
                else UNKNOWN
            )
            yield Verdict("memory-imbalance", "insufficient data", reason + where)
            continue
        top, middle = of_kind.iloc[0], float(of_kind["peak_bytes"].median())
        skew = (float(top["peak_bytes"]) - middle) / middle if middle > 0 else 0.0
        filled = float(top["peak_bytes"] / top["card_bytes"])
        if skew < limit["skew_ratio"] or filled < limit["card_ratio"]:
            continue
        yield Finding(
            "memory-imbalance",
            "low",
            f"{top['memory']} of {top['who']} needs {show(skew, 'ratio')} more memory than the median of {len(of_kind)} devices"
            + in_run(measured, run),
            "balance tokens or layers over ranks; look at what that rank alone keeps "
            "(logits of the last pipeline stage, embeddings, gathered states)",
            (
                evidence("skew_ratio", skew, "above the median device"),
                evidence("peak_bytes", int(top["peak_bytes"]), "its peak"),
                evidence("median_bytes", round(middle), "median peak", better="neither"),
                evidence("card_ratio", filled, "its peak, of the card"),
            ),
            (
                _place(
                    top["of"],
                    source=text_or_none(top["source"]),
                    stage=text_or_none(top["peak_stage"]),
                ),
            ),
            caveats=("the first and the last stage of a pipeline hold more by design",),
        )


def _peak_sheet(measured: Measurements, peaks: pd.DataFrame) -> Sheet:
    peak_rows = peaks.assign(
        card_ratio=(peaks["reserved_peak_bytes"] / peaks["card_bytes"]).astype("Float64"),
        basis=pd.Series("relative", peaks.index).where(peaks["relative"].astype(bool), None),
        stage=np.array(list(map(_stage, peaks["peak_stage"], peaks["of"])), object),
    )
    headings = (
        *run_heading(measured),
        *as_headings("""
            who | process
            memory | memory of
            peak_bytes | peak allocated | bytes | Most allocated at one time.
            stage | in stage
            peak_op | in op | text | Innermost op that ran at the peak.
            peak_step | in step | id
            reserved_peak_bytes | peak reserved | bytes | Most that the caching allocator held.
            card_bytes | card | bytes | All memory of the device.
            card_ratio | reserved of card | ratio
            card_origin | size of card | text | Where it is known from.
            basis | levels | text | relative: counted from the start of the recording.
        """),
    )
    ranked = Ranked("peak_bytes", member="who", apart=("run", "basis"), kind="memory")
    return sheet(
        "memory_peaks", "Peaks of each process and device", headings, peak_rows, ranked=ranked
    )


def _stage(recorded: object, of: Allocator) -> str | None:
    """A recorded stage under its one name."""
    return None if pd.isna(recorded) else canonical(str(recorded), of.role)  # type: ignore[call-overload]


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `who` and `memory`, in words."""
    owners, number = allocators(rows)
    order = np.argsort(number, kind="stable")
    rows, number = rows.iloc[order], number[order]
    who, memory = (
        np.array([*words, None], object)[number] if len(rows) else None
        for words in ([owner.process for owner in owners], [owner.memory for owner in owners])
    )
    return rows.assign(who=who, memory=memory)


def _stage_sheet(measured: Measurements) -> Sheet:
    rows = _named(stages(measured))
    stage_rows = grouped(
        rows,
        ["run", "memory", "canonical"],
        peak_bytes=("peak_bytes", "max"),
        end_bytes=("end_bytes", "max"),
        floor_bytes=("floor_bytes", "min"),
        reserved_bytes=("reserved_bytes", "max"),
        processes=("who", "nunique"),
    )
    stage_rows = stage_rows[stage_rows["peak_bytes"].notna()]
    stage_rows = stage_rows.sort_values(
        ["memory", "peak_bytes"], ascending=[False, False], kind="stable"
    )
    headings = (
        *run_heading(measured),
        *as_headings("""
            memory | memory of
            canonical | stage
            peak_bytes | peak | bytes | Most allocated, highest process and step.
            floor_bytes | least | bytes | Least allocated, lowest process and step.
            end_bytes | at its end | bytes | Highest process and step.
            reserved_bytes | peak reserved | bytes
            processes | processes | count
        """),
    )
    return sheet("memory_stages", "Memory by stage", headings, stage_rows)


def _step_sheet(measured: Measurements) -> Sheet:
    step_rows = _named(steps(measured))
    # A snapshot of no known step is a file, which the peaks tell of.
    file = (step_rows["device_type"] == SNAPSHOT) & step_rows["step"].isna()
    step_rows = step_rows[~file.fillna(value=False).to_numpy(bool)]
    headings = (
        *run_heading(measured),
        *as_headings("""
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
    step_rows = step_rows[step_rows["floor_bytes"].notna()]
    ranked = Ranked("peak_bytes", member="who", apart=("run", "step", "part"), kind="memory")
    return sheet("memory_steps", "Memory by step", headings, step_rows, ranked=ranked)


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
