"""What was copied, which way, from what memory and how fast? (definition M10)"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import (
    count_distinct,
    grouped,
    in_run,
    number_or_none,
    ordered,
    run_heading,
    same_text,
    share_of,
    text_or_none,
)
from tracekit.job.stages.windows import recorded_steps_of, steps_of
from tracekit.job.tables import as_headings, sheet
from tracekit.model.keys import numbered, of_arrays, row_dicts, summed
from tracekit.model.labels import plural
from tracekit.model.report import Finding, Place, Section
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Nullable, at_rows
from tracekit.model.tables.columns import DEVICE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.device.copy_names import way_of
from tracekit.process.name_filters import by_value, codes_at, of_kind

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
    },
)


Ints = npt.NDArray[np.int64]

SMALL_BYTES = 64_000
"""A copy to the device of at most so many bytes costs little even when it is pageable."""

SMALL = ("small_count", "small_ns", "small_bytes")

_FILL = re.compile(r"(?:hip)?Memset\s*(\w+)?\s*(?:\((.*)\))?\Z", re.IGNORECASE)


def direction(name: str) -> tuple[str, str]:
    """(direction, memory) that a copy's name tells of; the name itself where it tells nothing.

    >>> direction("Memcpy HtoD (Pageable -> Device)"), direction("Memset (Device)")
    (('HtoD', 'Pageable -> Device'), ('memset', 'Device'))
    >>> direction("CopyHostToDevice")
    ('HtoD', '')
    """
    fill = _FILL.match(name)
    if fill:
        return "memset", fill[2] or fill[1] or ""
    way, memory = way_of(name)
    return (way, memory or "") if way else (name, "")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Copies and fills by device, direction and memory; rates are Σ bytes / Σ time of those with both."""
    is_chosen = of_kind(trace, "device_ops", "memcpy", "memset")
    rows = np.flatnonzero(is_chosen)
    if not len(rows):
        return {"copies": {}} if trace.has("device_ops") else {}
    names = trace.texts("device_ops", "name")
    device = at_rows(trace.nullable("device_ops", "device"), rows)
    size = at_rows(trace.nullable("device_ops", "size_bytes"), rows)
    dur = trace.numbers("device_ops", "dur_ns")[rows]
    codes, number = numbered(codes_at(names, rows))
    ways = by_value(codes, names.texts, direction).tolist()
    kinds = sorted(set(filter(None, ways)))
    place = {kind: number for number, kind in enumerate(kinds)}
    kind = np.array([place.get(way, len(kinds)) for way in ways], np.int64)[number]
    group, first = of_arrays([device, kind])
    order = np.lexsort((kind[first], device.values[first], device.missing[first]))
    group, first = np.argsort(order)[group], first[order]
    texts = np.array([*kinds, (None, None)], object)[kind[first]]
    return {
        "copies": {
            "device": at_rows(device, first),
            "direction": texts[:, 0],
            "memory": texts[:, 1],
            **_sums(group, len(first), size, dur),
        }
    }


def _sums(group: Ints, count: int, size: Nullable, dur: Ints) -> dict[str, Any]:
    """The columns of each group of copies, from the size and the duration of each."""
    has_size = ~size.missing
    rated = has_size & (size.values > 0) & (dur > 0)
    small = has_size & (size.values <= SMALL_BYTES)

    def counted(chosen: npt.NDArray[np.bool_]) -> Ints:
        return np.bincount(group[chosen], minlength=count)

    def total(values: Ints, chosen: npt.NDArray[np.bool_]) -> Ints:
        return summed(group[chosen], values[chosen], count)

    unsized, unrated = counted(has_size) == 0, counted(rated) == 0
    rated_bytes, rated_ns = total(size.values, rated), total(dur, rated)
    fastest = np.zeros(count)
    np.maximum.at(fastest, group[rated], size.values[rated] / dur[rated])
    return {
        "count": np.bincount(group, minlength=count),
        "dur_ns": summed(group, dur, count),
        "excluded_count": counted(~rated),
        "small_count": counted(small),
        "small_ns": total(dur, small),
        "small_bytes": total(size.values, small),
        "size_bytes": Nullable(total(size.values, has_size), unsized),
        "rated_bytes": Nullable(rated_bytes, unrated),
        "rated_ns": Nullable(rated_ns, unrated),
        "max_gb_per_s": Nullable(fastest, unrated),
        "gb_per_s": Nullable(rated_bytes / np.where(unrated, 1, rated_ns), unrated),
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Copies by direction over all processes; finding R08."""
    if not measured.has("copies"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    rows = measured["copies"]
    if not len(rows):
        return ANALYSIS.skipped("no copy was recorded")
    pooled = _pool(rows)
    headings = (
        *run_heading(measured),
        *as_headings("""
            direction | direction
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
        sheets=lambda: (sheet("copies", "Copies by direction", headings, pooled),),
        findings=tuple(_pageable(measured, pooled, thresholds)),
    )


def _pool(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a (run, direction, memory), most time first."""
    reduced = dict.fromkeys(("count", "dur_ns", "excluded_count", *SMALL), "sum")
    reduced.update(dict.fromkeys(("size_bytes", "rated_bytes", "rated_ns"), "known_sum"))
    reduced["max_gb_per_s"] = "max"
    by = ["run", "direction", "memory"]
    pooled = grouped(rows, by, **{name: (name, how) for name, how in reduced.items()})
    pooled["gb_per_s"] = (pooled["rated_bytes"] / pooled["rated_ns"]).astype("Float64")
    return ordered(pooled, dur_ns=False, direction=True, memory=True)


def _pageable(
    measured: Measurements, pooled: pd.DataFrame, thresholds: Thresholds
) -> list[Finding]:
    """R08: copies between a device and pageable host memory, which the driver stages through a buffer."""
    limit = thresholds.of("pageable-copies")
    rows = measured["copies"].drop(columns="device", errors="ignore")
    findings = []
    is_pageable = pooled["memory"].str.contains("pageable", case=False) & pooled["direction"].isin(
        ("HtoD", "DtoH")
    )
    for row in row_dicts(pooled[is_pageable]):
        of_run = rows[same_text(rows["run"], row["run"])]
        steps = recorded_steps_of(measured, of_run)
        size = 0 if pd.isna(row["size_bytes"]) else row["size_bytes"]
        count, dur = row["count"], row["dur_ns"]
        if (
            row["direction"] == "HtoD"
        ):  # the driver copies the small ones without waiting for the device
            size, count, dur = (
                size - row["small_bytes"],
                count - row["small_count"],
                dur - row["small_ns"],
            )
        size_each = steps.mean(size)
        dur_each, ratio = steps.per_step(dur)
        if size_each < limit["bytes_per_step"] and (ratio or 0.0) < limit["time_ratio"]:
            continue
        rate = _pinned_rate(pooled, row)
        exposed_each = _exposed_each_ns(measured, row, of_run)
        gain = _gain_ns(exposed_each, dur_each, size_each, rate)
        gain_ratio = share_of(gain, steps.step_ns)
        copies = (
            f"{plural(count, 'copy', 'copies')} {row['direction']} {plural(count, 'uses', 'use')}"
        )
        findings.append(
            Finding(
                "pageable-copies",
                thresholds.severity(gain_ratio),
                f"{count:,} {copies} pageable host memory" + in_run(measured, row["run"]),
                "pin the host buffers (pin_memory=True) and copy with non_blocking=True",
                (
                    evidence("pageable_bytes", round(size_each), "per step and process"),
                    evidence("gb_per_s", number_or_none(row["gb_per_s"]), "rate", better="higher"),
                    evidence(
                        "pinned_gb_per_s",
                        number_or_none(rate),
                        "pinned, same trace",
                        better="higher",
                    ),
                ),
                _places(row, of_run),
                round(gain),
                gain_ratio,
                (
                    "upper bound: copies hidden behind compute are left out, the others may not all be hidden",
                ),
            )
        )
    return findings


MAX_PLACES = 8
NEXT_TO_NONE = 0.1
"""A rank that copies for a smaller share of the time of the rank that copies longest has next to no such copies."""


def _places(row: Mapping[str, Any], of_run: pd.DataFrame) -> tuple[Place, ...]:
    """The kind of copies; and the ranks, where a few have nearly all copies of this kind."""
    name = f"{row['direction']} ({row['memory']})"
    is_kind = same_text(of_run["direction"], row["direction"])
    is_kind &= same_text(of_run["memory"], row["memory"])
    of_ranks = of_run[of_run["rank"].notna()]
    by_rank = grouped(of_ranks[is_kind[of_ranks.index]], ["role", "rank"], dur_ns=("dur_ns", "sum"))
    having = by_rank[by_rank["dur_ns"] >= NEXT_TO_NONE * by_rank["dur_ns"].max()]
    if not 0 < len(having) <= min(count_distinct(of_ranks, ["role", "rank"]) // 2, MAX_PLACES):
        return (Place(name=name),)
    return tuple(
        Place(name=name, role=text_or_none(each["role"]), rank=int(each["rank"]))
        for each in row_dicts(ordered(having, role=True, rank=True))
    )


def _pinned_rate(pooled: pd.DataFrame, row: Mapping[Any, Any]) -> Any:
    """The best rate of copies from or to pinned memory of the same run and direction; NA without any."""
    pinned = pooled[
        same_text(pooled["run"], row["run"])
        & (pooled["direction"] == row["direction"])
        & pooled["memory"].str.contains("pinned", case=False)
    ]
    return pinned["gb_per_s"].max() if len(pinned) else pd.NA


def _gain_ns(exposed_each: float | None, dur_each: float, size_each: float, rate: Any) -> float:
    """What pinned memory gives back in a step: what nothing hides; where that is not known, what a better rate gives."""
    if exposed_each is not None:
        return min(exposed_each, dur_each)
    pinned_ns = size_each / float(rate) if not pd.isna(rate) and rate > 0 else 0.0
    return max(dur_each - pinned_ns, 0.0)


def _exposed_each_ns(
    measured: Measurements, row: Mapping[Any, Any], of_run: pd.DataFrame
) -> float | None:
    """How long nothing runs beside the large copies of one run, direction and memory, per step; None where that is not known.

    Unlike the copies, which are those of everything recorded, these are those of the steps that count.
    """
    if not measured.has("transfers"):
        return None
    rows = measured["transfers"]
    same = same_text(rows["run"], row["run"]) & same_text(rows["memory"], row["memory"])
    exposed_ns = int(rows["exposed_ns"][same & (rows["direction"] == row["direction"])].sum())
    return steps_of(measured, of_run).mean(exposed_ns)


ANALYSIS = Analysis(
    id="copies",
    title="What was copied, and how fast?",
    bases={"pageable-copies": "bound"},
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
        },
    },
    measure=measure,
    judge=judge,
)
