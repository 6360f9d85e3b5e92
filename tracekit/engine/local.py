"""The local engine: worker processes on this machine.

A worker reads several small files and sends their results as one message. A 30 KB file yields about a hundred small
tables. Sending them one by one takes as long as computing some of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal

from tracekit.engine import Advance, OnProgress, Outcome, R, Work, ignore_progress
from tracekit.engine.attempts import Attempt, attempt_call, call_with_cores, make_oom_attempt
from tracekit.engine.schedule import (
    EXPORTED_FIRST,
    ProgressTally,
    Schedule,
    check_jobs,
    compute_cores_per_source,
    compute_memory_budget,
    estimate_memory_bytes,
    make_outcome,
    yield_attempts,
    yield_outcomes,
)
from tracekit.model.records import dataclass
from tracekit.model.system.capacity import count_cores, read_available_memory
from tracekit.model.trace import Source

Where = Literal["processes", "here"]

SMALL_BYTES, SMALL_FILE_BYTES = 3_000_000, 30_000_000
"""Limits below which files are read in this process: starting workers (~0.4 s) would not pay off.

The first applies to the total size, the second to a single file.
"""

logging.getLogger("tracekit").addHandler(logging.NullHandler())  # silent unless somebody listens


def run_locally(
    function: Work[R],
    sources: Sequence[Source],
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    cost_bytes: Callable[[Source], int] = estimate_memory_bytes,
    where: Where | None = None,
    combine: Combine[R] | None = None,
) -> Iterator[Outcome[R]]:
    """Run `function` on each source and yield the outcomes in order; a failed source does not stop the others.

    At most `jobs` calls (default: the number of cores) run at once, as many as fit in memory by `cost_bytes`. A source
    that is too large for the budget runs alone. A call that runs out of memory, or whose process is killed, is retried
    alone. `where=None` picks "here" for small files, else "processes". Closing the iterator stops all workers.
    With `combine`, a worker reads several small consecutive files and sends the values that `combine` returns for them.
    """
    check_jobs(jobs)
    on_progress = on_progress or ignore_progress
    if where is None:
        where = _choose_place(sources)
    workers = jobs or count_cores()
    function = partial(call_with_cores, compute_cores_per_source(sources, workers), function)
    if where == "here":
        return _run_here(function, sources, ProgressTally(sources, on_progress))
    costs = [cost_bytes(source) for source in sources]
    budget = compute_memory_budget(read_available_memory())
    if combine is not None and (batches := group_into_batches(sources, costs, workers)):
        batch_costs = [batch.cost_bytes for batch in batches]
        schedule = Schedule(batch_costs, workers=workers, budget=budget)
        counts = [len(batch.sources) for batch in batches]
        tally = ProgressTally(batches, on_progress, counts, count_batch_failures)
        return _run_in_batches(function, combine, batches, schedule, tally)
    schedule = Schedule(costs, workers=workers, budget=budget)
    return yield_outcomes(_make_process_workers(function), sources, schedule, ProgressTally(sources, on_progress))


def _make_process_workers(function: Any) -> Any:
    """Create the worker processes; imported here because a single small file does not need them."""
    from tracekit.engine.processes import Processes

    return Processes(function)


def _run_in_batches(
    function: Work[R], combine: Combine[R], batches: Sequence[SourceBatch], schedule: Schedule, tally: ProgressTally
) -> Iterator[Outcome[R]]:
    """Yield the outcomes of all sources of all batches; sources of a lost batch are retried one by one."""
    several: Any = partial(run_batch, function, combine)
    workers = _make_process_workers(several)
    with closing(yield_attempts(workers, batches, schedule, tally)) as of_batches:
        for batch, ended in zip(batches, of_batches, strict=True):
            if ended.value is None:
                yield from run_locally(function, batch.sources, jobs=1, where="processes")
                continue
            for source, of_source in zip(batch.sources, ended.value, strict=True):
                if of_source.lost:
                    yield from run_locally(function, [source], jobs=1, where="processes")
                else:
                    yield make_outcome(source, of_source)


def _choose_place(sources: Sequence[Source]) -> Where:
    """Choose "here" for small files, unless several need an export by another program, which gains from parallelism."""
    total = sum(source.size_bytes for source in sources)
    exports = sum(source.reader == EXPORTED_FIRST for source in sources)
    small = total < SMALL_BYTES or (len(sources) == 1 and total < SMALL_FILE_BYTES)
    return "here" if small and exports < 2 else "processes"


def _run_here(function: Work[R], sources: Sequence[Source], tally: ProgressTally) -> Iterator[Outcome[R]]:
    """Call the function on one source after the other in this thread and yield the outcomes."""
    for index, source in enumerate(sources):
        ended = attempt_call(function, source, partial(tally.advance, index))
        tally.finish(index, ended)
        yield make_outcome(source, ended)


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
