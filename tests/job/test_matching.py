"""Collectives of one rank found again on the others: keys, clocks, waits. Times in nanoseconds."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.job.collectives.matching import compute_group_medians, list_matched_collectives, measure_clock_offsets
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns
from tracekit.model.trace import Measurements

REAL = os.environ.get("TRACEKIT_REAL_DATA")

DEFAULTS = {
    "run": "r", "tool": "torch", "role": None, "rank": 0, "host": "h", "pid": 1, "replica": None, "scope": None,
    "part": None, "source": "a", "step": 1, "stage": None, "group": "g", "group_size": None, "op": "all_reduce",
    "dtype": None, "seq": None, "ordinal": 0, "size_bytes": None, "ts_ns": 0, "dur_ns": 10, "device": None,
    "stream": None, "exposed_ns": None, "issue_ns": None, "synchronising": True,
}  # fmt: skip


def measured(rows):
    """Measurements that hold these collectives; what a row does not say is as in `DEFAULTS`."""
    full = [DEFAULTS | row for row in rows]
    columns = {name: [row[name] for row in full] for name in DEFAULTS}
    return Measurements({"collectives": TABLES["collectives"].cast(columns)}, ())


def on_rank(rank, times, **more):
    """Collectives of one rank at these (start, end), in order."""
    return [
        {"rank": rank, "pid": 100 + rank, "source": f"rank{rank}", "ordinal": k,
         "ts_ns": start, "dur_ns": end - start} | {n: v[k] if isinstance(v, list) else v for n, v in more.items()}
        for k, (start, end) in enumerate(times)
    ]  # fmt: skip


def match_collectives(found):
    """What matching adds to the collectives, in pandas."""
    rows = list_matched_collectives(found)
    return in_pandas(rows.drop(*found.columns("collectives").arrays))


def clocks_of(found):
    """The clock offsets, in pandas."""
    return in_pandas(measure_clock_offsets(found))


def in_pandas(rows):
    """A frame of judges as one of pandas."""
    return Columns(len(rows), rows.columns).judged()


def by_rank(rows, name):
    """`name` of every row, one list a rank."""
    found = match_collectives(measured(rows))
    ranks = [row["rank"] for row in rows]
    values = [None if pd.isna(v) else v for v in found[name]]
    return {r: [v for v, at in zip(values, ranks, strict=True) if at == r] for r in dict.fromkeys(ranks)}  # fmt: skip


# Three collectives on three ranks; rank 2 comes last to the first two, rank 0 to the third.
THREE = [
    *on_rank(0, [(0, 100), (110, 200), (290, 300)]),
    *on_rank(1, [(40, 100), (150, 200), (270, 300)]),
    *on_rank(2, [(90, 100), (180, 200), (250, 300)]),
]


def test_the_wait_is_until_the_last_comes_and_the_transfer_is_what_is_left():
    assert by_rank(THREE, "wait_ns") == {0: [90, 70, 0], 1: [50, 30, 20], 2: [0, 0, 40]}
    assert by_rank(THREE, "transfer_ns") == {r: [10, 20, 10] for r in range(3)}
    assert by_rank(THREE, "skew_ns") == {r: [90, 70, 40] for r in range(3)}
    assert by_rank(THREE, "is_last") == {
        0: [False, False, True], 1: [False] * 3, 2: [True, True, False],
    }  # fmt: skip


def alike(size, times):
    """All-reduces of one size on ranks 0 and 1 of a group of so many; each rank comes at its own time, both leave at the end."""
    starts = [[(begin, end) for begin, _, end in times], [(begin, end) for _, begin, end in times]]
    return [row for rank in (0, 1) for row in on_rank(rank, starts[rank], size_bytes=64, group_size=size)]  # fmt: skip


EIGHT = [*((1000 * k, 1000 * k, 1000 * k + 10) for k in range(7)), (7000, 7020, 7100)]
"""Seven that take 10, and one that takes 80 after the later rank has come."""


def test_all_wait_for_a_missing_rank_as_long_as_a_collective_takes_beyond_its_usual_time():
    """10 as usual, so 70 of the 80 are a wait, and rank 0 waited 20 for rank 1 before."""
    rows = alike(3, EIGHT)
    assert by_rank(rows, "wait_ns") == {0: [0] * 7 + [90], 1: [0] * 7 + [70]}
    assert by_rank(rows, "transfer_ns") == {r: [10] * 8 for r in range(2)}
    assert by_rank(rows, "is_last") == {r: [False] * 8 for r in range(2)}
    assert by_rank(rows, "trusted")[1] == [False] * 7 + [True]


@pytest.mark.parametrize(
    ("size", "times"),
    [(2, EIGHT), (None, EIGHT), (3, EIGHT[1:]), (3, [*EIGHT[:7], (7000, 7020, 7050)])],
    ids=["nobody is missing", "size unknown", "seven alike", "three times the usual"],
)
def test_else_a_long_collective_is_a_long_transfer(size, times):
    rows = alike(size, times)
    last = times[-1][2] - times[-1][1]
    assert by_rank(rows, "transfer_ns")[1][-1] == last
    assert by_rank(rows, "wait_ns") == {0: [0] * (len(times) - 1) + [20], 1: [0] * len(times)}


def test_rows_keep_the_order_of_the_table():
    shuffled = [THREE[k] for k in (8, 3, 0, 5, 1, 7, 2, 6, 4)]
    whole, other = match_collectives(measured(THREE)), match_collectives(measured(shuffled))
    assert other["wait_ns"].tolist() == [whole["wait_ns"][k] for k in (8, 3, 0, 5, 1, 7, 2, 6, 4)]
    assert other["match"].tolist() == [whole["match"][k] for k in (8, 3, 0, 5, 1, 7, 2, 6, 4)]


def test_a_clock_is_off_by_the_median_of_the_ends():
    """Rank 1 is 1,000 ahead; its last end is 3 early, which moves neither the median nor the spread."""
    rows = [*on_rank(0, [(0, 100), (200, 300), (400, 500)]), *on_rank(1, [(1010, 1100), (1250, 1300), (1430, 1497)])]
    table = clocks_of(measured(rows))
    assert table["offset_ns"].tolist() == [0, 1000]
    assert table["uncertainty_ns"].tolist() == [0, 0]
    assert table["count"].tolist() == [3, 3]
    assert by_rank(rows, "wait_ns") == {0: [10, 50, 30], 1: [0, 0, 0]}


def test_a_skew_within_the_uncertainty_of_the_clocks_makes_nobody_last():
    """Ends differ by −20, 0, 0, 20 and 40: median 0, deviations 20, 0, 0, 20, 40, so uncertain by 20."""
    ends = [-20, 0, 0, 20, 40]
    starts = [20, 21, 0, 0, 0]
    rows = [
        *on_rank(0, [(1000 * k, 1000 * k + 500) for k in range(5)]),
        *on_rank(1, [(1000 * k + s, 1000 * k + 500 + e) for k, (s, e) in enumerate(zip(starts, ends, strict=True))]),
    ]  # fmt: skip
    assert clocks_of(measured(rows))["uncertainty_ns"].tolist() == [0, 20]
    assert by_rank(rows, "trusted")[0] == [False, True, False, False, False]
    assert by_rank(rows, "is_last")[1] == [False, True, False, False, False]


def test_a_wait_is_no_longer_than_the_collective():
    """Rank 0 seems to leave the third before rank 1 has come: the clocks cannot be that right."""
    rows = [*on_rank(0, [(0, 100), (200, 300), (400, 420)]), *on_rank(1, [(50, 100), (250, 300), (450, 500)])]
    assert by_rank(rows, "wait_ns")[0] == [50, 50, 20]


def test_clocks_are_solved_over_groups_that_share_ranks():
    """Rank 1 is 10 ahead of rank 0, rank 2 5 ahead of rank 1; ranks 8 and 9 share nothing with them."""
    rows = [
        *on_rank(0, [(0, 100)] * 3, group="a"),
        *on_rank(1, [(0, 110)] * 3, group="a"),
        *on_rank(1, [(200, 300)] * 3, group="b"),
        *on_rank(2, [(200, 305)] * 3, group="b"),
        *on_rank(8, [(0, 700)] * 3, group="c"),
        *on_rank(9, [(0, 777)] * 3, group="c"),
    ]
    table = clocks_of(measured(rows)).set_index("rank")
    assert table["offset_ns"].to_dict() == {0: 0, 1: 10, 2: 15, 8: 0, 9: 77}
    assert table["set"].nunique() == 2
    assert table["set"][8] == table["set"][9] != table["set"][0]


def test_a_clock_is_solved_also_against_the_way_in_which_it_was_compared():
    """Rank 2 is 1000 ahead of rank 0 and 700 ahead of rank 1, which shares nothing with rank 0: that is 300 ahead."""
    rows = [
        *on_rank(0, [(0, 100)] * 3, group="a"),
        *on_rank(2, [(0, 1100)] * 3, group="a"),
        *on_rank(1, [(200, 800)] * 3, group="b"),
        *on_rank(2, [(200, 1500)] * 3, group="b"),
    ]
    offsets = clocks_of(measured(rows)).set_index("rank")["offset_ns"].to_dict()
    assert offsets == {0: 0, 1: 300, 2: 1000}


def test_what_has_no_common_end_tells_nothing_of_clocks_and_waits():
    rows = [
        *on_rank(0, [(0, 10)], op="broadcast", synchronising=False),
        *on_rank(1, [(0, 500)], op="broadcast", synchronising=False),
    ]
    found = match_collectives(measured(rows))
    assert found["match"].tolist() == [0, 0]
    assert found["transfer_ns"].tolist() == [10, 10]
    assert found["wait_ns"].isna().all()
    assert not found["is_last"].any()
    assert len(clocks_of(measured(rows))) == 0


BROADCAST = {"op": "broadcast", "synchronising": False}


def test_a_broadcast_in_which_all_met_has_waits_like_any_other():
    """The root, rank 2, comes at 90; nobody has left by then, so the others have waited until then."""
    ends = [*on_rank(0, [(0, 100)], **BROADCAST), *on_rank(1, [(40, 102)], **BROADCAST)]
    rows = [*ends, *on_rank(2, [(90, 101)], **BROADCAST)]
    assert by_rank(rows, "wait_ns") == {0: [90], 1: [50], 2: [0]}
    assert by_rank(rows, "is_last") == {0: [False], 1: [False], 2: [True]}


def test_a_broadcast_that_its_root_left_early_tells_nothing_of_waits():
    """The root is gone at 30, before rank 1 comes at 40."""
    rows = [*on_rank(0, [(0, 30)], **BROADCAST), *on_rank(1, [(40, 60)], **BROADCAST)]
    assert by_rank(rows, "wait_ns") == {0: [None], 1: [None]}


def test_a_broadcast_tells_nothing_where_clocks_cannot_be_compared():
    """On two hosts whose ranks share no all-reduce; with one, the clock of rank 1 is known to be 1,000 ahead."""
    first = on_rank(0, [(0, 100)], **BROADCAST)
    second = [row | {"host": "other"} for row in on_rank(1, [(1050, 1100)], **BROADCAST)]
    assert by_rank([*first, *second], "wait_ns") == {0: [None], 1: [None]}
    third = on_rank(0, [(200, 300)])
    fourth = [row | {"host": "other"} for row in on_rank(1, [(1250, 1300)])]
    rows = [*first, *third, *second, *fourth]
    assert by_rank(rows, "wait_ns") == {0: [50, 50], 1: [0, 0]}


def test_a_group_may_span_roles_if_none_of_its_ranks_has_two():
    """A trainer and a generator meet in one broadcast; a reference model beside the trainer is another group."""
    of_two = BROADCAST | {"group_size": 2}
    trainer = [row | {"role": "actor"} for row in on_rank(0, [(0, 100)], **of_two)]
    generator = [row | {"role": "rollout"} for row in on_rank(1, [(40, 100)], **of_two)]
    assert by_rank([*trainer, *generator], "wait_ns") == {0: [40], 1: [0]}
    alone = [row | {"group_size": 1} for row in (*trainer, *generator)]
    assert by_rank(alone, "match") == {0: [None], 1: [None]}
    beside = [row | {"role": "ref", "pid": 7} for row in on_rank(0, [(20, 100)], **of_two)]
    assert by_rank([*trainer, *beside], "match") == {0: [None, None]}


def test_a_sequence_number_is_the_key_where_it_is_recorded():
    """Rank 1 lacks the first; what it shows still meets the right ones."""
    rows = [
        *on_rank(0, [(0, 100), (200, 300), (400, 500)], seq=[7, 8, 9]),
        *on_rank(1, [(250, 300), (410, 500)], seq=[8, 9]),
    ]
    assert by_rank(rows, "match") == {0: [None, 0, 1], 1: [0, 1]}
    assert by_rank(rows, "reason")[0] == ["alone", None, None]
    assert by_rank(rows, "wait_ns") == {0: [None, 50, 10], 1: [0, 0]}


def test_several_of_one_sequence_number_match_in_order_if_they_are_equally_many():
    both = [*on_rank(0, [(0, 10), (20, 30)], seq=5), *on_rank(1, [(5, 10), (25, 30)], seq=5)]
    assert by_rank(both, "match") == {0: [0, 1], 1: [0, 1]}
    assert by_rank(both[:-1], "match") == {0: [None, None], 1: [None]}
    assert by_rank(both[:-1], "reason")[1] == ["counts"]


def test_a_rank_that_shows_fewer_is_aligned_at_the_end_if_the_sizes_tell():
    """Rank 1 began late: its sizes are the end of rank 0's and not their beginning."""
    rows = [
        *on_rank(0, [(0, 100), (200, 300), (400, 500)], size_bytes=[1, 2, 3]),
        *on_rank(1, [(250, 300), (410, 500)], size_bytes=[2, 3]),
    ]
    assert by_rank(rows, "match") == {0: [None, 0, 1], 1: [0, 1]}


@pytest.mark.parametrize(
    "sizes",
    [([1, 1, 1], [1, 1]), ([None, None, None], [None, None]), ([1, 2, 3], [1, 2]), ([1, 2, 3], [9, 3]),
     ([1, 2, 1, 2, 1], [1, 2, 1])],
)  # fmt: skip
def test_otherwise_unequal_numbers_match_nothing_and_say_so(sizes):
    rows = [
        row
        for rank, mine in enumerate(sizes)
        for row in on_rank(rank, [(100 * k, 100 * k + 50) for k in range(len(mine))], size_bytes=list(mine))
    ]  # fmt: skip
    found = match_collectives(measured(rows))
    assert found["match"].isna().all()
    assert set(found["reason"]) == {"counts"}
    assert found["wait_ns"].isna().all()


def test_sizes_that_differ_by_design_do_not_align_anything():
    rows = [
        *on_rank(0, [(0, 10), (20, 30)], op="all_to_all", size_bytes=[1, 2]),
        *on_rank(1, [(20, 30)], op="all_to_all", size_bytes=[2]),
    ]
    assert set(match_collectives(measured(rows))["reason"]) == {"counts"}


def test_equally_many_of_different_sizes_are_not_the_same():
    rows = [
        *on_rank(0, [(0, 10), (20, 30), (40, 50)], size_bytes=[1, 2, 3]),
        *on_rank(1, [(0, 10), (20, 30), (40, 50)], size_bytes=[1, 3, 2]),
    ]
    assert by_rank(rows, "match") == {0: [0, None, None], 1: [0, None, None]}
    assert by_rank(rows, "reason")[0] == [None, "sizes", "sizes"]
    uneven = [row | {"op": "all_to_all"} for row in rows]
    assert by_rank(uneven, "match")[1] == [0, 1, 2]


@pytest.mark.parametrize("key", ["run", "role", "replica", "group", "op", "step", "tool"])
def test_nothing_matches_across(key):
    values = {"replica": (0, 1), "step": (1, 2), "op": ("all_reduce", "all_gather"), "tool": ("torch", "nsys")}  # fmt: skip
    one, other = values.get(key, ("x", "y"))
    rows = [*on_rank(0, [(0, 10)], **{key: one}), *on_rank(1, [(0, 10)], **{key: other})]
    found = match_collectives(measured(rows))
    assert set(found["reason"]) == {"alone"}
    assert found["match"].isna().all()


def test_without_a_step_number_a_repeated_capture_stands_for_one():
    rows = [
        *on_rank(0, [(0, 10)], step=None, part="1"),
        *on_rank(1, [(0, 10)], step=None, part="1"),
        *on_rank(1, [(90, 99)], step=None, part="2"),
    ]
    assert by_rank(rows, "match") == {0: [0], 1: [0, None]}


def test_a_process_without_a_rank_matches_nothing():
    rows = [*on_rank(0, [(0, 10)]), *[row | {"rank": None} for row in on_rank(1, [(0, 10)])]]
    assert match_collectives(measured(rows))["reason"].tolist() == ["alone", "rank"]


@pytest.mark.parametrize("odd", [{"pid": 999}, {"host": "other"}, {"device": 1}])
def test_two_that_claim_one_rank_are_not_merged(odd):
    """Rank 1 shows one collective on each of two devices (processes, hosts): not two of one."""
    times = [(0, 10), (20, 30)]
    rows = [*on_rank(0, times, device=0), *on_rank(1, times, device=0)]
    rows[3] |= odd
    assert by_rank(rows, "reason")[1] == ["several", "several"]
    assert match_collectives(measured(rows))["match"].isna().all()


def test_the_order_in_a_step_goes_on_over_the_files_of_a_process():
    """Rank 1's step comes in two files, each of which counts from 0."""
    rows = [
        *on_rank(0, [(0, 10), (20, 30)], size_bytes=[1, 2]),
        *on_rank(1, [(22, 30)], size_bytes=2, source="later"),
        *on_rank(1, [(5, 10)], size_bytes=1, source="earlier"),
    ]
    assert by_rank(rows, "match") == {0: [0, 1], 1: [1, 0]}


def test_a_collective_without_a_position_is_the_first_of_its_step():
    """Rank 0's smaller one has none, and began later than the other, whose position is 1."""
    rows = [
        *on_rank(0, [(20, 30), (0, 10)], size_bytes=[1, 2], ordinal=[None, 1]),
        *on_rank(1, [(0, 10), (20, 30)], size_bytes=[1, 2]),
    ]
    assert by_rank(rows, "match") == {0: [0, 1], 1: [0, 1]}


def test_nothing_gives_nothing():
    empty = Measurements({}, ())
    assert len(match_collectives(empty)) == len(clocks_of(empty)) == 0
    assert {"match", "wait_ns", "transfer_ns", "skew_ns", "is_last"} <= set(match_collectives(empty))


STARTS = st.lists(st.tuples(*[st.integers(0, 90)] * 3), min_size=1, max_size=6)


def common_ends(starts, shift=(0, 0, 0), wobble=(0, 0, 0)):
    """Three ranks whose collectives end 1,000 apart, each on its own clock."""
    return [
        row
        for rank in range(3)
        for row in on_rank(
            rank,
            [
                (1000 * k + came[rank] + shift[rank], 1000 * k + 100 + shift[rank] + (k % 3) * wobble[rank])
                for k, came in enumerate(starts)
            ],
        )
    ]  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(STARTS, st.tuples(*[st.integers(-(10**9), 10**9)] * 3), st.tuples(*[st.integers(0, 9)] * 3))
def test_shifting_a_clock_changes_nothing_but_its_offset(starts, shift, wobble):
    still, moved = (measured(common_ends(starts, by, wobble)) for by in ((0, 0, 0), shift))
    pd.testing.assert_frame_equal(match_collectives(still), match_collectives(moved))
    moved_by = clocks_of(moved)["offset_ns"] - clocks_of(still)["offset_ns"]
    assert moved_by.tolist() == [by - shift[0] for by in shift]
    assert clocks_of(moved)["uncertainty_ns"].tolist() == clocks_of(still)["uncertainty_ns"].tolist()


@settings(max_examples=10, deadline=None)
@given(STARTS, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(starts, random):
    rows = common_ends(starts)
    place = list(range(len(rows)))
    random.shuffle(place)
    shuffled = match_collectives(measured([rows[k] for k in place]))
    pd.testing.assert_frame_equal(match_collectives(measured(rows)).iloc[place].reset_index(drop=True), shuffled)


@settings(max_examples=10, deadline=None)
@given(STARTS)
def test_every_wait_is_what_arithmetic_says(starts):
    found = by_rank(common_ends(starts), "wait_ns")
    for rank in range(3):
        assert found[rank] == [max(came) - came[rank] for came in starts]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 50)), min_size=1))
def test_a_median_in_whole_numbers_is_rounded_down(pairs):
    number, group = np.unique([g for g, _ in pairs], return_inverse=True)
    values = np.array([v for _, v in pairs], np.int64)
    found = compute_group_medians(values, group.astype(np.int64), len(number))
    expected = [int(np.floor(np.median(values[group == k]))) for k in range(len(number))]
    assert found.tolist() == expected


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_the_clocks_of_processes_on_one_host_agree_within_their_uncertainty_or_a_millisecond():
    from analyses.waiting_traces import measure_folder

    for folder in ("base_run1", "opt_run3", "straggler"):
        found = measure_folder(Path(REAL) / "chrome/gloo_cpu" / folder)
        table = clocks_of(found)
        assert table["rank"].tolist() == [0, 1, 2, 3]
        within = table["uncertainty_ns"].clip(lower=1_000_000)
        assert (table["offset_ns"].abs() <= within).all(), folder
        shares = match_collectives(found)["match"].notna().mean()
        assert shares > 0.99, folder
