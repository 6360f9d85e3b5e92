"""Concatenation of per-device rows into one measured table, and selection of a device's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tracekit.model.keys import mask_equal
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import Replay


def concatenate_columns(parts: Sequence[pd.DataFrame]) -> Mapping[str, Any]:
    """Concatenate frames to columns; {} without rows."""
    present = [part for part in parts if len(part)]
    if not present:
        return {}
    frame = pd.concat([part.astype({"device": "Int64"}) for part in present], ignore_index=True)
    return {str(name): _convert_text_to_objects(frame[name]) for name in frame}


def _convert_text_to_objects(column: pd.Series[Any]) -> Any:
    """Convert text to objects, also if all is missing; numbers stay as they are."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype) or dtype.kind == "O" or str(dtype) == "str":
        return column.to_numpy(object)
    return column.array


def make_memory_keys(replay: Replay) -> dict[str, Any]:
    """Make the key columns of a replay's memory and device."""
    return {"memory": replay.memory, "device": replay.device}


def select_replay_rows(trace: Trace, table: str, replay: Replay) -> pd.DataFrame:
    """Select the rows of a snapshot table for the memory and device of a replay."""
    frame = trace.get(table)
    of_memory = (frame["memory"] == replay.memory).to_numpy()
    return frame[of_memory & mask_equal(frame["device"], replay.device)]
