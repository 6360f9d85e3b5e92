"""The passes in C find what the ways without them find."""

from operator import itemgetter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model import intervals, sweeps
from tracekit.model.tables import keys
from tracekit.process.calls import launches, nesting
from tracekit.process.idle_time import causes as idle

pytestmark = pytest.mark.skipif(sweeps.native is None, reason="built without a compiler")

TIMES = st.integers(-30, 30)
SPANS = st.lists(st.tuples(TIMES, st.integers(-3, 20)), max_size=40)


def arrays(spans):
    """(starts, ends) of spans (start, length)."""
    start = np.array([start for start, _ in spans], np.int64)
    return start, start + np.array([length for _, length in spans], np.int64)


def by_both(function):
    """(what a function gives with the passes in C, what without)."""
    native = function()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "native", None)
        return native, function()


def assert_same(function):
    for one, other in zip(*map(np.atleast_2d, by_both(function)), strict=True):
        np.testing.assert_array_equal(one, other)


@given(SPANS)
def test_unions_are_the_same(spans):
    assert_same(lambda: intervals.merge_intervals(*arrays(spans)))


@given(SPANS, st.lists(st.booleans(), min_size=40, max_size=40))
def test_unions_of_chosen_rows_are_those_of_these_rows_alone(spans, marks):
    chosen = np.array(marks[: len(spans)], np.bool_)
    for start, end in (arrays(sorted(spans)), arrays(spans)):
        low, high, is_whole = sweeps.merge_chosen_rows(chosen, start, end - start)
        expected = intervals.merge_intervals(start[chosen], end[chosen])
        union = intervals.Intervals(low, high) if is_whole else intervals.merge_intervals(low, high)
        for times, expected_times in zip(union, expected, strict=True):
            np.testing.assert_array_equal(times, expected_times)
        lasting = start[chosen & (end > start)]
        assert is_whole == (np.diff(lasting) >= 0).all()


def test_each_run_of_rows_in_order_has_a_union_of_its_own():
    start, length = np.array([5, 6, 9, 0, 6, 1, 3]), np.array([2, 2, 1, 3, 1, 1, 2])
    low, high, is_whole = sweeps.merge_chosen_rows(np.ones(7, np.bool_), start, length)
    assert (low.tolist(), high.tolist(), is_whole) == ([5, 9, 0, 6, 1, 3], [8, 10, 3, 7, 2, 5], False)  # fmt: skip
    chosen = np.array([1, 1, 1, 0, 0, 0, 0], np.bool_)
    low, high, is_whole = sweeps.merge_chosen_rows(chosen, start, length)
    assert (low.tolist(), high.tolist(), is_whole) == ([5, 9], [8, 10], True)


@given(SPANS, SPANS)
def test_what_two_sets_share_and_do_not_is_the_same(first, second):
    a, b = intervals.merge_intervals(*arrays(first)), intervals.merge_intervals(*arrays(second))
    assert_same(lambda: intervals.intersect(a, b))
    assert_same(lambda: intervals.subtract(a, b))


@given(SPANS, SPANS)
def test_what_is_covered_of_windows_is_the_same(spans, windows):
    a = intervals.merge_intervals(*arrays(spans))
    assert_same(lambda: intervals.measure_coverage(a, *arrays(windows)))


@given(st.lists(st.tuples(TIMES, st.integers(-3, 20), st.integers(0, 3)), max_size=40))
def test_the_unions_of_groups_are_as_long(spans):
    start, end = arrays([span[:2] for span in spans])
    group = np.array([span[2] for span in spans], np.int64)
    assert_same(lambda: intervals.measure_group_unions(start, end, group, 5))


@given(st.lists(TIMES, max_size=60), st.lists(TIMES, max_size=60))
def test_places_are_those_of_a_search(values, points):
    ascending, asked = np.array(sorted(values), np.int64), np.array(points, np.int64)
    assert_same(lambda: sweeps.count_below(ascending, asked))
    assert_same(lambda: sweeps.count_below(ascending, asked, right=True))


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_what_a_sparse_column_holds_of_rows_is_the_same(rows, asked):
    value_of = {row: 3 * row - 40 for row in sorted(rows)}
    column = np.array([*value_of], np.int32), np.array([*value_of.values()], np.int64)
    at = np.array(sorted(asked), np.int64)
    assert_same(lambda: sweeps.look_up_sparse(*column, at))
    values, missing = sweeps.look_up_sparse(*column, at)
    assert values.tolist() == [value_of.get(row, 0) for row in at.tolist()]
    assert missing.tolist() == [row not in value_of for row in at.tolist()]


@given(SPANS, st.lists(TIMES, max_size=60))
def test_the_windows_that_points_lie_in_are_the_same(spans, points):
    start, end = arrays(sorted(spans))
    assert_same(lambda: intervals.find_window_at(start, end, np.array(points, np.int64)))


CALLS = st.lists(st.tuples(TIMES, st.integers(0, 20), st.integers(0, 2)), max_size=40)


def ops(calls):
    """(rows in order of thread, start, longest first; thread, start, length of every row); every fifth is beside the tree."""
    columns = (np.array([call[i] for call in calls], np.int64) for i in range(3))
    start, length, thread = columns
    rows = np.flatnonzero(np.arange(len(calls)) % 5 != 4)
    order = nesting.sort_by_start(thread[rows].astype(np.int32), start[rows], (start + length)[rows])
    return rows[order], thread.astype(np.int32), start, length


@given(*[st.lists(st.tuples(st.integers(-2, 3), TIMES), max_size=40)] * 2, st.booleans())
def test_the_latest_of_a_group_before_a_limit_is_the_same(rows, asks, is_in_order):
    """In whatever order; in that of time by one pass."""
    key = itemgetter(1) if is_in_order else None
    columns = [np.array(sorted(pairs, key=key), np.int64).reshape(-1, 2).T for pairs in (rows, asks)]
    (group, times), (asked, limit) = columns
    if is_in_order:
        assert sweeps.find_latest_times(group, times, asked, limit) is not None
    if len(group) and len(asked):
        assert_same(lambda: idle._find_latest_time_before(group, times, asked, limit))
        expected = [
            max((time for one, time in rows if one == wanted and time < before), default=-(2**63))
            for wanted, before in zip(asked.tolist(), limit.tolist(), strict=True)
        ]
        assert idle._find_latest_time_before(group, times, asked, limit).tolist() == expected


@given(CALLS)
def test_trees_beside_which_rows_lie_are_the_same(calls):
    rows, thread, start, length = ops(calls)
    assert_same(lambda: nesting.find_parent_rows(rows, thread, start, length))
    tree = nesting.CallTree(nesting.find_parent_rows(rows, thread, start, length), rows)
    assert_same(lambda: nesting.measure_exclusive_times_in_tree(tree, start, length))
    wide = nesting.CallTree(tree.parent.astype(np.int64), rows)
    own = nesting.measure_exclusive_times_in_tree(wide, start, length)
    assert own.tolist() == nesting.measure_exclusive_times_in_tree(tree, start, length).tolist()


def test_rows_have_narrow_numbers_as_long_as_these_have_all_of_them():
    assert sweeps.choose_row_type(0) is np.int32
    assert sweeps.choose_row_type(2**31) is np.int32
    assert sweeps.choose_row_type(2**31 + 1) is np.int64


def test_passes_take_rows_of_either_type():
    start, length = np.array([0, 10, 5, 0]), np.array([100, 5, 50, 7])
    thread = np.array([0, 0, 0, 1], np.int32)
    order, parent = np.array([0, 2, 1, 3]), np.array([-1, 2, 0, -1])
    group = np.array([0, 1, 0, 1])
    for kind in (np.int32, np.int64):
        rows, above, of_group = (column.astype(kind) for column in (order, parent, group))
        found = np.full(4, -1, kind)
        sweeps.native.nest(rows, thread, start, length, found)
        assert found.tolist() == parent.tolist()
        made = np.empty(4, kind)
        assert sweeps.native.by_thread(np.array([0, 3, 2, 1]), thread, start, length, made) == 4
        assert made.tolist() == order.tolist()
        assert sweeps.compute_own_times(rows, above, start, length).tolist() == [50, 5, 45, 7]
        wanted = np.array([True, False, False, False])
        assert sweeps.find_wanted_ancestors(above, wanted, order)[0].tolist() == [-1, 0, 0, -1]
        assert sweeps.find_running_ancestors(above, start + length, start + 60, order)[0].tolist() == [0] * 3 + [-1]
        spans, asked = (thread, start, length), np.array([0, 1], np.int32)
        assert sweeps.find_innermost_rows(rows, spans, above, asked, np.array([12, 99])).tolist() == [1, -1]
        lanes = sweeps.place_on_lanes(rows, spans, np.array([0, 1000, 0]))
        assert [column.tolist() for column in lanes[1:]] == [[1000, 1005, 1010, 2000], [-1, 0, 1, -1]]
        assert (lanes[0].tolist(), lanes[2].dtype) == ([100, 55, 15, 7], np.int32)
        tree = np.array([-1, 0, 1, -1], kind)
        assert [found if type(found) is int else found.tolist() for found in sweeps.compute_depths(tree)] == [[0, 1, 2, 0], 2]  # fmt: skip
        marked = np.array([False, False, True, False])
        sweeps.mark_ancestors(tree, marked)
        assert marked.tolist() == [True, True, True, False]
        number, first = sweeps.number_call_paths(tree, np.arange(4), np.array([5, 6, 6, 5]))
        assert (number.tolist(), first.tolist()) == ([0, 1, 2, 0], [0, 1, 2])
        pools = sweeps.pool_pieces(start, start + length, tree, 2, np.array([7]))
        assert [column.tolist() for column in pools] == [[1, 2], [5, 50]]
        whole = np.array([15]), np.array([70]), np.array([1000]), np.array([0]), np.array([0])
        in_rows = lanes[1], lanes[0], tree
        found = sweeps.cut_segments(np.array([1050]), in_rows, np.array([0, 1000]), whole, 2)
        assert found[2].dtype == kind
        assert [column.tolist() for column in found] == [[15, 50], [50, 70], [1, 1]]
        totals = sweeps.measure_outermost_times(rows, thread, start, length, of_group, 2)
        assert totals.tolist() == [100, 12]


@given(CALLS, st.lists(st.tuples(st.integers(-1, 3), TIMES), max_size=40))
def test_the_innermost_op_of_a_thread_at_an_instant_is_the_same(calls, asks):
    rows, thread, start, length = ops(calls)
    columns = {"ts_ns": start, "dur_ns": length, "thread": thread}
    trace = SimpleNamespace(numbers=lambda _, name: columns[name])
    tree = nesting.CallTree(nesting.find_parent_rows(rows, thread, start, length), rows)
    lane, ts_ns = np.array(asks, np.int64).reshape(-1, 2).T
    for asked in (lane, lane.astype(np.int32)):
        assert_same(lambda asked=asked: nesting.find_innermost_rows_in_tree(trace, tree, asked, ts_ns))


def test_what_is_innermost_is_found_however_deep_an_op_lies():
    count = 500
    rows, zeros = np.arange(count), np.zeros(count, np.int64)
    columns = {"ts_ns": rows, "dur_ns": np.where(rows == 3, 9_999, 600 - rows), "thread": zeros}
    trace = SimpleNamespace(numbers=lambda _, name: columns[name])
    tree = nesting.CallTree(rows - 1, rows)
    spans = (zeros, rows, columns["dur_ns"])
    assert sweeps.find_innermost_rows(rows, spans, tree.parent, zeros[:1], zeros[:1] + 700) is None
    assert nesting.find_innermost_rows_in_tree(trace, tree, zeros[:2], np.array([700, 20])).tolist() == [3, 20]


@given(CALLS, st.lists(st.booleans(), min_size=40, max_size=40))
def test_the_nearest_wanted_op_above_is_the_same(calls, wanted):
    rows, *columns = ops(calls)
    tree = nesting.CallTree(nesting.find_parent_rows(rows, *columns), rows)
    mask = np.array(wanted[: len(calls)], np.bool_)
    assert_same(lambda: tree.nearest(mask, rows))


@given(CALLS)
def test_the_time_of_a_group_is_that_of_the_union_of_its_calls_on_each_thread(calls):
    rows, thread, start, length = ops(calls)
    group = np.array([row % 3 for row in range(len(calls))], np.int64)
    totals = sweeps.measure_outermost_times(rows, thread, start, length, group, 3)
    again, low, high, first = sweeps.list_united_calls(rows, thread, start, length, group, 3)
    np.testing.assert_array_equal(totals, again)
    for number in range(3):
        expected_ns, expected = 0, []
        for lane in range(3):
            of_lane = rows[(group[rows] == number) & (thread[rows] == lane)]
            begin, end = start[of_lane], (start + length)[of_lane]
            expected_ns += intervals.merge_intervals(begin, end).total
            joined = intervals.merge_intervals(begin, np.maximum(end, begin + 1))
            expected += [(lane, *span) for span in zip(*map(np.ndarray.tolist, joined), strict=True)]
        of_group = group[first] == number
        spans = zip(thread[first][of_group], low[of_group], high[of_group], strict=True)
        assert totals[number] == expected_ns
        assert [tuple(map(int, span)) for span in spans] == expected


def test_keys_at_both_ends_of_what_there_is_have_no_table():
    ends = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max])
    assert sweeps.number_dense_keys(ends) is None
    distinct, place = keys.number_keys(np.repeat(ends, 300))
    assert distinct.tolist() == ends.tolist()
    assert place.tolist() == [0] * 300 + [1] * 300


@given(SPANS, SPANS, st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_time_is_shared_out_the_same(spans, windows, kinds):
    start, end = arrays(spans)
    low, high = arrays([(start, abs(length)) for start, length in windows])
    kind = np.array(kinds[: len(spans)], np.int64)
    if len(start):
        assert_same(lambda: intervals.share_time((start, end, kind), low, high, lambda ops: (kind[ops],)))


@given(SPANS)
def test_the_last_that_reaches_is_the_same_in_any_order(spans):
    start, end = arrays(spans)
    if len(start):
        assert_same(lambda: nesting.find_last_reaching(start, end))


@given(CALLS, st.sampled_from(["sorted", "halves", "as they are", "reversed"]))
def test_rows_have_the_same_order_by_thread_whatever_order_they_are_in(calls, order):
    start, length, thread = (np.array([call[i] for call in calls], np.int64) for i in range(3))
    if order == "halves":
        start[: len(start) // 2].sort()
        start[len(start) // 2 :].sort()
    elif order != "as they are":
        start.sort()
    rows = np.flatnonzero(np.arange(len(calls)) % 5 != 4)
    rows = rows[::-1].copy() if order == "reversed" else rows
    for narrow in (thread, thread.astype(np.int32)):
        assert_same(lambda narrow=narrow: nesting.sort_rows_by_thread(rows, narrow, start, length))
        ordered = sweeps.sort_by_thread(rows, narrow, start, length)
        assert ordered is not None
        mask = np.zeros(len(calls), np.bool_)
        mask[rows] = True
        ascending = sweeps.sort_by_thread(np.flatnonzero(mask), narrow, start, length)
        assert sweeps.sort_by_thread(mask, narrow, start, length).tolist() == ascending.tolist()
        assert_same(lambda narrow=narrow, mask=mask: nesting.sort_rows_by_thread(mask, narrow, start, length))


@pytest.mark.parametrize("run", [1, 2, 3, 7, 100, 999, 1_000])
def test_runs_of_rows_in_order_are_merged(run):
    chance = np.random.default_rng(run)
    start = chance.integers(0, 400, 1_000)
    for first in range(0, 1_000, run):
        start[first : first + run].sort()
    thread, length = chance.integers(0, 3, 1_000), chance.integers(0, 9, 1_000)
    rows = np.flatnonzero(chance.random(1_000) < 0.9)
    expected = rows[nesting.sort_by_start(thread[rows], start[rows], (start + length)[rows])]
    merged = sweeps.sort_by_thread(rows, thread, start, length)
    assert merged.dtype == np.int32
    np.testing.assert_array_equal(merged, expected)


def test_threads_without_end_and_rows_that_start_at_once_are_left_to_numpy():
    two = np.arange(2)
    for thread in (-1, 2**16, 2**40):
        assert sweeps.sort_by_thread(two, two * thread, two, two) is None
    count = 2_000  # each is longer than all before it, and they start at once
    rows = np.arange(count)
    assert sweeps.sort_by_thread(rows, rows * 0, rows * 0, rows) is None
    assert nesting.sort_rows_by_thread(rows, rows * 0, rows * 0, rows).tolist() == rows[::-1].tolist()


@given(st.lists(st.tuples(st.integers(-4, 4), TIMES), max_size=40), st.lists(st.tuples(st.integers(-5, 5), TIMES), max_size=40))  # fmt: skip
def test_the_last_row_of_a_key_before_a_limit_is_the_same(rows, asks):
    starts, keys_ = np.array(sorted((ts, key) for key, ts in rows), np.int64).reshape(-1, 2).T
    asked, limit = np.array(asks, np.int64).reshape(-1, 2).T
    assert_same(lambda: launches.find_latest_match(keys_, starts, asked, limit))
    narrow = keys_.astype(np.int32), starts, asked.astype(np.int32), limit
    assert_same(lambda: launches.find_latest_match(*narrow))
    assert (
        launches.find_latest_match(*narrow).tolist() == launches.find_latest_match(keys_, starts, asked, limit).tolist()
    )


def test_rows_of_keys_that_collide_or_fall_in_start_are_found_without_a_table():
    ends = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max])
    assert_same(lambda: launches.find_latest_match(ends, ends, ends, ends))
    assert sweeps.find_latest_rows(np.zeros(2, np.int64), ends[::-1].copy(), ends, ends) is None
    assert sweeps.find_latest_rows(ends[:0], ends[:0], ends, ends).tolist() == [-1, -1]
    # Multiples of the square of the room of a table.
    numbers, starts = np.arange(3_000) << 26, np.arange(3_000)
    assert sweeps.find_latest_rows(numbers, starts, numbers, starts) is None
    assert sweeps.find_latest_rows(numbers[:1], starts[:1], numbers, starts).tolist() == [0] + [-1] * 2_999
    assert launches.find_latest_match(numbers, starts, numbers, starts).tolist() == starts.tolist()


def colliding(count):
    """So many keys that a table would look for in one place."""
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    return np.array([slot * inverse % 2**64 for slot in range(count)], np.uint64).astype(np.int64)


KEYS = st.lists(st.one_of(TIMES, st.sampled_from((-(2**63), 2**62, 2**63 - 1))), max_size=60)


def test_rows_of_one_key_are_of_one_group_and_no_rows_of_none():
    number, first = keys.group_arrays([np.array([7, 7, 7]), np.zeros(3, np.int64)])
    assert (number.tolist(), first.tolist()) == ([0, 0, 0], [0])
    number, first = keys.group_arrays([np.array([], np.int64)])
    assert (number.tolist(), first.tolist()) == ([], [])


@given(KEYS)
def test_keys_have_the_same_numbers(values):
    given_keys = np.array(values, np.int64)
    assert_same(lambda: np.concatenate(keys.number_keys(given_keys)))
    assert_same(lambda: np.concatenate(keys.group_arrays([given_keys, given_keys % 3])))


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(-(2**62), 2**62)), max_size=40))
def test_sums_of_groups_are_the_same_also_where_they_pass_64_bits(rows):
    group, values = np.array(rows, np.int64).reshape(-1, 2).T
    assert_same(lambda: keys.sum_by_group(group, values, 5))


@given(SPANS, st.lists(TIMES, min_size=40, max_size=40))
def test_what_encloses_a_row_is_the_same(spans, times):
    start, end = arrays([(start, abs(length)) for start, length in spans])
    if not len(start):
        return
    order = nesting.sort_by_start(start % 2, start, end)
    tree = nesting.CallTree(nesting.find_parent_rows(order, start % 2, start, end - start), order)
    rows, instants = np.arange(len(start)), np.array(times[: len(start)], np.int64)
    assert_same(lambda: tree.nearest(instants % 3 == 0, rows))
    assert_same(lambda: tree.running(rows - 1, end, instants))


def test_what_encloses_a_row_is_found_however_deep_the_row_lies():
    count = 500
    rows = np.arange(count)
    tree = nesting.CallTree(rows - 1, rows)
    wanted = rows == 3
    assert tree.nearest(wanted, rows).tolist() == [-1] * 4 + [3] * (count - 4)
    lasting = np.where(rows == 7, 10, 1)
    assert tree.running(rows, lasting, rows * 0 + 5).tolist() == [-1] * 7 + [7] * (count - 7)


def test_keys_that_were_made_to_collide_are_left_to_pandas():
    numbers = colliding(3_000)
    assert sweeps.number_by_appearance(numbers) is None
    assert_same(lambda: np.concatenate(keys.group_arrays([numbers[::-1]])))


def test_the_last_that_reaches_is_found_among_very_many_that_are_open():
    count = 5_000
    start = np.arange(count)
    end = np.arange(3 * count, 2 * count, -1)
    start[-1] = end[7] - 1
    assert sweeps.find_last_reaching_interval(start, end)[[0, 1, count - 2, count - 1]].tolist() == [
        -1,
        0,
        count - 3,
        7,
    ]


@pytest.mark.parametrize(("name", "sizes"), [
    ("covered_before", (2, 1, 3, 3)), ("covered_before", (2, 2, 3, 2)), ("places_left", (2, 3, 4)),
    ("join", (2, 3, 2, 2)), ("join", (2, 2, 1, 2)), ("combine", (2, 2, 2, 2, 8, 8)),
    ("united", (2, 2, 1, 1, 1)), ("united", (2, 2, 2, 1, 2)), ("last_reaching", (2, 3, 2)),
    ("own_times", (2, 2, 3, 2, 2)), ("own_times", (2, 2, 2, 3, 2)), ("own_times", (2, 2, 2, 2, 3)), ("numbered", (2, 2, 1)), ("appearing", (2, 1, 2)),
    ("summed", (2, 1, 2)), ("windows", (2, 1, 2, 2)), ("windows", (2, 2, 1, 2)), ("nearest", (2, 1, 2, 2)),
    ("running", (2, 1, 2, 2)), ("running", (2, 2, 2, 1)),
    ("nest", (1, 2, 2, 2, 3)), ("nest", (1, 2, 2, 3, 2)), ("outermost", (1, 2, 2, 1, 2, 1, 0, 0, 0)), ("outermost", (2, 2, 2, 2, 2, 1, 1, 2, 2)),
    ("depths", (3, 1)), ("paths", (2, 1, 2, 1, 1)), ("paths", (2, 2, 2, 2, 2)), ("paths", (2, 2, 2, 2, 1)),
    ("mark_enclosing", (2, 2)), ("pooled", (2, 1, 2, 1, 1, 2, 2)), ("pooled", (2, 2, 2, 1, 1, 1, 2)), ("pooled", (2, 2, 2, 1, 1, 2, 1)),
    ("pieces", (1, 2, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1)), ("pieces", (1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1)),
    ("pieces", (1, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 2)), ("pieces", (1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1)),
    ("swept", (2, 3, 1, 2, 2, 3, 3, 3)), ("swept", (3, 3, 1, 2, 2, 2, 3, 3)), ("swept", (3, 3, 2, 4, 2, 3, 3, 3)),
    ("swept", (3, 3, 1, 2, 3, 3, 3, 3)), ("latest", (3, 2, 2, 2, 2)), ("latest", (2, 2, 3, 2, 2)),
    ("latest", (2, 2, 2, 2, 1)), ("by_thread", (2, 3, 2, 2, 2)), ("by_thread", (2, 2, 2, 1, 2)),
    ("innermost", (1, 3, 2, 2, 2, 1, 1, 1)), ("innermost", (1, 2, 2, 2, 3, 1, 1, 1)),
    ("innermost", (1, 2, 2, 2, 2, 2, 1, 1)), ("innermost", (1, 2, 2, 2, 2, 1, 1, 2)), ("by_thread", (2, 2, 2, 2, 3)), ("nest", (1, 3, 2, 2, 2)),
    ("in_windows", (2, 1, 2, 2, 1, 1, 3, 1, 1, 1, 1)), ("in_windows", (2, 2, 2, 1, 1, 1, 3, 1, 1, 1, 1)),
    ("in_windows", (2, 2, 2, 2, 1, 2, 3, 1, 1, 1, 1)), ("in_windows", (2, 2, 2, 2, 1, 1, 3, 2, 1, 2, 2)),
    ("latest_before", (2, 1, 1, 1, 1, 1, 1)), ("latest_before", (1, 1, 2, 1, 1, 1, 2)), ("latest_before", (1, 1, 1, 1, 1, 0, 1)),
    ("join_chosen", (1, 2, 2, 1, 1)), ("join_chosen", (1, 8, 2, 1, 1)), ("join_chosen", (1, 8, 8, 1, 2)),
    ("lanes", (1, 3, 2, 2, 3, 1, 1, 1)), ("lanes", (1, 2, 2, 1, 3, 1, 1, 1)), ("lanes", (1, 2, 2, 2, 2, 1, 1, 1)),
    ("lanes", (1, 2, 2, 2, 3, 1, 1, 2)), ("lanes", (1, 2, 2, 2, 3, 1, 2, 1)),
])  # fmt: skip
def test_arrays_that_do_not_fit_one_another_are_refused(name, sizes):
    columns = [np.zeros(size, np.int64) for size in sizes]
    with pytest.raises(ValueError, match=r"differ in length|no room"):
        getattr(sweeps.native, name)(*columns)


@pytest.mark.parametrize(("size", "room"), [(3, 1), (1, 1), (2, 2), (2, 0)])
def test_a_mask_that_does_not_fit_is_refused(size, room):
    two, mask = np.array([0, 1]), np.zeros(size, np.bool_)
    mask[-1] = True
    with pytest.raises(ValueError, match="differ in length"):
        sweeps.native.by_thread(mask, two, two, two, np.empty(room, np.int64))


@pytest.mark.parametrize("sizes", [(3, 2, 2, 2, 2), (2, 2, 2, 1, 2), (2, 2, 2, 2, 1)])
def test_a_sparse_column_that_does_not_fit_is_refused(sizes):
    types = (np.int32, np.int64, np.int64, np.int64, np.bool_)
    columns = [np.zeros(size, dtype) for size, dtype in zip(sizes, types, strict=True)]
    with pytest.raises(ValueError, match="differ in length"):
        sweeps.native.values_at(*columns)


@pytest.mark.parametrize("count", [3, 300, 200_000])
def test_few_values_and_many_are_put_in_order_alike(count):
    """Addresses that come again and again, of more than 16 bits, on both sides of 0."""
    for room in (251, 99_991):
        values = (np.arange(count) * 7919 % room - 100) * 2**40
        assert_same(lambda values=values: keys.compute_stable_order(values))
        assert keys.compute_stable_order(values).tolist() == np.argsort(values, kind="stable").tolist()


PARENTS = st.lists(st.integers(0, 100), max_size=40)
"""What encloses each row, by how many rows before it that stands; 0 for nothing."""


def tree(back):
    return np.array([row - step if 0 < step <= row else -1 for row, step in enumerate(back)], np.int64)


@given(PARENTS, st.lists(st.integers(0, 2), min_size=40, max_size=40), st.sets(st.integers(0, 39)))
def test_paths_of_rows_are_those_of_their_names(back, names, marks):
    """Worked out row by row: how deep it is, whether anything marked is in it, which names lead to it."""
    parent = tree(back)
    depth, marked, path = [], [row in marks for row in range(len(parent))], []
    for row, above in enumerate(parent.tolist()):
        depth.append(0 if above < 0 else depth[above] + 1)
        path.append((*(() if above < 0 else path[above]), names[row]))
    for row in reversed(range(len(parent))):
        if marked[row] and parent[row] >= 0:
            marked[parent[row]] = True
    found, most = sweeps.compute_depths(parent)
    assert (found.tolist(), most) == (depth, max(depth, default=0))
    in_c = np.array([row in marks for row in range(len(parent))], np.bool_)
    sweeps.mark_ancestors(parent, in_c)
    assert in_c.tolist() == marked
    rows = np.flatnonzero(in_c)
    number, first = sweeps.number_call_paths(parent, rows, np.array(names, np.int64)[rows])
    numbers = {}
    assert number.tolist() == [numbers.setdefault(path[row], len(numbers)) for row in rows.tolist()]
    assert [path[row] for row in rows[first].tolist()] == list(numbers)


@given(st.lists(st.tuples(TIMES, st.integers(1, 9), st.integers(-1, 3)), max_size=40), st.sets(TIMES))
def test_what_is_pooled_adds_up_between_any_two_points(pieces, points):
    start, length, node = np.array(pieces, np.int64).reshape(-1, 3).T
    edges = np.array(sorted(points), np.int64)
    first, total = sweeps.pool_pieces(start, start + length, node, 4, edges)
    between = np.searchsorted(edges, start, side="right")
    sums = {}
    for place, of_node, ns in zip(between.tolist(), node.tolist(), length.tolist(), strict=True):
        if of_node >= 0:
            sums[place, of_node] = sums.get((place, of_node), 0) + ns
    pooled = {}
    for row, ns in zip(first.tolist(), total.tolist(), strict=True):
        key = int(between[row]), int(node[row])
        pooled[key] = pooled.get(key, 0) + ns
    assert pooled == sums
    in_order = np.argsort(start, kind="stable")
    first, _ = sweeps.pool_pieces(*(column[in_order] for column in (start, start + length, node)), 4, edges)
    assert len(first) == len(sums)


@given(st.lists(st.tuples(TIMES, st.integers(1, 9), st.integers(0, 3)), max_size=40), SPANS)
def test_the_nodes_of_each_window_are_those_of_the_pieces_that_begin_in_it(pieces, spans):
    """Worked out piece by piece; in a gap lie those that begin before the next multiple of 7."""
    start, length, node = np.array(sorted(pieces), np.int64).reshape(-1, 3).T
    low, high = arrays(spans)
    found = sweeps.group_pieces_by_window((start, start // 7, node, length), 4, low, high)
    expected = []
    for window, (first, last) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        of_node = {}
        for piece in np.flatnonzero((start >= first) & (start < last)).tolist():
            of_node.setdefault(int(node[piece]), []).append(piece)
        for of_one in of_node.values():
            gaps = {int(start[piece]) // 7 for piece in of_one}
            expected.append((window, of_one[0], len(gaps), int(length[of_one].sum())))
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


@given(st.lists(st.tuples(TIMES, st.integers(1, 20), st.integers(0, 2)), max_size=40))
def test_what_encloses_a_row_on_the_axis_ends_after_it_but_for_jitter(rows):
    """Worked out row by row: the last one before it, of its thread, that ends after it begins and not 3 before its end."""
    start, length, thread = np.array(rows, np.int64).reshape(-1, 3).T
    order = np.lexsort((-length, start, thread))
    ended, begin, parent = sweeps.place_on_lanes(
        order, (thread.astype(np.int32), start, length), np.array([-31, 90, 3])
    )
    assert ended.tolist() == (start + length)[order].tolist()
    assert begin.tolist() == ((thread + 1) * 90 + start + 31)[order].tolist()
    enclosing = []
    for row, at in enumerate(order.tolist()):
        least = max(int(start[at]), int(start[at] + length[at]) - 3)
        before = [
            place
            for place, other in enumerate(order[:row].tolist())
            if thread[other] == thread[at] and start[other] + length[other] > least
        ]
        enclosing.append(before[-1] if before else -1)
    assert parent.tolist() == enclosing


def test_paths_of_keys_that_collide_are_given_up():
    """Keys of rows without anything around them, chosen so that all lie in one slot."""
    count = 3_000
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    keys_of = []
    for slot in range(count):
        mixed = slot * inverse % 2**64
        plain = mixed ^ (mixed >> 29) ^ (mixed >> 58)
        keys_of.append(plain * inverse % 2**64)
    key = np.array(keys_of, np.uint64).astype(np.int64)
    rows = np.arange(count)
    assert sweeps.number_call_paths(np.full(count, -1), rows, key) is None
    number, first = sweeps.number_call_paths(np.full(count, -1), rows, rows)
    assert number.tolist() == first.tolist() == rows.tolist()


def test_trees_in_which_a_row_stands_before_what_encloses_it_have_no_depths():
    two = np.array([0, 1])
    assert sweeps.compute_depths(np.array([1, -1])) is None
    with pytest.raises(ValueError, match="before what encloses it"):
        sweeps.mark_ancestors(np.array([1, -1]), two > 0)
    for parent, row in ((two, 1), (two - 1, 2), (two - 1, -1)):
        with pytest.raises(ValueError, match="no such row"):
            sweeps.number_call_paths(parent, np.array([row]), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="no such node"):
        sweeps.pool_pieces(two, two + 1, two, 1, two)
    for low, room in ((1, 3), (0, 2)):
        with pytest.raises(ValueError, match="no such group"):
            sweeps.native.latest_before(two, two, two, two + 9, two[:1] + low, np.zeros(room, np.int64), two.copy())
    for node in (two, two - 1):
        with pytest.raises(ValueError, match="no such node"):
            sweeps.group_pieces_by_window((two, two, node, two), 1, two[:1], two[:1] + 9)
    for row in (-1, 2):
        with pytest.raises(ValueError, match="no such row"):
            sweeps.place_on_lanes(np.array([row]), (two, two, two), np.zeros(3, np.int64))


@pytest.mark.parametrize(("edge", "first", "problem"), [
    (0, [0, 0], "no room"), (0, [0, 9], "no room"), (0, [-1, 1], "no room"), (0, [2, 1], "no room"),
    (0, [0, 3], "no such edge"), (-1, [0, 2], "no such edge"), (2**63 - 1, [0, 2], "no such edge"),
])  # fmt: skip
def test_pieces_beyond_their_edges_or_room_are_refused(edge, first, problem):
    two = np.array([0, 5])
    segments = two, two + 5, two * 0 + 10, np.array([edge, 0]), np.array(first)
    rows = two + 10, two + 9, two * 0 - 1
    with pytest.raises(ValueError, match=problem):
        sweeps.cut_segments(np.array([12]), rows, np.array([0, 10]), segments, 4)


def test_pieces_in_rows_that_lie_too_deep_are_left_to_others():
    count = 70
    rows = np.arange(count)
    whole = tuple(np.array([value]) for value in (100, 101, 1_000, 0, 0))
    end = np.where(rows, 100, 200)
    assert sweeps.cut_segments(rows[:0], (rows + 1_000, end, rows - 1), np.array([0, 999]), whole, 1) is None
    start, end, row = sweeps.cut_segments(rows[:0], (rows + 1_000, end * 2, rows - 1), np.array([0, 999]), whole, 1)
    assert (start.tolist(), end.tolist(), row.tolist()) == ([100], [101], [count - 1])
    with pytest.raises(ValueError, match="before what encloses it"):
        sweeps.cut_segments(rows[:0], (rows + 1_000, rows * 0, rows), np.array([0, 999]), whole, 1)


def test_groups_and_trees_that_cannot_be_are_refused():
    two, one = np.array([0, 1]), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="no such group"):
        sweeps.native.united(two, two + 1, two, one.copy(), one.copy())
    with pytest.raises(ValueError, match="no such group"):
        sweeps.sum_groups_natively(two, two, 1)
    for row in (-1, 2):
        with pytest.raises(ValueError, match="no such row"):
            sweeps.find_wanted_ancestors(two - 1, two == 0, np.array([row]))
    with pytest.raises(ValueError, match="no such row"):
        sweeps.find_running_ancestors(two + 1, two, two, two)
    with pytest.raises(ValueError, match="not in order"):
        sweeps.measure_unions(two[::-1], two[::-1] + 1, two * 0, 1)
    for row in (-1, 2):
        with pytest.raises(ValueError, match="no such row"):
            sweeps.compute_own_times(np.array([0, row]), two - 1, two, two)
    with pytest.raises(ValueError, match="no such row"):
        sweeps.compute_own_times(two, two + 1, two, two)
    far = np.array([0, 9])
    with pytest.raises(ValueError, match="no such row"):
        sweeps.find_wanted_ancestors(two - 1, two > 0, far)
    with pytest.raises(ValueError, match="no such row"):
        sweeps.find_parents(far, two, two, two)
    with pytest.raises(ValueError, match="no such row"):
        sweeps.measure_outermost_times(far, two, two, two, two * 0, 1)
    with pytest.raises(ValueError, match="no such group"):
        sweeps.measure_outermost_times(two, two, two, two, two, 1)
    with pytest.raises(ValueError, match="not in order"):
        sweeps.measure_outermost_times(two, two * 0, -two, two, two * 0, 1)
    with pytest.raises(ValueError, match="no such class"):
        sweeps.sweep_class_times(np.arange(4), np.arange(4), far, 2)
    with pytest.raises(ValueError, match="no such edge"):
        sweeps.sweep_class_times(np.array([0, 1, 2, 9]), np.arange(4), np.array([0]), 1)
    with pytest.raises(ValueError, match="no such row"):
        sweeps.sort_by_thread(far, two, two, two)
    with pytest.raises(ValueError, match="no such row"):
        sweeps.find_innermost_rows(far, (two, two, two), two, two, two)
    with pytest.raises(ValueError, match="no such row"):
        sweeps.find_innermost_rows(two, (two * 0, two, two * 0), two + 9, two * 0, two)
    with pytest.raises(TypeError):
        sweeps.native.last_reaching(two)
    frozen = np.zeros(2, np.int64)
    frozen.setflags(write=False)
    with pytest.raises((BufferError, ValueError)):
        sweeps.native.last_reaching(two, two, frozen)
