"""File content that was lost, or read only after repair, counted by kind."""

from __future__ import annotations

from collections.abc import Iterable

from tracekit.model.records import dataclass


@dataclass(frozen=True, slots=True)
class DataLoss:
    """File content that was lost, or read only after repair; offsets count bytes of uncompressed text.

    `kind`: truncated | damaged | repaired | not-an-event | too-long | metadata, or a key of
    `unpack.LOSSES`. `count`: number of elements or regions. `size_bytes`: bytes lost.
    `offset`: position of the first.
    """

    kind: str
    offset: int
    count: int
    size_bytes: int


OF_EVENTS = frozenset({"truncated", "damaged", "not-an-event", "too-long"})
"""Kinds of loss that can explain an absence of events."""


class ScanLosses:
    """Collector with one record per kind of loss: count, first offset and total bytes."""

    def __init__(self) -> None:
        self.by_kind: dict[str, DataLoss] = {}

    def add(self, kind: str, offset: int, size_bytes: int, count: int = 1) -> None:
        """Count `count` losses of one kind."""
        earlier = self.by_kind.get(kind)
        if earlier is None:
            self.by_kind[kind] = DataLoss(kind, offset, count, size_bytes)
        else:
            self.by_kind[kind] = DataLoss(
                kind, min(earlier.offset, offset), earlier.count + count, earlier.size_bytes + size_bytes
            )

    def extend(self, losses: Iterable[DataLoss]) -> None:
        """Count several losses."""
        for loss in losses:
            self.add(loss.kind, loss.offset, loss.size_bytes, loss.count)

    def of_events(self) -> bool:
        """Check whether elements of the event array were lost."""
        return not OF_EVENTS.isdisjoint(self.by_kind)

    def finish(self) -> tuple[DataLoss, ...]:
        """List the losses in the order of their first offsets."""
        return tuple(sorted(self.by_kind.values(), key=lambda loss: (loss.offset, loss.kind)))
