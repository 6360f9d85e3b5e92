"""Mini- and micro-batches of stages: how long each takes, on the host and on the device (Q24)."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import union_totals, window_at
from tracekit.model.trace import Trace
from tracekit.process.by_name import named
from tracekit.process.placement import Placement, placement
from tracekit.process.sound import sound_dur_ns
from tracekit.process.stage_at import row_at
from tracekit.process.steps import Windows, windows

Ints = npt.NDArray[np.int64]

_BATCH = re.compile(r"(?:.*/)?(?:train_)?(micro|mini)_?batch")


def batch_kind(name: str) -> str | None:
    """`micro` or `mini` for a range that is one batch of a stage, None for any other.

    >>> batch_kind("micro_batch12"), batch_kind("mini_batch0"), batch_kind("train_batch")
    ('micro', 'mini', None)
    >>> batch_kind("megatron_policy_worker/train_microbatch")
    'micro'
    """
    match = _BATCH.match(name)
    return match[1] if match else None


def micro_batches(trace: Trace) -> pd.DataFrame:
    """One row a batch, in order of start, of the stages that hold any.

    Columns: step, stage (outermost range around it), occurrence (of that), kind, ts_ns, dur_ns on the host, and
    own_ns: kernels launched in it, collectives left out, as a union over each device and summed over
    devices; NA without a device. A batch that no range encloses belongs to no stage (NA).
    """
    steps_and_stages: Windows = trace.derived(windows)
    ranges = steps_and_stages.stages
    kinds = {name: batch_kind(str(name)) for name in ranges["stage"].cat.categories}
    kind = ranges["stage"].map(kinds).astype(object)
    rows = ranges[kind.notna().to_numpy()]
    top = ranges[ranges["parent"].isna() & kind.isna()]
    start = rows["ts_ns"].to_numpy()
    stage_row = row_at(top, start)
    occurrence = np.append(top["occurrence"].to_numpy(np.int32), np.int32(0))[stage_row]
    return pd.DataFrame(
        {
            "step": rows["step"].array,
            "stage": named(top["stage"], stage_row),
            "occurrence": occurrence,
            "kind": kind[rows.index].to_numpy(object),
            "ts_ns": start,
            "dur_ns": rows["dur_ns"].to_numpy(),
            "own_ns": _own(trace, start, start + rows["dur_ns"].to_numpy(), kind[rows.index]),
        }
    )


def _own(trace: Trace, start: Ints, end: Ints, kind: pd.Series) -> pd.arrays.IntegerArray:
    """For each batch the time of kernels that belong to it; batches of one kind follow one another."""
    own_ns = np.zeros(len(start), np.int64)
    device = trace.get("device_ops")
    if not trace.has("device_ops") or not len(device):
        return pd.arrays.IntegerArray(own_ns, np.ones(len(start), np.bool_))
    place: Placement = trace.derived(placement)
    work = np.flatnonzero(place.known & (device["kind"] == "kernel").to_numpy())
    launched, begin = place.ts_ns[work], device["ts_ns"].to_numpy()[work]
    finish = begin + trace.derived(sound_dur_ns)[work]
    number, keys = pd.factorize(device["device"].iloc[work], use_na_sentinel=False)
    width = max(len(keys), 1)
    for name in ("mini", "micro"):
        of_kind = np.flatnonzero((kind == name).to_numpy())
        if not len(of_kind):
            continue
        batch = window_at(start[of_kind], end[of_kind], launched)
        is_inside = batch >= 0
        group = batch[is_inside] * width + number[is_inside]
        totals = union_totals(begin[is_inside], finish[is_inside], group, len(of_kind) * width)
        own_ns[of_kind] = totals.reshape(len(of_kind), width).sum(axis=1)
    return pd.arrays.IntegerArray(own_ns, np.zeros(len(start), np.bool_))
