"""The Ray engine: reads every source on its own node and transfers only the measurements."""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tracekit.engine import OnProgress, Outcome, R, Work, ignore_progress
from tracekit.engine.attempts import MEMORY_HINT, Attempt, Message, call_with_cores, make_internal_failure
from tracekit.engine.ray_cluster import NODE_HINT, Cluster, cancel_tasks, format_ray_error, is_node_loss, pin_to_node
from tracekit.engine.ray_worker import ProgressBoard, call_on_node, decompress_value, fold_on_node
from tracekit.engine.schedule import (
    NodeSchedules,
    ProgressTally,
    check_jobs,
    compute_cores_per_source,
    estimate_memory_bytes,
    yield_outcomes,
)
from tracekit.model.records import dataclass
from tracekit.model.trace import Failure, Source

_REACH_HINT = "its workers must be able to connect to the host where tracekit runs, with the same tokens"
_ASK_EVERY_S = 0.5
_FOLDS_AT_ONCE = 2
"""Folds that run on one node at once; their inputs are measurements, which are small."""

_log = logging.getLogger("tracekit.engine")


@dataclass(frozen=True, slots=True)
class RemoteValue:
    """A value left on the node that computed it: its fold keys, node and Ray object reference."""

    keys: frozenset[Hashable]
    node: str
    reference: Any


def run_on_ray(
    function: Work[R],
    sources: Sequence[Source],
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    cluster: Cluster,
    cost_bytes: Callable[[Source], int] = estimate_memory_bytes,
    seen_by: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Outcome[R]]:
    """Run `function` on each source on its own node and yield the outcomes in order.

    Each node runs at most `jobs` calls at once (default: its cores), as many as fit in its memory by `cost_bytes`.
    `seen_by` maps a source to all nodes that see its file, where there are several. A call whose worker dies is retried
    alone. A source whose node dies is read by another node that sees it, else it fails. Closing the iterator stops all
    tasks.
    """
    outcomes = _run_on_nodes(function, _make_no_fold_keys, sources, jobs, on_progress, cluster, cost_bytes, seen_by)
    with contextlib.closing(outcomes):
        for outcome in outcomes:
            yield _fetch_outcome(outcome, cluster)


def run_and_fold_on_ray(
    function: Work[R],
    sources: Sequence[Source],
    *,
    keys_of: Callable[[R], frozenset[Hashable]],
    fold_all: Callable[[Sequence[R]], Sequence[R]],
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    cluster: Cluster,
    seen_by: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Outcome[R]]:
    """Yield the outcomes of `run_on_ray`, with values that share a key folded on the node that holds them.

    `fold_all` returns as many values as it takes, in the same order. Values from several nodes are folded here. Each value
    is fetched when its turn comes, so memory is bounded by how the caller uses the earlier ones.
    """
    outcomes = list(
        _run_on_nodes(function, keys_of, sources, jobs, on_progress, cluster, estimate_memory_bytes, seen_by)
    )
    groups = group_by_shared_keys([_get_fold_keys(outcome) for outcome in outcomes])
    on_one_node = [group for group in groups if _find_common_node(_select_group_outcomes(outcomes, group)) is not None]
    folding = _fold_on_nodes(on_one_node, outcomes, fold_all, cluster)
    waiting: dict[int, Outcome[R]] = {}
    turn = 0
    for group in groups:
        members = _select_group_outcomes(outcomes, group)
        folded: list[Outcome[R]] | None = None
        if group in folding:
            folded = _fetch_folded_outcomes(members, folding.pop(group))
        if folded is None:
            folded = _fold_locally([_fetch_outcome(member, cluster) for member in members], fold_all)
        for index in group:
            outcomes[index] = Outcome(outcomes[index].source)  # lets Ray release the value
        waiting.update(zip(group, folded, strict=True))
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1


def _select_group_outcomes(
    outcomes: Sequence[Outcome[RemoteValue]], group: Iterable[int]
) -> list[Outcome[RemoteValue]]:
    """List the outcomes of one group."""
    return [outcomes[index] for index in group]


def group_by_shared_keys(keys: Sequence[frozenset[Hashable]]) -> list[tuple[int, ...]]:
    """Group the indices of key sets that share a key, directly or through others; ordered by first member.

    >>> group_by_shared_keys([frozenset("a"), frozenset("b"), frozenset("ac"), frozenset("c")])
    [(0, 2, 3), (1,)]
    """
    parent = list(range(len(keys)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    first: dict[Hashable, int] = {}
    for place, of_place in enumerate(keys):
        for key in of_place:
            smaller, larger = sorted((root(first.setdefault(key, place)), root(place)))
            parent[larger] = smaller
    groups: dict[int, list[int]] = {}
    for place in range(len(keys)):
        groups.setdefault(root(place), []).append(place)
    return [tuple(places) for places in groups.values()]


def _make_no_fold_keys(_: object) -> frozenset[Hashable]:
    """Map every value to no keys, so that nothing is folded."""
    return frozenset()


def _get_fold_keys(outcome: Outcome[RemoteValue]) -> frozenset[Hashable]:
    return outcome.value.keys if outcome.value is not None else frozenset()


def _list_outcome_values(outcomes: Iterable[Outcome[R]]) -> list[R]:
    """List the values of the outcomes that did not fail."""
    return [outcome.value for outcome in outcomes if outcome.value is not None]


def _find_common_node(outcomes: Iterable[Outcome[RemoteValue]]) -> str | None:
    """Find the one node that holds two or more values; None for a single value or several nodes."""
    values = _list_outcome_values(outcomes)
    nodes = {value.node for value in values}
    return nodes.pop() if len(values) > 1 and len(nodes) == 1 else None


def _run_on_nodes(
    function: Work[R],
    keys_of: Callable[[R], frozenset[Hashable]],
    sources: Sequence[Source],
    jobs: int | None,
    on_progress: OnProgress | None,
    cluster: Cluster,
    cost_bytes: Callable[[Source], int],
    seen_by: Mapping[str, Sequence[str]] | None,
) -> Generator[Outcome[RemoteValue], None, None]:
    """Yield the outcomes, with the values left on the nodes that computed them."""
    check_jobs(jobs)
    tally = ProgressTally(sources, on_progress or ignore_progress)
    nodes_by_source = seen_by or {}
    places = []
    for source in sources:
        node = source.node or cluster.driver
        places.append(nodes_by_source.get(source.name) or ([node] if node else []))
    schedule = NodeSchedules([cost_bytes(source) for source in sources], places, cluster, jobs)
    cores = _count_cores_per_source(sources, places, cluster, jobs)
    function = partial(call_with_cores, cores, function)
    payload = pickle.dumps((function, keys_of))
    tasks = _RayTasks(payload, schedule, cluster, watched=on_progress is not None)
    return yield_outcomes(tasks, sources, schedule, tally)


def _count_cores_per_source(
    sources: Sequence[Source], places: Sequence[Sequence[str]], cluster: Cluster, jobs: int | None
) -> int:
    """Compute how many cores one source may use on any node: the minimum over the nodes."""
    of_nodes = []
    for node in cluster.nodes:
        on_node = [source for source, ids in zip(sources, places, strict=True) if node.id in ids]
        of_nodes.append(compute_cores_per_source(on_node, jobs or node.core_count))
    return min(of_nodes, default=1)


class _RayTasks:
    """Ray workers: one task per source, on the node that the schedule assigns."""

    def __init__(self, payload: bytes, schedule: NodeSchedules, cluster: Cluster, *, watched: bool) -> None:
        import ray

        self._ray: Any = ray
        self._payload: Any = ray.put(payload)
        self._call: Any = ray.remote(num_cpus=0, max_retries=0, num_returns=2)(call_on_node)
        self._schedule = schedule
        self._cluster = cluster
        self._running: dict[Any, tuple[int, Source, Any]] = {}
        self._unstarted: list[tuple[int, Attempt[RemoteValue]]] = []
        self._board: Any = None
        if watched and cluster.driver is not None:
            actor = ray.remote(num_cpus=0, max_restarts=0)(ProgressBoard)
            place = pin_to_node(cluster.driver)
            self._board = actor.options(scheduling_strategy=place).remote()
        self._asked_at = time.monotonic()

    def start(self, index: int, source: Source) -> None:
        """Start the call for `source` on its node; on a dead node, record a failed attempt."""
        node = self._schedule.node_of(index)
        if node is None or node in self._cluster.lost:
            self._unstarted.append((index, self._gone(source, node)))
            return
        options = self._call.options(scheduling_strategy=pin_to_node(node))
        ended, value = options.remote(self._payload, index, source, self._board)
        self._running[ended] = (index, source, value)

    def wait(self) -> list[tuple[int, Message[RemoteValue]]]:
        """Wait for bytes read and finished calls."""
        messages: list[tuple[int, Message[RemoteValue]]] = [*self._unstarted]
        self._unstarted = []
        while not messages:
            tasks = list(self._running)
            timeout = _ASK_EVERY_S if self._board is not None else None
            ready, _ = self._ray.wait(tasks, timeout=timeout, fetch_local=False)
            if ready:
                ready, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
            messages += self._progress()
            messages += [self._ended(task) for task in ready]
        return messages

    def shrink(self) -> None:
        """Do nothing: Ray stops idle workers itself."""

    def close(self) -> None:
        """Stop all tasks."""
        cancel_tasks(self._ray, list(self._running))
        self._running = {}
        if self._board is not None:
            with contextlib.suppress(Exception):
                self._ray.kill(self._board)
            self._board = None

    def _progress(self) -> list[tuple[int, Message[RemoteValue]]]:
        """Poll the bytes read by running tasks, at most every 0.5 s."""
        if self._board is None or time.monotonic() - self._asked_at < _ASK_EVERY_S:
            return []
        self._asked_at = time.monotonic()
        try:
            read = self._ray.get(self._board.take.remote(), timeout=5 * _ASK_EVERY_S)
        except self._ray.exceptions.RayError:  # a failed progress query must not stop the run
            return []
        running = {index for index, _, _ in self._running.values()}
        return [(index, count) for index, count in read.items() if index in running]

    def _ended(self, task: Any) -> tuple[int, Attempt[RemoteValue]]:
        """Get the attempt of one finished task."""
        index, source, value = self._running.pop(task)
        node = self._schedule.node_of(index)
        assert node is not None
        try:
            ended = self._ray.get(task)
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds
            return index, self._lost(error, source, node)
        if ended.failure is not None:
            return index, ended
        return index, replace(ended, value=RemoteValue(ended.value, node, value))

    def _lost(self, error: Exception, source: Source, node: str) -> Attempt[Any]:
        """Map a Ray error to an attempt."""
        exceptions = self._ray.exceptions
        where = self._cluster.name(node)
        if is_node_loss(error):
            self._cluster.lost.setdefault(node, "the node was lost")
            return self._gone(source, node)
        if isinstance(error, exceptions.OutOfMemoryError):
            problem, code = f"memory ran out on {where}", "out-of-memory"
        elif isinstance(error, exceptions.WorkerCrashedError):
            problem, code = f"the process that read it died on {where}", "node-lost"
        elif isinstance(error, exceptions.OwnerDiedError):
            problem = f"{where} cannot reach this program"
            return Attempt(None, Failure(source.name, problem, _REACH_HINT, "node-lost"), lost=True)
        else:
            return make_internal_failure(source, error)
        return Attempt(None, Failure(source.name, problem, MEMORY_HINT, code), lost=True)

    def _gone(self, source: Source, node: str | None) -> Attempt[Any]:
        """Build the attempt for a dead node: lost, so another node that sees the file may read it."""
        return Attempt(None, _make_node_loss(source, node, self._cluster), lost=True)


def _make_node_loss(source: Source, node: str | None, cluster: Cluster) -> Failure:
    """Build the failure of a source whose node is dead."""
    if node is None:
        problem = "no node of the cluster sees this file"
        hint = "see --on-every-node for files that lie on nodes"
        return Failure(source.name, problem, hint, "node-lost")
    return Failure(source.name, f"lost with its node, {cluster.name(node)}", NODE_HINT, "node-lost")


def _fetch_outcome(outcome: Outcome[RemoteValue], cluster: Cluster) -> Outcome[Any]:
    """Fetch the value of an outcome from its node; a failure if it was lost with the node."""
    location = outcome.value
    if location is None:
        return Outcome(outcome.source, None, outcome.failure, outcome.stack)
    import ray

    try:
        value = decompress_value(ray.get(location.reference))
    except Exception as error:  # noqa: BLE001 - Ray and pickle raise many kinds
        if is_node_loss(error):
            cluster.lost.setdefault(location.node, "the node was lost")
            return Outcome(outcome.source, None, _make_node_loss(outcome.source, location.node, cluster))
        ended: Attempt[Any] = make_internal_failure(outcome.source, error)
        return Outcome(outcome.source, None, ended.failure, ended.stack)
    return Outcome(outcome.source, value)


def _fold_locally(outcomes: Sequence[Outcome[R]], fold_all: Callable[[Sequence[R]], Sequence[R]]) -> list[Outcome[R]]:
    """Fold the values of one group in this process; failures pass through."""
    values = _list_outcome_values(outcomes)
    folded = iter(fold_all(values) if values else ())
    complete = []
    for outcome in outcomes:
        if outcome.value is None:
            complete.append(outcome)
        else:
            complete.append(replace(outcome, value=next(folded)))
    return complete


def _fold_on_nodes(
    groups: Sequence[tuple[int, ...]],
    outcomes: Sequence[Outcome[RemoteValue]],
    fold_all: Callable[[Sequence[R]], Sequence[R]],
    cluster: Cluster,
) -> dict[tuple[int, ...], Any]:
    """Fold each group on the node that holds its values; map each group to the Ray reference of the result."""
    if not groups:
        return {}
    import ray

    remote: Any = ray.remote(num_cpus=0, max_retries=1)(fold_on_node)
    payload: Any = ray.put(pickle.dumps(fold_all))
    done: dict[tuple[int, ...], Any] = {}
    running: list[Any] = []
    try:
        for group in groups:
            if len(running) >= _FOLDS_AT_ONCE * len(cluster.nodes):
                _, running = ray.wait(running, fetch_local=False)
            values = _list_outcome_values(_select_group_outcomes(outcomes, group))
            place = pin_to_node(values[0].node)
            references = [value.reference for value in values]
            task = remote.options(scheduling_strategy=place).remote(payload, *references)
            running.append(task)
            done[group] = task
        while running:
            _, running = ray.wait(running, fetch_local=False)
    except BaseException:
        cancel_tasks(ray, running)
        raise
    return done


def _fetch_folded_outcomes(members: Sequence[Outcome[RemoteValue]], folded: Any) -> list[Outcome[Any]] | None:
    """Fetch the folded values of a group; None if folding failed, in which case the caller folds here."""
    import ray

    try:
        values = iter(decompress_value(ray.get(folded)))
    except Exception as error:  # noqa: BLE001 - Ray and pickle raise many kinds
        _log.debug("folding there failed: %s", format_ray_error(error))
        return None
    outcomes: list[Outcome[Any]] = []
    for member in members:
        if member.value is None:
            outcomes.append(Outcome(member.source, None, member.failure, member.stack))
        else:
            outcomes.append(Outcome(member.source, next(values)))
    return outcomes
