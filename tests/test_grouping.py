"""Sums by group, and places among keys, against loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.grouping import place_of, summed

numbers = st.lists(st.integers(-9, 9), max_size=10)


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-(2**60), 2**60)), max_size=7))
def test_sums_are_exact_and_group_minus_one_counts_nowhere(rows):
    group = np.array([at for at, _ in rows], np.int64)
    values = np.array([value for _, value in rows], np.int64)
    expected = [sum(value for at, value in rows if at == k) for k in range(4)]
    assert summed(group, values, 4).tolist() == expected


@given(numbers, numbers)
def test_what_is_among_the_keys_has_its_place(keys, wanted):
    ascending = np.unique(np.array(keys, np.int64))
    place, there = place_of(ascending, np.array(wanted, np.int64))
    assert there.tolist() == [number in keys for number in wanted]
    assert ascending[place[there]].tolist() == [number for number in wanted if number in keys]
