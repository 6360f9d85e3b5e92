"""The call tree against a plain stack and a plain clock."""

import sys
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from chrome_builder import BACKWARD, annotation, launch, op, write
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tracekit.model import sweeps
from tracekit.process.calls.nesting import (
    CallTree,
    build_call_tree,
    build_call_tree_of_rows,
    find_innermost_host_rows,
    find_innermost_rows_in_tree,
    measure_exclusive_host_times,
    measure_exclusive_times_in_tree,
    sort_by_start,
)

LEVELS = "tracekit.process.calls.nesting.FEW_LEVELS"

spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 12)), min_size=1, max_size=30)


@pytest.fixture(autouse=True, params=["in C", "in numpy"], scope="module")
def way(request):
    """Every test runs with the passes in C and without them."""
    with pytest.MonkeyPatch.context() as patch_way:
        if request.param == "in numpy":
            patch_way.setattr(sweeps, "native", None)
        yield


def columns(rows):
    thread = np.array([t for t, _, _ in rows], np.int32)
    start = np.array([s for _, s, _ in rows], np.int64)
    return thread, start, start + np.array([d for _, _, d in rows], np.int64)


def tree(thread, start, end, jitter_ns=0):
    """The tree of rows in any order, recorded by a clock of this resolution."""
    columns_by_name = {"ts_ns": start, "dur_ns": end - start, "thread": thread}
    trace = SimpleNamespace(numbers=lambda _, name: columns_by_name[name], derived=lambda _: jitter_ns)
    return build_call_tree_of_rows(trace, np.arange(len(start)))


@given(spans)
def test_the_parent_is_the_last_one_started_that_still_runs(rows):
    thread, start, end = columns(rows)
    parent = tree(thread, start, end).parent
    order = sort_by_start(thread, start, end).tolist()
    for place, row in enumerate(order):
        running = [r for r in order[:place] if thread[r] == thread[row] and end[r] > start[row]]
        assert parent[row] == (running[-1] if running else -1)


@given(spans, st.integers(1, 3))
def test_what_begins_in_the_last_instants_of_another_and_outlasts_it_is_beside_it(rows, jitter):
    """Each candidate is asked, the last that began first; one that overlaps by rounding is passed over."""
    thread, start, end = columns(rows)
    parent = tree(thread, start, end, jitter).parent
    order = sort_by_start(thread, start, end).tolist()
    for place, row in enumerate(order):
        running = [r for r in order[:place] if thread[r] == thread[row] and end[r] > start[row]]
        while running:
            above = running[-1]
            overlap, beyond = end[above] - start[row], end[row] - end[above]
            if overlap > jitter or beyond <= jitter:
                break
            running.pop()
        assert parent[row] == (running[-1] if running else -1)


@given(spans, st.sampled_from([0, 1, 3]), st.sampled_from([0, 2, 64]))
def test_own_time_is_what_a_clock_that_asks_who_started_last_would_count(rows, jitter, few_levels):
    thread, start, end = columns(rows)
    with patch(LEVELS, few_levels):
        own = measure_exclusive_times_in_tree(tree(thread, start, end, jitter), start, end - start)
    order = sort_by_start(thread, start, end).tolist()
    counted = np.zeros(len(rows), np.int64)
    for t in range(3):
        for now in range(40):
            running = [r for r in order if thread[r] == t and start[r] <= now < end[r]]
            if running:
                counted[running[-1]] += 1
    assert own.tolist() == counted.tolist()


@pytest.mark.parametrize("few_levels", [0, 1, 64])
def test_what_begins_in_a_row_and_outlasts_it_covers_the_row_around_both(few_levels):
    """0-20 has 2-5, in which 4-15 begins, in which 14-18 begins: 2-18 is not its own."""
    thread, start, end = columns([(0, 0, 20), (0, 2, 3), (0, 4, 11), (0, 14, 4)])
    with patch(LEVELS, few_levels):
        own = measure_exclusive_times_in_tree(tree(thread, start, end), start, end - start)
    assert own.tolist() == [4, 2, 10, 4]


@pytest.mark.parametrize("few_levels", [0, 1, 64])
def test_of_rows_that_have_ended_the_next_one_around_them_counts(few_levels):
    """0-9 has 1-5, which has 2-4."""
    thread, start, end = columns([(0, 0, 9), (0, 1, 4), (0, 2, 2)])
    with patch(LEVELS, few_levels):
        running = tree(thread, start, end).running(np.full(5, 2), end, np.array([3, 4, 5, 8, 9]))
        assert running.tolist() == [2, 1, 0, 0, -1]
        assert tree(thread, start, end).running(np.array([1, -1, 0]), end, np.full(3, 9)).tolist() == [-1, -1, -1]
        pair = tree(thread[:2], start[:2], end[:2])
        assert pair.running(np.array([1, 1]), end[:2], np.array([5, 9])).tolist() == [0, -1]


@given(spans, st.sets(st.integers(0, 29)), st.sampled_from([0, 2, 64]))
def test_the_nearest_wanted_row_is_found_by_going_up_one_by_one(rows, chosen, few_levels):
    thread, start, end = columns(rows)
    made = tree(thread, start, end)
    wanted = np.isin(np.arange(len(rows)), list(chosen))
    with patch(LEVELS, few_levels):
        found = made.nearest(wanted, np.arange(len(rows)))
    for row in range(len(rows)):
        above = made.parent[row]
        while above >= 0 and not wanted[above]:
            above = made.parent[above]
        assert found[row] == above


@given(
    spans,
    st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 40))),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([0, 2, 64]),
)
def test_at_an_instant_what_started_last_and_still_runs_is_innermost(rows, instants, jitter, few_levels):
    thread, start, end = columns(rows)
    order = sort_by_start(thread, start, end)
    trace = SimpleNamespace(
        numbers=lambda _, name: {"ts_ns": start, "dur_ns": end - start, "thread": thread}[name],
        derived=lambda _: jitter,
    )
    at_thread = np.array([t for t, _ in instants], np.int32)
    at = np.array([ts for _, ts in instants], np.int64)
    with patch(LEVELS, few_levels):
        found = find_innermost_rows_in_tree(trace, build_call_tree_of_rows(trace, np.arange(len(rows))), at_thread, at)
    for row, (on, now) in zip(found.tolist(), instants, strict=True):
        running = [r for r in order.tolist() if thread[r] == on and start[r] <= now < end[r]]
        assert row == (running[-1] if running else -1)


def test_nothing_is_innermost_where_the_tree_has_no_rows():
    none = np.empty(0, np.int64)
    nothing = CallTree(none, none)
    thread = np.zeros(2, np.int32)
    trace = SimpleNamespace(numbers=lambda *_: none)
    assert find_innermost_rows_in_tree(trace, nothing, thread, np.array([5, 7])).tolist() == [-1, -1]
    assert find_innermost_rows_in_tree(trace, nothing, thread[:0], none).tolist() == []


def test_a_deep_tree_of_crossing_ranges_takes_few_calls():
    calls = []
    for depth in (200, 3200):
        start = np.arange(depth, dtype=np.int64)
        end = 2 * depth + start  # each begins within the one before and ends after it
        count = 0

        def on_call(_frame, event, _arg):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(on_call)
        try:
            made = tree(np.zeros(depth, np.int32), start, end)
            own = measure_exclusive_times_in_tree(made, start, end - start)
            none = np.zeros(depth, np.bool_)
            assert (made.nearest(none, np.arange(depth)) == -1).all()
        finally:
            sys.setprofile(None)
        calls.append(count)
        assert own.tolist() == [1] * (depth - 1) + [2 * depth]
    assert calls[1] < 1.3 * calls[0]


@given(spans)
def test_the_order_is_by_thread_then_start_then_longest(rows):
    thread, start, end = columns(rows)
    expected = sorted(range(len(rows)), key=lambda i: (thread[i], start[i], -end[i], i))
    assert sort_by_start(thread, start, end).tolist() == expected


def test_spans_too_long_for_one_axis_nest_all_the_same():
    thread = np.array([0, 0, 5, 5], np.int32)
    start = np.array([0, 10, -(2**61), 2**60], np.int64)
    end = np.array([2**61, 20, 2**61, 2**60 + 5], np.int64)
    made = tree(thread, start, end)
    assert made.parent.tolist() == [-1, 0, -1, 2]


def test_numbers_of_rows_take_four_bytes():
    start = np.array([0, 10, 5])
    made = tree(np.zeros(3, np.int32), start, start + np.array([100, 5, 50]))
    assert (made.parent.dtype, made.order.dtype) == (np.int32, np.int32)
    assert made.parent.tolist() == [-1, 2, 0]
    assert made.order.tolist() == [0, 2, 1]
    assert measure_exclusive_times_in_tree(made, start, np.array([100, 5, 50])).tolist() == [50, 5, 45]


@pytest.fixture
def trace(tmp_path):
    rows = [annotation("stage", 0, 100), op("aten::mm", 10, 50), launch(20, 1), op("aten::add", 200, 10, tid=BACKWARD)]
    return tracekit.load(write(tmp_path / "t.json", rows))


def test_calls_ranges_and_ops_nest_on_their_thread(trace):
    assert build_call_tree(trace).parent.tolist() == [-1, 0, 1, -1]
    assert measure_exclusive_host_times(trace).tolist() == [50_000, 48_000, 2_000, 10_000]


def test_the_nearest_op_above_a_call_skips_what_is_no_op(trace):
    is_range = np.array([True, False, False, False])
    assert build_call_tree(trace).nearest(is_range, np.array([2, 0, 3])).tolist() == [0, -1, -1]


def test_an_instant_belongs_to_what_runs_innermost_then(trace):
    base = trace["host_ops"]["ts_ns"].iloc[0]
    thread = trace["host_ops"]["thread"].to_numpy()[[0, 0, 0, 3]]
    found = find_innermost_host_rows(trace, thread, base + np.array([5, 21, 60, 205]) * 1000)
    assert found.tolist() == [0, 2, 0, 3]


def test_threads_beyond_two_bytes_are_in_order_and_none_at_all_is_an_order():
    none = np.empty(0, np.int64)
    assert sort_by_start(none.astype(np.int32), none, none).tolist() == []
    start = np.array([0, 0, 0])
    assert sort_by_start(np.array([40_000, 1, 32_768], np.int32), start, start + 1).tolist() == [1, 2, 0]
