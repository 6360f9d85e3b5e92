"""The longest and the median interval of groups, against sorting in Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.tables.keys import sum_by_keys
from tracekit.process.extremes import find_longest_and_median, find_longest_by_keys

intervals = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 5)), max_size=12)


def columns(rows):
    return tuple(np.array([row[place] for row in rows], np.int64) for place in range(3))


@given(intervals)
def test_each_group_has_its_longest_and_its_median_interval_the_earliest_of_equals(rows):
    group, start, dur = columns(rows)
    found = find_longest_and_median(group, start, dur, 4)
    for number in range(4):
        ranked = sorted(((-d, s) for g, s, d in rows if g == number))
        for name, place in (("longest", 0), ("median", len(ranked) // 2)):
            at, length = found[f"{name}_ts_ns"], found[f"{name}_ns"]
            assert at.missing[number] == length.missing[number] == (not ranked)
            if ranked:
                assert (-length.values[number], at.values[number]) == ranked[place]


@given(intervals)
def test_the_longest_of_each_combination_of_keys_stands_in_the_row_of_its_sum(rows):
    group, start, dur = columns(rows)
    keys = {"group": group}
    sums, longest = sum_by_keys(keys, {"dur_ns": dur}), find_longest_by_keys(keys, start, dur)
    expected = [max(d for g, _, d in rows if g == number) for number in sums["group"].tolist()]
    assert longest["longest_ns"].tolist() == expected
