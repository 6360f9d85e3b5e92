"""What each row of a Chrome trace is: recorded phase, category and name to one class a row.

Covers the categories of 2021 (`Operator`, `Kernel` …), of today, of ROCm, XPU, HPU and MTIA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model.remembered import remembered
from tracekit.model.stages import profiler_step
from tracekit.model.tables import DEVICE_OP_KINDS, HOST_OP_KINDS
from tracekit.readers.chrome.scan import Codes, Scan

Bytes8 = npt.NDArray[np.int8]

COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|nvshmem|deep_?ep|cross_device_reduce"
    r"|(all_?reduce|two_shot|one_shot|multimem).*kernel",
    re.IGNORECASE,
)
"""Kernel names that are collectives (definition M2); the argument `Collective name` says so as well."""

PHASES = "XiIsftCMBE"
"""Phases that are read: complete, instant (two spellings), flow start/end/step, counter, metadata, begin, end."""

_OTHERS = (
    "device_range",
    "sync",
    "window",
    "memory",
    "flow",
    "counter",
    "meta",
    "ignored",
    "python_call",
)
CLASS_NAMES = (*HOST_OP_KINDS, *DEVICE_OP_KINDS, *_OTHERS)
CLASS_CODE = {name: code for code, name in enumerate(CLASS_NAMES)}

CLASS_OF_CATEGORY: Mapping[str, str] = {
    "cpu_op": "op",
    "operator": "op",
    "hpu_op": "op",
    "user_annotation": "range",
    "nvtx": "range",
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


_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

ACCELERATORS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "NVIDIA (CUDA)": (("cuda_runtime", "cuda_driver"), _DEVICE),
    "AMD (ROCm)": (("cuda_runtime", "runtime"), _DEVICE),
    "Intel (XPU)": (("xpu_runtime", "xpu_driver"), _DEVICE),
    "Intel Gaudi (HPU)": (("hpu_op",), _DEVICE),
    "Meta (MTIA)": (("mtia_runtime",), ("mtia_ccp_events",)),
    "Ascend (NPU, trace_view.json)": (("npu_runtime",), ("npu_kernel",)),
    "Other (PrivateUse1)": (("privateuse1_runtime", "privateuse1_driver"), _DEVICE),
}
"""Categories of host and device rows by accelerator: those in `CLASS_OF_CATEGORY` are read."""


def is_read(categories: Iterable[str]) -> bool:
    """Whether rows of all these categories are read.

    >>> is_read(("kernel", "gpu_memcpy")), is_read(("npu_kernel",))
    (True, False)
    """
    return all(category in CLASS_OF_CATEGORY for category in categories)


def classify(scan: Scan) -> tuple[Bytes8, Bytes8]:
    """(class code, index into PHASES) of every row; phase -1 is one that is not read."""
    phases = list(map(_phase, scan.ph.values))
    phase = _by_value(scan.ph, phases, -1)
    out = _by_value(scan.ph, map(_CLASS_OF_PHASE.__getitem__, phases), CLASS_CODE["ignored"])
    complete = (phase == PHASES.index("X")) | (phase == PHASES.index("B"))
    category = _by_value(
        scan.cat,
        [CLASS_CODE[CLASS_OF_CATEGORY.get(str(v).lower(), "other")] for v in scan.cat.values],
        CLASS_CODE["other"],
    )
    out = np.where(complete, category, out)

    # Traces of 2021 have no annotation category: their steps are operators.
    step = _named(scan, _is_step)
    out[step & (out == CLASS_CODE["op"])] = CLASS_CODE["range"]
    collective = _named(scan, _is_collective)
    if "Collective name" in scan.args:
        collective[scan.args["Collective name"].rows] = True
    out[collective & (out == CLASS_CODE["kernel"])] = CLASS_CODE["collective"]
    # The Python export of torch 2.13 writes allocator instants as "X", with a duration that means nothing.
    allocator = _named(scan, lambda name: name == "[memory]")
    out[allocator & (phase >= 0) & (phase <= PHASES.index("I"))] = CLASS_CODE["memory"]
    return out, phase


_CLASS_OF_PHASE = {
    -1: CLASS_CODE["ignored"],
    **dict.fromkeys(map(PHASES.index, "XiIBE"), CLASS_CODE["ignored"]),
    **dict.fromkeys(map(PHASES.index, "sft"), CLASS_CODE["flow"]),
    PHASES.index("C"): CLASS_CODE["counter"],
    PHASES.index("M"): CLASS_CODE["meta"],
}
"""What a row is by its phase alone; a complete row, and a begin, is what its category says."""


@remembered
def _is_step(name: str) -> bool:
    return profiler_step(name) is not None


@remembered
def _is_collective(name: str) -> bool:
    return COMMUNICATION.search(name) is not None


def _named(scan: Scan, wanted: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    """Whether each row's name is wanted."""
    chosen = [wanted(str(value)) for value in scan.name.values]
    if not any(chosen):
        return np.zeros(len(scan.name.codes), np.bool_)
    is_wanted: npt.NDArray[np.bool_] = np.array([*chosen, False], np.bool_)[scan.name.codes]
    return is_wanted


def _phase(value: object) -> int:
    return PHASES.find(value) if isinstance(value, str) and len(value) == 1 else -1


def _by_value(column: Codes, by_value: Iterable[int], absent: int) -> Bytes8:
    """`by_value[code]` of every row, `absent` where the row has no value."""
    # -1, a row without a value, counts from the end: it finds `absent`.
    of_rows: Bytes8 = np.array([*by_value, absent], np.int8)[column.codes]
    return of_rows
