"""One schedule per Ray node: which source may start next, given that node's cores and memory."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.engine.ray_cluster import Cluster
from tracekit.engine.schedule import Schedule, compute_memory_budget


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
        node = min(alive, key=lambda place: self._load[place])
        self._load[node] += self._costs[index]
        return node
