"""Samples of GPU metrics as every form of an export gives them: of a whole GPU, of no process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.trace import Note

Ints = npt.NDArray[np.int64]
Part = tuple[Ints, npt.NDArray[np.int16], npt.NDArray[np.int32], npt.NDArray[np.float64]]
"""Unix ns, the profiler's number of the GPU, a code into the names, the value: of one block of samples."""

_NOTHING: Part = (
    *(np.empty(0, np.int64), np.empty(0, np.int16)),
    *(np.empty(0, np.int32), np.empty(0, np.float64)),
)

GPU_MASK = 0xFF
"""The profiler's number of the GPU is the low byte of a sample's type."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples in the order of time, then name: `gpu` is the profiler's number, `name` a code into `names`."""

    ts_ns: Ints
    gpu: npt.NDArray[np.int16]
    name: npt.NDArray[np.int32]
    value: npt.NDArray[np.float64]
    names: list[str]
    notes: tuple[Note, ...] = ()


def series(type_: int, metric: str) -> str:
    """What the samples of a metric are called, by the type that tells the GPU."""
    return f"GPU {type_ & GPU_MASK} {metric}"


def joined(
    parts: Sequence[Part], names: list[str], counts: Sequence[tuple[str, str, int]]
) -> Samples:
    """The samples of all parts in their order; `counts` are (code, text, how many) of what was left out."""
    ts_ns, gpu, name, value = map(np.concatenate, zip(_NOTHING, *parts, strict=True))
    order = _order(ts_ns, name, value, names)
    notes = tuple(Note("warning", code, text, count=count) for code, text, count in counts if count)
    return Samples(ts_ns[order], gpu[order], name[order], value[order], names, notes)


def _order(
    ts_ns: Ints, name: npt.NDArray[np.int32], value: npt.NDArray[np.float64], names: list[str]
) -> npt.NDArray[np.intp]:
    """The order by time, name, value; values are compared only where one series has two samples at a time."""
    small = np.int16 if len(names) < 2**15 else np.int32  # which numpy sorts in one pass
    rank = np.argsort(np.argsort(np.array(names, object))).astype(small) if names else name
    order = np.lexsort((rank[name], ts_ns))
    ts, sorted_name = ts_ns[order], name[order]
    if ((ts[1:] == ts[:-1]) & (sorted_name[1:] == sorted_name[:-1])).any():
        order = np.lexsort((value, rank[name], ts_ns))
    return order
