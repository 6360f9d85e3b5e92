"""What is known of groups of rows, against pandas."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from tracekit.job.groups import find_group_maxima, find_group_minima, find_mixed_groups, number_rows_within_groups

rows = st.lists(st.tuples(st.integers(0, 4), st.integers(-(2**61), 2**61)), min_size=1, max_size=30)


@given(rows)
def test_the_least_and_the_most_of_each_group(pairs):
    number, values = np.array(pairs, np.int64).T
    count = int(number.max()) + 1
    by_group = pd.Series(values).groupby(number)
    for function, how in ((find_group_minima, "min"), (find_group_maxima, "max")):
        found = function(number, values, count)
        assert found[number].tolist() == by_group.transform(how).tolist()
    is_several = find_mixed_groups(number, values, count)[number]
    assert is_several.tolist() == (by_group.transform("nunique") > 1).tolist()


@given(rows, st.randoms(use_true_random=False))
def test_the_place_of_each_row_in_its_group(pairs, random):
    number, _ = np.array(pairs, np.int64).T
    order = np.array(random.sample(range(len(number)), len(number)), np.int64)
    in_order = pd.Series(number[order], order).groupby(number[order]).cumcount()
    assert number_rows_within_groups(number, order).tolist() == in_order.sort_index().tolist()


def test_groups_of_nothing():
    none = np.empty(0, np.int64)
    assert number_rows_within_groups(none, none).tolist() == []
    assert find_group_minima(none, none, 0).tolist() == find_group_maxima(none, none, 0).tolist() == []
