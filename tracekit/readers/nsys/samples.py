"""GPU metric samples in the common form of all export versions: per GPU, without a process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.trace import Note

Ints = npt.NDArray[np.int64]
Part = tuple[Ints, npt.NDArray[np.int16], npt.NDArray[np.int32], npt.NDArray[np.float64]]
"""One block of samples: Unix ns, the profiler's GPU number, a code into the names, the value."""

_NOTHING: Part = (*(np.empty(0, np.int64), np.empty(0, np.int16)), *(np.empty(0, np.int32), np.empty(0, np.float64)))

GPU_MASK = 0xFF
"""Mask of the GPU number in a sample's type: the low byte."""


@dataclass(frozen=True, slots=True)
class GpuSamples:
    """Samples sorted by time, then name. `gpu` is the profiler's GPU number, `name` a code into `names`."""

    ts_ns: Ints
    gpu: npt.NDArray[np.int16]
    name: npt.NDArray[np.int32]
    value: npt.NDArray[np.float64]
    names: list[str]
    notes: tuple[Note, ...] = ()


def name_metric_series(type_: int, metric: str) -> str:
    """Build the series name of a metric; the type contains the GPU number."""
    return f"GPU {type_ & GPU_MASK} {metric}"


def join_sample_parts(parts: Sequence[Part], names: list[str], counts: Sequence[tuple[str, str, int]]) -> GpuSamples:
    """Concatenate and sort the samples of all parts. `counts` are (code, text, count) of dropped samples, for notes."""
    ts_ns, gpu, name, value = (np.concatenate(column) for column in zip(_NOTHING, *parts, strict=True))
    order = _sort_samples(ts_ns, name, value, names)
    notes = tuple(Note("warning", code, text, count=count) for code, text, count in counts if count)
    return GpuSamples(ts_ns[order], gpu[order], name[order], value[order], names, notes)


def _sort_samples(
    ts_ns: Ints, name: npt.NDArray[np.int32], value: npt.NDArray[np.float64], names: list[str]
) -> npt.NDArray[np.intp]:
    """Sort by time, name, value. Values are compared only if a series has two samples at the same time."""
    small = np.int16 if len(names) < 2**15 else np.int32  # numpy radix-sorts int16
    rank = np.argsort(np.argsort(np.array(names, object))).astype(small) if names else name
    order = np.lexsort((rank[name], ts_ns))
    ts, sorted_name = ts_ns[order], name[order]
    if ((ts[1:] == ts[:-1]) & (sorted_name[1:] == sorted_name[:-1])).any():
        order = np.lexsort((value, rank[name], ts_ns))
    return order
