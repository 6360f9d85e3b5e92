"""What of a file could not be read, or only after repair."""

from __future__ import annotations

from tracekit.model.records import dataclass


@dataclass(frozen=True, slots=True)
class Loss:
    """What could not be read, or only after repair; offsets count bytes of the uncompressed text.

    `kind`: truncated | damaged | repaired | not-an-event | too-long | metadata, or one of
    `unpack.LOSSES`. `count` elements or regions, `size_bytes` bytes lost, `offset` of the first.
    """

    kind: str
    offset: int
    count: int
    size_bytes: int
