"""Which kernels take the GPU's time? Statistics of raw durations per name (definition M9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import grouped, ordered, run_heading
from tracekit.job.tables import as_headings, sheet
from tracekit.model.keys import of_arrays, of_keys, sorted_in_groups, summed
from tracekit.model.report import Metric, Section
from tracekit.model.tables import DEVICE_OP_KINDS, KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Columns, Nullable, at_rows
from tracekit.model.tables.columns import DEVICE, NAME
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.name_filters import narrow

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

READ = ("device", "kind", "name", "dur_ns")
"""The columns of device ops that are summed up."""


def summary(device_ops: Columns) -> Columns:
    """One row a (device, kind, name), most time first: count, total, mean, std, min, p50, p95, max in ns.

    std is the sample standard deviation, missing for one launch; percentiles interpolate linearly.
    """
    read: Mapping[str, Any] = device_ops.arrays
    device, kinds, names, dur = (read[name] for name in READ)
    key, first_of_device = of_arrays([device])
    width = len(names.texts) + 1
    # In place: of millions of launches, each array beside the others would cost as much as a column.
    key *= len(DEVICE_OP_KINDS)
    key += kinds.codes
    key *= width
    key += names.codes
    key += 1
    key, dur = np.sort(key), sorted_in_groups(key, dur)
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
    kind_and_device, code = np.divmod(key, width)
    row_of_device = first_of_device[kind_and_device // len(DEVICE_OP_KINDS)]
    all_known = np.zeros(len(first), np.bool_)
    arrays: dict[str, Array] = {
        "device": at_rows(device, row_of_device),
        "kind": narrow(kind_and_device % len(DEVICE_OP_KINDS), kinds.texts),
        "name": narrow(code - 1, names.texts),
        "count": count,
        "total_ns": total,
        "mean_ns": Nullable(mean, all_known),
        "std_ns": Nullable(std, count < 2),
        "min_ns": dur[first],
        "p50_ns": Nullable(_percentile(dur, first, count, 0.50), all_known),
        "p95_ns": Nullable(_percentile(dur, first, count, 0.95), all_known),
        "max_ns": dur[first + count - 1],
    }
    order = np.argsort(-total, kind="stable")
    return Columns(len(order), {name: at_rows(array, order) for name, array in arrays.items()})


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
    count = len(trace.numbers("device_ops", "ts_ns"))
    kernels = summary(Columns(count, {name: trace.array("device_ops", name) for name in READ}))
    return {"kernels": kernels.arrays} if len(kernels) else {}


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Kernels of all processes pooled by name; percentiles only where one process and device ran it."""
    if not measured.row_count("kernels"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    pooled = cache(lambda: _with_shares(pool(measured["kernels"])))
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
    return ANALYSIS.answered(
        metrics=lambda: _counts(pooled()),
        sheets=lambda: (sheet("kernels", "Kernels by total time", headings, pooled()),),
    )


def _with_shares(kernels: pd.DataFrame) -> pd.DataFrame:
    """The kernels with `share_ratio`, of the time of all."""
    busy = int(kernels["total_ns"].sum())
    kernels["share_ratio"] = kernels["total_ns"] / busy if busy else None
    return kernels


def _counts(kernels: pd.DataFrame) -> Iterator[Metric]:
    """How many ran, and of how many names."""
    yield Metric("kernel_launches", int(kernels["count"].sum()), "count", label="device ops")
    yield Metric("kernel_names", kernels["name"].nunique(), "count", label="distinct names")


def pool(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a (run, kind, name) over processes and devices, exact but for the percentiles."""
    keys = ["run", "kind", "name"]
    mean, std = rows["mean_ns"].astype(float), rows["std_ns"].astype(float).fillna(0.0)
    number, first = of_keys(rows, keys)
    total_ns, count_of = (
        summed(number, rows[name].to_numpy(np.int64), len(first)) for name in ("total_ns", "count")
    )
    # About the common mean, not about zero: nearly equal durations would lose all their digits.
    from_mean = mean - (total_ns / count_of)[number]
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
    return ordered(kernels, total_ns=False, name=True)


ANALYSIS = Analysis(
    id="kernels",
    title="Which kernels take the GPU's time?",
    reads=("device_ops",),
    writes=(KERNELS,),
    measure=measure,
    judge=judge,
)
