"""Which product of an attention a thread launched last, worked out one instant after the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.process.ops.unfused import _find_latest_start_of_thread

INSTANTS = st.lists(st.tuples(st.integers(-1, 3), st.integers(-9, 9)), max_size=20)


@pytest.mark.parametrize("factor", [1, 2**56], ids=["near", "years apart"])
@given(begun=INSTANTS, asked=INSTANTS)
def test_it_is_the_last_of_the_thread_or_of_one_before_it(factor, begun, asked):
    begun = sorted((thread, ts) for thread, ts in begun if thread >= 0)
    thread, start = np.array(begun, np.int64).reshape(-1, 2).T
    at_thread, at = np.array(asked, np.int64).reshape(-1, 2).T
    expected = [sum(each <= instant for each in begun) - 1 for instant in asked]
    assert _find_latest_start_of_thread(thread, start * factor, at_thread, at * factor).tolist() == expected
