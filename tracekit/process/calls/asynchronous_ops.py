"""Detection of asynchronous host ops: ops that queue device work, whose durations do not measure that work."""

from __future__ import annotations

import re

from tracekit.model.remembered import cache_by_name
from tracekit.model.trace import Trace
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names

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
    names, is_runtime = (trace.texts("host_ops", "name"), mark_rows_of_kind(trace, "host_ops", "runtime"))
    if bool((mark_wanted_names(names, _is_launch_call_name) & is_runtime).any()):
        return True
    if bool((mark_wanted_names(names, _is_device_only_op_name) & ~is_runtime).any()):
        return True
    kind = trace.nullable("memory_ops", "device_type")
    return bool((~kind.missing & (kind.values != _CPU)).any())


@cache_by_name
def _is_launch_call_name(name: str) -> bool:
    """Check whether a runtime call of this name queues device work."""
    return _LAUNCH.match(name) is not None


@cache_by_name
def _is_device_only_op_name(name: str) -> bool:
    """Check whether an op or range of this name only runs on devices."""
    return _DEVICE_OP.match(name) is not None
