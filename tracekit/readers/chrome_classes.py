"""What each row of a Chrome trace is: recorded phase, category and name to one class a row.

Covers the categories of 2021 (`Operator`, `Kernel` …), of today, of ROCm, XPU, HPU and MTIA.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tracekit.readers.scan import Codes, Scan
from tracekit.schema import DEVICE_OP_KINDS, HOST_OP_KINDS
from tracekit.stages import profiler_step

Bytes8 = npt.NDArray[np.int8]

COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|nvshmem|deep_?ep|cross_device_reduce"
    r"|(all_?reduce|two_shot|one_shot|multimem).*kernel",
    re.IGNORECASE,
)
"""Kernel names that are collectives (definition M2); the argument `Collective name` says so as well."""

PHASES = "XiIsftCM"
"""Phases that are read: complete, instant (two spellings), flow start/end/step, counter, metadata."""

CLASS_NAMES = (
    *HOST_OP_KINDS, *DEVICE_OP_KINDS,
    "device_range", "sync", "window", "memory", "flow", "counter", "meta", "ignored",
)  # fmt: skip
CLASS_CODE = {name: code for code, name in enumerate(CLASS_NAMES)}

CLASS_OF_CATEGORY: Mapping[str, str] = {
    "cpu_op": "op",
    "operator": "op",
    "hpu_op": "op",
    "user_annotation": "range",
    "python_function": "python",
    "overhead": "overhead",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "runtime": "runtime",
    "glow_runtime": "runtime",
    "mtia_runtime": "runtime",
    "xpu_runtime": "runtime",
    "xpu_driver": "runtime",
    "privateuse1_runtime": "runtime",
    "privateuse1_driver": "runtime",
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "gpu_user_annotation": "device_range",
    "cuda_sync": "sync",
    "cuda_event": "sync",
    "xpu_sync": "sync",
    "trace": "window",
    "cpu_instant_event": "ignored",
}
"""Recorded category, in lower case. One that is not here stays in `host_ops` as `other`."""


def classify(scan: Scan) -> tuple[Bytes8, Bytes8]:
    """(class code, index into PHASES) of every row; phase -1 is one that is not read."""
    phase = _by_value(scan.ph, [_phase(value) for value in scan.ph.values], -1)
    category = _by_value(
        scan.cat,
        [CLASS_CODE[CLASS_OF_CATEGORY.get(str(v).lower(), "other")] for v in scan.cat.values],
        CLASS_CODE["other"],
    )
    allocator = _by_value(scan.name, [int(v == "[memory]") for v in scan.name.values], 0) == 1
    collective = (
        _by_value(scan.name, [int(bool(COMMUNICATION.search(str(v)))) for v in scan.name.values], 0)
        == 1
    )
    if "Collective name" in scan.args:
        collective[scan.args["Collective name"].rows] = True

    # Traces of 2021 have no annotation category: their steps are operators.
    step = (
        _by_value(scan.name, [int(profiler_step(str(v)) is not None) for v in scan.name.values], 0)
        == 1
    )
    category = np.where(step & (category == CLASS_CODE["op"]), CLASS_CODE["range"], category)

    out = np.full(len(phase), CLASS_CODE["ignored"], np.int8)
    complete = phase == PHASES.index("X")
    out[complete] = category[complete]
    out[complete & collective & (category == CLASS_CODE["kernel"])] = CLASS_CODE["collective"]
    # The Python export of torch 2.13 writes allocator instants as "X", with a duration that means nothing.
    out[allocator & (phase >= 0) & (phase <= PHASES.index("I"))] = CLASS_CODE["memory"]
    out[(phase >= PHASES.index("s")) & (phase <= PHASES.index("t"))] = CLASS_CODE["flow"]
    out[phase == PHASES.index("C")] = CLASS_CODE["counter"]
    out[phase == PHASES.index("M")] = CLASS_CODE["meta"]
    return out, phase


def _phase(value: object) -> int:
    return PHASES.find(value) if isinstance(value, str) and len(value) == 1 else -1


def _by_value(column: Codes, by_value: list[int], absent: int) -> Bytes8:
    """`by_value[code]` of every row, `absent` where the row has no value."""
    return np.array([*by_value, absent], np.int8)[column.codes]
