"""The ids of rows, however they come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.readers.nsys.nvtx.rows import RowIds

LARGEST = 2**63 - 1


def collected(blocks):
    ids = RowIds()
    for block in blocks:
        ids.append(np.array(block, np.int64))
    return ids


@pytest.mark.parametrize(
    "blocks",
    [
        [[1, 2, 3], [4, 5]],
        [[1, 2, 3], [5, 6]],
        [[1, 2, 4], [5]],
        [[7], [6], [5]],
        [[3, 2, 1]],
        [[LARGEST - 2, LARGEST - 1], [LARGEST]],
        [[LARGEST - 1, LARGEST], [5]],
        [[-(2**63), -(2**63) + 1], [0]],
    ],
    ids=str,
)
def test_each_row_has_its_id_whether_they_follow_one_another_or_not(blocks):
    expected = [row for block in blocks for row in block]
    ids, rows = collected(blocks), np.arange(len(expected), dtype=np.int32)
    for _ in range(2):
        assert ids.look_up(rows).tolist() == expected
    assert ids.look_up(rows[::-1]).tolist() == expected[::-1]
    assert ids.look_up(rows[:0]).tolist() == []


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=6))
def test_ids_in_any_order_are_all_kept(blocks):
    expected = [row for block in blocks for row in block]
    assert collected(blocks).look_up(np.arange(len(expected))).tolist() == expected


def test_of_ids_that_follow_one_another_nothing_is_kept_by_row():
    ids = collected([range(1, 10_001), range(10_001, 20_001)])
    assert ids.look_up(np.array([0, 19_999], np.int32)).tolist() == [1, 20_000]
    assert ids._ids is None
