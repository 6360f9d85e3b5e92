"""Sets of late ranks, and what they cost at most. Times in nanoseconds."""

import numpy as np
import pytest

from tracekit.job.stragglers.lateness import (
    RankLateness,
    find_late_sets,
    measure_excess_work,
    subtract_median_of_others,
    sum_wait_cost_by_rank,
)
from tracekit.model.tables.frame import from_rows


def timed(names, rows):
    """Rows whose times are all known."""
    found = from_rows(names, rows)
    return found.with_columns(**{name: found.integers(name) for name in names if name.endswith("_ns")})


def work_of(own):
    """Own work of ranks in steps: `own[rank][step]`."""
    rows = [(None, step, None, rank, 0, ns) for rank, steps in enumerate(own) for step, ns in enumerate(steps)]  # fmt: skip
    return timed(["run", "step", "part", "rank", "device", "own_ns"], rows)


def arrivals_of(lost, work):
    """Arrivals of ranks at collectives: `lost[match][rank]` ns of waiting, `work[match][rank]` ns of own work before."""
    rows = [
        (rank, 0, match, ns, work[match][rank])
        for match, of_match in enumerate(lost)
        for rank, ns in enumerate(of_match)
    ]
    return timed(["rank", "device", "match", "lost_ns", "work_ns"], rows)


def members(*ranks):
    return from_rows(["rank", "device"], [(rank, 0) for rank in ranks])


# Ranks 1, 2 and 3 wait 90, 80 and 100 for rank 0.
WAITED = arrivals_of([[0, 90, 80, 100]], [[0, 0, 0, 0]])
LATE = np.array([True, False, False, False])


@pytest.mark.parametrize(
    ("own", "cost"),
    [
        ([[130], [80], [70], [60]], 60),  # 60 longer than the median of the others: 70
        ([[130, 40], [80, 50], [70, 50], [60, 50]], 60),  # 10 shorter in the next step: not less
        ([[190], [80], [70], [60]], 90),  # 120 longer: what the others wait is less
    ],
)
def test_a_late_rank_costs_no_more_than_it_works_longer(own, cost):
    """In a pipeline the others also wait while the batch passes through the stages: the median waits 90."""
    most = measure_excess_work(work_of(own), work_of(own), WAITED, members(0))
    assert sum_wait_cost_by_rank(WAITED, LATE, most) == {0: cost}
    assert sum_wait_cost_by_rank(WAITED, LATE) == {0: 90}


def test_of_ways_to_count_work_the_one_that_shows_most_counts():
    """40 longer in its stages, 10 outside; from collective to collective 30 and 30, as it works 20 less elsewhere."""
    staged, whole = work_of([[90], [50]]), work_of([[150], [100]])
    arrivals = arrivals_of([[0, 9]] * 3, [[40, 10], [40, 10], [10, 30]])
    late = members(0)
    assert measure_excess_work(staged, staged, arrivals.head(0), late) == ({0: 40}, 40)
    assert measure_excess_work(staged, whole, arrivals.head(0), late) == ({0: 50}, 50)
    assert measure_excess_work(staged, whole, arrivals, late) == ({0: 30 + 30 + 10}, 70)


def test_late_ranks_together_cost_no_more_than_the_latest_of_them_works_longer():
    """Rank 2 waits 50 for rank 0 and 50 for rank 1, which both work 30 and 40 longer in the step: 40, as 30 to 40."""
    arrivals = arrivals_of([[0, 9, 50], [9, 0, 50]], [[0] * 3] * 2)
    work = work_of([[130], [140], [100]])
    most = measure_excess_work(work, work, arrivals, members(0, 1))
    assert most == ({0: 30, 1: 40}, 40)
    is_late = np.array([True, True, False] * 2)
    assert sum_wait_cost_by_rank(arrivals, is_late, most) == {0: round(30 * 40 / 70), 1: round(40 * 40 / 70)}


def test_what_the_late_rank_waits_too_is_not_its_cost():
    """Rank 0 comes last of those recorded, and waits 70 for a rank that is missing: 90 − 70."""
    assert sum_wait_cost_by_rank(arrivals_of([[70, 90, 80, 100]], [[0] * 4]), LATE) == {0: 20}


def late_of(lost):
    """`Lateness` of ranks that lose `lost[rank][step]`."""
    lost = np.array(lost)
    steps = from_rows(["run", "step", "part"], [(None, step, None) for step in range(lost.shape[1])])
    late_ns = subtract_median_of_others(-lost)
    return RankLateness(members(*range(len(lost))), steps, late_ns, late_ns, lost)


@pytest.mark.parametrize(("missing", "sets"), [(0, 0), (1, 1)])
def test_late_ranks_are_at_most_half_of_all_recorded_or_not(missing, sets):
    """Two of three are late by 100; one is missing: of four they are half. Of the others of each, one is late: 100, not 50."""
    found = list(find_late_sets(late_of([[100, 100], [0, 0], [0, 0]]), missing))
    assert [each.size for each in found] == [2] * sets
    assert [each.late_ns.tolist() for each in found] == [[100, 100]] * sets
