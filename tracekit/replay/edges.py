"""Edges of a dependency graph: an instant is at least the weight of each edge later than the instant it comes from."""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.replay.paths import Ordering

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.integer[Any]]
"""Numbers of edges, ops or instants, of 32 or 64 bits."""

KINDS = (
    "host row",
    "host gap",
    "call",
    "launch",
    "stream gap",
    "kernel",
    "copy",
    "stream wait",
    "sync return",
    "arrival",
    "transfer",
    "launch queue",
    "hand-over",
    "overlap",
    "own length",
    "changed",
)
"""Kinds of edges: what makes an instant wait.

`host row`, `host gap` and `call` follow one thread; `own length` keeps a collective from ending before it starts;
`changed` is an edge that a change added.
"""

(
    HOST_ROW,
    HOST_GAP,
    CALL,
    LAUNCH,
    STREAM_GAP,
    KERNEL,
    COPY,
    STREAM_WAIT,
    SYNC_RETURN,
    ARRIVAL,
    TRANSFER,
    QUEUE,
    HAND_OVER,
    OVERLAP,
    OWN_LENGTH,
    CHANGED,
) = range(len(KINDS))

HOST_KINDS = (HOST_ROW, HOST_GAP, CALL)
DEVICE_KINDS = (LAUNCH, STREAM_GAP, KERNEL, COPY, STREAM_WAIT, OVERLAP, ARRIVAL, TRANSFER, OWN_LENGTH)


class Edges(NamedTuple):
    """Columns of edges. `owner` is a call path for edges of host threads, and a device op for edges of a device; -1: none.

    `inferred` marks edges that no record states: they give way where they would close a cycle.
    """

    source: Numbers
    target: Numbers
    weight: Ints
    kind: npt.NDArray[np.int8]
    owner: Numbers
    inferred: Mask

    def take(self, rows: npt.NDArray[Any] | slice) -> Edges:
        """Select edges."""
        columns: list[Any] = [column[rows] for column in self]
        return Edges(*columns)


def mark_kinds(kind: npt.NDArray[np.integer], *kinds: int) -> Mask:
    """Mark edges of some kinds."""
    is_one = np.zeros(len(KINDS), np.bool_)
    is_one[list(kinds)] = True
    marked: Mask = is_one[kind]
    return marked


def split_rows(number: npt.NDArray[Any], count: int) -> list[Ints]:
    """Split rows by their number: the rows of each number from 0 to below `count`, in their order."""
    is_sorted = not (number[1:] < number[:-1]).any()
    order = np.arange(len(number)) if is_sorted else np.argsort(number, kind="stable")
    bounds = np.searchsorted(number if is_sorted else number[order], np.arange(count + 1))
    return [order[low:high] for low, high in pairwise(bounds.tolist())]


class EdgeList:
    """Edges under construction."""

    def __init__(self) -> None:
        self._parts: list[Edges] = []

    def add(
        self,
        source: Any,
        target: Any,
        weight: Any,
        kind: Any,
        owner: Any = -1,
        *,
        inferred: Any = False,
    ) -> None:
        """Add edges; single values hold for all."""
        count = max(np.size(source), np.size(target))
        columns: list[Any] = []
        for column, kind_of_column in zip((source, target, weight, kind, owner, inferred), _TYPES, strict=True):
            values: Any = np.asarray(column, kind_of_column)
            columns.append(values if values.ndim else np.full(count, values))
        self._parts.append(Edges(*columns))

    def build(self) -> Edges:
        """Concatenate all edges, in the order in which they were added."""
        columns = zip(*self._parts, strict=True) if self._parts else [()] * len(_TYPES)
        return Edges(
            *(
                np.concatenate(column) if column else np.empty(0, kind_of_column)
                for column, kind_of_column in zip(columns, _TYPES, strict=True)
            )
        )


_TYPES = (np.int32, np.int32, np.int64, np.int8, np.int32, np.bool_)


def make_empty_edges(count: int) -> Edges:
    """Make room for edges."""
    columns: list[Any] = [np.empty(count, kind) for kind in _TYPES]
    return Edges(*columns)


def concatenate_edges(parts: list[Edges]) -> Edges:
    """Concatenate edges."""
    listed = EdgeList()
    listed._parts = parts  # noqa: SLF001 - of this file
    return listed.build()


@dataclass(slots=True)
class Weights:
    """Weights under change: of the edges of the graph, and `added` edges (source, target, weight).

    `replaced` lists what was changed: rows, and their weights before. A change costs what it touches, and can be undone.
    `ordered` has added edges (source, target), and the order of the graph with them.
    """

    weight: Ints
    added: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    replaced: list[tuple[npt.NDArray[np.integer], Ints]] = field(default_factory=list)
    ordered: tuple[tuple[Numbers, Numbers], Ordering] | None = None

    def put(self, rows: npt.NDArray[np.integer], weight: Ints | int) -> None:
        """Change the weights of edges."""
        self.replaced.append((rows, self.weight[rows]))
        self.weight[rows] = weight

    def mark(self) -> tuple[int, int]:
        """Mark the state, to undo what follows."""
        return len(self.replaced), len(self.added)

    def undo(self, mark: tuple[int, int]) -> None:
        """Undo all changes since a mark."""
        while len(self.replaced) > mark[0]:
            rows, before = self.replaced.pop()
            self.weight[rows] = before
        del self.added[mark[1] :]

    def is_altered(self, mark: tuple[int, int]) -> bool:
        """Check whether the weight of an edge differs from that at a mark; no change takes another back."""
        return any((before != self.weight[rows]).any() for rows, before in self.replaced[mark[0] :])

    def list_altered(self, mark: tuple[int, int]) -> tuple[Ints, Ints]:
        """List the edges with another weight than at a mark: (rows, their weights then)."""
        parts = self.replaced[mark[0] :]
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        rows, first = np.unique(np.concatenate([rows for rows, _ in parts]), return_index=True)
        before = np.concatenate([weights for _, weights in parts])[first]
        altered = before != self.weight[rows]
        return rows[altered], before[altered]
