"""The passes in C find what the ways without them find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model import intervals, sweeps
from tracekit.process import nesting

pytestmark = pytest.mark.skipif(sweeps.native is None, reason="built without a compiler")

TIMES = st.integers(-30, 30)
SPANS = st.lists(st.tuples(TIMES, st.integers(-3, 20)), max_size=40)


def arrays(spans):
    """(starts, ends) of spans (start, length)."""
    start = np.array([start for start, _ in spans], np.int64)
    return start, start + np.array([length for _, length in spans], np.int64)


def by_both(function):
    """(what a function gives with the passes in C, what without)."""
    native = function()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "native", None)
        return native, function()


def assert_same(function):
    for one, other in zip(*map(np.atleast_2d, by_both(function)), strict=True):
        np.testing.assert_array_equal(one, other)


@given(SPANS)
def test_unions_are_the_same(spans):
    assert_same(lambda: intervals.union(*arrays(spans)))


@given(SPANS, SPANS)
def test_what_two_sets_share_and_do_not_is_the_same(first, second):
    a, b = intervals.union(*arrays(first)), intervals.union(*arrays(second))
    assert_same(lambda: intervals.intersect(a, b))
    assert_same(lambda: intervals.subtract(a, b))


@given(SPANS, SPANS)
def test_what_is_covered_of_windows_is_the_same(spans, windows):
    a = intervals.union(*arrays(spans))
    assert_same(lambda: intervals.covered(a, *arrays(windows)))


@given(st.lists(st.tuples(TIMES, st.integers(-3, 20), st.integers(0, 3)), max_size=40))
def test_the_unions_of_groups_are_as_long(spans):
    start, end = arrays([span[:2] for span in spans])
    group = np.array([span[2] for span in spans], np.int64)
    assert_same(lambda: intervals.union_totals(start, end, group, 5))


@given(st.lists(TIMES, max_size=60), st.lists(TIMES, max_size=60))
def test_places_are_those_of_a_search(values, points):
    ascending, asked = np.array(sorted(values), np.int64), np.array(points, np.int64)
    assert_same(lambda: sweeps.places(ascending, asked))
    assert_same(lambda: sweeps.places(ascending, asked, right=True))


@given(SPANS)
def test_the_call_tree_is_the_same(spans):
    start, end = arrays([(start, abs(length)) for start, length in spans])
    if not len(start):
        return
    rows, thread = np.arange(len(start)), (start % 2).astype(np.int32)
    assert_same(lambda: nesting._nest(rows, thread, start, end))


@given(SPANS)
def test_the_last_that_reaches_is_the_same_in_any_order(spans):
    start, end = arrays(spans)
    if len(start):
        assert_same(lambda: nesting.last_reaching(start, end))


def test_the_last_that_reaches_is_found_among_very_many_that_are_open():
    count = 5_000
    start = np.arange(count)
    end = np.arange(3 * count, 2 * count, -1)
    start[-1] = end[7] - 1
    assert sweeps.last_reaching(start, end)[[0, 1, count - 2, count - 1]].tolist() == [
        -1,
        0,
        count - 3,
        7,
    ]


@pytest.mark.parametrize(("name", "sizes"), [
    ("covered_before", (2, 1, 3, 3)), ("covered_before", (2, 2, 3, 2)), ("places_left", (2, 3, 4)),
    ("join", (2, 3, 2, 2)), ("join", (2, 2, 1, 2)), ("combine", (2, 2, 2, 2, 8, 8)),
    ("united", (2, 2, 1, 1, 1)), ("united", (2, 2, 2, 1, 2)), ("last_reaching", (2, 3, 2)),
    ("covered_by_children", (2, 2, 2, 2, 3)),
])  # fmt: skip
def test_arrays_that_do_not_fit_one_another_are_refused(name, sizes):
    columns = [np.zeros(size, np.int64) for size in sizes]
    with pytest.raises(ValueError, match=r"differ in length|no room"):
        getattr(sweeps.native, name)(*columns)


def test_groups_and_trees_that_cannot_be_are_refused():
    two, one = np.array([0, 1]), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="no such group"):
        sweeps.native.united(two, two + 1, two, one.copy(), one.copy())
    with pytest.raises(ValueError, match="not in order"):
        sweeps.united(two[::-1], two[::-1] + 1, two * 0, 1)
    with pytest.raises(ValueError, match="before what encloses it"):
        sweeps.covered_by_children(np.array([1, -1]), two, two)
    with pytest.raises(TypeError):
        sweeps.native.last_reaching(two)
    frozen = np.zeros(2, np.int64)
    frozen.setflags(write=False)
    with pytest.raises((BufferError, ValueError)):
        sweeps.native.last_reaching(two, two, frozen)
