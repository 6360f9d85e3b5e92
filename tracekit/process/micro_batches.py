"""Mini- and micro-batches of stages: how long each takes, on the host and on the device (Q24)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import union_totals, window_at
from tracekit.model.tables.arrays import Nullable
from tracekit.model.trace import Trace
from tracekit.process.device.devices import devices
from tracekit.process.device.placement import Placement, placement
from tracekit.process.name_filters import is_none, named, of_kind
from tracekit.process.steps.windows import windows

Ints = npt.NDArray[np.int64]

_BATCH = re.compile(r"(?:.*/)?(?:train_)?(micro|mini)_?batch")


def batch_kind(name: str) -> str | None:
    """Classify a range as `micro` or `mini` batch of a stage, None for any other.

    >>> batch_kind("micro_batch12"), batch_kind("mini_batch0"), batch_kind("train_batch")
    ('micro', 'mini', None)
    >>> batch_kind("megatron_policy_worker/train_microbatch")
    'micro'
    """
    match = _BATCH.match(name)
    return match[1] if match else None


def micro_batches(trace: Trace) -> Mapping[str, Any]:
    """List the mini- and micro-batches of stages, one row per batch, in order of start; {} for none.

    Columns: step, stage (outermost range around it), occurrence (of that stage), kind; ts_ns and dur_ns on
    the host; and own_ns: kernels launched in it, without collectives, as a union over each device and summed
    over devices; missing without a device. A batch that no range encloses has no stage (missing).
    """
    ranges = trace.derived(windows).stage_rows
    kinds = np.array([*map(batch_kind, ranges.stage.texts), None], object)[ranges.stage.codes]
    is_batch = ~is_none(kinds)
    if not is_batch.any():
        return {}
    rows, top = ranges.at(is_batch), ranges.at((ranges.parent.codes < 0) & ~is_batch)
    kind, stage_row = kinds[is_batch], top.row_at(rows.ts_ns)
    return {
        "step": rows.step,
        "stage": named(top.stage, stage_row),
        "occurrence": np.append(top.occurrence, np.int32(0))[stage_row],
        "kind": kind,
        "ts_ns": rows.ts_ns,
        "dur_ns": rows.dur_ns,
        "own_ns": _own(trace, rows.ts_ns, rows.end_ns, kind),
    }


def _own(trace: Trace, start: Ints, end: Ints, kind: npt.NDArray[np.object_]) -> Nullable:
    """Measure the kernel time of each batch; batches of one kind do not overlap."""
    own_ns = np.zeros(len(start), np.int64)
    op_start = trace.numbers("device_ops", "ts_ns")
    if not len(op_start):
        return Nullable(own_ns, np.ones(len(start), np.bool_))
    place: Placement = trace.derived(placement)
    work = (place.known & of_kind(trace, "device_ops", "kernel")).nonzero()[0]
    launched, begin = place.ts_ns[work], op_start[work]
    finish = begin + trace.numbers("device_ops", "dur_ns")[work]
    of_trace = trace.derived(devices)
    number, width = of_trace.number[work], max(len(of_trace), 1)
    for name in ("mini", "micro"):
        batches = (kind == name).nonzero()[0]
        if not len(batches):
            continue
        batch = window_at(start[batches], end[batches], launched)
        is_inside = batch >= 0
        group = batch[is_inside] * width + number[is_inside]
        totals = union_totals(begin[is_inside], finish[is_inside], group, len(batches) * width)
        own_ns[batches] = totals.reshape(len(batches), width).sum(axis=1)
    return Nullable(own_ns, np.zeros(len(start), np.bool_))
