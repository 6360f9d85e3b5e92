"""Collectives of one process summed per step and stage, for compare and gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import measure_group_unions
from tracekit.model.keys import group_arrays, sum_by_group
from tracekit.model.tables.arrays import Coded, Nullable, concatenate_like_arrays, select_rows
from tracekit.process.collectives.table import Collectives
from tracekit.process.name_filters import look_up_names


def sum_collectives_per_step(recorded: Collectives) -> Mapping[str, Any]:
    """Compute columns of `metrics` per step and stage: number, bytes, time (union per device, summed over devices).

    Without numbered steps, all collectives are one group.
    """
    step, stage = recorded.nullable("step"), recorded.rows["stage"]
    assert isinstance(stage, Coded), "stages are texts"
    inside = np.ones(len(step), np.bool_) if step.missing.all() else ~step.missing
    in_stage = inside & (stage.codes >= 0)
    no_stage = Coded(np.full(len(step), -1), ())
    parts = [_sum_collectives(recorded, inside.nonzero()[0], no_stage)]
    if in_stage.any():
        parts.append(_sum_collectives(recorded, in_stage.nonzero()[0], stage))
    return {name: concatenate_like_arrays([part[name] for part in parts]) for name in parts[0]}


def _sum_collectives(recorded: Collectives, rows: npt.NDArray[np.int64], stage: Coded) -> Mapping[str, Any]:
    """Sum these rows by step and stage, one metric after the other."""
    step = select_rows(recorded.nullable("step"), rows)
    group, first = group_arrays([step, select_rows(stage, rows)])
    device, firsts_of_devices = group_arrays([select_rows(recorded.nullable("device"), rows)])
    devices = len(firsts_of_devices)
    start = recorded.numbers("ts_ns")[rows]
    end = start + recorded.numbers("dur_ns")[rows]
    busy = measure_group_unions(start, end, group * devices + device, len(first) * devices)
    size = select_rows(recorded.nullable("size_bytes"), rows)
    counts = np.bincount(group, minlength=len(first))
    has_size = np.bincount(group[~size.missing], minlength=len(first)) > 0
    none = np.zeros(len(first), np.bool_)
    size_bytes = sum_by_group(group, np.where(size.missing, 0, size.values), len(first))
    values = {
        "comm": Nullable(busy.reshape(len(first), -1).sum(axis=1).astype(np.float64), none),
        "comm_count": Nullable(counts.astype(np.float64), none),
        "comm_bytes": Nullable(size_bytes.astype(np.float64), ~has_size),
    }
    return {
        "step": concatenate_like_arrays([select_rows(step, first)] * len(values)),
        "stage": np.tile(look_up_names(stage, rows[first]), len(values)),
        "name": np.repeat(np.array([*values], object), len(first)),
        "value": concatenate_like_arrays([*values.values()]),
    }
