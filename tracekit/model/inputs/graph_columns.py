"""Dependency graph of a process as plain columns, for transport and storage. The model does not interpret them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.sources import Source
from tracekit.model.records import dataclass

GraphKey = tuple[str, int | None, int | None]
"""Process of a graph: name of the source, pid, rank."""


def get_graph_key(source: Source) -> GraphKey:
    """Get the key of the graph of a source."""
    return source.name, source.pid, source.rank


@dataclass(frozen=True, slots=True, eq=False)
class GraphColumns:
    """Columns of the dependency graph of one process; no columns for a process that recorded no work."""

    source: Source
    numbers: Mapping[str, npt.NDArray[Any]]
    texts: Mapping[str, tuple[str, ...]]

    def __getstate__(self) -> list[Any]:
        """Pickle the numbers as one block of bytes per dtype: many small arrays take longer than their content."""
        forms: dict[str, tuple[str, int]] = {}
        blocks: dict[str, list[npt.NDArray[Any]]] = {}
        for name, array in self.numbers.items():
            forms[name] = array.dtype.str, len(array)
            blocks.setdefault(array.dtype.str, []).append(array)
        joined = {kind: np.concatenate(arrays) for kind, arrays in blocks.items()}
        return [self.source, forms, joined, dict(self.texts)]

    def __setstate__(self, state: list[Any]) -> None:
        """Restore a pickled object; its numbers are views of the blocks."""
        source, forms, blocks, texts = state
        places = dict.fromkeys(blocks, 0)
        numbers: dict[str, npt.NDArray[Any]] = {}
        for name, (kind, length) in forms.items():
            numbers[name] = blocks[kind][places[kind] : places[kind] + length]
            places[kind] += length
        for name, value in (("source", source), ("numbers", numbers), ("texts", texts)):
            object.__setattr__(self, name, value)

    @property
    def key(self) -> GraphKey:
        """Process of the graph."""
        return get_graph_key(self.source)

    @property
    def size_bytes(self) -> int:
        """Memory of the numbers in bytes."""
        return sum(array.nbytes for array in self.numbers.values())
