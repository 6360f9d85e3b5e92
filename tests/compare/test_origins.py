"""Rows of an attribution: all of the change, or none is told; the rest as one row."""

import numpy as np
import pytest

from tracekit.compare.wall_time.attribution import attribute_slot_table
from tracekit.compare.wall_time.attribution_rows import AttributionRow, shorten_attribution_rows
from tracekit.compare.wall_time.slot_table import SLOT_KEYS, SlotHalf, SlotTable
from tracekit.model.tables.frame import from_rows


def test_rows_that_do_not_add_up_are_no_attribution():
    keys = from_rows(SLOT_KEYS, [["", "compute", "", "a", ""]])
    half = SlotHalf(np.array([[5e6]]), np.ones((1, 1)), np.array([0]), np.array([6e6]))
    with pytest.raises(AssertionError, match="is attributed"):
        attribute_slot_table(SlotTable(keys, half, half), 0.95)


def test_the_rest_of_many_rows_is_one_row():
    rows = [AttributionRow("", str(n), 1.0, 3.0, 2.0) for n in range(10)]
    found = shorten_attribution_rows(rows, 8)
    assert len(found) == 9
    assert (found[-1].what, found[-1].difference, found[-1].rows) == ("other (2 rows)", 4.0, 2)
    assert shorten_attribution_rows(rows[:9], 8) == rows[:9]
