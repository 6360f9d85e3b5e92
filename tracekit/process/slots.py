"""Where each nanosecond of a step went: its window shared out to ops, kernels and causes of idleness.

On every device, and on the step thread where no device was recorded, the rows of a step add up to its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.keys import numbered, summed
from tracekit.model.tables.slots import CAUSES, CLASSES, NO_OP, OTHER, UNLINKED
from tracekit.model.trace import Trace
from tracekit.process.device_slots import device_slots
from tracekit.process.host_slots import host_slots
from tracekit.process.idle import DeviceIdle
from tracekit.process.op_paths import path_texts
from tracekit.process.parts import NO_OP as NO_OP_CODE
from tracekit.process.parts import OTHER as OTHER_CODE
from tracekit.process.parts import UNLINKED as UNLINKED_CODE
from tracekit.process.parts import Parts, bounded
from tracekit.process.stage_at import outermost_stages
from tracekit.process.steps import Windows, windows

Ints = npt.NDArray[np.int64]

MAX_KEYS = 2_000
"""Most rows of one step on one device; the others, those with least time, are one row a stage and class."""

MAX_ROWS = 20_000
"""About so many rows of one source: with many steps each gets fewer."""

MIN_KEYS = 100
"""So many rows a step gets even so."""

MAX_STAGES = 64
"""Most stages that are told apart, those with most time; the others are one."""


def exclusive_slots(trace: Trace, devices: Sequence[DeviceIdle]) -> pd.DataFrame:
    """The rows of the measured table `slots`, without keys: steps in order, then by stage, class and names.

    `devices` is the idle time of every device of the trace; without one the step thread is told instead.
    Of a source with very many steps that overlap, the last may be left out.
    """
    steps_and_stages: Windows = trace.derived(windows)
    low = steps_and_stages.steps["ts_ns"].to_numpy()
    high = low + np.maximum(steps_and_stages.steps["dur_ns"].to_numpy(), 0)
    if not len(low):
        return pd.DataFrame()
    if devices:
        shares, path_rows = device_slots(trace, devices, low, high)
        numbers = [idle.device for idle in devices]
    else:
        shares, path_rows = host_slots(trace, low, high)
        numbers = [None]
    share = MAX_ROWS // max(len(low) * len(shares), 1)
    frames = []
    for number, parts in zip(numbers, shares, strict=True):
        total = summed(parts.window, parts.ns, len(low))
        used_windows = np.unique(parts.window)
        assert (total[used_windows] == (high - low)[used_windows]).all(), (
            "slots must add up to the step"
        )
        bounded_parts = bounded(parts, min(max(share, MIN_KEYS), MAX_KEYS), MAX_STAGES)
        assert int(bounded_parts.ns.sum()) == int(parts.ns.sum()), (
            "what is put together keeps its time"
        )
        frame = _told(trace, bounded_parts, steps_and_stages.steps, path_rows)
        device: Any = pd.array([number] * len(frame), dtype="Int64")
        frames.append(frame.assign(device=device))
    if len(frames) == 1:
        return frames[0]
    # As objects: pandas 2 warns where a column of other categories holds no value at all.
    texts = dict.fromkeys(("stage", "cause", "op", "kernel"), object)
    return pd.concat([f.astype(texts) for f in frames if len(f)] or frames[:1], ignore_index=True)


def _told(trace: Trace, parts: Parts, steps: pd.DataFrame, path_rows: Ints) -> pd.DataFrame:
    """The parts with their names, in the order of windows, stages, classes and names."""
    stage, kind, cause, path, kernel = parts.keys
    kernels = trace.get("device_ops")["name"].cat.categories
    stages = trace.derived(outermost_stages)["stage"].cat.categories
    texts = pd.DataFrame(
        {
            "stage": _named(stage, lambda used: [str(name) for name in stages[used]]),
            "class": pd.Categorical.from_codes(kind, categories=pd.Index(CLASSES, dtype="str")),
            "cause": _named(cause, lambda used: [CAUSES[code] for code in used]),
            "op": _named(path, lambda used: path_texts(trace, path_rows[used])),
            "kernel": _named(kernel, lambda used: [str(name) for name in kernels[used]]),
        }
    )
    order = texts.sort_values([str(name) for name in texts], kind="stable").index.to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    entries = np.flatnonzero((parts.ns > 0) | (parts.count > 0))
    rows = entries[np.lexsort((rank[parts.key[entries]], parts.window[entries]))]
    frame = texts.iloc[parts.key[rows]].reset_index(drop=True)
    frame.insert(0, "step", steps["step"].array[parts.window[rows]])
    frame.insert(1, "occurrence", steps["occurrence"].to_numpy(np.int32)[parts.window[rows]])
    return frame.assign(count=parts.count[rows], exclusive_ns=parts.ns[rows])


_TEXTS = {NO_OP_CODE: NO_OP, UNLINKED_CODE: UNLINKED, OTHER_CODE: OTHER}


def _named(codes: Ints, texts: Callable[[Ints], list[str]]) -> Any:
    """A categorical of texts, in their order, for these codes; some below 0 have a text of their own."""
    used, place = numbered(codes)
    names = [_TEXTS.get(int(code)) for code in used[used < 0]] + texts(used[used >= 0])
    return pd.Categorical(np.array([*names, None], object)[place])
