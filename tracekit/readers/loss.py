"""Record of file content that was lost, or read only after repair."""

from __future__ import annotations

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
