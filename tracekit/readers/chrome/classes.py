"""Classification of the rows of a Chrome trace by phase, category and name.

Covers the categories of 2021 (`Operator`, `Kernel` …), current ones, and those of ROCm, XPU, HPU and MTIA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tracekit.model.stages import parse_profiler_step
from tracekit.model.tables import DEVICE_OP_KINDS, HOST_OP_KINDS
from tracekit.readers.chrome.scan import Codes, TraceScan

Bytes8 = npt.NDArray[np.int8]

COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|nvshmem|deep_?ep|cross_device_reduce"
    r"|(all_?reduce|two_shot|one_shot|multimem).*kernel",
    re.IGNORECASE,
)
"""Kernel names of collectives (definition M2); the argument `Collective name` also marks them."""

PHASES = "XiIsftCMBE"
"""Phases that are read: complete, instant (two spellings), flow start/end/step, counter, metadata, begin, end."""

_OTHERS = ("device_range", "sync", "window", "memory", "flow", "counter", "meta", "ignored", "python_call")
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
"""Class of each recorded category, in lower case. Rows of other categories stay in `host_ops` as `other`."""


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
"""Categories of host and device rows, by accelerator: those in `CLASS_OF_CATEGORY` are read."""


def is_read(categories: Iterable[str]) -> bool:
    """Check whether rows of all these categories are read.

    >>> is_read(("kernel", "gpu_memcpy")), is_read(("npu_kernel",))
    (True, False)
    """
    return all(category in CLASS_OF_CATEGORY for category in categories)


def classify_rows(scan: TraceScan) -> tuple[Bytes8, Bytes8]:
    """Classify every row: (class code, index into PHASES); -1 for a phase that is not read."""
    phases = [_find_phase_index(value) for value in scan.ph.values]
    phase = _map_code_values(scan.ph, phases, -1)
    out = _map_code_values(scan.ph, [_CLASS_OF_PHASE[index] for index in phases], CLASS_CODE["ignored"])
    complete = (phase == PHASES.index("X")) | (phase == PHASES.index("B"))
    category = _map_code_values(
        scan.cat,
        [CLASS_CODE[CLASS_OF_CATEGORY.get(str(v).lower(), "other")] for v in scan.cat.values],
        CLASS_CODE["other"],
    )
    out = np.where(complete, category, out)

    # Traces of 2021 have no annotation category: they record steps as operators.
    step = _match_row_names(scan, _is_step_name)
    out[step & (out == CLASS_CODE["op"])] = CLASS_CODE["range"]
    collective = _match_row_names(scan, _is_collective_name)
    if "Collective name" in scan.args:
        collective[scan.args["Collective name"].rows] = True
    out[collective & (out == CLASS_CODE["kernel"])] = CLASS_CODE["collective"]
    # The Python export of torch 2.13 writes allocator instants as "X", with a meaningless duration.
    allocator = _match_row_names(scan, lambda name: name == "[memory]")
    out[allocator & (phase >= 0) & (phase <= PHASES.index("I"))] = CLASS_CODE["memory"]
    return out, phase


_CLASS_OF_PHASE = {
    -1: CLASS_CODE["ignored"],
    **{PHASES.index(letter): CLASS_CODE["ignored"] for letter in "XiIBE"},
    **{PHASES.index(letter): CLASS_CODE["flow"] for letter in "sft"},
    PHASES.index("C"): CLASS_CODE["counter"],
    PHASES.index("M"): CLASS_CODE["meta"],
}
"""Class of a row by its phase alone; that of complete and begin rows depends on their category."""


@lru_cache(4096)
def _is_step_name(name: str) -> bool:
    """Check whether a name is that of a profiler step."""
    return parse_profiler_step(name) is not None


@lru_cache(4096)
def _is_collective_name(name: str) -> bool:
    """Check whether a kernel name is that of a collective."""
    return COMMUNICATION.search(name) is not None


def _match_row_names(scan: TraceScan, wanted: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    """Check each row's name, once per distinct name."""
    chosen = [wanted(str(value)) for value in scan.name.values]
    if not any(chosen):
        return np.zeros(len(scan.name.codes), np.bool_)
    is_wanted: npt.NDArray[np.bool_] = np.array([*chosen, False], np.bool_)[scan.name.codes]
    return is_wanted


def _find_phase_index(value: object) -> int:
    """Map a phase to its index in PHASES; -1 for other values."""
    return PHASES.find(value) if isinstance(value, str) and len(value) == 1 else -1


def _map_code_values(column: Codes, by_value: Iterable[int], absent: int) -> Bytes8:
    """Map each row's code to a number: `by_value[code]`, or `absent` for a row without a value."""
    # Code -1 (no value) indexes the last element, `absent`.
    of_rows: Bytes8 = np.array([*by_value, absent], np.int8)[column.codes]
    return of_rows
