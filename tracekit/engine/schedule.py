"""Scheduling of sources by memory and cores, progress counting, and the loop of every engine with workers.

An engine adds its workers, and a schedule that knows where they may run: `Schedule` for one machine, `NodeSchedules`
for a cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from tracekit.engine import OnProgress, Outcome, Progress, R
from tracekit.engine.attempts import Attempt, Workers
from tracekit.model.errors import TracekitError
from tracekit.model.system.capacity import LARGE_FILE_BYTES
from tracekit.model.trace import Source

if TYPE_CHECKING:
    from tracekit.engine.ray_cluster import Cluster

MEMORY_SHARE = 0.7
"""Fraction of the available memory that the running sources may use together, as estimated."""
_BASE_BYTES = 200_000_000
_GROWTH, _GROWTH_COMPRESSED = 2, 25
"""Memory per byte of file, plain and compressed; 1 and 13 were measured for Chrome traces of up to 1 GB."""

MAX_STRICT_SOURCES = 64
"""Up to this many sources start strictly by cost."""

EXPORTED_FIRST = "nsys_rep"
_GROWTH_OF = {EXPORTED_FIRST: 6}
"""Memory per byte of file by reader: another program exports these reports to about four times their size."""

_log = logging.getLogger("tracekit.engine")


def estimate_memory_bytes(source: Source) -> int:
    """Estimate, on the safe side, the memory needed to read and measure `source`, from its size and suffix."""
    compressed = source.name.lower().endswith((".gz", ".zst", ".xz", ".zip"))
    growth = _GROWTH_COMPRESSED if compressed else _GROWTH_OF.get(source.reader, _GROWTH)
    return _BASE_BYTES + growth * source.size_bytes


def compute_memory_budget(available_bytes: int | None) -> int | None:
    """Compute the memory budget of running sources; None if the free memory is unknown."""
    return None if available_bytes is None else int(available_bytes * MEMORY_SHARE)


def compute_cores_per_source(sources: Iterable[Source], workers: int) -> int:
    """Compute how many of `workers` cores one source may use; only large files use several."""
    large_count = sum(source.size_bytes >= LARGE_FILE_BYTES for source in sources)
    return max(1, workers // max(1, large_count))


def check_jobs(jobs: int | None) -> None:
    """Raise `TracekitError` for fewer than one job."""
    if jobs is not None and jobs < 1:
        raise TracekitError(f"cannot run {jobs} jobs at once", "give --jobs 1 or more")


class StartOrder(Protocol):
    """The interface that the loop needs: one `Schedule`, or several."""

    def next(self) -> int | None:
        """Take the next source that may start and count it as running; None if none may start now."""

    def is_retry(self, index: int) -> bool:
        """Whether a source has run before."""

    def retry(self, index: int) -> bool:
        """Queue a lost source for another attempt; False if it gets none."""

    def end(self, index: int) -> None:
        """Stop counting a source as running."""


def yield_outcomes(
    workers: Workers[R], sources: Sequence[Source], schedule: StartOrder, tally: ProgressTally
) -> Generator[Outcome[R], None, None]:
    """Run the sources on `workers` and yield the outcomes in order; early ones wait for their turn."""
    with closing(yield_attempts(workers, sources, schedule, tally)) as attempts:
        for source, ended in zip(sources, attempts, strict=True):
            yield make_outcome(source, ended)


def yield_attempts(
    workers: Workers[R], items: Sequence[Any], schedule: StartOrder, tally: ProgressTally
) -> Generator[Attempt[R], None, None]:
    """Run the items (sources or batches) on `workers` and yield the attempts in order."""

    def start_what_fits() -> None:
        while (index := schedule.next()) is not None:
            if schedule.is_retry(index):
                workers.shrink()
            workers.start(index, items[index])

    ended: dict[int, Attempt[R]] = {}
    turn = 0
    try:
        while turn < len(items):
            start_what_fits()
            for index, message in workers.wait():
                if isinstance(message, int):
                    tally.advance(index, message)
                elif message.lost and schedule.retry(index):
                    tally.restart(index)
                else:
                    schedule.end(index)
                    tally.finish(index, message)
                    ended[index] = message
            start_what_fits()  # before the caller starts its work, so that no worker waits for it
            while turn in ended:
                yield ended.pop(turn)
                turn += 1
    finally:
        workers.close()


def make_outcome(source: Source, ended: Attempt[R]) -> Outcome[R]:
    """Convert the last attempt to an outcome and log its stack."""
    if ended.stack:
        _log.debug("%s\n%s", source.name, ended.stack)
    return Outcome(source, ended.value, ended.failure, ended.stack)


class Schedule:
    """Start order of sources: most expensive first within the memory budget, retries last and alone.

    With many sources, those of similar cost start in their order. Early results wait in memory for their turn, and with
    many sources it matters little which one runs last. `members` limits the schedule to these indices (None: all).
    """

    def __init__(
        self, costs: Sequence[int], workers: int, budget: int | None, members: Iterable[int] | None = None
    ) -> None:
        self._costs = costs
        self._sizes = costs if len(costs) <= MAX_STRICT_SOURCES else [cost.bit_length() for cost in costs]
        self._workers = workers
        self._budget = budget
        self._waiting = sorted(range(len(costs)) if members is None else members, key=self._turn)
        self._retries: list[int] = []
        self._retried: set[int] = set()
        self._running: set[int] = set()

    def next(self) -> int | None:
        """Take the next source that may start and count it as running; None if none may start now."""
        full = len(self._running) >= self._workers  # the common case: skips the scan of waiting sources
        waiting = () if full else self._waiting
        chosen = next(filter(self._fits, waiting), None)
        if chosen is not None:
            self._waiting.remove(chosen)
        elif self._retries and not self._waiting and not self._running:
            chosen = self._retries.pop(0)
        if chosen is not None:
            self._running.add(chosen)
        return chosen

    def _fits(self, index: int) -> bool:
        """Whether a source fits in memory next to the running ones; any source may run alone."""
        if not self._running:
            return True
        held_bytes = sum(self._costs[running] for running in self._running)
        return self._budget is None or held_bytes + self._costs[index] <= self._budget

    def _turn(self, index: int) -> tuple[int, int]:
        return -self._sizes[index], index

    def add(self, index: int) -> None:
        """Queue a source that has not run here yet."""
        self._waiting.append(index)
        self._waiting.sort(key=self._turn)

    def is_retry(self, index: int) -> bool:
        """Whether a source has run before."""
        return index in self._retried

    def retry(self, index: int) -> bool:
        """Queue a lost source for its second attempt; False if it has had one."""
        if index in self._retried:
            return False
        self._running.discard(index)
        self._retried.add(index)
        self._retries.append(index)
        return True

    def end(self, index: int) -> None:
        """Stop counting a source as running."""
        self._running.discard(index)


class ProgressTally:
    """Counter of finished bytes and files; calls `on_progress` on every change.

    If an item is a batch, `counts` gives its number of sources and `failures_of` counts the failed ones.
    """

    def __init__(
        self,
        items: Sequence[Any],
        on_progress: OnProgress,
        counts: Sequence[int] | None = None,
        failures_of: Callable[[Attempt[Any]], int] = lambda ended: ended.failure is not None,
    ) -> None:
        self._sizes = [item.size_bytes for item in items]
        self._counts = [1] * len(items) if counts is None else counts
        self._failures_of = failures_of
        self._read = [0] * len(items)
        self._bytes_done = 0
        self._file_count, self._byte_count = sum(self._counts), sum(self._sizes)
        self._files_done = 0
        self._failure_count = 0
        self._on_progress = on_progress
        self._tell()

    def advance(self, index: int, count: int) -> None:
        """Count bytes read of one source, up to its file size."""
        self._set(index, min(self._sizes[index], self._read[index] + count))
        self._tell()

    def restart(self, index: int) -> None:
        """Reset the bytes of a source that starts again."""
        self._set(index, 0)
        self._tell()

    def finish(self, index: int, ended: Attempt[Any]) -> None:
        """Count an item as finished, with all its bytes."""
        self._set(index, self._sizes[index])
        self._files_done += self._counts[index]
        self._failure_count += self._failures_of(ended)
        self._tell()

    def _set(self, index: int, read: int) -> None:
        self._bytes_done += read - self._read[index]
        self._read[index] = read

    def _tell(self) -> None:
        self._on_progress(
            Progress(
                file_count=self._file_count,
                byte_count=self._byte_count,
                files_done=self._files_done,
                bytes_done=self._bytes_done,
                failure_count=self._failure_count,
            )
        )


class NodeSchedules:
    """A schedule per node; a file visible on several nodes goes to the one with the least to read.

    Ray does not enforce its own `memory` resource, and the training run may hold all of its CPUs. So tasks request
    neither, and each node gets as many sources as its cores and memory allow.
    """

    def __init__(
        self, costs: Sequence[int], places: Sequence[Sequence[str]], cluster: Cluster, jobs: int | None
    ) -> None:
        self._cluster = cluster
        self._places = places
        self._costs = costs
        self._load: dict[str, int] = dict.fromkeys((node.id for node in cluster.nodes), 0)
        # Files visible on one node come first; files visible on several then even out the load.
        order = sorted(range(len(costs)), key=lambda i: (len(places[i]) > 1, -costs[i], i))
        self._node: list[str | None] = [None] * len(costs)
        members: dict[str | None, list[int]] = {}
        for index in order:
            node = self._least_loaded(index)
            self._node[index] = node
            members.setdefault(node, []).append(index)
        self._nowhere = sorted(members.get(None, ()))
        self._schedules: dict[str, Schedule] = {}
        for machine in cluster.nodes:
            self._schedules[machine.id] = Schedule(
                costs,
                workers=jobs or machine.core_count,
                budget=compute_memory_budget(machine.memory_bytes),
                members=members.get(machine.id, ()),
            )

    def node_of(self, index: int) -> str | None:
        """Get the node that reads a source; None if no node sees it."""
        return self._node[index]

    def next(self) -> int | None:
        """Take the next source that may start and count it as running; None if none may start now."""
        if self._nowhere:
            return self._nowhere.pop()
        for schedule in self._schedules.values():
            index = schedule.next()
            if index is not None:
                return index
        return None

    def is_retry(self, index: int) -> bool:
        """Whether a source has run before."""
        node = self._node[index]
        return node is not None and self._schedules[node].is_retry(index)

    def retry(self, index: int) -> bool:
        """Queue a lost source again: alone on its node, or on another node if its own is dead. False if not possible."""
        node = self._node[index]
        if node is None:
            return False
        if node not in self._cluster.lost:
            return self._schedules[node].retry(index)
        self._schedules[node].end(index)
        self._node[index] = other = self._least_loaded(index)
        if other is None or other in self._cluster.lost:
            self._node[index] = node
            return False
        self._schedules[other].add(index)
        return True

    def end(self, index: int) -> None:
        """Stop counting a source as running."""
        node = self._node[index]
        if node is not None:
            self._schedules[node].end(index)

    def _least_loaded(self, index: int) -> str | None:
        """Pick the node with the least to read among those that see a source; a dead node only if all are dead."""
        places = [node for node in self._places[index] if node in self._load]
        alive = [node for node in places if node not in self._cluster.lost] or places
        if not alive:
            return None
        node = min(alive, key=self._load.__getitem__)
        self._load[node] += self._costs[index]
        return node
