"""Launches: which host call launched each device op, and when (definition M7).

Also whether a trace has asynchronous host ops: ops that queue device work, whose durations do not measure that work.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import broadcast_value
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names

Ints = npt.NDArray[np.int64]
Rows = sweeps.Rows

LINKS = ("correlation", "external_id", "unlinked")


@dataclass(frozen=True, slots=True)
class Launches:
    """Per row of `device_ops`: the launching call and the innermost op around it.

    `call` and `op` are rows of `host_ops`, -1 where unknown. `link` indexes `LINKS`. `ts_ns` is when the
    launch began; it is valid where `link` is not "unlinked".
    """

    call: Ints
    op: Ints
    link: npt.NDArray[np.int8]
    ts_ns: Ints

    @property
    def linked(self) -> npt.NDArray[np.bool_]:
        """Mask of device ops with a known launch."""
        is_linked: npt.NDArray[np.bool_] = self.link != LINKS.index("unlinked")
        return is_linked


def find_launches(trace: Trace) -> Launches:
    """Find the launch of every device op: by correlation id, else by the op that shares its external id."""
    starts = trace.numbers("host_ops", "ts_ns")
    count = len(trace.numbers("device_ops", "ts_ns"))
    # Broadcast a single -1: stays this way if no launch is known.
    call = op = broadcast_value(np.int64(-1), count)
    link = np.full(count, LINKS.index("unlinked"), np.int8)
    if count and len(starts):
        is_op = mark_rows_of_kind(trace, "host_ops", "op")
        calls = mark_rows_of_kind(trace, "host_ops", "runtime").nonzero()[0]
        call = _match_device_ops_by_key(trace, np.arange(count), calls, "correlation")
        link[call >= 0] = LINKS.index("correlation")
        if is_op.any():
            op = _find_launching_ops(trace, call, is_op)
            link[(call < 0) & (op >= 0)] = LINKS.index("external_id")
    issued = np.where(call >= 0, call, op)
    ts = np.where(issued >= 0, starts[issued], 0) if len(starts) else np.zeros(count, np.int64)
    return Launches(call, op, link, ts)


def _find_launching_ops(trace: Trace, call: Ints, is_op: npt.NDArray[np.bool_]) -> Ints:
    """Find the innermost op around each launch call, else the op with the same external id; -1 for none."""
    op = np.full(len(call), -1, np.int64)
    linked = (call >= 0).nonzero()[0]
    op[linked] = trace.derived(build_call_tree).nearest(is_op, call[linked])
    without_call = (call < 0).nonzero()[0]
    if len(without_call):
        op[without_call] = _match_device_ops_by_key(trace, without_call, is_op.nonzero()[0], "external_id")
    return op


def _match_device_ops_by_key(trace: Trace, ops: Ints, rows: Ints, key: str) -> Ints:
    """Find the row among `rows` that `find_latest_match` picks for the key of each op; -1 without a key."""
    host, device = trace.nullable("host_ops", key), trace.nullable("device_ops", key)
    host_start = trace.numbers("host_ops", "ts_ns")
    rows = rows[~host.missing[rows]].astype(sweeps.choose_row_type(len(host_start)))
    asked = ops[~device.missing[ops]]
    keys, limit = device.values, trace.numbers("device_ops", "ts_ns")
    if len(asked) < len(limit):
        keys, limit = keys[asked], limit[asked]
    place = find_latest_match(host.values[rows], host_start[rows], keys, limit)
    del keys, limit
    last = np.full(len(device), -1, np.int64)
    last[asked[place >= 0]] = rows[place[place >= 0]]
    return last[ops] if len(ops) < len(last) else last


def find_latest_match(keys: Rows, starts: Ints, asked: Rows, limit: Ints) -> Ints:
    """Find the position of the equal key with the latest start up to the limit, for each of `asked`; -1 for none.

    If all equal keys start after the limit (clocks jitter), pick the first.
    """
    places = np.full(len(asked), -1, np.int64)
    if not len(keys) or not len(asked):
        return places
    if sweeps.native is not None:
        rows = sweeps.find_latest_rows(keys, starts, asked, limit)
        if rows is not None:
            return rows
    order = np.lexsort((starts, keys))
    keys, starts = keys[order], starts[order]
    low = np.searchsorted(keys, asked, side="left")
    high = np.searchsorted(keys, asked, side="right")
    asked_groups = (high > low).nonzero()[0]
    low, high = low[asked_groups], high[asked_groups]
    pick = low.copy()
    several = (high - low > 1).nonzero()[0]
    if len(several):
        pick[several] = _find_latest_start(starts, low[several], high[several], limit[asked_groups[several]])
    places[asked_groups] = order[pick]
    return places


def _find_latest_start(starts: Ints, low: Ints, high: Ints, limit: Ints) -> Ints:
    """Find the last position in each ascending slice starts[low:high] whose start is <= limit; `low` if none is."""
    first, last = low.copy(), high - 1
    while (first < last).any():
        middle = (first + last + 1) // 2
        early = starts[middle] <= limit
        first = np.where(early, middle, first)
        last = np.where(early, last, middle - 1)
    return first


_LAUNCH = re.compile(r"(?:cu|cuda|hip|musa|mt|acl|ze|sycl|ur)[A-Za-z]*Launch", re.IGNORECASE)
"""Calls of a device runtime or driver that queue kernels or graphs."""

_DEVICE_OP = re.compile(
    r"aten::(?:record_stream|_?pin_memory|cudnn_\w+|_cudnn_\w+|miopen_\w+"
    r"|_scaled_dot_product_(?:efficient|cudnn)_attention(?:_backward)?"
    r"|_(?:flash|efficient)_attention_(?:forward|backward))\Z"
    r"|triton_|(?:nccl|rccl|hccl):"
)
"""Ops and ranges that only run on devices; CPU versions have other names (`…_for_cpu`, `mkldnn`, `gloo:`)."""

_CPU = 0
"""Device type of host memory in `memory_ops`."""


def has_asynchronous_ops(trace: Trace) -> bool:
    """Check whether the host ops of a trace may queue device work instead of doing it.

    Evidence: a launch call, an op that only devices run, device memory, or a device in the trace's
    properties.
    """
    if trace.meta.get("deviceProperties"):
        return True
    names, is_runtime = trace.texts("host_ops", "name"), mark_rows_of_kind(trace, "host_ops", "runtime")
    if bool((mark_wanted_names(names, _LAUNCH.match) & is_runtime).any()):
        return True
    if bool((mark_wanted_names(names, _DEVICE_OP.match) & ~is_runtime).any()):
        return True
    kind = trace.nullable("memory_ops", "device_type")
    return bool((~kind.missing & (kind.values != _CPU)).any())
