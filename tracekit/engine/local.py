"""The local engine: worker processes on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal

from tracekit.engine import OnProgress, Outcome, R, Work
from tracekit.engine.attempts import attempt_call, call_with_cores
from tracekit.engine.batches import Combine, SourceBatch, count_batch_failures, group_into_batches, run_batch
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
from tracekit.model.capacity import count_cores, read_available_memory
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
    on_progress = on_progress or (lambda _: None)
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
