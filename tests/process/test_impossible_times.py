"""Times that contradict the rest of a recording are found, and nothing else is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.process.impossible_times import (
    DAY_NS,
    JITTER_NS,
    MIN_ALIKE,
    SECOND_NS,
    SKEW_NS,
    compute_typical_durations,
    find_far_rows,
    find_late_stream_ends,
    find_ops_before_launch,
    find_overlong_ops,
    find_rows_at_time_zero,
)


def ints(*values):
    return np.array(values, np.int64)


def cut(start, end, stream=None, launch=None, may_overlap=None, is_in_order=False):
    """{row: new end} of the ops with a late end; times in µs, every op of a launch of its own."""
    count = len(start)
    rows, ends = find_late_stream_ends(
        1_000 * ints(*start),
        1_000 * ints(*end),
        ints(*(stream or [0] * count)),
        ints(*(launch or range(count))),
        may_overlap=np.array(may_overlap or [False] * count),
        is_in_order=is_in_order,
    )
    return dict(zip(rows.tolist(), (ends // 1_000).tolist(), strict=True))


def test_an_op_that_outlasts_the_next_is_cut_at_its_start():
    assert cut([0, 10, 30], [500, 20, 40]) == {0: 10}


def test_the_order_of_rows_does_not_matter():
    assert cut([30, 10, 0], [40, 20, 500]) == {2: 10}


def test_neighbours_that_overlap_and_end_in_order_are_left_alone():
    assert cut([0, 10, 30], [15, 35, 40]) == {}


def test_a_device_that_runs_in_order_cannot_overlap_at_all():
    """But by jitter: 1 µs of the second is left."""
    assert cut([0, 10, 30], [15, 31, 40], is_in_order=True) == {0: 10}


def test_streams_overlap_one_another():
    assert cut([0, 10, 30], [500, 20, 40], stream=[0, 1, 1]) == {}
    assert cut([0, 10, 30], [500, 20, 40], stream=[0, 1, 0]) == {0: 30}


def test_an_op_of_no_known_stream_overlaps_nothing():
    assert cut([0, 10], [500, 20], stream=[-1, -1]) == {}


def test_ops_of_one_graph_run_side_by_side():
    assert cut([0, 10, 30], [25, 20, 40], launch=[7, 7, 8]) == {}


def test_an_op_of_a_graph_ends_before_the_next_launch():
    assert cut([0, 10, 30, 50], [500, 20, 40, 60], launch=[7, 7, 8, 9]) == {0: 30}


def test_ops_of_unknown_launches_are_no_graph():
    assert cut([0, 10], [500, 20], launch=[-1, -1]) == {0: 10}


def test_a_programmatic_launch_may_end_first_but_not_what_follows_it():
    assert cut([0, 10, 90], [80, 20, 99], may_overlap=[False, True, False]) == {}
    assert cut([0, 10, 30], [80, 20, 40], may_overlap=[False, True, False]) == {0: 10}


def test_of_two_that_start_together_the_shorter_is_first():
    assert cut([0, 0], [100, 5]) == {}


def test_jitter_is_no_late_end():
    start, stream = ints(0, 10_000), ints(0, 0)
    rest = {"may_overlap": np.zeros(2, np.bool_), "is_in_order": True}
    for beyond, count in ((JITTER_NS, 0), (JITTER_NS + 1, 1)):
        end = ints(10_000 + beyond, 10_000)
        rows, _ = find_late_stream_ends(start, end, stream, ints(1, 2), **rest)
        assert len(rows) == count


OPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=30)


def in_turn(ops):
    """(starts, ends, streams) of ops that run one after the other in each stream, 3 µs apart at least; times in ns."""
    free, rows = {}, []
    for stream, pause, length in ops:
        start = free.get(stream, 0) + 1_000 * (3 + pause)
        free[stream] = start + 1_000 * length
        rows.append((start, free[stream], stream))
    return map(np.array, zip(*rows, strict=True))


@settings(max_examples=60, deadline=None)
@given(OPS, st.booleans(), st.randoms(use_true_random=False))
def test_ops_in_turn_are_left_alone_and_an_overrun_is_cut_to_its_bound(ops, is_in_order, random):
    start, end, stream = in_turn(ops)
    launch = np.arange(len(start))
    rest = {"may_overlap": np.zeros(len(start), np.bool_), "is_in_order": is_in_order}
    assert not len(find_late_stream_ends(start, end, stream, launch, **rest)[0])
    late = random.sample(range(len(start)), max(1, len(start) // 4))
    overrun = end.copy()
    overrun[late] += 10**9
    rows, ends = find_late_stream_ends(start, overrun, stream, launch, **rest)
    last = {int(np.flatnonzero(stream == number)[-1]) for number in set(stream.tolist())}
    # Behind an op that is late itself only the last of a stream has an end to be compared with.
    judged = {row for row in late if row not in last}
    for row, new_end in zip(rows.tolist(), ends.tolist(), strict=True):
        following = start[(stream == stream[row]) & (start > start[row])]
        assert row in judged
        assert new_end == following.min()
    if is_in_order:
        assert set(rows.tolist()) == judged


def test_the_usual_duration_is_the_median_of_the_sound_ops_of_the_name():
    name = ints(0, 0, 0, 0, 1, 1, 2)
    dur = ints(99, 5, 7, 6, 99, 5, 99)
    is_sound = np.array([False, True, True, True, False, True, False])
    usual = compute_typical_durations(name, dur, is_sound, ints(0, 4, 6))
    assert MIN_ALIKE == 3
    assert usual.tolist() == [6, np.iinfo(np.int64).max, np.iinfo(np.int64).max]


def test_rows_a_day_from_most_are_far():
    start = ints(5, 10, 20, 20 + DAY_NS, 20 + 2 * DAY_NS)
    assert find_far_rows(start).tolist() == [False, False, False, True, True]
    assert not find_far_rows(ints(0, DAY_NS - 1)).any()
    assert not find_far_rows(ints()).any()


def zeros(start, length):
    start = ints(*start)
    return find_rows_at_time_zero(start, start + ints(*length), np.ones(len(start), np.bool_)).tolist()


def test_rows_at_zero_are_wrong_where_the_rest_is_elsewhere():
    """The rest lasts 10 s and begins at 11 s; a row that lasts must be a hundred times further."""
    at = 11 * SECOND_NS
    assert zeros([0, at, at + 9 * SECOND_NS], [0, SECOND_NS, SECOND_NS]) == [True, False, False]
    assert zeros([0, at, at + 9 * SECOND_NS], [5, SECOND_NS, SECOND_NS]) == [False, False, False]
    assert zeros([0, 1001 * SECOND_NS], [5, 10 * SECOND_NS]) == [True, False]
    assert zeros([0, -at], [0, 10]) == [True, False]


def test_a_trace_that_begins_at_zero_is_left_alone():
    assert zeros([0, 5, 900_000_000], [0, 5, 5]) == [False] * 3
    assert zeros([0, 0], [0, 5]) == [False, False]
    # An op that lasts up to the rest.
    assert zeros([0, 500 * SECOND_NS], [500 * SECOND_NS, 10]) == [False, False]


def test_ops_before_their_launch_are_early_beyond_what_clocks_differ():
    assert find_ops_before_launch(ints(5, 9, 7, -SKEW_NS, -SKEW_NS - 1), 0).tolist() == [False] * 4 + [True]
    assert find_ops_before_launch(ints(5, 9, -SKEW_NS - 1), 1_000).tolist() == [False, False, False]
    assert not find_ops_before_launch(ints(), 0).any()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=3, max_size=20), st.integers(0, 10**15))
def test_clocks_that_differ_make_no_op_early(lags, skew):
    assert not find_ops_before_launch(np.array(lags) - skew, 0).any()


def test_an_op_longer_than_the_recording_is_impossible():
    """The recording lasts 100: ten times as long is still possible for a last kernel that the host does not wait for."""
    host = (ints(0, 50), ints(10, 100))
    assert find_overlong_ops(ints(1_000, 1_001), [host], ints(5, 20)).tolist() == [False, True]
    assert not find_overlong_ops(ints(10**9), [], ints(5)).any()


@pytest.mark.parametrize("count", [0, 1])
def test_few_ops_have_no_late_end(count):
    assert cut([0] * count, [9] * count) == {}
