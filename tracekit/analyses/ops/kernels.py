"""Which kernels take the GPU's time? Statistics of raw durations per name (definition M9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import grouped, run_heading
from tracekit.job.tables import as_headings, sheet
from tracekit.model.report import Metric, Section
from tracekit.model.tables import DEVICE_OP_KINDS, KEYS, Column, Table, coded
from tracekit.model.tables.arrays import arrays_of
from tracekit.model.tables.columns import DEVICE, NAME
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.sound import sound_device_ops

KERNELS = Table(
    "kernels",
    "one kernel (copy, fill, collective) name on one device",
    {
        **KEYS,
        "device": DEVICE,
        "kind": Column("category", "As in device_ops.", DEVICE_OP_KINDS),
        "name": NAME,
        "count": Column("int64", "Launches."),
        "total_ns": Column("int64", "Σ duration."),
        "mean_ns": Column("Float64", "Mean duration."),
        "std_ns": Column("Float64", "Sample standard deviation; <NA> for one launch."),
        "min_ns": Column("int64", "Shortest."),
        "p50_ns": Column("Float64", "Median (linear interpolation)."),
        "p95_ns": Column("Float64", "95th percentile (linear interpolation)."),
        "max_ns": Column("int64", "Longest."),
    },
)


Floats = npt.NDArray[np.float64]


def summary(device_ops: pd.DataFrame) -> pd.DataFrame:
    """One row a (device, kind, name), most time first: count, total, mean, std, min, p50, p95, max in ns.

    std is the sample standard deviation, NA for one launch; percentiles interpolate linearly.
    """
    names = device_ops["name"]
    key, devices = pd.factorize(device_ops["device"], use_na_sentinel=False)
    width = len(names.cat.categories) + 1
    # In place: of millions of launches, each array beside the others would cost as much as a column.
    key *= len(DEVICE_OP_KINDS)
    key += device_ops["kind"].cat.codes.to_numpy()
    key *= width
    key += names.cat.codes.to_numpy()
    key += 1
    dur = device_ops["dur_ns"].to_numpy()
    order = np.lexsort((dur, key))
    key, dur = key[order], dur[order]
    del order
    first = np.flatnonzero(np.concatenate((key[:1] == key[:1], key[1:] != key[:-1])))
    key = key[first]
    count = np.diff(np.append(first, len(dur)))
    total = np.add.reduceat(dur, first) if len(first) else np.empty(0, np.int64)
    mean = total / count
    square = np.repeat(mean, count)
    square -= dur
    square *= square
    spread = np.add.reduceat(square, first) if len(first) else mean
    std = np.sqrt(spread / np.maximum(count - 1, 1))
    code = key % width - 1
    frame = pd.DataFrame(
        {
            "device": pd.array(list(devices), dtype="Int64")[key // width // len(DEVICE_OP_KINDS)],
            "kind": coded(key // width % len(DEVICE_OP_KINDS), device_ops["kind"]),
            "name": coded(code, names),
            "count": count,
            "total_ns": total,
            "mean_ns": pd.array(mean, dtype="Float64"),
            "std_ns": pd.arrays.FloatingArray(std, count < 2),
            "min_ns": dur[first],
            "p50_ns": pd.array(_percentile(dur, first, count, 0.50), dtype="Float64"),
            "p95_ns": pd.array(_percentile(dur, first, count, 0.95), dtype="Float64"),
            "max_ns": dur[first + count - 1],
        }
    )
    order = np.lexsort((np.arange(len(frame)), -total))
    return frame.iloc[order].reset_index(drop=True)


def _percentile(
    dur: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    count: npt.NDArray[np.int64],
    share: float,
) -> Floats:
    """The percentile of each sorted group, by linear interpolation between neighbours."""
    position = (count - 1) * share
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, count - 1)
    below, above = dur[first + low], dur[first + high]
    between: Floats = below + (above - below) * (position - low)
    return between


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """The statistics of this source's kernels."""
    frame = summary(trace.derived(sound_device_ops))
    return {"kernels": arrays_of(frame)} if len(frame) else {}


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Kernels of all processes pooled by name; percentiles only where one process and device ran it."""
    rows = measured["kernels"]
    if not len(rows):
        return ANALYSIS.skipped("no GPU activity was recorded")
    kernels = pool(rows)
    busy = int(kernels["total_ns"].sum())
    kernels["share_ratio"] = kernels["total_ns"] / busy if busy else None
    headings = (
        *run_heading(measured),
        *as_headings("""
            name | kernel
            kind | kind
            total_ns | total | ns | Σ duration over all processes and steps.
            share_ratio | share | ratio | Of the Σ duration of all device ops.
            count | count | count
            mean_ns | mean | ns
            std_ns | std | ns
            min_ns | min | ns
            p50_ns | p50 | ns | — where several processes or GPUs ran it.
            p95_ns | p95 | ns | — where several processes or GPUs ran it.
            max_ns | max | ns
        """),
    )
    metrics = (
        Metric("kernel_launches", int(kernels["count"].sum()), "count", label="device ops"),
        Metric("kernel_names", kernels["name"].nunique(), "count", label="distinct names"),
    )
    table = sheet("kernels", "Kernels by total time", headings, kernels)
    return ANALYSIS.answered(metrics=metrics, sheets=(table,))


def pool(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a (run, kind, name) over processes and devices, exact but for the percentiles."""
    keys = ["run", "kind", "name"]
    mean, std = rows["mean_ns"].astype(float), rows["std_ns"].astype(float).fillna(0.0)
    sums = rows.groupby(keys, dropna=False, sort=False)[["total_ns", "count"]].transform("sum")
    # About the common mean, not about zero: nearly equal durations would lose all their digits.
    from_mean = mean - sums["total_ns"] / sums["count"]
    work = rows.assign(
        squares=(rows["count"] - 1) * std**2 + rows["count"] * from_mean**2, groups=1
    )
    kernels = grouped(
        work,
        keys,
        count=("count", "sum"),
        total_ns=("total_ns", "sum"),
        squares=("squares", "sum"),
        min_ns=("min_ns", "min"),
        max_ns=("max_ns", "max"),
        groups=("groups", "sum"),
        p50_ns=("p50_ns", "first"),
        p95_ns=("p95_ns", "first"),
        one_std=("std_ns", "first"),
    )
    count = kernels["count"]
    kernels["mean_ns"] = kernels["total_ns"] / count
    variance = kernels["squares"] / (count - 1).where(count > 1)
    is_single = kernels["groups"] == 1
    kernels["std_ns"] = kernels["one_std"].where(is_single, variance**0.5)
    kernels[["p50_ns", "p95_ns"]] = kernels[["p50_ns", "p95_ns"]].where(is_single)
    return kernels.sort_values(["total_ns", "name"], ascending=[False, True], kind="stable")


ANALYSIS = Analysis(
    id="kernels",
    title="Which kernels take the GPU's time?",
    reads=("device_ops",),
    writes=(KERNELS,),
    measure=measure,
    judge=judge,
)
