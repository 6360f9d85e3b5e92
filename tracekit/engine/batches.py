"""Batches of small sources: one worker reads several files and sends their results as one message.

A 30 KB file yields about a hundred small tables. Sending them one by one takes as long as computing some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracekit.engine import Advance, R, Work
from tracekit.engine.attempts import Attempt, attempt_call, make_oom_attempt
from tracekit.model.records import dataclass
from tracekit.model.trace import Source

Combine = Callable[[Sequence[R]], Sequence[R]]
"""Function that merges the values of a batch before they are sent: as many values out as in, same order."""

MAX_BATCH_SOURCES = 16
"""Sources per batch at most."""
SMALL_SOURCE_BYTES, SMALL_BATCH_BYTES = 1_000_000, 4_000_000
BATCHES_PER_WORKER = 4
"""Minimum number of batches per worker, so that workers finish at about the same time."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Consecutive sources, with the memory estimate of the most expensive one."""

    sources: tuple[Source, ...]
    cost_bytes: int

    @property
    def name(self) -> str:
        """Name of the first source."""
        return self.sources[0].name

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(source.size_bytes for source in self.sources)


def group_into_batches(sources: Sequence[Source], costs: Sequence[int], workers: int) -> list[SourceBatch]:
    """Group all sources into batches, with small files sharing one; empty if every batch would hold one source."""
    most = min(MAX_BATCH_SOURCES, len(sources) // (BATCHES_PER_WORKER * workers))
    if most < 2:
        return []
    batches: list[SourceBatch] = []
    members: list[int] = []
    member_bytes = 0
    for index, source in enumerate(sources):
        is_small = source.size_bytes <= SMALL_SOURCE_BYTES
        is_full = len(members) == most or member_bytes + source.size_bytes > SMALL_BATCH_BYTES
        if members and (is_full or not is_small):
            batches.append(_make_source_batch(sources, costs, members))
            members, member_bytes = [], 0
        members.append(index)
        member_bytes += source.size_bytes if is_small else SMALL_BATCH_BYTES
    return [*batches, _make_source_batch(sources, costs, members)]


def _make_source_batch(sources: Sequence[Source], costs: Sequence[int], members: Sequence[int]) -> SourceBatch:
    """Build the batch of the sources at these indices."""
    return SourceBatch(tuple(sources[index] for index in members), max(costs[index] for index in members))


def run_batch(function: Work[R], combine: Combine[R], batch: SourceBatch, advance: Advance) -> list[Attempt[R]]:
    """Run `function` on each source of a batch and pass the values through `combine`; list one attempt per source."""
    attempts = [attempt_call(function, source, advance) for source in batch.sources]
    values: list[Any] = [ended.value for ended in attempts]
    with_value = [place for place, value in enumerate(values) if value is not None]
    try:
        combined = combine([values[place] for place in with_value])
    except MemoryError:
        return [make_oom_attempt(source) for source in batch.sources]
    for place, value in zip(with_value, combined, strict=True):
        attempts[place] = Attempt(value)
    return attempts


def count_batch_failures(ended: Attempt[list[Attempt[Any]]]) -> int:
    """Count the failed sources of a batch."""
    return sum(of_source.failure is not None for of_source in ended.value or ())
