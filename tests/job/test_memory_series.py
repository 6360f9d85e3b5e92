"""Series of memory from tables made by hand: which levels are compared, over which steps, and which grow by enough."""

from dataclasses import replace

import numpy as np
import pytest

from tracekit.analyses import load_default_thresholds
from tracekit.job.memory.trend import (
    Allocator,
    Series,
    grows_enough,
    grows_together,
    label_series,
    list_logged_series,
    list_memory_steps,
    list_profiled_series,
    measure_median_growth,
    number_allocators,
)
from tracekit.model.inputs.facts import Facts
from tracekit.model.stats.trend import Growth, GrowthLimits, Slope, compute_theil_sen, measure_growth
from tracekit.model.tables import TABLES
from tracekit.model.trace import Measurements

load_default_thresholds()  # imports the questions, which declare their tables

MIB = 2**20
GIB = 2**30
LIMITS = GrowthLimits(6, 262_144, 1e-5, MIB, 0.05, 0.01, 0.5)
LEAST = {"growth_bytes": 64 * MIB, "card_ratio": 0.01, "slope_bytes": MIB}
OWNER = {"run": "r", "rank": 0, "source": "a.json", "tool": "torch", "device": 0}
LOGGED = {**OWNER, "tool": "log", "step": None, "at_ns": None, "point": None, "quantity": "allocated"}
SNAPSHOT = {**LOGGED, "tool": "torch_memory", "quantity": "requested"}
STEP = {
    **OWNER, "device_type": 1, "part": None, "step": None, "occurrence": 0, "dur_ns": 100, "relative": False,
    "floor_bytes": None, "end_bytes": None, "peak_bytes": None, "reserved_bytes": None,
}  # fmt: skip
PEAK = {
    **OWNER, "device_type": 1, "sample_count": 1, "unsound_count": 0, "relative": False, "peak_bytes": 600,
    "peak_ts_ns": 0, "reserved_peak_bytes": None, "omitted_stage_count": 0,
}  # fmt: skip
STAGE = {**OWNER, "device_type": 1, "step": None, "occurrence": 0, "dur_ns": 10, "end_bytes": 0}
LEVELS = {
    **OWNER, "tool": "torch_memory", "memory": "device", "entry_count": 1, "unsound_count": 0, "base_bytes": 0,
    "peak_bytes": 500, "reserved_peak_bytes": 700, "end_requested_bytes": 0, "pending_bytes": 0, "off_bytes": 0,
    "alloc_count": 0, "alloc_bytes": 0, "expandable": False,
}  # fmt: skip


def table(name, rows, defaults):
    full = [defaults | row for row in rows]
    names = list(dict.fromkeys(key for row in full for key in row))
    return TABLES[name].cast({key: [row.get(key) for row in full] for key in names})


def measured(device_memory=None, **tables):
    return Measurements(tables, (), facts=Facts(device_memory=device_memory))


def logged(rows, defaults=LOGGED, snapshots=(), **more):
    """The series of these levels, in order of their lines."""
    rows = [{"position": line} | row for line, row in enumerate(rows)]
    tables = {"step_levels": table("step_levels", rows, defaults)}
    if snapshots:
        tables["snapshot_levels"] = table("snapshot_levels", snapshots, LEVELS)
    return list(list_logged_series(measured(**more, **tables), LIMITS))


def levels(*sizes, steps=None, **more):
    """A level of each size at the steps 1, 2 and so on."""
    steps = range(1, len(sizes) + 1) if steps is None else steps
    return [{"step": step, "level_bytes": size} | more for step, size in zip(steps, sizes, strict=True)]


def xy(one):
    return one.x.tolist(), one.level.tolist()


def profiled(steps, peaks=({},), stages=(), **more):
    """The series of these steps, each begun 100 ns after the one before it."""
    rows = [{"ts_ns": 100 * place} | row for place, row in enumerate(steps)]
    tables = {
        "memory_steps": table("memory_steps", rows, STEP), "memory_peaks": table("memory_peaks", peaks, PEAK),
    }  # fmt: skip
    if stages:
        tables["memory_stages"] = table("memory_stages", stages, STAGE)
    return list(list_profiled_series(measured(**more, **tables), LIMITS))


def floors(*sizes, **more):
    return [{"step": step, "floor_bytes": size} | more for step, size in enumerate(sizes, 1)]


# Names


@pytest.mark.parametrize(
    ("device_type", "device", "memory"),
    [
        (0, None, "CPU"), (0, 3, "CPU"), (1, 3, "GPU 3"), (6, 0, "GPU 0"), (1, None, "GPU"), (2, 1, "device 1"),
        (None, 1, "device 1"), (101, 0, "cudaMalloc on GPU 0"), (101, None, "cudaMalloc"), (102, 0, "GPU 0 (snapshot)"),
    ],
)  # fmt: skip
def test_memory_is_named_by_its_device(device_type, device, memory):
    assert Allocator("r", None, 0, None, 1, None, device_type, device).memory == memory


@pytest.mark.parametrize(
    ("whose", "process"),
    [
        (("actor", 3, None, 7, None), "rank 3 actor"), ((None, None, None, 7, None), "process 7"),
        (("rollout", 0, None, 7, 2), "rank 0 replica 2 rollout"), ((None, None, "h", None, None), ""),
    ],
)  # fmt: skip
def test_a_process_is_named_by_its_rank_or_else_its_process_id(whose, process):
    assert Allocator("r", *whose, 1, 0).process.replace(",", "") == process


def test_allocators_are_numbered_in_the_order_of_their_first_rows():
    rows = measured(memory_peaks=table("memory_peaks", [{"device": 1}, {"device": 0}, {"device": 1}], PEAK))
    owners, number = number_allocators(rows.frame("memory_peaks"))
    assert [owner.device for owner in owners] == [1, 0]
    assert number.tolist() == [0, 1, 0]


# Logs and snapshots


def test_levels_of_a_log_are_compared_over_the_numbers_of_their_steps():
    (one,) = logged(levels(10, 30, 70, steps=(0, 2, 6)))
    assert xy(one) == ([0, 2, 6], [10, 30, 70])
    assert (one.numbered, one.logged, one.relative, one.phase) == (True, True, False, "end of the step")
    assert one.point.per_x == one.floor.per_x == 10


@pytest.mark.parametrize("steps", [(None, None, None), (1, 2, None)])
def test_levels_without_numbers_of_steps_are_compared_in_their_order(steps):
    (one,) = logged(levels(10, 30, 70, steps=steps))
    assert xy(one) == ([0, 1, 2], [10, 30, 70])
    assert one.numbered is False


def test_numbers_that_begin_again_are_an_order_only():
    rows = levels(10, 30, 70, steps=(8, 9, 1))
    (one,) = logged([row | {"at_ns": at} for at, row in enumerate(rows)])
    assert (xy(one), one.numbered) == (([0, 1, 2], [10, 30, 70]), False)


def test_levels_are_in_order_of_time_if_all_times_are_known_else_of_steps():
    rows = levels(70, 10, 30, steps=(3, 1, 2))
    times = [5, 3, 4]
    (one,) = logged([row | {"at_ns": at} for at, row in zip(times, rows, strict=True)])
    assert xy(one) == ([1, 2, 3], [10, 30, 70])
    (one,) = logged([row | {"at_ns": at} for at, row in zip((5, None, 4), rows, strict=True)])
    assert xy(one) == ([1, 2, 3], [10, 30, 70])


def test_a_step_that_was_logged_again_counts_as_it_was_last():
    (one,) = logged(levels(10, 20, 25, 30, steps=(1, 2, 2, 3)))
    assert xy(one) == ([1, 2, 3], [10, 25, 30])


def test_the_point_that_most_steps_have_is_compared_and_the_last_of_equals():
    rows = [*levels(1, 2, 3, point="begin"), *levels(7, 8, point="middle"), *levels(4, 5, 6, point="end")]
    (one,) = logged(rows)
    assert (one.phase, one.level.tolist()) == ("end", [4, 5, 6])
    (one,) = logged([*levels(1, 2, 3, point="begin"), *levels(7, 8, 9, 9, steps=(1, 1, 2, 2), point="middle")])
    assert (one.phase, one.level.tolist()) == ("begin", [1, 2, 3])


def test_points_without_numbers_of_steps_are_counted_by_their_levels():
    rows = [*levels(1, 2, 3, steps=[None] * 3, point="begin"), *levels(7, 8, point="end")]
    (one,) = logged(rows)
    assert (one.phase, one.level.tolist()) == ("begin", [1, 2, 3])


@pytest.mark.parametrize(
    ("quantity", "judged"),
    [
        ("requested", True), ("allocated", True), ("reserved", False), ("peak allocated", False),
        ("peak reserved", False),
    ],
)  # fmt: skip
def test_only_requested_and_allocated_bytes_are_tested_for_growth(quantity, judged):
    (one,) = logged(levels(*(GIB + MIB * n for n in range(12)), quantity=quantity))
    assert one.judged is judged
    assert (one.found.p is not None) is judged
    assert one.point.per_x == MIB


def test_each_quantity_of_a_log_has_a_series_and_what_was_taken_is_the_most_of_all():
    by_quantity = {one.quantity: one for one in logged(levels(5, 6) + levels(9, 8, quantity="reserved"))}
    assert {name: one.level.tolist() for name, one in by_quantity.items()} == {"allocated": [5, 6], "reserved": [9, 8]}
    assert [(one.taken_bytes, one.cached) for one in by_quantity.values()] == [(9, True)] * 2
    (one,) = logged(levels(5, 6))
    assert (one.taken_bytes, one.cached) == (6, False)
    *_, peak = logged(levels(5, 6) + levels(9, 8, quantity="peak reserved"))
    assert peak.cached is True


def test_what_a_snapshot_took_of_the_device_is_known_from_its_own_levels():
    snapshots = [
        {},
        {"memory": "host", "peak_bytes": 9_000, "reserved_peak_bytes": 9_000},
        {"rank": 1, "peak_bytes": 8_000},
    ]
    one, log = logged([*levels(5, 6, **SNAPSHOT | {"step": 1}), *levels(7, 8)], snapshots=snapshots)
    assert (one.of.kind, one.taken_bytes, one.cached) == ("GPU (snapshot)", 700, True)
    assert (log.of.kind, log.taken_bytes, log.cached) == ("GPU", 8, False)


def test_the_size_of_the_device_goes_with_its_levels():
    (one,) = logged(levels(5, 6), device_memory=GIB)
    assert one.card.size_bytes == GIB
    assert logged(levels(5, 6))[0].card is None


def unnamed(*sources, **more):
    """Levels of snapshots without rank and process id: (source, steps)."""
    rows = [
        {"source": source, "step": step, "level_bytes": 10 * number + place}
        for number, (source, steps) in enumerate(sources, 1)
        for place, step in enumerate(steps)
    ]
    (one,) = logged([row | {"rank": None} | more for row in rows], SNAPSHOT)
    return xy(one)


def test_snapshots_that_may_be_of_several_processes_are_not_compared():
    """Each holds several steps, or tells of none; the one with most levels counts, the first by name of equals."""
    assert unnamed(("b", (1, 2)), ("a", (3, 4, 5)))[1] == [20, 21, 22]
    assert unnamed(("b", (1, 2)), ("a", (3, 4)))[1] == [20, 21]
    assert unnamed(("b", (None,)), ("a", (None,)))[1] == [20]
    assert unnamed(("b", (1, 2)), ("a", (3,)))[1] == [10, 11]


def test_snapshots_of_one_step_each_are_compared():
    assert unnamed(("b", (1,)), ("a", (2,))) == ([1, 2], [10, 20])
    assert unnamed(("b", (1,)), ("a", (None,)))[1] == [10, 20]


@pytest.mark.parametrize("known", [{"rank": 3}, {"pid": 7}, {"tool": "log"}])
def test_levels_of_one_process_are_compared_whichever_files_hold_them(known):
    assert unnamed(("b", (1, 2)), ("a", (3, 4, 5)), **known)[1] == [10, 11, 20, 21, 22]


# Profiles


def test_levels_of_a_profile_are_compared_over_the_numbers_of_their_steps():
    (one,) = profiled([{"step": step, "floor_bytes": size} for step, size in ((0, 10), (2, 30), (6, 70))])
    assert (xy(one), one.numbered) == (([0, 2, 6], [10, 30, 70]), True)
    assert (one.logged, one.quantity, one.phase) == (False, "allocated", "floor of the step")


def test_steps_without_numbers_or_with_equal_ones_are_compared_in_their_order():
    for rows in (
        [{"floor_bytes": 10, "occurrence": 0}, {"floor_bytes": 30, "occurrence": 1}],
        [{"step": 1, "floor_bytes": 10}, {"step": 1, "floor_bytes": 30, "occurrence": 1}],
        [{"step": 1, "floor_bytes": 10}, {"floor_bytes": 30}],
    ):
        (one,) = profiled(rows)
        assert one.numbered is False
        assert sorted(one.level.tolist()) == [10, 30]
        assert one.x.tolist() == [0, 1]


def test_steps_without_a_level_are_left_out():
    (one,) = profiled(floors(10, None, 30))
    assert xy(one) == ([1, 3], [10, 30])
    assert profiled(floors(None, None)) == []


def test_memory_of_snapshots_and_without_a_peak_has_no_series_here():
    assert profiled(floors(10, 20, device_type=102), [{"device_type": 102}]) == []
    assert profiled(floors(10, 20), [{"device": 1}]) == []


@pytest.mark.parametrize("which", [0, 1, 2])
def test_levels_from_the_start_of_a_recording_are_of_the_longest_one_without_its_first_step(which):
    rows = floors(10, 20, 30)
    rows[which]["relative"] = True
    (one,) = profiled([*rows, {"step": 4, "floor_bytes": 90, "source": "b.json"}])
    assert (one.relative, xy(one)) == (True, ([2, 3], [20, 30]))
    assert profiled(floors(10, relative=True)) == []


def test_levels_of_a_host_are_of_the_longest_recording():
    rows = [*floors(10, 20, device_type=0), {"step": 3, "floor_bytes": 90, "source": "b.json", "device_type": 0}]
    (one,) = profiled(rows, [{"device_type": 0}], device_memory=GIB)
    assert (one.relative, xy(one), one.card) == (False, ([1, 2], [10, 20]), None)
    (one,) = profiled([row | {"device_type": 1} for row in rows], device_memory=GIB)
    assert xy(one) == ([1, 2, 3], [10, 20, 90])
    assert one.card.size_bytes == GIB


@pytest.mark.parametrize(
    ("peaks", "taken", "cached"),
    [
        ([(600, None), (500, None)], 600, False), ([(600, 900), (700, 800)], 900, True),
        ([(600, 400), (500, None)], 600, True), ([(0, 0)], 0, True), ([(300, None), (200, 400)], 400, True),
    ],
)  # fmt: skip
def test_the_most_taken_of_a_device_is_what_is_reserved_or_else_in_use(peaks, taken, cached):
    rows = [{"peak_bytes": in_use, "reserved_peak_bytes": reserved} for in_use, reserved in peaks]
    (one,) = profiled(floors(10, 20), rows)
    assert (one.taken_bytes, one.cached) == (taken, cached)


def ends(stage, begin, *sizes, **more):
    """This stage of the steps 1, 2 and so on, begun so long after each; these bytes are in use at its ends."""
    return [
        {"step": step, "stage": stage, "ts_ns": 100 * step + begin, "end_bytes": size} | more
        for step, size in enumerate(sizes, 1)
    ]


def test_levels_are_compared_at_the_end_of_the_actor_s_update_then_the_critic_s_then_the_last_stage():
    actor, critic = ends("update_actor", 10, 50, 70), ends("update_critic", 5, 51, 71)
    last, first = ends("ref", 60, 52, 72), ends("gen", 0, 53, 73)
    for stages, name, level in (
        ([*actor, *critic, *last, *first], "end of update_actor", [50, 70]),
        ([*critic, *last, *first], "end of update_critic", [51, 71]),
        ([*last, *first], "end of ref", [52, 72]),
        (actor[:1], "floor of the step", [10, 20]),
        ([*actor[:1], *first], "end of gen", [53, 73]),
        (ends("update_actor", 10, 50, None), "floor of the step", [10, 20]),
        (ends("update_actor", 10, 50, 70, device=1), "floor of the step", [10, 20]),
    ):
        (one,) = profiled(floors(10, 20), stages=stages)
        assert (one.phase, one.level.tolist()) == (name, level)
        assert one.floor.per_x == 10
        assert one.point.per_x == level[1] - level[0]


def test_parts_of_one_step_make_one_row():
    """The least floor, the highest peak, and the end of the last part with a known end."""
    rows = [
        {"source": "a", "part": "mb0", "ts_ns": 5, "floor_bytes": 30, "end_bytes": 7, "peak_bytes": 90, "reserved_bytes": 100},
        {"source": "b", "part": "mb1", "ts_ns": 9, "floor_bytes": 20, "end_bytes": 40, "peak_bytes": 60, "reserved_bytes": 200},
        {"source": "c", "part": "mb2", "ts_ns": 12, "floor_bytes": 25, "end_bytes": None, "peak_bytes": 95, "relative": True},
    ]  # fmt: skip
    rows = [{"step": 1} | row for row in rows]
    other = {"step": 0, "ts_ns": 50, "floor_bytes": 1, "end_bytes": None}
    found = list_memory_steps(measured(memory_steps=table("memory_steps", [rows[1], other, rows[2], rows[0]], STEP)))
    first, second = found.rows(
        "step", "source", "ts_ns", "floor_bytes", "end_bytes", "peak_bytes", "reserved_bytes", "relative"
    )
    assert list(second.values()) == [1, "a", 5, 20, 40, 95, 200, True]
    assert list(first.values()) == [0, "a.json", 50, 1, None, None, None, False]


def test_parts_without_a_number_of_their_step_stay_apart():
    rows = [{"part": part, "ts_ns": ts, "floor_bytes": 1} for part, ts in (("mb0", 5), ("mb1", 3))]
    found = list_memory_steps(measured(memory_steps=table("memory_steps", rows, STEP)))
    assert found.values("part") == ["mb1", "mb0"]


# Growth


def series(level, **changes):
    """A profiled GPU at these levels in the steps 0, 1 and so on."""
    level = np.array(level, np.float64)
    x = np.arange(len(level), dtype=np.float64)
    slope = compute_theil_sen(x, level)
    made = Series(
        Allocator("r", None, 0, None, 1, None, 1, 0), "end", relative=False, x=x, level=level, floor=slope, point=slope,
        found=measure_growth(x, level, LIMITS), taken_bytes=0, cached=False, card=None, numbered=True,
    )  # fmt: skip
    return replace(made, **changes)


def rising(by=MIB, steps=12):
    return [GIB + by * step for step in range(steps)]


def of_rank(rank):
    return Allocator("r", None, rank, None, rank, None, 1, 0)


def test_p_is_corrected_for_all_series_of_a_group():
    one = series(rising())
    alone = one.found.p
    labels, corrected = label_series([one], LIMITS)
    assert (labels, corrected) == (["strong"], [alone])
    labels, corrected = label_series([replace(one, of=of_rank(rank)) for rank in range(3)], LIMITS)
    assert corrected == pytest.approx([3 * alone] * 3)
    labels, corrected = label_series([one, replace(one, quantity="requested"), replace(one, logged=True)], LIMITS)
    assert corrected == [alone] * 3


def test_series_that_are_too_short_or_not_judged_have_no_p():
    short, cache = series(rising(steps=5)), series(rising(), quantity="reserved", found=Growth(None))
    assert label_series([short, cache, series(rising())], LIMITS)[0] == ["too few", None, "strong"]
    assert label_series([short, cache], LIMITS)[1] == [None, None]


@pytest.mark.parametrize(
    ("changes", "enough"),
    [
        ({}, True),
        ({"level": np.array([0.0, 0, 0, 64 * MIB])}, True),
        ({"level": np.array([0.0, 0, 0, 64 * MIB - 1])}, False),
        ({"level": np.array([0.0, MIB, 2 * MIB, 64 * MIB])}, True),
        ({"level": np.array([-GIB, 0.0, 0, 64 * MIB - 1]), "found": Growth(None, 1)}, False),
        ({"level": np.array([GIB, 0.0, 0, 64 * MIB]), "found": Growth(None, 1)}, True),
        ({"floor": None}, False),
        ({"floor": Slope(MIB, 0, 0, 4)}, True),
        ({"floor": Slope(MIB - 1, 0, 0, 4)}, False),
        ({"level": np.zeros(4), "floor": None, "logged": True}, True),
    ],
)
def test_a_profiled_series_has_to_grow_in_all_and_from_step_to_step(changes, enough):
    one = series([0, 40 * MIB, 80 * MIB, 120 * MIB], found=Growth(None))
    assert grows_enough(replace(one, **changes), LEAST) is enough


def test_a_large_device_asks_for_more_growth():
    """1 % of it: 100 MiB of 10,000; of a small one the least that matters stays 64 MiB."""
    (card,) = [one.card for one in logged(levels(5, 6), device_memory=10_000 * MIB)]
    for growth, size, enough in ((100, 10_000, True), (99, 10_000, False), (64, 100, True), (63, 100, False)):
        one = series([0, 0, 0, growth * MIB], found=Growth(None), floor=Slope(MIB, 0, 0, 4))
        assert grows_enough(replace(one, card=replace(card, size_bytes=size * MIB)), LEAST) is enough


def test_the_median_of_series_with_the_same_steps_is_tested():
    """Rank 0 rises by 1 MiB a step, rank 1 by 3: their median rises by 2."""
    pair = [series(rising(MIB)), series(rising(3 * MIB), of=of_rank(1))]
    assert measure_median_growth(pair, LIMITS).slope.per_x == 2 * MIB
    assert measure_median_growth(pair[:1], LIMITS) is None
    assert measure_median_growth([pair[0], replace(pair[1], x=pair[1].x + 1)], LIMITS) is None


def test_series_grow_together_if_their_median_does_and_each_by_enough():
    large, small = series(rising(16 * MIB)), series(rising(2 * MIB), of=of_rank(1))
    flat = series([GIB] * 12, logged=True, of=of_rank(1))
    assert grows_together([large, large], LIMITS, LEAST)
    assert not grows_together([large, small], LIMITS, LEAST)
    assert not grows_together([flat, flat], LIMITS, LEAST)
    assert not grows_together([large], LIMITS, LEAST)
