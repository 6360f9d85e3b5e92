"""Sets of late ranks, and what they cost at most. Times in nanoseconds."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tracekit.job.stragglers import detection
from tracekit.job.stragglers.causes import LatenessCause
from tracekit.job.stragglers.lateness import (
    LateSet,
    RankLateness,
    find_late_sets,
    measure_excess_work,
    subtract_median_of_others,
    sum_wait_cost_by_rank,
)
from tracekit.model.report import Metric
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
    return RankLateness(members(*range(len(lost))), steps, late_ns, -lost, lost)


@pytest.mark.parametrize(("missing", "sets"), [(0, 0), (1, 1)])
def test_late_ranks_are_at_most_half_of_all_recorded_or_not(missing, sets):
    """Two of three are late by 100; one is missing: of four they are half. Of the others of each, one is late: 100, not 50."""
    found = list(find_late_sets(late_of([[100, 100], [0, 0], [0, 0]]), missing))
    assert [each.size for each in found] == [2] * sets
    assert [each.late_ns.tolist() for each in found] == [[100, 100]] * sets


def test_a_set_is_compared_among_the_ranks_that_no_earlier_set_has():
    """Rank 0 is 70 late: the others wait 40, 70 and 100. Of these, rank 1 is 45 late, as the others wait 85.

    Rank 2 is 30 later than rank 3. Work is what the ranks do not wait.
    """
    found = list(find_late_sets(late_of([[0, 0], [40, 40], [70, 70], [100, 100]])))
    assert [each.is_late.tolist().index(True) for each in found] == [0, 1, 2]
    assert [each.late_ns.tolist() for each in found] == [[70, 70], [45, 45], [30, 30]]
    assert [(each.worked_ns, each.compared_count) for each in found] == [(70, 4), (45, 3), (30, 2)]


def test_causes_are_looked_for_in_files_that_are_not_damaged(monkeypatch):
    """Ranks 1 and 2 are late. A damaged file is read only where its rank is alone on its side."""
    late = late_pair([10.0, 10.0, 10.0, 10.0])
    for damaged, compared in (
        (set(), ([1, 2], [0, 3])),
        ({1}, ([2], [0, 3])),
        ({1, 3}, ([2], [0])),
        ({1, 2}, ([1, 2], [0, 3])),
    ):
        monkeypatch.setattr(detection, "_list_ranks_of_damaged_files", lambda _, damaged=damaged: damaged)
        found = detection._list_ranks_of_both_sides(None, late.lateness, late.late_set, late.late_set.is_late)
        assert found == compared


# Words and costs of a set


def late_pair(late_ns, steps=(1, 2, 3, 4), **changed):
    """Ranks 1 and 2 of four, late by these ns in these steps; they have 6 of 8 votes."""
    members = from_rows(("rank", "device"), [(rank, 0) for rank in range(4)])
    by_member = np.array([[0.0] * 4, late_ns, [2 * ns for ns in late_ns], [0.0] * 4])
    late_set = LateSet(np.array([0, 1, 1, 0], np.bool_), np.ones(4, np.bool_), np.array(late_ns, float), 0.0, 6, 4, 0.2)
    lateness = SimpleNamespace(members=members, steps=from_rows(("step",), [(s,) for s in steps]), late_ns=by_member)
    rank_group = SimpleNamespace(steps=4, members=4, run="a", role="actor")
    late = detection.LateRanks(rank_group, lateness, late_set, None, 100.0, None, is_named=False)
    return replace(late, **changed)


def test_a_member_of_a_set_has_its_share_of_the_votes():
    late = late_pair([10.0, 0.0, 10.0, 10.0])
    part = detection._select_late_subset(late, [2])
    assert part.is_late.tolist() == [False, False, True, False]
    assert (part.votes, part.late_ns.tolist()) == (3, [20.0, 0.0, 20.0, 20.0])
    both = detection._select_late_subset(late, [1, 2])
    assert (both.votes, both.late_ns.tolist()) == (6, [15.0, 0.0, 15.0, 15.0])


@pytest.mark.parametrize(
    ("late_ns", "steps", "words"),
    [
        ([10, 10, 10, 10], (1, 2, 3, 4), ""), ([0, 0, 10, 10], (1, 2, 3, 4), " from step 3 on"),
        ([0, 0, 0, 10], (1, 2, 3, 4), " in step 4"), ([0, 10, 0, 0], (1, 2, 3, 4), " in step 2"),
        ([10, 4, 10, 0], (1, 2, 3, 4), " in steps 1, 3"), ([10, 0, 10, 0], (1, 2, None, 4), ""),
        ([10, 0, 0, 0], (None, 2, 3, 4), ""),
    ],
)  # fmt: skip
def test_the_steps_in_which_a_set_is_late_are_named_unless_it_is_in_all(late_ns, steps, words):
    assert detection._phrase_late_steps(late_pair(late_ns, steps)) == words


@pytest.mark.parametrize(
    ("pause_ns", "cost_ns", "cost"), [(120.0, 100.0, 60.0), (120.0, 50.0, 50.0), (0.0, 100.0, 0.0)]
)
def test_a_pause_costs_at_most_its_length_in_the_late_steps_and_what_the_others_wait(pause_ns, cost_ns, cost):
    late = late_pair([0, 10, 10, 0], cost_ns=cost_ns)
    assert detection._estimate_pause_cost(late, SimpleNamespace(pause_ns=pause_ns)) == cost


@pytest.mark.parametrize(
    ("kind", "late_ns", "later", "is_lasting"),
    [
        ("clock", [0, 0, 10, 10], [], True), ("clock", [0, 0, 0, 10], [], False), ("clock", [10, 10, 10, 0], [], False),
        ("clock", [0, 0, 0, 10], [True], True), ("clock", [0, 0, 0, 10], [True, False], False),
        ("clock", [0, 0, 10, 0], [True], False), ("host", [0, 0, 10, 10], [], True), ("host", [0, 0, 0, 10], [True], False),
        ("host 1.24", [10, 10, 10, 10], [], False),
        ("pause", [10, 10, 10, 10], [], False), ("load", [10, 10, 10, 10], [], False),
    ],
)  # fmt: skip
def test_a_slow_clock_or_host_lasts_to_the_end_and_for_some_steps(monkeypatch, kind, late_ns, later, is_lasting):
    """`later` are the recorded steps after those whose waits are known: whether its kernels are slower in each."""
    monkeypatch.setattr(detection, "_list_slow_clocks_after", lambda *_: later)
    kind, _, factor = kind.partition(" ")
    evidence = (Metric("call_factor", float(factor or 1.25), "", "lower"),)
    cause = LatenessCause(kind, "", "", evidence if kind == "host" else ())
    assert detection._has_lasting_cause(None, late_pair(late_ns), cause, {"clock_steps": 2}) is is_lasting


def test_a_late_member_is_located_in_the_step_in_which_it_is_latest():
    place = detection._locate_late_member(late_pair([5, 10, 30, 20]), 2, "")
    assert (place.run, place.role, place.rank, place.device, place.step, place.stage) == ("a", "actor", 2, 0, 3, None)
    assert detection._locate_late_member(late_pair([5, 10, 30, 20]), 1, "gen").stage == "gen"


def test_more_steps_than_were_recorded_are_needed(monkeypatch):
    for needed, steps in ((3, 5), (5, 5), (9, 9)):
        monkeypatch.setattr(detection, "count_rounds_needed", lambda *_, needed=needed: needed)
        assert detection._count_steps_needed(late_pair([10, 10, 10, 10]), {"false_ratio": 0.01}) == steps


def test_why_ranks_are_not_named_is_said(monkeypatch):
    monkeypatch.setattr(detection, "count_rounds_needed", lambda *_: 9)
    limit = {"rotating_ratio": 0.75, "false_ratio": 0.05}
    late = late_pair([10, 10, 10, 10])
    rotating = "for changing ranks: see rank-imbalance"
    unsure = "most for ranks 1, 2: may be chance (20 %) in 4 steps, 9 would decide it"
    idle = "most for ranks 1, 2: without a recorded cause in their own work"
    assert detection._explain_unnamed_ranks([], limit) == rotating
    assert detection._explain_unnamed_ranks([late], limit) == unsure
    assert detection._explain_unnamed_ranks([late], limit | {"rotating_ratio": 0.76}) == rotating
    assert detection._explain_unnamed_ranks([late], limit | {"false_ratio": 0.2}) == idle


def test_a_probable_straggler_is_one_that_is_late_in_every_step(monkeypatch):
    """Ranks 1 and 2 are late by 10 in each of 4 steps: 80, of which 40 have to be work beyond the others'."""
    monkeypatch.setattr(detection, "count_rounds_needed", lambda *_: 9)
    limit = {"false_ratio": 0.05}
    late = late_pair([10, 10, 10, 10])
    assert detection._describe_probable_straggler([late], limit) == ("", "")
    late_set = replace(late.late_set, votes=8)
    for beyond, claim in (
        (20, "ranks 1, 2 are 25 % busier in 4 of 4 steps"),
        (19, "the others wait for ranks 1, 2 in 4 of 4 steps"),
    ):
        rows = [(rank, 0, 100, beyond) for rank in (1, 2)] + [(0, 0, 900, 900)]
        by_step = timed(["rank", "device", "own_ns", "beyond_ns"], rows)
        whole = replace(late, late_set=late_set, rank_group=SimpleNamespace(by_step=by_step))
        assert detection._describe_probable_straggler([whole], limit) == (claim, "9 steps would prove it")
        told = detection._describe_probable_straggler([whole], {"false_ratio": 0.2})
        assert told == (claim, "stacks (with_stack=True) or ranges around its work would show the cause")


@pytest.mark.parametrize(
    ("changed", "is_named", "pause_ns"),
    [
        ({}, True, 10.0), ({"pause": 9.9}, False, 9.9), ({"goes_on": False}, False, 0.0), ({"cause": None}, False, 0.0),
        ({"own": False}, False, 0.0), ({"alone": False}, False, 0.0), ({"rare": True}, True, 0.0),
        ({"rare": True, "own": False}, False, 0.0), ({"slow": True, "alone": False}, True, 0.0),
        ({"step_ns": None}, False, 10.0),
    ],
)  # fmt: skip
def test_a_set_is_named_where_it_is_no_chance_or_for_a_pause_that_costs_enough(
    monkeypatch, changed, is_named, pause_ns
):
    """The pause costs 10 of 1000, and a hundredth is enough."""
    case = {"pause": 10.0, "goes_on": True, "cause": SimpleNamespace(kind="pause"), "own": True, "alone": True}
    case |= {"rare": False, "slow": False, "step_ns": 1000.0, **changed}
    for name, value in (
        ("_is_late_by_own_work", "own"),
        ("_has_lasting_cause", "slow"),
        ("_estimate_pause_cost", "pause"),
    ):
        monkeypatch.setattr(detection, name, lambda *_, value=value: case[value])
    monkeypatch.setattr(detection, "has_no_other_late_member", lambda *_: case["alone"])
    walls = SimpleNamespace(select_run=lambda _: SimpleNamespace(step_ns=case["step_ns"]))
    monkeypatch.setattr(detection, "summarize_step_walls", lambda _: walls)
    late = late_pair([10, 10, 10, 10], cause=case["cause"])
    limit = {"seen_ratio": 0.01}
    judged = detection._decide_late_rank_naming(None, late, limit, goes_on=case["goes_on"], rare=case["rare"])
    assert (judged.is_named, judged.pause_ns) == (is_named, pause_ns)


@pytest.mark.parametrize(("late_ns", "stage"), [([10, 10, 10, 10], "update"), ([11, 10, 10, 10], "")])
def test_a_stage_is_named_that_has_half_of_the_lateness_of_the_set(late_ns, stage):
    """5 a member of gen and 15 of the update; another group, another rank and another rank group do not count."""
    arrivals = from_rows(("group", "rank", "device"), [("g", 1, 0), ("g", 2, 0), ("h", 1, 0), ("g", 0, 0), ("g", 1, 0)])
    by_stage = np.array([[10, 0], [0, 30], [500, 0], [500, 0], [500, 0]])
    waited = SimpleNamespace(collectives=arrivals, by_stage=by_stage, stages=("gen", "update"))
    late = late_pair(late_ns, group="g")
    late.rank_group.has_rows = lambda _: np.array([1, 1, 1, 1, 0], np.bool_)
    assert detection._find_stage_of_lateness(waited, late) == stage
    waited.by_stage = by_stage[:, :0]
    assert detection._find_stage_of_lateness(waited, late) == ""
