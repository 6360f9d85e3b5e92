"""Copies: direction, kinds of memory, size and bandwidth (definition M10)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import divide_or_none, make_run_heading, phrase_run
from tracekit.job.report.copy_directions import DIRECTION_TITLES
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_pooled_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import count_recorded_steps_of_processes, count_steps_of_processes
from tracekit.model.report import Finding, Instance, Place, Section
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Nullable, select_rows
from tracekit.model.tables.columns import DEVICE, EXTREMES
from tracekit.model.tables.frame import Frame, Ints, divide, max_of, sum_of
from tracekit.model.tables.keys import PROCESS, group_arrays, number_keys, sum_by_group
from tracekit.model.text.changes import write_change
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.device.transfers import parse_copy_direction
from tracekit.process.extremes import find_longest_and_median
from tracekit.process.name_filters import look_up_name_codes, map_coded_values, mark_rows_of_kind

COPIES = Table(
    "copies",
    "copies and fills of one direction and memory kind on one device",
    {
        **KEYS,
        "device": DEVICE,
        "direction": Column("category", "HtoD, DtoH, DtoD, PtoP, HtoH, memset, or as recorded."),
        "memory": Column("category", "Pageable, Pinned, Device … as recorded."),
        "count": Column("int64", "Copies."),
        "dur_ns": Column("int64", "Σ duration."),
        "size_bytes": Column("Int64", "Bytes of those whose size is recorded."),
        "rated_bytes": Column("Int64", "Bytes of those with both bytes and time recorded."),
        "rated_ns": Column("Int64", "Time of the same."),
        "gb_per_s": Column("Float64", "rated_bytes / rated_ns; 1e9 bytes."),
        "max_gb_per_s": Column("Float64", "Fastest single copy."),
        "excluded_count": Column("int64", "Copies without bytes or time: not in the rates."),
        "small_count": Column("int64", "Copies of at most 64,000 bytes."),
        "small_ns": Column("int64", "Their time."),
        "small_bytes": Column("int64", "Their bytes."),
        "large_ns": Column("int64", "Time of rated copies of at least 1 MiB."),
        "large_bytes": Column("int64", "Their bytes."),
        **EXTREMES,
    },
)


SMALL_BYTES = 64_000
"""A copy to the device of at most this size costs little even when it is pageable."""

LARGE_BYTES = 1 << 20
"""Copies of at least this size show the rate of the link: their fixed cost is below a tenth of their time."""

TYPICAL_PINNED_GB_PER_S = 25.0
"""Assumed rate of pinned copies where none is recorded: four fifths of PCIe 4.0 with 16 lanes (31.5 GB/s).

PCIe 5.0 is twice as fast: an H200 copied 54.5 GB/s from pinned memory and 8.8 GB/s from pageable memory (recordings in
`tests/data/gpu/pairs`). There the prediction is about a fifth too small.
"""

_FILL = re.compile(r"(?:hip)?Memset\s*(\w+)?\s*(?:\((.*)\))?\Z", re.IGNORECASE)


def parse_copy_name(name: str) -> tuple[str, str]:
    """Parse (direction, memory) from the name of a copy; an unknown name is its own direction.

    >>> parse_copy_name("Memcpy HtoD (Pageable -> Device)"), parse_copy_name("Memset (Device)")
    (('HtoD', 'Pageable -> Device'), ('memset', 'Device'))
    >>> parse_copy_name("CopyHostToDevice")
    ('HtoD', '')
    """
    fill = _FILL.match(name)
    if fill:
        return "memset", fill[2] or fill[1] or ""
    way, memory = parse_copy_direction(name)
    return (way, memory or "") if way else (name, "")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum up copies and fills by device, direction and memory.

    Rates are Σ bytes / Σ time of copies with both.
    """
    is_chosen = mark_rows_of_kind(trace, "device_ops", "memcpy", "memset")
    rows = np.flatnonzero(is_chosen)
    if not len(rows):
        return {"copies": {}} if trace.has("device_ops") else {}
    names = trace.texts("device_ops", "name")
    device = select_rows(trace.nullable("device_ops", "device"), rows)
    size = select_rows(trace.nullable("device_ops", "size_bytes"), rows)
    dur = trace.numbers("device_ops", "dur_ns")[rows]
    codes, number = number_keys(look_up_name_codes(names, rows))
    ways = map_coded_values(codes, names.texts, parse_copy_name).tolist()
    kinds = sorted({way for way in ways if way})
    place = {kind: number for number, kind in enumerate(kinds)}
    kind = np.array([place.get(way, len(kinds)) for way in ways], np.int64)[number]
    group, first = group_arrays([device, kind])
    order = np.lexsort((kind[first], device.values[first], device.missing[first]))
    group, first = np.argsort(order)[group], first[order]
    texts = np.array([*kinds, (None, None)], object)[kind[first]]
    return {
        "copies": {
            "device": select_rows(device, first),
            "direction": texts[:, 0],
            "memory": texts[:, 1],
            **_sum_copies(group, len(first), size, dur),
            **find_longest_and_median(group, trace.numbers("device_ops", "ts_ns")[rows], dur, len(first)),
        }
    }


def _sum_copies(group: Ints, count: int, size: Nullable, dur: Ints) -> dict[str, Any]:
    """Sum up each group of copies, from the size and the duration of each copy."""
    has_size = ~size.missing
    rated = has_size & (size.values > 0) & (dur > 0)
    small = has_size & (size.values <= SMALL_BYTES)
    large = rated & (size.values >= LARGE_BYTES)

    def counted(chosen: npt.NDArray[np.bool_]) -> Ints:
        return np.bincount(group[chosen], minlength=count)

    def total(values: Ints, chosen: npt.NDArray[np.bool_]) -> Ints:
        return sum_by_group(group[chosen], values[chosen], count)

    unsized, unrated = counted(has_size) == 0, counted(rated) == 0
    rated_bytes, rated_ns = total(size.values, rated), total(dur, rated)
    fastest = np.zeros(count)
    np.maximum.at(fastest, group[rated], size.values[rated] / dur[rated])
    return {
        "count": np.bincount(group, minlength=count),
        "dur_ns": sum_by_group(group, dur, count),
        "excluded_count": counted(~rated),
        "small_count": counted(small),
        "small_ns": total(dur, small),
        "small_bytes": total(size.values, small),
        "large_ns": total(dur, large),
        "large_bytes": total(size.values, large),
        "size_bytes": Nullable(total(size.values, has_size), unsized),
        "rated_bytes": Nullable(rated_bytes, unrated),
        "rated_ns": Nullable(rated_ns, unrated),
        "max_gb_per_s": Nullable(fastest, unrated),
        "gb_per_s": Nullable(rated_bytes / np.where(unrated, 1, rated_ns), unrated),
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Pool copies by direction over all processes; finding R08."""
    if not measured.has("copies"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    copies = measured.frame("copies")
    if not len(copies):
        return ANALYSIS.skipped("no copy was recorded")
    pooled = _pool_copies(copies)
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            direction | direction | text | HtoD is H2D, DtoH is D2H, DtoD is D2D, PtoP is P2P.
            memory | memory
            count | count | count
            size_bytes | moved | bytes | Σ over all processes and steps, of copies whose size is recorded.
            dur_ns | time | ns | Σ duration.
            gb_per_s | rate | gb_per_s | Σ bytes / Σ time; 1e9 bytes.
            max_gb_per_s | fastest | gb_per_s
            excluded_count | without rate | count | Copies without recorded bytes or time.
        """),
    )
    return ANALYSIS.answered(
        sheets=lambda: (make_sheet("copies", "Copies by direction", headings, pooled),),
        findings=tuple(_find_pageable_copies(measured, pooled, thresholds)),
    )


ASSUMED_RATE = f"no pinned copy of 1 MiB was recorded: assumes {TYPICAL_PINNED_GB_PER_S:.0f} GB/s for pinned copies"

SUMMED = (
    *("count", "dur_ns", "size_bytes", "rated_bytes", "rated_ns", "excluded_count"),
    *("small_count", "small_ns", "small_bytes", "large_ns", "large_bytes"),
)


def _pool_copies(copies: Frame) -> Frame:
    """Pool copies over processes and devices: one row per run, direction and memory, most time first."""
    sums = {name: sum_of(name) for name in SUMMED}
    by_kind = copies.group_by("run", "direction", "memory")
    pooled = by_kind.agg(**sums, max_gb_per_s=max_of("max_gb_per_s"))
    pooled = pooled.with_columns(gb_per_s=divide(pooled["rated_bytes"], pooled["rated_ns"]))
    return pooled.sort("dur_ns", "direction", "memory", descending=["dur_ns"])


def _find_pageable_copies(measured: Measurements, pooled: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """R08: copies between a device and pageable host memory, which the driver stages through a buffer."""
    limit = thresholds.of("pageable-copies")
    copies = measured.frame("copies")
    for row in pooled.rows():
        if row["direction"] not in ("HtoD", "DtoH") or not _is_memory(row, "pageable"):
            continue
        of_run = copies.filter(copies.equals("run", row["run"]))
        processes = of_run.select(*PROCESS)
        steps = count_recorded_steps_of_processes(measured, processes)
        size, count, dur = row["size_bytes"] or 0, row["count"], row["dur_ns"]
        if row["direction"] == "HtoD":
            # The driver copies the small ones without waiting for the device.
            size -= row["small_bytes"]
            count -= row["small_count"]
            dur -= row["small_ns"]
        size_each = steps.mean(size)
        _, ratio = steps.per_step(dur)
        if size_each < limit["bytes_per_step"] and (ratio or 0.0) < limit["time_ratio"]:
            continue
        pinned_rate = _find_pinned_rate(pooled, row)
        factor = _estimate_pinned_factor(row, pinned_rate)
        large_each, _ = steps.per_step(row["dur_ns"] - row["small_ns"])
        gain = large_each * (1 - factor)
        if measured.has("transfers"):
            exposed_each = count_steps_of_processes(measured, processes).mean(_sum_exposed_ns(measured, row))
            gain = max(min(exposed_each, large_each) - large_each * factor, 0.0)
        gain_ratio = divide_or_none(gain, steps.step_ns)
        kind = f"{DIRECTION_TITLES[row['direction']]} {choose_plural(count, 'copy', 'copies')}"
        yield Finding(
            "pageable-copies",
            thresholds.severity(gain_ratio),
            f"{count:,} {kind} {choose_plural(count, 'uses', 'use')} pageable host memory"
            + phrase_run(measured, row["run"]),
            "pin the host buffers (pin_memory=True) and copy with non_blocking=True",
            (
                make_evidence_metric("pageable_bytes", round(size_each), "per step and process"),
                make_evidence_metric("gb_per_s", row["gb_per_s"], "rate", better="higher"),
                make_evidence_metric("pinned_gb_per_s", pinned_rate, "pinned, same trace", better="higher"),
            ),
            _locate_copies(row, of_run),
            round(gain),
            gain_ratio,
            caveats=() if pinned_rate else (ASSUMED_RATE,),
            changes=tuple(_write_copy_changes(row, factor)),
            instances=_pick_copies(measured, row, of_run),
        )


def _write_copy_changes(row: Mapping[str, Any], factor: float) -> Iterator[str]:
    """List the changes of the fix: copies do not block, and take the time of pinned ones; small D2H copies stay as they are."""
    rate = _find_rate_of_large(row)
    chosen: dict[str, Any] = {"op": f"{row['direction']}.*Pageable"}
    if row["direction"] == "DtoH" and row["small_count"] and rate:
        # Small ones are scalars that the program reads at once.
        chosen["longer_than_us"] = round(SMALL_BYTES / rate / 1_000, 3)
    yield write_change("unblock", **chosen)
    if factor < 1:
        yield write_change("scale", "device", **chosen, factor=round(factor, 4))


def _estimate_pinned_factor(row: Mapping[str, Any], pinned_rate: float | None) -> float:
    """Estimate how long a pinned copy takes, as a share of a pageable one; 1 if no rate is known or pinned memory is not faster."""
    rate = _find_rate_of_large(row)
    return min(1.0, rate / (pinned_rate or TYPICAL_PINNED_GB_PER_S)) if rate else 1.0


def _find_rate_of_large(row: Mapping[str, Any]) -> float | None:
    """Compute the rate of copies of more than 64,000 bytes, in bytes per ns; None without a recorded one."""
    size = (row["rated_bytes"] or 0) - row["small_bytes"]
    length = (row["rated_ns"] or 0) - row["small_ns"]
    return size / length if size > 0 and length > 0 else None


MAX_PLACES = 8
NEXT_TO_NONE = 0.1
"""Ranks that copy for a smaller share of the time of the rank that copies longest are not named."""


def _locate_copies(row: Mapping[str, Any], of_run: Frame) -> tuple[Place, ...]:
    """Return a place of this kind of copies; one per rank if few ranks have nearly all of these copies."""
    name = f"{row['direction']} ({row['memory']})"
    of_ranks = of_run.filter(~of_run.is_missing("rank"))
    is_kind = of_ranks.equals("direction", row["direction"])
    is_kind &= of_ranks.equals("memory", row["memory"])
    by_rank = of_ranks.filter(is_kind).group_by("role", "rank").agg(dur_ns=sum_of("dur_ns"))
    dur_ns = by_rank["dur_ns"]
    most = by_rank.filter(dur_ns >= NEXT_TO_NONE * dur_ns.max(initial=0))
    if not 0 < len(most) <= min(len(of_ranks.distinct("role", "rank")) // 2, MAX_PLACES):
        return (Place(name=name),)
    ranks = most.sort("role", "rank").rows("role", "rank")
    return tuple(Place(name=name, role=each["role"], rank=each["rank"]) for each in ranks)


def _pick_copies(measured: Measurements, row: Mapping[str, Any], of_run: Frame) -> tuple[Instance, ...]:
    """Pick the longest and the median copy of this kind."""
    alike = of_run.filter(of_run.equals("direction", row["direction"]) & of_run.equals("memory", row["memory"]))
    return pick_pooled_instances(measured, alike, name=f"{row['direction']} ({row['memory']})")


def _is_memory(row: Mapping[str, Any], kind: str) -> bool:
    """Whether copies are from or to this kind of memory."""
    return kind in (row["memory"] or "").lower()


def _find_pinned_rate(pooled: Frame, row: Mapping[str, Any]) -> float | None:
    """Find the best rate of copies of at least 1 MiB from or to pinned memory of the same run and direction."""
    is_alike = pooled.equals("run", row["run"]) & pooled.equals("direction", row["direction"])
    pinned = [each for each in pooled.filter(is_alike).rows() if _is_memory(each, "pinned") and each["large_ns"]]
    return max((each["large_bytes"] / each["large_ns"] for each in pinned), default=None)


def _sum_exposed_ns(measured: Measurements, row: Mapping[str, Any]) -> int:
    """Add up the exposed time of the large copies of one run, direction and memory.

    Transfers are those of the steps that count, unlike the copies, which are those of the whole recording.
    """
    transfers = measured.frame("transfers")
    is_kind = transfers.equals("run", row["run"])
    is_kind &= transfers.equals("direction", row["direction"])
    is_kind &= transfers.equals("memory", row["memory"])
    return int(transfers["exposed_ns"][is_kind].sum())


ANALYSIS = Analysis(
    id="copies",
    title="Which copies were made, and how fast?",
    reads=("device_ops",),
    writes=(COPIES,),
    rests_on=("gpu_time", "transfers"),
    rules=("pageable-copies",),
    thresholds={
        "pageable-copies": {
            # Bytes per step copied from or to pageable host memory.
            "bytes_per_step": 1_048_576,
            # or their time as a share of the step.
            "time_ratio": 0.01,
        }
    },
    measure=measure,
    judge=judge,
)
