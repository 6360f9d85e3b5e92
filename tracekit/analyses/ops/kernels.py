"""Which kernels take the GPU's time? Statistics of raw durations per name (definition M9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Metric, Section
from tracekit.model.tables import DEVICE_OP_KINDS, KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Columns, Nullable, select_rows
from tracekit.model.tables.columns import DEVICE, NAME
from tracekit.model.tables.frame import Frame, choose, count_rows, first_of, max_of, min_of, sum_of, where
from tracekit.model.tables.keys import group_arrays, sort_in_groups
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.name_filters import make_narrow_coded

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
    key, first_of_device = group_arrays([device])
    width = len(names.texts) + 1
    # In place: of millions of launches, each array beside the others would cost as much as a column.
    key *= len(DEVICE_OP_KINDS)
    key += kinds.codes
    key *= width
    key += names.codes
    key += 1
    key, dur = np.sort(key), sort_in_groups(key, dur)
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
        "device": select_rows(device, row_of_device),
        "kind": make_narrow_coded(kind_and_device % len(DEVICE_OP_KINDS), kinds.texts),
        "name": make_narrow_coded(code - 1, names.texts),
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
    return Columns(len(order), {name: select_rows(array, order) for name, array in arrays.items()})


def _percentile(
    dur: npt.NDArray[np.int64], first: npt.NDArray[np.int64], count: npt.NDArray[np.int64], share: float
) -> Floats:
    """Interpolate the percentile of each sorted group linearly between neighbours."""
    position = (count - 1) * share
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, count - 1)
    below, above = dur[first + low], dur[first + high]
    between: Floats = below + (above - below) * (position - low)
    return between


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Compute the statistics of this source's kernels."""
    count = len(trace.numbers("device_ops", "ts_ns"))
    kernels = summary(Columns(count, {name: trace.array("device_ops", name) for name in READ}))
    return {"kernels": kernels.arrays} if len(kernels) else {}


_CAPTION = "Whole recording, warm-up included. Share: of the summed time of all device ops."


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Kernels of all processes pooled by name; percentiles only where one process and device ran it."""
    if not measured.row_count("kernels"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    pooled = cache(lambda: _add_shares(pool_kernels(measured.frame("kernels"))))
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            name | kernel
            kind | kind
            total_ns | total | ns | Summed duration over all processes and steps, warm-up included.
            share_ratio | share | ratio | Of the summed duration of all device ops.
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
        metrics=lambda: _count_kernels(pooled()),
        sheets=lambda: (make_sheet("kernels", "Kernels by total time", headings, pooled(), caption=_CAPTION),),
    )


def _add_shares(kernels: Frame) -> Frame:
    """Add `share_ratio`, the share of the time of all kernels."""
    busy = int(kernels["total_ns"].sum())
    share = kernels["total_ns"] / busy if busy else None
    return kernels.with_columns(share_ratio=share)


def _count_kernels(kernels: Frame) -> Iterator[Metric]:
    """Count launches and names."""
    yield Metric("kernel_launches", int(kernels["count"].sum()), "count", label="device ops")
    names = len(kernels.filter(~kernels.is_missing("name")).distinct("name"))
    yield Metric("kernel_names", names, "count", label="distinct names")


def pool_kernels(kernels: Frame) -> Frame:
    """Pool kernels over processes and devices: one row per run, kind and name, most time first.

    Exact but for the percentiles, which only a kernel of one process and device has.
    """
    by_name = kernels.group_by("run", "kind", "name")
    count, mean = kernels.integers("count"), kernels.number("mean_ns")
    std = kernels.number("std_ns", missing=0.0)
    common_mean = by_name.each(sum_of("total_ns")) / by_name.each(sum_of("count"))
    # About the common mean, not about zero: nearly equal durations would lose all their digits.
    squares = (count - 1) * std**2 + count * (mean - common_mean) ** 2
    pooled = by_name.agg(
        count=sum_of("count"),
        total_ns=sum_of("total_ns"),
        squares=sum_of(squares),
        min_ns=min_of("min_ns"),
        max_ns=max_of("max_ns"),
        p50_ns=first_of("p50_ns"),
        p95_ns=first_of("p95_ns"),
        std_ns=first_of("std_ns"),
        groups=count_rows(),
    )
    is_single, count = pooled["groups"] == 1, pooled["count"]
    std = np.sqrt(pooled["squares"] / np.maximum(count - 1, 1))
    pooled = pooled.with_columns(
        mean_ns=pooled["total_ns"] / count,
        std_ns=choose(is_single, pooled["std_ns"], where(count > 1, std)),
        p50_ns=where(is_single, pooled["p50_ns"]),
        p95_ns=where(is_single, pooled["p95_ns"]),
    )
    return pooled.sort("total_ns", "name", descending=["total_ns"])


ANALYSIS = Analysis(
    id="kernels",
    title="Which kernels take the GPU's time?",
    reads=("device_ops",),
    writes=(KERNELS,),
    measure=measure,
    judge=judge,
)
