"""Mini- and micro-batches of stages: how long each takes, on the host and on the device (Q24)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import find_window_at, measure_group_unions
from tracekit.model.tables.arrays import Nullable
from tracekit.model.trace import Trace
from tracekit.process.device.devices import number_devices
from tracekit.process.device.placement import Placement, place_device_ops
from tracekit.process.name_filters import look_up_names, mark_none, mark_rows_of_kind
from tracekit.process.steps.windows import find_steps_and_stages

Ints = npt.NDArray[np.int64]

_BATCH = re.compile(r"(?:.*/)?(?:train_)?(micro|mini)_?batch")


def classify_batch_range(name: str) -> str | None:
    """Classify a range as `micro` or `mini` batch of a stage, None for any other.

    >>> classify_batch_range("micro_batch12"), classify_batch_range("mini_batch0"), classify_batch_range("train_batch")
    ('micro', 'mini', None)
    >>> classify_batch_range("megatron_policy_worker/train_microbatch")
    'micro'
    """
    match = _BATCH.match(name)
    return match[1] if match else None


def list_micro_batches(trace: Trace) -> Mapping[str, Any]:
    """List the mini- and micro-batches of stages, one row per batch, in order of start; {} for none.

    Columns: step, stage (outermost range around it), occurrence (of that stage), kind; ts_ns and dur_ns on
    the host; and own_ns: kernels launched in it, without collectives, as a union over each device and summed
    over devices; missing without a device. A batch that no range encloses has no stage (missing).
    """
    ranges = trace.derived(find_steps_and_stages).stage_rows
    kinds = np.array([*(classify_batch_range(name) for name in ranges.stage.texts), None], object)[ranges.stage.codes]
    is_batch = ~mark_none(kinds)
    if not is_batch.any():
        return {}
    rows, top = ranges.take(is_batch), ranges.take((ranges.parent.codes < 0) & ~is_batch)
    kind, stage_row = kinds[is_batch], top.row_at(rows.ts_ns)
    return {
        "step": rows.step,
        "stage": look_up_names(top.stage, stage_row),
        "occurrence": np.append(top.occurrence, np.int32(0))[stage_row],
        "kind": kind,
        "ts_ns": rows.ts_ns,
        "dur_ns": rows.dur_ns,
        "own_ns": _measure_batch_kernel_time(trace, rows.ts_ns, rows.end_ns, kind),
    }


def _measure_batch_kernel_time(trace: Trace, start: Ints, end: Ints, kind: npt.NDArray[np.object_]) -> Nullable:
    """Measure the kernel time of each batch; batches of one kind do not overlap."""
    own_ns = np.zeros(len(start), np.int64)
    op_start = trace.numbers("device_ops", "ts_ns")
    if not len(op_start):
        return Nullable(own_ns, np.ones(len(start), np.bool_))
    place: Placement = trace.derived(place_device_ops)
    work = (place.is_placed & mark_rows_of_kind(trace, "device_ops", "kernel")).nonzero()[0]
    launched, begin = place.ts_ns[work], op_start[work]
    finish = begin + trace.numbers("device_ops", "dur_ns")[work]
    of_trace = trace.derived(number_devices)
    number, width = of_trace.number[work], max(len(of_trace), 1)
    for name in ("mini", "micro"):
        batches = (kind == name).nonzero()[0]
        if not len(batches):
            continue
        batch = find_window_at(start[batches], end[batches], launched)
        is_inside = batch >= 0
        group = batch[is_inside] * width + number[is_inside]
        totals = measure_group_unions(begin[is_inside], finish[is_inside], group, len(batches) * width)
        own_ns[batches] = totals.reshape(len(batches), width).sum(axis=1)
    return Nullable(own_ns, np.zeros(len(start), np.bool_))
