"""Which source starts next on which node, without any cluster."""

import pytest

from tracekit.engine.ray import group_by_shared_keys
from tracekit.engine.ray_cluster import Cluster, Node
from tracekit.engine.schedule import NodeSchedules


def cluster(**memory):
    return Cluster(tuple(Node(name, name, 2, size) for name, size in memory.items()))


def started(schedule):
    found = []
    while (index := schedule.next()) is not None:
        found.append(index)
    return found


def test_every_node_runs_as_many_as_its_cores_and_its_memory_hold():
    made = cluster(a=None, b=100)  # b may give 70 of its 100
    schedule = NodeSchedules([40, 40, 40, 40, 40], [["a"]] * 3 + [["b"]] * 2, made, None)
    assert started(schedule) == [0, 1, 3]
    schedule.end(3)
    assert started(schedule) == [4]


def test_jobs_are_counted_on_each_node():
    schedule = NodeSchedules([1] * 6, [["a"], ["b"]] * 3, cluster(a=None, b=None), 1)
    assert sorted(started(schedule)) == [0, 1]


def test_files_that_several_nodes_see_go_where_there_is_least_to_read():
    places = [["a"], ["a", "b"], ["a", "b"]]
    schedule = NodeSchedules([10, 6, 5], places, cluster(a=None, b=None), None)
    assert [schedule.node_of(index) for index in range(3)] == ["a", "b", "b"]


def test_a_lost_source_is_tried_again_once_where_its_node_lives():
    schedule = NodeSchedules([1], [["a"]], cluster(a=None), None)
    assert schedule.next() == 0
    assert schedule.retry(0)
    assert schedule.next() == 0
    assert schedule.is_retry(0)
    assert not schedule.retry(0)


@pytest.mark.parametrize(("places", "again"), [(["a", "b"], True), (["a"], False)])
def test_a_source_of_a_dead_node_goes_to_another_that_sees_it(places, again):
    made = cluster(a=None, b=None)
    schedule = NodeSchedules([1], [places], made, None)
    assert schedule.next() == 0
    made.lost["a"] = "the node was lost"
    assert schedule.retry(0) is again
    assert schedule.node_of(0) == ("b" if again else "a")
    assert (schedule.next() == 0) is again


def test_a_source_that_no_node_sees_starts_nowhere():
    schedule = NodeSchedules([1], [[]], cluster(a=None), None)
    assert schedule.next() == 0
    assert schedule.node_of(0) is None
    assert not schedule.retry(0)


def test_a_chain_of_shared_keys_is_one_group():
    keys = [frozenset({1}), frozenset(), frozenset({1, 2}), frozenset({3}), frozenset({2, 3})]
    assert group_by_shared_keys(keys) == [(0, 2, 3, 4), (1,)]
