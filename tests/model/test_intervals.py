"""Interval arithmetic against sets of integer points, which need no cleverness."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model import intervals
from tracekit.model.intervals import (  # fmt: skip
    EMPTY,
    compute_running_max,
    find_gaps,
    find_window_at,
    intersect,
    line_up_lanes,
    make_disjoint,
    mask_affordable_windows,
    measure_coverage,
    measure_group_unions,
    merge_interval_sets,
    merge_intervals,
    subtract,
)

pairs = st.lists(st.tuples(st.integers(-20, 40), st.integers(0, 15)), max_size=12)


def arrays(spans):
    start = np.array([s for s, _ in spans], np.int64)
    return start, start + np.array([d for _, d in spans], np.int64)


def points(spans):
    return {p for s, d in spans for p in range(s, s + d)}


def as_points(intervals):
    return {p for s, e in zip(*intervals, strict=True) for p in range(s, e)}


def assert_canonical(intervals):
    assert (intervals.start < intervals.end).all()
    assert (intervals.start[1:] > intervals.end[:-1]).all()


@given(pairs)
def test_union_covers_the_same_points_and_is_disjoint(spans):
    result = merge_intervals(*arrays(spans))
    assert as_points(result) == points(spans)
    assert_canonical(result)
    assert result.total == len(points(spans))


@given(pairs, pairs)
def test_intersect_and_subtract_are_set_operations(a, b):
    first, second = merge_intervals(*arrays(a)), merge_intervals(*arrays(b))
    for result, expected in (
        (intersect(first, second), points(a) & points(b)),
        (subtract(first, second), points(a) - points(b)),
        (merge_interval_sets([first, second]), points(a) | points(b)),
    ):
        assert as_points(result) == expected
        assert_canonical(result)


@given(st.lists(pairs, max_size=4))
def test_exclusive_slots_are_disjoint_and_add_up_to_the_union(sets):
    slots = make_disjoint([merge_intervals(*arrays(spans)) for spans in sets])
    seen = set()
    for slot, spans in zip(slots, sets, strict=True):
        assert as_points(slot) == points(spans) - seen
        seen |= points(spans)
    assert sum(slot.total for slot in slots) == len(seen)


@given(pairs, pairs)
def test_covered_measures_each_window_however_windows_overlap(spans, windows):
    start, end = arrays(windows)
    result = measure_coverage(merge_intervals(*arrays(spans)), start, end)
    expected = [len(points(spans) & set(range(s, e))) for s, e in zip(start, end, strict=True)]
    assert result.tolist() == expected


@given(pairs)
def test_gaps_are_what_is_left_of_the_window(spans):
    result = find_gaps(merge_intervals(*arrays(spans)), -10, 30)
    assert as_points(result) == set(range(-10, 30)) - points(spans)


@given(pairs, st.data())
def test_union_totals_unite_each_group_alone(spans, data):
    group = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(spans), max_size=len(spans))), np.int64)
    result = measure_group_unions(*arrays(spans), group, 4)
    expected = [len(points([s for s, g in zip(spans, group, strict=True) if g == k])) for k in range(4)]
    assert result.tolist() == expected


def test_nanoseconds_of_the_present_day_stay_exact():
    start = np.array([1_712_195_495_519_689_047, 1_712_195_495_519_689_050])
    assert merge_intervals(start, start + 2).total == 4


def test_nothing_covers_nothing():
    assert EMPTY.total == 0
    assert measure_coverage(EMPTY, np.array([0]), np.array([5])).tolist() == [0]
    assert merge_interval_sets([]) == EMPTY


def test_groups_whose_times_are_too_far_apart_for_one_axis_stay_apart():
    start = np.array([0, 2**61, 5, 2**61 + 3], np.int64)
    group = np.array([0, 0, 9, 9], np.int64)
    assert measure_group_unions(start, start + 10, group, 10).tolist() == [20, *[0] * 8, 20]


@given(pairs, st.lists(st.integers(-25, 60), max_size=8))
def test_a_point_is_in_the_window_that_began_last_if_that_still_lasts(spans, asked):
    spans = sorted(spans)
    found = find_window_at(*arrays(spans), np.array(asked, np.int64))
    for point, at in zip(asked, found.tolist(), strict=True):
        begun = [k for k, (start, _) in enumerate(spans) if start <= point]
        lasts = bool(begun) and point < sum(spans[begun[-1]])
        assert at == (begun[-1] if lasts else -1)


def laid(line, begin, end):
    """(which intervals, their shifts) of every part, as lists."""
    found = line_up_lanes(*(np.array(part, np.int64) for part in (line, begin, end)))
    return [(which.tolist(), shift.tolist()) for which, shift in found]


def test_a_line_of_a_single_moment_takes_one_of_the_common_line():
    """The line of 5 … 5 comes to lie at 0, that of 7 … 9 behind it, at 1 … 3."""
    assert laid([0, 1], [5, 7], [5, 9]) == [([True, True], [-5, -6])]


def test_lines_whose_sum_does_not_fit_in_64_bits_come_in_parts():
    assert laid([0, 1], [0, 0], [2**61 - 1] * 2) == [([True, False], [0]), ([False, True], [0])]


def test_windows_are_shared_out_as_far_as_four_pairs_an_op_go(monkeypatch):
    """Of ops at 0, 10 and 20 two begin in each window of 8 … 30 and none lies over its start: 12 pairs are six windows."""
    monkeypatch.setattr(intervals, "FREE_PAIRS", 0)
    start = np.array([0, 10, 20])
    kept = mask_affordable_windows(start, start + 5, np.full(7, 8), np.full(7, 30))
    assert kept.tolist() == [True] * 6 + [False]


def test_the_running_maximum_begins_anew_also_where_groups_do_not_fit_on_one_axis():
    """Four times 2**61 and more is beyond 64 bits."""
    values, group = np.array([2**61, 0, 5, 3]), np.array([0, 4, 4, 4])
    assert compute_running_max(values, group).tolist() == [2**61, 0, 5, 5]
