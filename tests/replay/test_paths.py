"""Longest paths through a graph, compiled and in Python: worked by hand, and against each other on random graphs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.replay import paths
from tracekit.replay.paths import (
    NEVER,
    UNLIMITED,
    Timing,
    measure_slack,
    order_instants,
    reorder_instants,
    settle_weights,
    sort_added_edges,
    time_instants,
    walk_back,
)

COMPILED = paths.native


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def both_passes(request, monkeypatch):
    """Each test runs with the compiled passes and with those in Python."""
    assert COMPILED is not None
    if request.param == "plain":
        monkeypatch.setattr(paths, "native", None)


def columns_of(edges):
    """Columns of edges (source, target, weight)."""
    source, target, weight = (list(column) for column in zip(*edges, strict=True)) if edges else ([], [], [])
    return np.array(source, np.int32), np.array(target, np.int32), np.array(weight, np.int64)


def timed(edges, recorded):
    """Time of each instant and the number of the edge that decides it."""
    source, target, weight = columns_of(edges)
    ordering = order_instants(len(recorded), source, target)
    assert ordering.acyclic == len(recorded)
    timing = time_instants(ordering, source, weight, np.array(recorded, np.int64))
    return timing.time.tolist(), timing.decider.tolist()


# A graph worked by hand

DIAMOND = [(0, 1, 10), (0, 2, 30), (1, 3, 25), (2, 3, 4), (3, 4, 1)]
"""Over 1: 10 + 25 = 35; over 2: 30 + 4 = 34. Instant 3 is at 35, decided by edge 2, and instant 4 at 36."""


def test_each_instant_is_at_its_longest_path():
    assert timed(DIAMOND, [0, 0, 0, 0, 0]) == ([0, 10, 30, 35, 36], [-1, 0, 1, 2, 4])


def test_an_instant_that_no_edge_leads_to_keeps_its_recorded_time():
    assert timed(DIAMOND, [100, 7, 7, 7, 7]) == ([100, 110, 130, 135, 136], [-1, 0, 1, 2, 4])
    assert timed([(0, 2, 5)], [3, 44, 9]) == ([3, 44, 8], [-1, -1, 0])


def test_of_edges_that_reach_the_same_time_the_first_decides():
    assert timed([(0, 1, 5), (0, 2, 7), (1, 3, 4), (2, 3, 2)], [0] * 4) == ([0, 5, 7, 9], [-1, 0, 1, 2])
    assert timed([(0, 1, 5), (0, 2, 7), (2, 3, 2), (1, 3, 4)], [0] * 4) == ([0, 5, 7, 9], [-1, 0, 1, 2])


def test_a_weight_below_zero_reaches_back_in_time():
    assert timed([(0, 1, -40), (0, 2, 5), (1, 2, 44)], [100, 0, 0]) == ([100, 60, 105], [-1, 0, 1])
    assert timed([(0, 1, -40), (0, 2, 3), (1, 2, 44)], [100, 0, 0]) == ([100, 60, 104], [-1, 0, 2])


@pytest.mark.parametrize("gone", [NEVER, NEVER - 1, NEVER * 2])
def test_a_removed_edge_does_not_exist(gone):
    """Without the edge over 1, instant 3 is at 34; without both it keeps its recorded time."""
    edges = list(DIAMOND)
    edges[2] = (1, 3, gone)
    assert timed(edges, [0, 0, 0, 7, 0]) == ([0, 10, 30, 34, 35], [-1, 0, 1, 3, 4])
    edges[3] = (2, 3, gone)
    assert timed(edges, [0, 0, 0, 7, 0]) == ([0, 10, 30, 7, 8], [-1, 0, 1, -1, 4])


def test_the_lowest_weight_that_is_not_removed_still_decides():
    assert timed([(0, 1, NEVER + 1)], [5, 7]) == ([5, NEVER + 6], [-1, 0])


def test_nothing_is_timed_as_nothing():
    assert timed([], []) == ([], [])
    assert timed([], [4, 2]) == ([4, 2], [-1, -1])
    none = np.empty(0, np.int64)
    empty = Timing(none, none.astype(np.int32))
    spent, before = walk_back(empty, none.astype(np.int32), none.astype(np.int32), none, none)
    assert (spent.ns.tolist(), before) == ([], 0)


# Order


def test_edges_are_grouped_by_the_instant_that_they_lead_to():
    source, target, _ = columns_of(DIAMOND)
    ordering = order_instants(5, source, target)
    assert ordering.first.tolist() == [0, 0, 1, 2, 4, 5]
    assert (ordering.incoming.tolist(), ordering.list_incoming()) == ([], [0, 1, 2, 3, 4]), "they are sorted by target"
    assert ordering.order.tolist() == [0, 2, 1, 3, 4]
    turned = order_instants(3, np.array([2, 1], np.int32), np.array([1, 0], np.int32))
    assert (turned.order.tolist(), turned.first.tolist(), turned.incoming.tolist()) == ([2, 1, 0], [0, 1, 2, 2], [1, 0])


def test_instants_on_a_cycle_or_behind_it_are_not_ordered():
    """1 → 2 → 1 is a cycle and 3 lies behind it; 0 leads to the cycle, 4 stands alone."""
    source, target, _ = columns_of([(0, 1, 0), (1, 2, 0), (2, 1, 0), (2, 3, 0)])
    ordering = order_instants(5, source, target)
    assert (ordering.acyclic, ordering.order.tolist()) == (2, [0, 4, 1, 2, 3])
    loop = order_instants(1, np.zeros(1, np.int32), np.zeros(1, np.int32))
    assert (loop.acyclic, loop.order.tolist()) == (0, [0])


def test_added_edges_change_the_order_and_not_the_edges_into_each_instant():
    source, target, _ = columns_of(DIAMOND)
    ordering = order_instants(5, source, target)
    more = sort_added_edges(*columns_of([(1, 2, 0)]))
    changed = reorder_instants(ordering, source, target, more)
    assert (changed.order.tolist(), changed.acyclic) == ([0, 1, 2, 3, 4], 5)
    assert changed.incoming is ordering.incoming
    back = reorder_instants(ordering, source, target, sort_added_edges(*columns_of([(4, 1, 0)])))
    assert (back.order.tolist(), back.acyclic) == ([0, 2, 1, 3, 4], 2)


def test_an_added_edge_decides_only_what_it_delays():
    """Instant 1 at 33 over edge 5, so instant 3 at 58 over edge 2; edge 6 reaches 3 at 26, too early to decide."""
    source, target, weight = columns_of(DIAMOND)
    more = sort_added_edges(*columns_of([(2, 1, 3), (0, 3, 26), (0, 4, NEVER)]))
    ordering = reorder_instants(order_instants(5, source, target), source, target, more)
    timing = time_instants(ordering, source, weight, np.zeros(5, np.int64), more)
    assert (timing.time.tolist(), timing.decider.tolist()) == ([0, 33, 30, 58, 59], [-1, 5, 1, 2, 4])


def test_an_instant_that_was_decided_before_keeps_no_recorded_time():
    source, target, weight = columns_of([(0, 1, NEVER), (1, 2, 5)])
    ordering, decided = order_instants(4, source, target), np.array([-1, 0, 1, -1], np.int32)
    recorded = np.array([7, 40, 45, -3], np.int64)
    assert time_instants(ordering, source, weight, recorded).time.tolist() == [7, 40, 45, -3]
    assert time_instants(ordering, source, weight, recorded, decided=decided).time.tolist() == [7, -3, 2, -3]
    recorded[3] = 9
    assert time_instants(ordering, source, weight, recorded, decided=decided).time.tolist() == [7, 0, 5, 9]


# Settling


def settled(edges, time):
    """The weights for which the times are the longest paths, and the time added to edges."""
    source, target, weight = columns_of(edges)
    ordering = order_instants(len(time), source, target)
    residual = settle_weights(ordering, source, target, weight, np.array(time, np.int64))
    return weight.tolist(), dict(zip(residual.edge.tolist(), residual.ns.tolist(), strict=True))


def test_weights_are_cut_to_the_recorded_distance():
    """Edge 1 lasts 30, but its instants are 20 apart. Instant 3 is reached at 35 over 1, as recorded."""
    assert settled(DIAMOND, [0, 10, 20, 35, 36]) == ([10, 20, 25, 4, 1], {})


def test_the_edge_that_comes_closest_takes_what_is_missing():
    """Instant 3 is at 40: over 1 it is reached at 35 and over 2 at 34, so edge 2 takes 5."""
    assert settled(DIAMOND, [0, 10, 30, 40, 41]) == ([10, 30, 30, 4, 1], {2: 5})


def test_of_edges_that_come_equally_close_the_last_takes_what_is_missing():
    assert settled([(0, 2, 5), (1, 2, 3), (0, 2, 4)], [0, 2, 9]) == ([5, 7, 4], {1: 4})


# Walking back


def walked(edges, recorded, *walks):
    """Time of each edge, and the time before all, of walks (instant, low, high)."""
    source, target, weight = columns_of(edges)
    ordering = order_instants(len(recorded), source, target)
    timing = time_instants(ordering, source, weight, np.array(recorded, np.int64))
    at, low, high = (np.array(column) for column in zip(*walks, strict=True))
    spent, before = walk_back(timing, source, at, low, high)
    assert (np.diff(spent.edge) > 0).all()
    dense = np.zeros(len(edges), np.int64)
    dense[spent.edge] = spent.ns
    return dense.tolist(), before


def test_a_walk_gives_each_deciding_edge_its_time():
    """To 36 over edge 4 (1), edge 2 (25) and edge 0 (10)."""
    assert walked(DIAMOND, [0] * 5, (4, 0, 36)) == ([10, 0, 25, 0, 1], 0)


def test_a_walk_is_cut_at_both_ends():
    """[5, 30): of edge 0 the last 5 ns, of edge 2 the first 20."""
    assert walked(DIAMOND, [0] * 5, (4, 5, 30)) == ([5, 0, 20, 0, 0], 0)
    assert walked(DIAMOND, [0] * 5, (4, 36, 36)) == ([0, 0, 0, 0, 0], 0)


def test_time_before_the_first_instant_is_counted_apart():
    assert walked(DIAMOND, [0] * 5, (4, -7, 36)) == ([10, 0, 25, 0, 1], 7)
    assert walked([], [50], (0, 20, 50)) == ([0] * 0, 30)


def test_a_walk_begins_no_later_than_its_instant():
    """Instant 1 is at 10: nothing of [10, 36) is walked."""
    assert walked(DIAMOND, [0] * 5, (1, 4, 36)) == ([6, 0, 0, 0, 0], 0)


def test_walks_add_up():
    assert walked(DIAMOND, [0] * 5, (4, 0, 36), (2, 10, 30), (3, 0, 35)) == ([20, 20, 50, 0, 1], 0)


def test_a_walk_over_more_edges_than_there_is_room_for_at_first():
    edges = [(at, at + 1, 1 + at % 3) for at in range(10_000)]
    spent, before = walked(edges, [0] * 10_001, (10_000, 0, 19_999))
    assert (spent, before) == ([weight for *_, weight in edges], 0)


# Slack


def slack_of(edges, recorded, end):
    """Slack of each edge before an instant."""
    source, target, weight = columns_of(edges)
    ordering = order_instants(len(recorded), source, target)
    time = time_instants(ordering, source, weight, np.array(recorded, np.int64)).time
    return measure_slack(ordering, source, target, weight, time, end).tolist()


def test_slack_is_the_latest_start_minus_the_earliest():
    """Over 1 the end is at 36; the way over 2 is 1 ns shorter, and both its edges share that nanosecond."""
    assert slack_of(DIAMOND, [0] * 5, 4) == [0, 1, 0, 1, 0]
    assert slack_of(DIAMOND, [0] * 5, 2) == [UNLIMITED, 0, UNLIMITED, UNLIMITED, UNLIMITED]


@pytest.mark.parametrize("gone", [NEVER, NEVER * 2])
def test_a_removed_edge_has_no_slack_and_limits_nothing(gone):
    edges = list(DIAMOND)
    edges[2] = (1, 3, gone)
    assert slack_of(edges, [0] * 5, 4) == [UNLIMITED, 0, UNLIMITED, 0, 0]


# Random graphs


@st.composite
def random_graphs(draw):
    """A graph without cycles: edges lead from a lower to a higher place of a shuffled order."""
    count = draw(st.integers(1, 12))
    place = draw(st.permutations(range(count)))
    weights = st.one_of(st.integers(-50, 200), st.just(NEVER), st.just(NEVER * 2))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), weights)
    edges = [
        (place[min(a, b)], place[max(a, b)], weight) for a, b, weight in draw(st.lists(pairs, max_size=30)) if a != b
    ]
    return edges, draw(st.lists(st.integers(-1_000, 1_000), min_size=count, max_size=count))


def longest_by_recursion(edges, recorded, instant):
    """The definition: the latest time that an edge demands, else the recorded one."""
    demanded = [
        longest_by_recursion(edges, recorded, source) + weight
        for source, target, weight in edges
        if target == instant and weight > NEVER
    ]
    return max(demanded, default=recorded[instant])


@given(random_graphs())
def test_compiled_and_plain_passes_agree_with_the_definition(graph):
    edges, recorded = graph
    source, target, weight = columns_of(edges)
    results = []
    for native in (COMPILED, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "native", native)
            ordering = order_instants(len(recorded), source, target)
            timing = time_instants(ordering, source, weight, np.array(recorded, np.int64))
            low = timing.time - np.arange(len(recorded)) * 17
            walks = walk_back(timing, source, np.arange(len(recorded), dtype=np.int32), low, timing.time + 5)
            results.append(
                [*(column.tolist() for column in (*ordering[:3], *timing, *walks[0])), ordering[3], walks[1]]
            )
            total = int((timing.time - low).sum())
            assert walks[0].ns.sum() + walks[1] == total, "the pieces of all walks add up"
    assert results[0] == results[1]
    wanted = [longest_by_recursion(edges, recorded, instant) for instant in range(len(recorded))]
    assert results[0][3] == wanted


@given(random_graphs(), random_graphs())
def test_added_edges_are_timed_as_edges_of_the_graph(graph, other):
    edges, recorded = graph
    place = {
        instant: number
        for number, instant in enumerate(order_instants(len(recorded), *columns_of(edges)[:2]).order.tolist())
    }
    more = [edge for edge in other[0] if max(edge[:2]) < len(recorded) and place[edge[0]] < place[edge[1]]]
    source, target, weight = columns_of(edges)
    whole = time_instants(
        order_instants(len(recorded), *columns_of(edges + more)[:2]),
        *columns_of(edges + more)[::2],
        np.array(recorded, np.int64),
    )
    for native in (COMPILED, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "native", native)
            added = sort_added_edges(*columns_of(more))
            ordering = reorder_instants(order_instants(len(recorded), source, target), source, target, added)
            timing = time_instants(ordering, source, weight, np.array(recorded, np.int64), added)
            assert [column.tolist() for column in timing] == [column.tolist() for column in whole]


@given(random_graphs())
def test_settled_weights_give_back_any_times(graph):
    edges, recorded = graph
    source, target, weight = columns_of([edge for edge in edges if edge[2] > NEVER])
    time, results = np.array(recorded, np.int64), []
    for native in (COMPILED, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "native", native)
            ordering, changed = order_instants(len(time), source, target), weight.copy()
            residual = settle_weights(ordering, source, target, changed, time)
            assert time_instants(ordering, source, changed, time).time.tolist() == recorded
            results.append([changed.tolist(), *(column.tolist() for column in residual)])
    assert results[0] == results[1]
    added = np.zeros(len(weight), np.int64)
    added[residual.edge] = residual.ns
    assert (changed - added <= weight).all()


@given(random_graphs(), st.data())
def test_an_edge_can_grow_by_its_slack_and_no_further(graph, data):
    edges, recorded = graph
    end = data.draw(st.integers(0, len(recorded) - 1))
    slack = slack_of(edges, recorded, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "native", None)
        assert slack_of(edges, recorded, end) == slack
    before = timed(edges, recorded)[0][end]
    for number, (source, target, weight) in enumerate(edges):
        longer = [[*edges[:number], (source, target, weight + by), *edges[number + 1 :]] for by in (slack[number], 1)]
        if slack[number] < UNLIMITED:
            longer[1][number] = (source, target, weight + slack[number] + 1)
            assert [timed(changed, recorded)[0][end] for changed in longer] == [before, before + 1]
        elif weight > NEVER:
            assert timed(longer[1], recorded)[0][end] == before


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=25))
def test_compiled_and_plain_orders_agree_on_cycles(pairs):
    source, target = (np.array(column, np.int32) for column in (zip(*pairs, strict=True) if pairs else ([], [])))
    results = []
    for native in (COMPILED, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "native", native)
            results.append([np.asarray(part).tolist() for part in order_instants(8, source, target)])
    assert results[0] == results[1]
    order, acyclic = results[0][2], results[0][3]
    place = {instant: at for at, instant in enumerate(order)}
    assert all(place[a] < place[b] for a, b in pairs if place[b] < acyclic), "an ordered instant follows its sources"
    assert sorted(order) == list(range(8))


# Arrays of other sizes


def arrays_for(function):
    """Arguments of a compiled pass for three instants and two edges."""
    three, two, four = np.zeros(3, np.int64), np.zeros(2, np.int32), np.zeros(4, np.int32)
    chain = np.array([0, 1], np.int32), np.array([1, 2], np.int32)
    if function == "order":
        return [*chain, four.copy(), two.copy(), np.zeros(3, np.int32)]
    more = np.array([0], np.int32), np.array([2], np.int32)
    if function == "reorder":
        return [*chain, *more, np.zeros(3, np.int32)]
    ordered = np.arange(3, dtype=np.int32), np.array([0, 0, 1, 2], np.int32)
    if function == "longest":
        return [
            *ordered,
            np.array([0, 1], np.int32),
            chain[0],
            np.ones(2, np.int64),
            three,
            three.astype(np.int32),
            *more,
            np.ones(1, np.int64),
            np.zeros(1, np.int32),
            three.copy(),
            three.astype(np.int32),
        ]
    if function == "settle":
        settled = np.arange(3), np.zeros(2, np.int64), three.astype(np.int32), three.copy()
        return [ordered[1], np.array([0, 1], np.int32), chain[0], *settled]
    if function == "limit":
        return [*ordered, np.array([0, 1], np.int32), chain[0], np.ones(2, np.int64), three]
    decider = np.array([-1, 0, 1], np.int32)
    at = np.array([2], np.int32), np.zeros(1, np.int64), np.full(1, 2, np.int64)
    return [*at, np.arange(3), decider, chain[0], np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros(1, np.int64)]


SIZES = {"order": 5, "reorder": 5, "longest": 13, "settle": 7, "walk": 9, "limit": 6}
SIZED = [(name, place) for name, count in SIZES.items() for place in range(count)]
SIZED.remove(("walk", 5))  # The sources of the edges, however many.
SIZED.remove(("reorder", 4))  # The instants, however many.


@pytest.mark.parametrize("function", SIZES)
def test_arrays_of_fitting_sizes_are_taken(function):
    getattr(COMPILED, function)(*arrays_for(function))


RESIZED = [(*sized, change) for sized in SIZED for change in ("shorter", "longer", "empty")]
RESIZED.remove(("longest", 6, "empty"))  # No instant was decided before.
RESIZED.remove(("longest", 12, "empty"))  # The deciding edges are not asked for.
NO_ROOM = [("order", 3), ("longest", 2), ("settle", 1), ("limit", 2)]
"""Places of the edges into each instant: there are none where edges are sorted by target."""
for sized in NO_ROOM:
    RESIZED.remove((*sized, "empty"))


@pytest.mark.parametrize(("function", "place", "change"), RESIZED)
def test_an_array_of_another_size_is_refused(function, place, change):
    arguments = arrays_for(function)
    array = arguments[place]
    arguments[place] = {"shorter": array[:-1], "longer": np.append(array, array[:1]), "empty": array[:0]}[change].copy()
    with pytest.raises(ValueError, match="the arrays differ in length"):
        getattr(COMPILED, function)(*arguments)


@pytest.mark.parametrize(
    ("function", "place", "value"),
    [
        ("order", 0, -1),
        ("order", 1, 3),
        ("reorder", 0, 3),
        ("reorder", 3, -1),
        ("reorder", 3, 3),
        ("longest", 7, 3),
        ("longest", 8, -1),
        ("longest", 0, 3),
        ("longest", 0, -1),
        ("walk", 0, 3),
        ("walk", 0, -5),
        ("limit", 0, 3),
    ],
)
def test_an_instant_that_is_not_there_is_refused(function, place, value):
    arguments = arrays_for(function)
    arguments[place] = np.full(len(arguments[place]), value, np.int32)
    with pytest.raises(ValueError, match="instant"):
        getattr(COMPILED, function)(*arguments)


@pytest.mark.parametrize("edges", [0, 1])
def test_an_edge_that_is_not_there_is_refused(edges):
    arguments = arrays_for("walk")
    arguments[5] = arguments[5][:edges]
    with pytest.raises(ValueError, match="an edge that is not there"):
        COMPILED.walk(*arguments)
