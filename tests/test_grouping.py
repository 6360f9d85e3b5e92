"""Sums by group, and places among keys, against loops."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from tracekit import pooling
from tracekit.grouping import of_keys, place_of, summed

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


KEYED = pd.DataFrame(
    {
        "role": pd.Series(["actor", None, "actor", np.nan, "ref"], dtype=object),
        "rank": pd.array([0, pd.NA, 0, pd.NA, 0], dtype="Int64"),
        "dur_ns": [2**53, 1, 1, 2, 4],
        "size_bytes": pd.array([pd.NA, 1, pd.NA, 2, 2**60], dtype="Int64"),
        "share": pd.array([0.5, pd.NA, 0.25, pd.NA, 1], dtype="Float64"),
    }
)


def test_combinations_of_keys_are_numbered_as_they_appear_missing_ones_being_one_key():
    number, first = of_keys(KEYED, ["role", "rank"])
    assert number.tolist() == [0, 1, 0, 1, 2]
    assert first.tolist() == [0, 1, 4]
    assert [part.tolist() for part in of_keys(KEYED[:0], ["role"])] == [[], []]


def test_more_combinations_than_a_number_can_hold_stay_apart():
    # 4,096 of each of 7 keys are 2⁸⁴; the last row differs from the first in the first key alone.
    wide = pd.DataFrame({f"key{at}": [*range(4_096), int(at == 0)] for at in range(7)})
    assert of_keys(wide, list(wide))[0].tolist() == list(range(4_097))


def test_sums_of_few_rows_are_exact_and_unknown_where_nothing_is_known():
    found = pooling.summed(KEYED, ["role", "rank"], ["dur_ns", "size_bytes", "share"])
    assert found["dur_ns"].tolist() == [2**53 + 1, 3, 4]
    assert found["size_bytes"].tolist() == [pd.NA, 3, 2**60]
    assert found["share"].tolist() == [0.75, pd.NA, 1.0]
    assert found["rank"].tolist() == [0, pd.NA, 0]
    assert found["role"].dtype == object
    assert found["role"].fillna("?").tolist() == ["actor", "?", "ref"]


def test_parts_of_groups_are_what_pandas_makes_of_them():
    found = pooling.grouped(
        KEYED, ["role", "rank"],
        total=("dur_ns", "sum"), longest=("dur_ns", "max"), mean=("share", "mean"),
        size=("size_bytes", "first"), leading=("size_bytes", "leading"), rows=("share", "size"),
    )  # fmt: skip
    groups = KEYED.groupby(["role", "rank"], dropna=False, sort=False)
    assert found["total"].tolist() == groups["dur_ns"].sum().tolist()
    assert found["longest"].tolist() == groups["dur_ns"].max().tolist()
    assert found["mean"].tolist() == groups["share"].mean().tolist()
    assert found["size"].tolist() == groups["size_bytes"].first().tolist() == [pd.NA, 1, 2**60]
    assert found["leading"].tolist() == [pd.NA, 1, 2**60]
    assert found["rows"].tolist() == [2, 2, 1]
