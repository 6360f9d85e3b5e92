"""Time shared out to what runs at each instant: worked by hand, and by counting interval by interval."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model import intervals
from tracekit.model.intervals import mask_affordable_windows, share_time


def ints(*values):
    return np.array(values, np.int64)


def share(ops, low, high, ties=()):
    """ns of each op (start, end, class) in each window, rows are ops."""
    columns = [ints(*column) for column in zip(*ops, strict=True)]
    found = share_time(tuple(columns), ints(*low), ints(*high), lambda at: [ints(*tie)[at] for tie in ties])
    out = np.zeros((len(ops), len(low)), np.int64)
    np.add.at(out, (found.op, found.window), found.ns)
    begun = np.zeros((len(ops), len(low)), np.int64)
    np.add.at(begun, (found.op, found.window), found.begun)
    return out.tolist(), begun.tolist()


def test_two_that_overlap_get_half_each_of_the_time_they_share():
    """[0, 10) and [4, 20): 4 alone, 6 shared, 10 alone."""
    assert share([(0, 10, 0), (4, 20, 0)], [0], [30])[0] == [[7], [13]]


def test_three_at_once_and_an_odd_nanosecond():
    """[0, 10) three times over: 3 each, and the one left over to the one that ends last, at 11."""
    assert share([(0, 10, 0), (0, 10, 0), (0, 11, 0)], [0], [20])[0] == [[3], [3], [5]]


def test_of_equal_ones_the_first_by_its_name_gets_what_is_left_over():
    """[0, 5) twice: 2 each and 1 to the one whose name comes first, in whatever order they stand."""
    assert share([(0, 5, 0), (0, 5, 0)], [0], [9], [(1, 0)])[0] == [[2], [3]]
    assert share([(0, 5, 0), (0, 5, 0)], [0], [9], [(0, 1)])[0] == [[3], [2]]


def test_a_later_class_gets_only_the_time_in_which_no_earlier_one_runs():
    """Compute [2, 8) and [4, 6), a collective [0, 10), a copy [9, 12): 4 of the collective show, 2 of the copy."""
    ops = [(0, 10, 1), (2, 8, 0), (4, 6, 0), (9, 12, 2)]
    assert share(ops, [0], [20])[0] == [[4], [5], [1], [2]]


def test_an_op_over_the_edge_is_in_both_windows_and_begins_in_one():
    assert share([(5, 25, 0)], [0, 10, 20], [10, 20, 22]) == ([[5, 10, 2]], [[1, 0, 0]])


def test_an_edge_within_shared_time_divides_it_exactly():
    """[0, 10) twice, windows of 3 and 7: 1 each and 1 over, then 3 each and 1 over; both to the first."""
    assert share([(0, 10, 0), (0, 10, 0)], [0, 3], [3, 10])[0] == [[2, 4], [1, 3]]


def test_windows_may_overlap_and_each_is_shared_out_whole():
    assert share([(0, 10, 0)], [0, 5], [6, 20])[0] == [[6, 5]]


def test_an_op_without_length_is_counted_and_gets_nothing():
    assert share([(5, 5, 0), (0, 10, 0)], [0], [10]) == ([[0], [10]], [[1], [1]])


def by_brute_force(ops, low, high):
    """The rule as it is told, interval by interval, and the exact rational share of each op."""
    got, exact = [0] * len(ops), [Fraction(0)] * len(ops)
    times = sorted({t for s, e, _ in ops for t in (s, e)} | {low, high})
    for a, b in pairwise(times):
        if a < low or b > high:
            continue
        active = [i for i, (s, e, _) in enumerate(ops) if s <= a and e >= b]
        first = min((ops[i][2] for i in active), default=None)
        active = [i for i in active if ops[i][2] == first]
        for i in active:
            got[i] += (b - a) // len(active)
            exact[i] += Fraction(b - a, len(active))
        if active:
            last = max(active, key=lambda i: (ops[i][1], -ops[i][0], -i))
            got[last] += (b - a) % len(active)
    return got, exact


OPS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 25), st.integers(0, 3)).map(
        lambda told: (told[0], told[0] + told[1], told[2])
    ),
    min_size=1,
    max_size=14,
)
EDGES = st.lists(st.tuples(st.integers(0, 45), st.integers(0, 30)), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(OPS, EDGES)
def test_any_ops_are_shared_as_an_instant_by_instant_count_does(ops, edges):
    low, high = [a for a, _ in edges], [a + length for a, length in edges]
    # The edges of all windows divide time for each of them; one at a time shows the rule.
    for a, b in zip(low, high, strict=True):
        got, _ = share(ops, [a], [b], [range(len(ops))])
        expected, exact = by_brute_force(ops, a, b)
        assert [row[0] for row in got] == expected
        assert sum(expected) == sum(exact)
    got, begun = share(ops, low, high)
    for at, (a, b) in enumerate(zip(low, high, strict=True)):
        covered = {t for s, e, _ in ops for t in range(max(s, a), min(e, b))}
        assert sum(row[at] for row in got) == len(covered)
        assert [row[at] for row in begun] == [int(a <= s < b) for s, _, _ in ops]


def test_windows_beyond_what_can_be_afforded_are_left_out(monkeypatch):
    """Two ops of 4 pairs free each: two windows of 4 ops' worth, the third is beyond it."""
    monkeypatch.setattr(intervals, "FREE_PAIRS", 0)
    start, end = ints(0, 1), ints(5, 5)
    many = np.zeros(6, np.int64)
    assert mask_affordable_windows(start, end, many[:4], many[:4] + 9).tolist() == [True] * 4
    assert mask_affordable_windows(start, end, many, many + 9).tolist() == [True] * 4 + [False] * 2
