"""Exclusive time of each step: its window shared out to ops, kernels and causes of idle time.

The rows of a step add up to its length on every device, or on the step thread if no device was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.keys import find_distinct, number_keys, sum_by_group
from tracekit.model.tables.arrays import Array, Coded, concatenate_parts, repeat_number, trim_all_texts
from tracekit.model.tables.slots import CAUSES, CLASSES, NO_OP, OTHER, UNLINKED
from tracekit.model.trace import Trace
from tracekit.process.calls.op_paths import format_op_paths
from tracekit.process.device.windows import align_windows_to_device
from tracekit.process.exclusive_time.device import compute_device_slots
from tracekit.process.exclusive_time.host import compute_host_slots
from tracekit.process.exclusive_time.time_shares import NO_OP as NO_OP_CODE
from tracekit.process.exclusive_time.time_shares import OTHER as OTHER_CODE
from tracekit.process.exclusive_time.time_shares import UNLINKED as UNLINKED_CODE
from tracekit.process.exclusive_time.time_shares import TimeShares, fold_small_time_shares
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.name_filters import make_narrow_coded
from tracekit.process.steps.stage_lookup import list_outer_stage_names
from tracekit.process.steps.windows import StepWindows

Ints = npt.NDArray[np.int64]

MAX_KEYS = 2_000
"""Rows of one step on one device at most; those with least time are merged into one row per stage and class."""

MAX_ROWS = 20_000
"""Rows of one source, approximately: with many steps each step gets fewer."""

MIN_KEYS = 100
"""Rows that each step gets at least."""

MAX_STAGES = 64
"""Stages listed at most, those with most time; the others are merged into one."""


def compute_exclusive_slots(trace: Trace, devices: Sequence[DeviceIdle]) -> dict[str, Array]:
    """Compute the rows of the measured table `slots`, without keys: by step, then stage, class and names.

    `devices` is the idle time of every device of the trace; if it is empty, the rows describe the step
    thread. If very many steps overlap, the last may be left out.
    """
    steps = trace.derived(align_windows_to_device).step_rows
    low = steps.ts_ns
    high = low + np.maximum(steps.dur_ns, 0)
    if not len(low):
        return {}
    if devices:
        shares, path_rows = compute_device_slots(trace, devices, low, high)
        numbers = [idle.device for idle in devices]
    else:
        shares, path_rows = compute_host_slots(trace, low, high)
        numbers = [None]
    share = MAX_ROWS // max(len(low) * len(shares), 1)
    of_devices = []
    for number, parts in zip(numbers, shares, strict=True):
        total = sum_by_group(parts.window, parts.ns, len(low))
        used_windows = find_distinct(parts.window)
        assert (total[used_windows] == (high - low)[used_windows]).all(), "slots must add up to the step"
        bounded_parts = fold_small_time_shares(parts, min(max(share, MIN_KEYS), MAX_KEYS), MAX_STAGES)
        assert int(bounded_parts.ns.sum()) == int(parts.ns.sum()), "what is put together keeps its time"
        rows = _label_slots(trace, bounded_parts, steps, path_rows)
        of_devices.append({**rows, "device": repeat_number(number, len(rows["count"]))})
    slots = concatenate_parts(of_devices)
    return slots if len(of_devices) == 1 else {**trim_all_texts(slots), "class": slots["class"]}


def _label_slots(trace: Trace, parts: TimeShares, steps: StepWindows, path_rows: Ints) -> dict[str, Array]:
    """Replace key numbers by names, and sort by window, stage, class and names."""
    stage, kind, cause, path, kernel = parts.keys
    kernels, stages = trace.texts("device_ops", "name").texts, list_outer_stage_names(trace)
    texts = {
        "stage": _code_slot_texts(stage, lambda used: [stages[code] for code in used]),
        "class": make_narrow_coded(kind, CLASSES),
        "cause": _code_slot_texts(cause, lambda used: [CAUSES[code] for code in used]),
        "op": _code_slot_texts(path, lambda used: format_op_paths(trace, path_rows[used])),
        "kernel": _code_slot_texts(kernel, lambda used: [kernels[code] for code in used]),
    }
    by_text = [np.where(text.codes < 0, len(text.texts), text.codes) for text in texts.values()]
    order = np.lexsort(by_text[::-1])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    entries = ((parts.ns > 0) | (parts.count > 0)).nonzero()[0]
    rows = entries[np.lexsort((rank[parts.key[entries]], parts.window[entries]))]
    keys, window = parts.key[rows], parts.window[rows]
    return {
        "step": steps.numbers(window),
        "occurrence": steps.occurrence[window],
        **{name: Coded(text.codes[keys], text.texts) for name, text in texts.items()},
        "count": parts.count[rows],
        "exclusive_ns": parts.ns[rows],
    }


_TEXTS = {NO_OP_CODE: NO_OP, UNLINKED_CODE: UNLINKED, OTHER_CODE: OTHER}


def _code_slot_texts(codes: Ints, texts: Callable[[Ints], list[str]]) -> Coded:
    """Code texts for these numbers, in the order of the texts; some numbers below 0 have a fixed text."""
    used, place = number_keys(codes)
    names = [_TEXTS.get(code) for code in used[used < 0].tolist()] + texts(used[used >= 0])
    in_order = sorted({name for name in names if name is not None})
    code_of: dict[str | None, int] = {None: -1, **{name: code for code, name in enumerate(in_order)}}
    return make_narrow_coded(np.array([code_of[name] for name in names], np.int64)[place], in_order)
