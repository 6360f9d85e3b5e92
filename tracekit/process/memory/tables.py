"""Rows of several devices put together as the columns of one measured table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tracekit.model.keys import equal
from tracekit.model.trace import Trace
from tracekit.process.memory.replay import Replay


def columns(parts: Sequence[pd.DataFrame]) -> Mapping[str, Any]:
    """The columns of several frames, one after the other; none without frames."""
    present = [part for part in parts if len(part)]
    if not present:
        return {}
    frame = pd.concat([part.astype({"device": "Int64"}) for part in present], ignore_index=True)
    return {str(name): _array(frame[name]) for name in frame}


def _array(column: pd.Series[Any]) -> Any:
    """Text as objects, also where none is known; numbers as they are."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype) or dtype.kind == "O" or str(dtype) == "str":
        return column.to_numpy(object)
    return column.array


def whose(replay: Replay) -> dict[str, Any]:
    """The columns that say which memory a row is about."""
    return {"memory": replay.memory, "device": replay.device}


def rows_of(trace: Trace, table: str, replay: Replay) -> pd.DataFrame:
    """The rows of a table of the snapshot that are about the memory of a replay."""
    frame = trace.get(table)
    of_memory = (frame["memory"] == replay.memory).to_numpy()
    return frame[of_memory & equal(frame["device"], replay.device)]
