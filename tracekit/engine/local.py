"""The local engine: the cores and the memory of this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal

from tracekit.engine import OnProgress, Outcome, R, Work
from tracekit.engine.attempts import attempt, with_cores
from tracekit.engine.batches import Batch, Combine, batches_of, each_of, failures_of
from tracekit.engine.schedule import (
    EXPORTED_FIRST,
    Schedule,
    Tally,
    attempts_of,
    budget_of,
    check_jobs,
    cores_each,
    estimate_bytes,
    outcome,
    outcomes_of,
)
from tracekit.model.capacity import available_memory_bytes, core_count
from tracekit.model.trace import Source

Where = Literal["processes", "here"]

SMALL_BYTES, SMALL_FILE_BYTES = 3_000_000, 30_000_000
"""Less than this, in all or in the only file, is read here: starting processes (~0.4 s) gains nothing."""

logging.getLogger("tracekit").addHandler(logging.NullHandler())  # silent unless somebody listens


def run(
    function: Work[R],
    sources: Sequence[Source],
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    cost_bytes: Callable[[Source], int] = estimate_bytes,
    where: Where | None = None,
    combine: Combine[R] | None = None,
) -> Iterator[Outcome[R]]:
    """What `function` makes of each source, in their order; a source that fails does not end the others.

    At most `jobs` (the cores by default) run at once, as many as fit in memory by `cost_bytes`; one
    that alone is too large runs alone. A call that dies of memory, or is killed, is tried again alone.
    `where` None is "processes", or "here" when the files are small. Closing the iterator stops it all.
    With `combine` a worker takes several small files that follow each other at once, and what it made of them is sent as
    `combine` makes it.
    """
    check_jobs(jobs)
    on_progress = on_progress or (lambda _: None)
    if where is None:
        where = _best_place(sources)
    workers = jobs or core_count()
    function = partial(with_cores, cores_each(sources, workers), function)
    if where == "here":
        return _run_here(function, sources, Tally(sources, on_progress))
    costs = list(map(cost_bytes, sources))
    budget = budget_of(available_memory_bytes())
    if combine is not None and (batches := batches_of(sources, costs, workers)):
        batch_costs = [batch.cost_bytes for batch in batches]
        schedule = Schedule(batch_costs, workers=workers, budget=budget)
        counts = [len(batch.sources) for batch in batches]
        tally = Tally(batches, on_progress, counts, failures_of)
        return _run_in_batches(function, combine, batches, schedule, tally)
    schedule = Schedule(costs, workers=workers, budget=budget)
    return outcomes_of(_workers_of(function), sources, schedule, Tally(sources, on_progress))


def _workers_of(function: Any) -> Any:
    """Workers in processes, of which one file needs none."""
    from tracekit.engine.processes import Processes

    return Processes(function)


def _run_in_batches(
    function: Work[R],
    combine: Combine[R],
    batches: Sequence[Batch],
    schedule: Schedule,
    tally: Tally,
) -> Iterator[Outcome[R]]:
    """The outcomes of the sources of all batches; those that ended with a batch that was lost run again, each alone."""
    several: Any = partial(each_of, function, combine)
    workers = _workers_of(several)
    with closing(attempts_of(workers, batches, schedule, tally)) as of_batches:
        for batch, ended in zip(batches, of_batches, strict=True):
            if ended.value is None:
                yield from run(function, batch.sources, jobs=1, where="processes")
                continue
            for source, of_source in zip(batch.sources, ended.value, strict=True):
                if of_source.lost:
                    yield from run(function, [source], jobs=1, where="processes")
                else:
                    yield outcome(source, of_source)


def _best_place(sources: Sequence[Source]) -> Where:
    """Here where files are small; but exports by another program gain from running at once."""
    total = sum(source.size_bytes for source in sources)
    exports = sum(source.reader == EXPORTED_FIRST for source in sources)
    small = total < SMALL_BYTES or (len(sources) == 1 and total < SMALL_FILE_BYTES)
    return "here" if small and exports < 2 else "processes"


def _run_here(function: Work[R], sources: Sequence[Source], tally: Tally) -> Iterator[Outcome[R]]:
    """The outcomes, one call after the other in this very thread."""
    for index, source in enumerate(sources):
        ended = attempt(function, source, lambda count, index=index: tally.advance(index, count))  # type: ignore[misc]
        tally.finish(index, ended)
        yield outcome(source, ended)
