"""Which values are alike: by hand, at the border of the rule, and whatever they are."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.stats.groups import find_median_index, group_similar_values

NUMBERS = st.lists(st.one_of(st.integers(-(10**15), 10**15), st.floats(-1e15, 1e15)), max_size=60)


def test_one_slow_one_fast_and_the_rest():
    # Gaps 40, 0 (seven times), 20: three of four are 0, so anything over 1 % of 50 parts.
    values = [50.0] * 8 + [90.0, 30.0]
    assert group_similar_values(values, 4) == [[8], [0, 1, 2, 3, 4, 5, 6, 7], [9]]


def test_a_gap_of_a_hundredth_of_the_median_parts_nothing_and_more_does():
    near = [100.0] * 8 + [99.0]
    assert group_similar_values(near, 2) == [[*range(9)]]
    assert group_similar_values([100.0] * 8 + [98.9], 2) == [[*range(8)], [8]]


def test_a_gap_parts_only_where_it_is_wider_than_ten_usual_ones():
    # 20 values 2 apart: the third quartile of the gaps is 2, so a gap of 20 is none and one of 21 is.
    ladder = [100.0 + 2 * at for at in range(20)]
    assert group_similar_values([*ladder, ladder[-1] + 20], 2) == [[*range(21)]]
    assert group_similar_values([*ladder, ladder[-1] + 21], 2) == [[20], [*range(20)]]


def test_a_group_of_slow_ranks_is_one_row_and_not_the_end_of_the_other():
    random.seed(0)
    values = [random.gauss(100, 1) for _ in range(800)] + [random.gauss(120, 1) for _ in range(200)]
    sizes = [len(row) for row in group_similar_values(values, 10)]
    # Three first and two last stand alone whether they differ or not; at most one more at the tail of each.
    assert sizes[:3] == [1, 1, 1]
    assert sizes[-2:] == [1, 1]
    assert [size for size in sizes if size > 2] == [197, 798]


def test_where_there_is_little_room_the_widest_gaps_part():
    values = [10.0, 10.0, 20.0, 20.0, 40.0, 40.0, 41.0] + [10.0] * 20
    assert group_similar_values(values, 2) == [[4, 5, 6], [0, 1, 2, 3, *range(7, 27)]]
    assert group_similar_values(values, 1) == [[*range(27)]]


def test_no_chance_decides_which_of_equals_stands_alone():
    assert group_similar_values([7.0] * 100, 10) == [[*range(100)]]
    # Three could stand alone, but the third is equal to the fourth.
    assert group_similar_values([9.0, 8.0, *[7.95] * 97], 10) == [[0], [1], [*range(2, 99)]]


def test_the_middle_of_two_is_the_lower():
    assert find_median_index([0, 1, 2, 3], [5.0, 1.0, 3.0, 2.0]) == 3
    assert find_median_index([2], [5.0, 1.0, 3.0]) == 2


@given(NUMBERS, st.integers(1, 30))
def test_every_value_is_in_one_row_and_rows_do_not_overlap(values, most):
    rows = group_similar_values(values, most)
    assert len(rows) <= most
    assert sorted(at for row in rows for at in row) == [*range(len(values))]
    for high, low in pairwise(rows):
        assert min(values[at] for at in high) >= max(values[at] for at in low)
