"""What lies in the calls of groups, against a look at each instant."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model import sweeps
from tracekit.process.ops.shapes import MergedCalls, sum_during_calls

TIMES = st.integers(-9, 9)
CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), TIMES, st.integers(1, 6)), max_size=12)
INSTANTS = st.lists(st.tuples(st.integers(-1, 3), TIMES, st.integers(-5, 5)), max_size=12)


@pytest.mark.parametrize("at_once", [1, 5, 2**17])
@pytest.mark.parametrize("far", [1, 2**58], ids=["near", "ages apart"])
@pytest.mark.parametrize("native", [True, False])
@given(calls=CALLS, instants=INSTANTS)
def test_instants_count_in_each_call_of_their_thread_that_holds_them(calls, instants, native, far, at_once):
    group, thread, start, length = np.array(calls, np.int64).reshape(-1, 4).T
    start, end = start * far, (start + length) * far
    at_thread, ts_ns, value = np.array(instants, np.int64).reshape(-1, 3).T
    ts_ns = ts_ns * far
    made = MergedCalls(3, group.astype(np.int32), thread.astype(np.int32), start, end, np.zeros(3))
    expected = np.zeros((2, 3), np.int64)
    for call in range(len(calls)):
        inside = (at_thread == thread[call]) & (start[call] <= ts_ns) & (ts_ns < end[call])
        expected[:, group[call]] += (value[inside].sum(), inside.sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracekit.process.ops.shapes.CALLS_AT_ONCE", at_once)
        if not native:
            patch.setattr(sweeps, "native", None)
        sums, counts = sum_during_calls(made, at_thread, ts_ns, value, np.ones_like(value))
    assert (sums.tolist(), counts.tolist()) == (expected[0].tolist(), expected[1].tolist())
