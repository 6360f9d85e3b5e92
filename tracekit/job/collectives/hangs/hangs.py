"""A hang of one process group: the collective, who waits in it, and who blocks it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tracekit.job.collectives.hangs.dumps import GroupKey, Record
from tracekit.model.records import dataclass

Kind = Literal["missing", "mismatch", "no dump", "timed out", "order", "one-sided"]
Confidence = Literal["sure", "likely", "unknown"]


@dataclass(frozen=True, slots=True)
class Hang:
    """One group that hangs at a collective: who waits in it, and who blocks it.

    `since_ns` is the first moment at which a waiting rank enqueued it. `at_most_ns` bounds the wait at the dump.
    """

    kind: Kind
    key: GroupKey
    seq: int
    waiting: tuple[int, ...]
    culprits: tuple[int, ...]
    confidence: Confidence
    record: Record | None = None
    other: Record | None = None
    since_ns: int | None = None
    at_most_ns: int | None = None
    undumped: tuple[int, ...] = ()
    has_majority: bool = True
    against: Hang | None = None

    @property
    def title(self) -> str:
        """The collective: `all_gather #41`; without a record its number."""
        return self.record.title if self.record is not None else f"collective #{self.seq}"


def bound_wait(since_ns: int | None, written_ns: Iterable[int]) -> int | None:
    """Bound a wait by the time when the dumps of the waiting ranks were written; None if a time is unknown or earlier."""
    last_ns = max(written_ns, default=None)
    if since_ns is None or last_ns is None or last_ns < since_ns:
        return None
    return last_ns - since_ns
