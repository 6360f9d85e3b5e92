"""Which source may start next on which node: a schedule a node, by the cores and the memory of that node."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.engine.ray_cluster import Cluster
from tracekit.engine.schedule import Schedule, budget_of


class NodeSchedules:
    """One schedule a node; a file that several nodes see waits on the one with the least to read.

    Ray's own `memory` resource is a number that nothing holds a task to, and its CPUs may all be held by the
    run itself: tasks ask for neither, and each node is given what it has the cores and the memory for.
    """

    def __init__(
        self,
        costs: Sequence[int],
        places: Sequence[Sequence[str]],
        cluster: Cluster,
        jobs: int | None,
    ) -> None:
        self._cluster = cluster
        self._places = places
        self._costs = costs
        self._load: dict[str, int] = dict.fromkeys((node.id for node in cluster.nodes), 0)
        # Files of one node first: those that several see fill up what these leave uneven.
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
                budget=budget_of(machine.memory_bytes),
                members=members.get(machine.id, ()),
            )

    def node_of(self, index: int) -> str | None:
        """The node that a source is read on; None where none sees it."""
        return self._node[index]

    def next(self) -> int | None:
        """The index of a source that may start now, which then counts as running; None if none may."""
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
        """Whether a source that was lost gets another chance: alone, or on another node if its own is dead."""
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
        """Count a source as running no more."""
        node = self._node[index]
        if node is not None:
            self._schedules[node].end(index)

    def _least_loaded(self, index: int) -> str | None:
        """The node that sees a source and has the least to read; a dead one only where all are."""
        places = [node for node in self._places[index] if node in self._load]
        alive = [node for node in places if node not in self._cluster.lost] or places
        if not alive:
            return None
        node = min(alive, key=lambda place: self._load[place])
        self._load[node] += self._costs[index]
        return node
