"""Medians of work at the same place, and rows that are handled in parts of whole processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.process.host.phases import PAUSE_NS
from tracekit.replay.changing import equalising, selection

GROUP = np.array([0, 1, 0, 0, 3], np.int32)
VALUES = np.array([5, 4, 1, 9, PAUSE_NS], np.int64)
COUNTED = np.array([True, True, True, False, True])


@pytest.fixture(params=["keys", "rows"], autouse=True)
def both_ways(request, monkeypatch):
    """Each test sorts combined keys, and rows as it does where keys would be too large."""
    if request.param == "rows":
        monkeypatch.setattr(equalising, "MOST_KEYS", 0)


def find_middle(group, values, counted, may_pause):
    return equalising._find_middle_values(group, values, counted, np.array(may_pause)).tolist()


def test_the_median_is_of_counted_values():
    """Group 0 counts 1 and 5, so 3; group 2 has no value."""
    assert find_middle(GROUP, VALUES, COUNTED, [False] * 4) == [3, 4, -1, PAUSE_NS]


def test_a_pause_of_half_of_the_values_is_not_usual():
    group, values, counted = np.zeros(2, np.int32), np.array([PAUSE_NS + 2, 2], np.int64), np.ones(2, np.bool_)
    assert find_middle(group, values, counted, [True]) == [2]
    assert find_middle(group, values, counted, [False]) == [PAUSE_NS // 2 + 2]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9), st.booleans()), max_size=40))
def test_medians_are_those_of_numpy(rows):
    group, values, counted = (
        np.array([row[place] for row in rows], kind) for place, kind in enumerate((np.int32, np.int64, np.bool_))
    )
    chosen = [values[(group == number) & counted] for number in range(5)]
    wanted = [int(np.floor(np.median(each))) if len(each) else -1 for each in chosen]
    assert find_middle(group, values, counted, [False] * 5) == wanted


def test_parts_are_of_whole_processes(monkeypatch):
    monkeypatch.setattr(equalising, "CHUNK_ROWS", 2)
    split = equalising._split_between_processes
    assert split(np.array([0, 0, 1, 1, 1, 2], np.int32)) == [slice(0, 2), slice(2, 6)]
    assert split(np.array([3, 3, 3, 4, 5, 5], np.int32)) == [slice(0, 4), slice(4, 6)]
    assert split(np.array([0, 1, 0], np.int32)) is None
    assert split(np.empty(0, np.int32)) == []


def test_chunks_are_joined_in_order(monkeypatch):
    monkeypatch.setattr(selection, "CHUNK_ROWS", 3)
    rows = np.array([7, 1, 5, 2, 2, 9, 8], np.int64)
    assert selection.evaluate_in_chunks(rows, lambda part: part * 2).tolist() == [14, 2, 10, 4, 4, 18, 16]
    assert selection.evaluate_in_chunks(rows[:0], lambda part: part > 0).tolist() == []
