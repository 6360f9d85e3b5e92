"""Sums by group, and places among keys, against loops."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.tables.arrays import Coded, Nullable, mask_value
from tracekit.model.tables.keys import (
    MIN_TABLE_ROOM,
    count_by_group,
    find_first_rows,
    find_largest,
    group_arrays,
    look_up_keys,
    order_with_ties,
    sum_by_group,
)

numbers = st.lists(st.integers(-9, 9), max_size=10)


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-(2**60), 2**60)), max_size=7))
def test_sums_are_exact_and_group_minus_one_counts_nowhere(rows):
    group = np.array([at for at, _ in rows], np.int64)
    values = np.array([value for _, value in rows], np.int64)
    expected = [sum(value for at, value in rows if at == k) for k in range(4)]
    assert sum_by_group(group, values, 4).tolist() == expected


@pytest.mark.parametrize("at_once", [1, 3, 2**18])
@given(st.lists(st.integers(-1, 3), max_size=9))
def test_rows_of_groups_are_counted_whatever_their_type(at_once, group):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracekit.model.tables.keys.COUNT_CHUNK_ROWS", at_once)
        for kind in (np.int8, np.int32, np.int64):
            counts = count_by_group(np.array(group, kind), 5)
            assert counts.tolist() == [group.count(number) for number in range(5)]


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-(2**62), 2**62)), max_size=7))
def test_sums_of_narrow_groups_are_those_of_wide_ones(rows):
    group, values = np.array(rows, np.int64).reshape(-1, 2).T
    assert sum_by_group(group.astype(np.int32), values, 4).tolist() == sum_by_group(group, values, 4).tolist()


@given(numbers, numbers)
def test_what_is_among_the_keys_has_its_place(keys, wanted):
    ascending = np.unique(np.array(keys, np.int64))
    place, there = look_up_keys(ascending, np.array(wanted, np.int64))
    assert there.tolist() == [number in keys for number in wanted]
    assert ascending[place[there]].tolist() == [number for number in wanted if number in keys]


def test_combinations_of_keys_are_numbered_as_they_appear_missing_ones_being_one_key():
    role = np.array(["actor", None, "actor", np.nan, "ref"], object)
    rank = Nullable(np.array([0, 7, 0, 0, 0]), np.array([False, True, False, True, False]))
    number, first = group_arrays([role, rank])
    assert number.tolist() == [0, 1, 0, 1, 2]
    assert first.tolist() == [0, 1, 4]
    assert [part.tolist() for part in group_arrays([role[:0]])] == [[], []]


def test_more_combinations_than_a_number_can_hold_stay_apart():
    # 4,096 of each of 7 keys are 2⁸⁴; the last row differs from the first in the first key alone.
    wide = [np.array([*range(4_096), int(at == 0)]) for at in range(7)]
    assert group_arrays(wide)[0].tolist() == list(range(4_097))


TEXTS = st.sampled_from(["actor", "critic", "", "ref", None, np.nan])


def fresh(text):
    """The text as another object, as those that come from elsewhere are."""
    return "".join(list(text)) if isinstance(text, str) and len(text) > 1 else text


def numbered_by_pandas(columns):
    frame = pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})
    found = frame.groupby([*columns], dropna=False, sort=False).ngroup().to_numpy()
    return found, np.flatnonzero(~pd.Series(found).duplicated().to_numpy())


@given(st.lists(st.tuples(TEXTS, TEXTS, st.integers(-1, 2)), min_size=1, max_size=6), st.data())
def test_keys_of_many_rows_are_numbered_as_pandas_numbers_them(rows, data):
    # Few objects in many rows, some of them equal without being the same, in a slice of an array.
    at = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=MIN_TABLE_ROOM + 1, max_size=MIN_TABLE_ROOM + 9))
    role, stage = (np.empty(2 * len(at), object) for _ in range(2))
    for place, row in enumerate(at):
        role[2 * place], stage[2 * place] = rows[row][0], fresh(rows[row][1])
    number = np.array([rows[row][2] for row in at], np.int64)
    rank = Nullable(number, number < 0)
    bare = {"role": role[::2], "stage": stage[::2], "rank": rank}
    columns = {"role": role[::2], "stage": stage[::2], "rank": pd.arrays.IntegerArray(number, number < 0)}
    for by in (["role"], ["rank"], ["stage", "role"], ["role", "rank", "stage"]):
        number, first = group_arrays([bare[name] for name in by])
        wanted, wanted_first = numbered_by_pandas({name: columns[name] for name in by})
        assert number.tolist() == wanted.tolist()
        assert first.tolist() == wanted_first.tolist()


def test_a_column_of_one_value_is_one_key():
    for value in ("actor", None):
        column = np.full(MIN_TABLE_ROOM + 1, value, object)
        assert [part.tolist() for part in group_arrays([column])] == [[0] * (MIN_TABLE_ROOM + 1), [0]]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_the_first_row_of_each_number_is_found(numbers_):
    number, distinct = pd.factorize(np.array(numbers_))
    wanted = [number.tolist().index(at) for at in range(len(distinct))]
    assert find_first_rows(number, len(distinct)).tolist() == wanted


@pytest.mark.parametrize("amount", [2**20, 2**52, 2**62])
def test_sums_are_exact_however_large(amount):
    values = np.array([amount, 1, -amount, 3, amount], np.int64)
    assert sum_by_group(np.array([0, 0, 1, 1, -1]), values, 3).tolist() == [amount + 1, 3 - amount, 0]


@given(st.lists(st.integers(-4, 4), max_size=60), st.integers(0, 70))
def test_of_equal_values_the_first_are_among_the_largest(values, count):
    array = np.array(values, np.int64)
    expected = np.sort(np.argsort(-array, kind="stable")[:count])
    assert find_largest(array, count).tolist() == expected.tolist()


@given(st.lists(st.tuples(*[st.integers(-3, 3)] * 3), max_size=60))
def test_equal_values_are_ordered_by_the_first_tie_then_by_the_next(rows):
    values, first, second = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    expected = np.lexsort((second, first, values))
    assert order_with_ties(values, first, second).tolist() == expected.tolist()


def test_rows_that_hold_a_value_are_told_in_every_kind_of_column():
    twice = Coded(np.array([0, 2, -1, 1], np.int8), ("gen", "ref", "gen"))
    assert mask_value(twice, "gen").tolist() == [True, True, False, False]
    assert mask_value(twice, None).tolist() == [False, False, True, False]
    assert mask_value(twice, "none").tolist() == [False] * 4
    numbers = Nullable(np.array([3, 0, 0]), np.array([False, True, False]))
    assert mask_value(numbers, 0).tolist() == [False, False, True]
    assert mask_value(numbers, None).tolist() == [False, True, False]
    assert mask_value(np.array([1, 0]), 0).tolist() == [False, True]
    assert mask_value(np.array([1, 0]), None).tolist() == [False, False]
