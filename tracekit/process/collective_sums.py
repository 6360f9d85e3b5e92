"""The collectives of one process summed per step and stage, for compare and gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.model.intervals import union_totals


def per_step(rows: pd.DataFrame) -> Mapping[str, Any]:
    """Columns of `metrics`: number, bytes and time (a union per device, Σ over devices) per step and stage.

    `rows` is the frame of `collectives`. Without numbered steps all of them are one.
    """
    rows = rows.astype({"stage": object})
    numbered = bool(rows["step"].notna().any())
    inside = rows[rows["step"].notna()] if numbered else rows
    frames = [inside.assign(stage=None), inside[inside["stage"].notna()]]
    long = []
    for frame in frames:
        if not len(frame):
            continue
        by = ["step", "stage"]
        key = frame.groupby(by, dropna=False, sort=False).ngroup().to_numpy().astype(np.int64)
        first = frame.loc[~pd.Series(key, index=frame.index).duplicated(), by]
        device = frame["device"].to_numpy(np.int64, na_value=-1)
        devices, place = np.unique(device, return_inverse=True)
        start = frame["ts_ns"].to_numpy(np.int64)
        end = start + frame["dur_ns"].to_numpy(np.int64)
        busy = union_totals(start, end, key * len(devices) + place, len(first) * len(devices))
        size = frame["size_bytes"].groupby(key).sum(min_count=1)
        values = (
            ("comm", busy.reshape(len(first), -1).sum(axis=1)),
            ("comm_count", np.bincount(key, minlength=len(first))),
            ("comm_bytes", size.array),
        )
        for name, value in values:
            long.append(first.assign(name=name, value=pd.Series(value).astype("Float64").array))
    out = pd.concat([frame.astype({"stage": object}) for frame in long], ignore_index=True)
    return {str(name): out[name].array for name in out}
