"""Which snapshot is compared with which: the same rank with the same rank, the same step with the same step."""

from compare.made import made_side, row
from compare.memory_sides import holding, memory_of, memory_side

from tracekit.compare.memory_change import MemoryLevel
from tracekit.compare.snapshots.levels import compare_memory, judge_memory_level
from tracekit.compare.snapshots.owners import (
    END,
    MEMORY_LEVELS,
    PEAK,
    MemoryOwner,
    MemorySnapshot,
    list_measured_snapshots,
    match_snapshots,
)

MIB = 2**20
NAMES = ("before", "after")


def taken(peak, *, rank=0, step=None, role=None, device=0, number=0, run="run", ns=0, memory="device"):
    """A snapshot of these facts."""
    levels = dict.fromkeys(MEMORY_LEVELS) | {PEAK: peak, END: peak}
    whose = MemoryOwner(memory, role, rank, None, device, number)
    return MemorySnapshot(whose, run, step, ns, f"s{step}", levels)


def peaks(found):
    """(rank, step before, step after, peak before, peak after) of every pair."""
    return [
        (one.whose.rank, one.step, two.step, one.levels[PEAK], two.levels[PEAK]) for one, two in found.pairs
    ]  # fmt: skip


def test_ranks_and_steps_are_compared_with_their_own():
    base = [taken(10 * rank + step, rank=rank, step=step) for rank in (0, 1) for step in (1, 2, 5)]
    opt = [taken(90 + rank + step, rank=rank, step=step) for rank in (1, 0, 2) for step in (2, 5, 6)]
    found = match_snapshots(base, opt, NAMES)
    assert peaks(found) == [
        (0, 2, 2, 2, 92), (0, 5, 5, 5, 95), (1, 2, 2, 12, 93), (1, 5, 5, 15, 96),
    ]  # fmt: skip
    assert found.notes == ("only after has snapshots of rank 2, GPU 0",)


def test_without_a_common_step_the_last_of_each_are_compared_and_that_is_said():
    base = [taken(1, step=0), taken(2, step=3)]
    found = match_snapshots(base, [taken(7, step=7), taken(5, step=8)], NAMES)
    assert peaks(found) == [(0, 3, 8, 2, 5)]
    assert found.notes == ("the sides share no step: step 3 is compared with step 8, the last of each",)


def test_without_numbers_the_last_by_time_is_compared():
    base = [taken(1, ns=5), taken(2, ns=9), taken(3, ns=7)]
    found = match_snapshots(base, [taken(4)], NAMES)
    assert peaks(found) == [(0, None, None, 2, 4)]
    assert found.notes == ("if several snapshots have no step, the last one is compared",)
    assert match_snapshots(base[:1], [taken(4)], NAMES).notes == ()


def test_of_several_runs_the_highest_peak_of_a_step_is_told():
    base = [taken(value, step=1, run=f"r{value}") for value in (3, 9, 4)]
    found = match_snapshots(base, [taken(5, step=1)], NAMES)
    assert peaks(found) == [(0, 1, 1, 9, 5)]
    assert found.notes == ("if a side has several runs, the snapshots with the highest peak are compared",)


def test_roles_are_names_that_one_side_may_lack_where_ranks_tell_processes_apart():
    found = match_snapshots(
        [taken(1, rank=0, role="actor"), taken(2, rank=1, role="actor")],
        [taken(3, rank=0), taken(4, rank=1)], NAMES,
    )  # fmt: skip
    assert [pair[3:] for pair in peaks(found)] == [(1, 3), (2, 4)]
    assert found.notes[0] == "rank 0 actor, GPU 0 of before is compared with rank 0, GPU 0 of after"
    two = [taken(1, rank=0, role="actor"), taken(2, rank=0, role="critic")]
    assert match_snapshots(two, [taken(3, rank=0)], NAMES).pairs == ()


def test_two_files_given_alone_are_compared_whatever_they_are_called():
    found = match_snapshots([taken(1, rank=0)], [taken(2, rank=3, device=3)], NAMES)
    assert peaks(found) == [(0, None, None, 1, 2)]
    assert found.notes == ("rank 0, GPU 0 of before is compared with rank 3, GPU 3 of after",)
    # Of several processes nobody knows which belongs to which.
    several = [taken(1, rank=0), taken(1, rank=1)]
    others = [taken(2, rank=3), taken(2, rank=4)]
    assert match_snapshots(several, others, NAMES).pairs == ()


def test_processes_of_one_rank_are_paired_in_the_order_of_their_ids(tmp_path):
    def side(name, pids, steps=(None, None)):
        made = {
            f"{pid}.pickle": (holding((size, "f")), {"rank": 0, "pid": pid, "step": step})
            for pid, size, step in zip(pids, (1000, 5000), steps, strict=True)
        }
        return memory_side(tmp_path / name, made)

    base = side("before", (9, 10))
    found = memory_of(base, side("after", (711, 2000)))
    assert [(pair.who, pair.level(PEAK).base, pair.level(PEAK).opt) for pair in found.pairs] == [
        ("rank 0 (process 2), GPU 0", 5000, 5000), ("rank 0, GPU 0", 1000, 1000),
    ]  # fmt: skip
    assert "processes of one rank are paired in the order of their ids" in found.notes
    assert found.median.base == 3000
    assert [sites.who for sites in found.elsewhere] == ["rank 0, GPU 0"]
    # One that took the place of another, in later steps, is the process of that rank.
    again = list_measured_snapshots(side("resumed", (10, 9), steps=(1, 2)))
    assert [(one.whose.number, one.step) for one in again] == [(0, 1), (0, 2)]


def test_saved_reports_tell_levels_step_by_step_of_the_worst_rank():
    def side(name, *values):
        rows = [
            row("device_peak_requested", value + rank, step=at, rank=rank)
            for at, value in enumerate(values, 1)
            for rank in (0, 1)
        ]
        return made_side(name, rows)

    found = compare_memory(side("before", 10 * MIB, 30 * MIB), side("after", 20 * MIB, 25 * MIB))
    assert [(pair.base_step, pair.level(PEAK).base, pair.level(PEAK).opt) for pair in found.pairs] == [
        (2, 30 * MIB + 1, 25 * MIB + 1), (1, 10 * MIB + 1, 20 * MIB + 1),
    ]  # fmt: skip
    assert (found.headline.base, found.headline.opt) == (30 * MIB + 1, 25 * MIB + 1)
    assert found.sites == ()
    assert "saved report" in found.notes[-1]


def test_peaks_that_only_other_tools_told_are_no_snapshots():
    side = made_side("a", [row("device_peak_reserved", 5, step=1), row("device_peak_allocated", 5, step=1)])  # fmt: skip
    assert compare_memory(side, side) is None


def test_a_change_matters_from_a_mebibyte_and_a_hundredth_on():
    def word(base, opt):
        return judge_memory_level(MemoryLevel(PEAK, "peak", "lower", base, opt, opt - base))

    assert word(10, 10) == "same"
    assert word(10 * MIB, 11 * MIB - 1) == "no change"
    assert word(10 * MIB, 11 * MIB) == "regression"
    assert word(300 * MIB, 298 * MIB) == "no change"
    assert word(300 * MIB, 297 * MIB) == "improvement"
