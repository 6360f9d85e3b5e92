"""Sums by group, and places among keys, against loops."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model import sweeps
from tracekit.model.tables.arrays import Coded, Nullable, mask_value
from tracekit.model.tables.keys import (
    MIN_TABLE_ROOM,
    compute_stable_order,
    count_by_group,
    drop_repeats,
    find_first_rows,
    find_largest,
    group_arrays,
    is_exact_sum,
    look_up_keys,
    mask_members,
    number_keys,
    order_by_group,
    order_with_ties,
    sort_in_groups,
    sort_rows_by_keys,
    sum_by_group,
)

numbers = st.lists(st.integers(-9, 9), max_size=10)


@pytest.fixture(autouse=True, params=["in C", "in numpy"], scope="module")
def way(request):
    """Every test runs with the passes in C and without them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in numpy":
            patch.setattr(sweeps, "native", None)
        yield


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


EDGES = st.sampled_from([0, 1, 2, 2**16 - 1, 2**16, 2**16 + 1])


@given(st.lists(st.tuples(st.one_of(st.integers(-2, 2), EDGES), st.integers(-3, 3)), max_size=12))
def test_rows_are_ordered_by_group_then_by_start_then_by_place(rows):
    group, start = (np.array([row[i] for row in rows], np.int64) for i in range(2))
    assert order_by_group(group, start).tolist() == sorted(range(len(rows)), key=lambda i: rows[i])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=12), st.sampled_from([1, 2**40, 2**59]))
def test_values_are_sorted_within_each_group_however_far_apart(rows, unit):
    group, values = np.array([row[0] for row in rows], np.int64), np.array([row[1] for row in rows], np.int64) * unit
    expected = [value for _, value in sorted(zip(group.tolist(), values.tolist(), strict=True))]
    assert sort_in_groups(group, values).tolist() == expected


def test_few_values_in_many_rows_keep_the_order_of_equal_ones():
    values = np.tile(np.array([5, -7, 5, 2**40, 0]), MIN_TABLE_ROOM)
    expected = sorted(range(len(values)), key=lambda row: (values[row], row))
    assert compute_stable_order(values).tolist() == expected


def test_more_values_than_two_bytes_number_are_sorted_too():
    for count in (2**16 - 1, 2**16, 2**16 + 1):
        assert compute_stable_order(np.arange(count)[::-1]).tolist() == list(range(count))[::-1]


@pytest.mark.parametrize(
    ("values", "exact"),
    [([], True), ([2**53 - 1], True), ([2**53], False), ([-(2**53)], False), ([2**52, 0], False),
     ([-(2**52), 5], False), ([2**52 - 1, -(2**52 - 1)], True), ([1, -(2**51), 2**50], True)],
)  # fmt: skip
def test_a_sum_is_exact_where_even_equal_signs_stay_below_the_bound(values, exact):
    assert is_exact_sum(np.array(values, np.int64)) is exact


@given(st.lists(st.sampled_from([-(2**62), -3, 0, 1, 2, 900, 2**40]), max_size=12))
def test_numbers_have_the_places_that_numpy_gives_them(values):
    distinct, place = number_keys(np.array(values, np.int64))
    assert distinct.tolist() == sorted(set(values))
    assert distinct[place].tolist() == values
    assert drop_repeats(np.sort(np.array(values, np.int64))).tolist() == sorted(set(values))


@given(
    st.lists(st.sampled_from([-5, 0, 1, 2**40]), max_size=6), st.lists(st.sampled_from([-5, 0, 3, 2**40]), max_size=6)
)
def test_numbers_that_occur_among_others_are_marked(values, among):
    expected = [value in among for value in values]
    assert mask_members(np.array(values, np.int64), np.array(among, np.int64)).tolist() == expected


KEY_COLUMNS = [
    Coded(np.array([1, -1, 0, 1, -1, 1], np.int8), ("actor", "ref")),
    Nullable(np.array([3, 0, 3, 3, 7, 3]), np.array([0, 1, 0, 0, 1, 0], np.bool_)),
    np.array([0.5, np.nan, 0.5, 0.25, np.nan, 0.5]),
    np.array([True, False, True, True, False, True]),
    np.array(["a", None, "a", "b", np.nan, "a"], object),
    np.array([1, 2, 1, 3, 2, 1], object),
]


@pytest.mark.parametrize("rows", [6, MIN_TABLE_ROOM + 40], ids=["few rows", "many rows"])
@pytest.mark.parametrize("column", range(len(KEY_COLUMNS)))
def test_keys_of_every_kind_are_numbered_as_they_appear(column, rows):
    """Alone, and with a second key that tells the fourth row apart."""
    at = np.arange(rows) % 6
    whole = KEY_COLUMNS[column]
    if isinstance(whole, Coded):
        keys = Coded(whole.codes[at], whole.texts)
        places = whole.codes.tolist()
    elif isinstance(whole, Nullable):
        keys = Nullable(whole.values[at], whole.missing[at])
        places = [0, 1, 0, 0, 1, 0]
    else:
        keys = whole[at]
        places = [-1 if value is None or value != value else value for value in whole.tolist()]
    order = list(dict.fromkeys(places))
    number, first = group_arrays([keys])
    assert number.tolist() == [order.index(places[i]) for i in at]
    assert first.tolist() == [places.index(value) for value in order]
    second = np.array([0, 0, 0, 9, 0, 0])
    both = list(zip(places, second.tolist(), strict=True))
    order = list(dict.fromkeys(both))
    number, first = group_arrays([keys, second[at]])
    assert number.tolist() == [order.index(both[i]) for i in at]
    assert first.tolist() == [both.index(value) for value in order]


def test_the_largest_of_a_key_is_not_the_missing_one_beside_the_next_key():
    first = np.array([0, 1, 0])
    largest = Nullable(np.array([7, 0, 5]), np.array([0, 1, 0], np.bool_))
    assert group_arrays([first, largest])[0].tolist() == [0, 1, 2]
    last_text = Coded(np.array([1, -1, 0], np.int8), ("gen", "ref"))
    assert group_arrays([first, last_text])[0].tolist() == [0, 1, 2]


def test_rows_are_sorted_by_the_first_key_then_by_the_next_missing_ones_last():
    columns = {
        "stage": Coded(np.array([1, -1, 0, 1, 1], np.int8), ("gen", "ref")),
        "rank": Nullable(np.array([2, 0, 5, 0, 1]), np.array([0, 0, 0, 1, 0], np.bool_)),
        "ts_ns": np.arange(5),
    }
    assert sort_rows_by_keys(columns, ["stage", "rank"])["ts_ns"].tolist() == [2, 4, 0, 3, 1]
    assert sort_rows_by_keys(columns, ["rank", "stage"])["ts_ns"].tolist() == [1, 4, 0, 2, 3]
