"""Windows of steps and stages: which instants they contain, and which ranges they are made of."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from chrome_builder import BACKWARD, BASE_NS, annotation, kernel, launched, op, step, write

import tracekit
from tracekit.model.tables.arrays import Nullable
from tracekit.model.trace import Account, ReportedCapture
from tracekit.process.steps.windows import (
    StepWindows,
    find_steps_and_stages,
)

NS = 1_000


def load(tmp_path, rows, name="rank0.json", **meta):
    return tracekit.load(write(tmp_path / name, rows, **meta))


def windows(*rows, numbers, **before):
    """Steps from (start, length) and their numbers, None where one has none."""
    ts, dur = np.array(rows, np.int64).reshape(-1, 2).T
    step = Nullable(np.array([n or 0 for n in numbers], np.int64), np.array([n is None for n in numbers]))
    return StepWindows(ts, dur, step, np.arange(len(ts), dtype=np.int32), "profiler", **before)


def known(numbers):
    """The numbers, None where missing."""
    return [None if missing else int(n) for n, missing in zip(numbers.values, numbers.missing, strict=True)]


THREE = windows((0, 10), (10, 0), (30, 5), numbers=(4, None, 6))


def test_windows_are_half_open_and_an_empty_one_contains_its_start_where_asked():
    at = np.array([-1, 0, 9, 10, 11, 29, 30, 34, 35])
    assert THREE.row_at(at).tolist() == [-1, 0, 0, -1, -1, -1, 2, 2, -1]
    assert THREE.or_start_at(at).tolist() == [-1, 0, 0, 1, -1, -1, 2, 2, -1]
    assert THREE.end_ns.tolist() == [10, 10, 35]
    assert known(THREE.number_at(at)) == [None, 4, 4, None, None, None, 6, 6, None]
    assert known(THREE.numbers(np.array([2, -1, 1, 0]))) == [6, None, None, 4]


def test_an_instant_has_the_number_of_the_step_around_it():
    at = np.array([-1, 0, 9, 10, 11, 29, 30, 34, 35])
    assert THREE.or_start_at(at).tolist() == [-1, 0, 0, 1, -1, -1, 2, 2, -1]
    assert known(THREE.number_at(at)) == [None, 4, 4, None, None, None, 6, 6, None]
    assert known(THREE.take(np.array([], np.int64)).number_at(at)) == [None] * len(at)


def test_rows_that_are_taken_keep_what_is_before_them():
    started = windows((0, 10), (20, 10), numbers=(1, 2), start_up_ns=np.array([3, 4]), skew_ns=np.array([5, 6]))
    second = started.take(np.array([1]))
    assert {name: values.tolist() for name, values in second.before.items()} == {"start_up_ns": [4], "skew_ns": [6]}
    assert (second.ts_ns.tolist(), known(second.step), second.occurrence.tolist()) == ([20], [2], [1])
    plain = THREE.take(np.array([0, 2]))
    assert {name: values.tolist() for name, values in plain.before.items()} == {
        "start_up_ns": [0, 0], "skew_ns": [0, 0],
    }  # fmt: skip
    assert len(plain) == 2


# Threads


@pytest.mark.parametrize(("other", "stage"), [(13, "ref"), (12, "gen"), (11, "gen")])
def test_stages_are_those_of_the_thread_that_they_cover_longest(tmp_path, other, stage):
    """`gen` covers 12, with a range within it that counts once; of equals the first thread is taken."""
    rows = [annotation("gen", 100, 12), annotation("update_actor", 102, 9), annotation("ref", 200, other, tid=BACKWARD)]
    found = find_steps_and_stages(load(tmp_path, rows)).stages
    assert found["stage"].tolist()[0] == stage


def test_the_thread_of_the_steps_goes_before_that_of_longer_stages(tmp_path):
    rows = [step(1, 0, 10), annotation("gen", 0, 5), annotation("ref", 0, 500, tid=BACKWARD)]
    assert find_steps_and_stages(load(tmp_path, rows)).stages["stage"].tolist() == ["gen"]


# Stages and steps around one another


def stages_of(tmp_path, *ranges, steps=((1, 100, 50), (2, 150, 50))):
    rows = [step(*one) for one in steps] + [annotation(*one) for one in ranges]
    return find_steps_and_stages(load(tmp_path, [*rows, op("aten::mm", 1, 2)])).stages["stage"].astype(str).tolist()


@pytest.mark.parametrize(
    ("begin", "length", "is_stage"),
    [
        (100, 50, True),  # as long as the step
        (99, 51, False),  # begins before it and holds all of it
        (99, 50, True),  # does not hold all of it
        (100, 51, True),  # ends after it by the rounding of times
        (100, 52, False),
        (101, 98, True),  # begins in it and ends within the next one
        (120, 80, False),  # holds the next one
    ],
)
def test_a_range_that_holds_more_than_a_step_is_no_stage(tmp_path, begin, length, is_stage):
    assert stages_of(tmp_path, ("load", begin, length)) == (["load"] if is_stage else [])


def test_a_known_stage_may_hold_steps(tmp_path):
    assert stages_of(tmp_path, ("update_actor", 90, 200)) == ["update_actor"]


def test_a_step_without_length_is_held_by_any_range(tmp_path):
    assert stages_of(tmp_path, ("load", 90, 20), steps=((1, 100, 0), (2, 150, 50))) == ["load"]


def test_a_stage_that_begins_as_its_step_ends_is_of_the_next(tmp_path):
    """The clock has whole microseconds: one that begins 1 before the next step is of that."""
    rows = [step(1, 0, 100), step(2, 100, 100), op("aten::mm", 3, 5)]
    rows += [annotation(name, at, 10) for name, at in (("gen", 98), ("ref", 99), ("reward", 100))]
    found = find_steps_and_stages(load(tmp_path, rows)).stages
    assert dict(zip(found["stage"], found["step"], strict=True)) == {"gen": 1, "ref": 2, "reward": 2}


def test_stages_outside_all_steps_have_no_number_and_count_for_themselves(tmp_path):
    rows = [step(1, 100, 50)] + [annotation("gen", at, 10) for at in (0, 20, 100, 120, 160)]
    rows += [annotation("ref", at, 5) for at in (40, 140)]
    found = find_steps_and_stages(load(tmp_path, rows)).stages
    told = [
        (stage, None if pd.isna(number) else number, occurrence)
        for stage, number, occurrence in zip(found["stage"], found["step"], found["occurrence"], strict=True)
    ]
    assert told == [
        ("gen", None, 0), ("gen", None, 1), ("ref", None, 0), ("gen", 1, 0), ("gen", 1, 1), ("ref", 1, 0), ("gen", None, 2),
    ]  # fmt: skip


# Files that are steps


FILE = "actor_{}_step7_rank1-of-2_pid9_20260101000000000.json"


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (("gen", "reward", "gen", "reward"), [7, 8]),
        (("gen", "reward", "gen", "reward", "gen", "reward"), [7, 8, 9]),
        (("gen", "reward", "gen"), [7]),  # reward came once
        (("gen", "reward", "gen", "reward", "gen"), [7]),
        (("gen", "gen", "gen", "gen"), [7]),
        (("gen", "reward", "ref", "adv"), [7]),
        (("gen", "gen", "reward", "reward"), [7, 8]),
    ],
)
def test_a_file_is_divided_where_all_its_stages_come_equally_often(tmp_path, names, numbers):
    rows = [annotation(name, 100 * at, 50) for at, name in enumerate(names)]
    found = find_steps_and_stages(load(tmp_path, rows, FILE.format("train"))).steps
    assert found["step"].tolist() == numbers
    assert found["origin"].unique().tolist() == ["file"]


def test_a_stage_within_its_like_divides_nothing(tmp_path):
    rows = [annotation(name, 100 * at, 50) for at, name in enumerate(("gen", "reward") * 2)]
    rows += [annotation("load", at, 5) for at in (10, 20, 30, 110)]
    assert find_steps_and_stages(load(tmp_path, rows, FILE.format("train"))).steps["step"].tolist() == [7, 8]


def test_a_file_that_is_a_step_lasts_until_the_work_launched_in_it_ends(tmp_path):
    """The host from 10 to 60, the kernel until 90; work launched before does not count."""
    rows = [op("a", 10, 50), *launched("k", 20, 30, 60, 1), kernel("before", 0, 4)]
    (found,) = find_steps_and_stages(load(tmp_path, rows, FILE.format("train"))).steps.to_dict("records")
    assert (found["ts_ns"], found["dur_ns"]) == (BASE_NS + 10 * NS, 80 * NS)


def test_a_capture_whose_device_was_still_busy_begins_with_its_own_work(tmp_path):
    """The device works until 20,000 on what was launched before; a file that is a step begins with the host."""
    rows = [op("a", 0, 500), kernel("before", 2, 19_990), *launched("k", 10, 20_000, 60, 1)]
    for name, begin in (("rank0.json", 20_000), (FILE.format("train"), 0)):
        (found,) = find_steps_and_stages(load(tmp_path, rows, name)).steps.to_dict("records")
        assert ((found["ts_ns"] - BASE_NS) // NS, (found["dur_ns"]) // NS) == (begin, 20_060 - begin)


# Captures that a process reports of itself


def reported(*captures, name="rank0.manifest", **more):
    """The account of a process: (step, start, end) of each capture in µs, None where it is not known."""
    known = [
        ReportedCapture(number, start_unix_ns=None if begin is None else BASE_NS + begin * NS,
                        stop_unix_ns=None if end is None else BASE_NS + end * NS)
        for number, begin, end in captures
    ]  # fmt: skip
    return Account(name, 7, captures=tuple(known), **more)


def captured(tmp_path, rows, *accounts, **meta):
    trace = load(tmp_path, rows, **meta)
    return find_steps_and_stages(replace(trace, source=replace(trace.source, accounts=accounts)))


def extents(found):
    """(number, begin, length) of each step, in µs."""
    rows = found.step_rows
    numbers = known(rows.step)
    return [
        (number, (int(at) - BASE_NS) // NS, int(dur) // NS)
        for number, at, dur in zip(numbers, rows.ts_ns, rows.dur_ns, strict=True)
    ]


TWO = [annotation("gen", 100, 40), annotation("gen", 300, 60), op("between", 200, 10)]


def test_the_steps_are_those_that_the_process_captured(tmp_path):
    """What lies between two captures is part of neither."""
    found = captured(tmp_path, TWO, reported((3, 290, 400), (2, 90, 150)))
    assert extents(found) == [(2, 100, 40), (3, 300, 60)]
    assert found.steps["origin"].tolist() == ["file", "file"]
    assert found.steps["occurrence"].tolist() == [0, 0]
    assert found.stages["step"].tolist() == [2, 3]
    unknown = captured(tmp_path, TWO, reported((None, 290, 400), (None, 90, 150), (8, 195, 205)))
    assert extents(unknown) == [(None, 100, 40), (8, 200, 10), (None, 300, 60)]
    assert unknown.steps["occurrence"].tolist() == [0, 0, 1]


def test_a_capture_that_did_not_end_lasts_until_the_last_row(tmp_path):
    assert extents(captured(tmp_path, TWO, reported((2, 90, None)))) == [(2, 100, 260)]


def test_captures_without_a_row_are_of_another_file(tmp_path):
    """One begins when the last row has begun, one ends when the first begins."""
    elsewhere = (1, 50, 100), (4, 301, 500), (5, None, None)
    assert extents(captured(tmp_path, TWO, reported((2, 90, 150), *elsewhere))) == [(2, 100, 40)]
    assert extents(captured(tmp_path, TWO, reported(*elsewhere))) == [(None, 100, 260)]


def test_without_a_common_clock_captures_cannot_be_placed(tmp_path):
    found = captured(tmp_path, TWO, reported((2, 90, 150)), base_ns=None)
    assert known(found.step_rows.step) == [None]


def test_a_process_beside_those_that_captured_has_only_their_time(tmp_path):
    helper = reported((2, 90, 150), name="")
    assert extents(captured(tmp_path, TWO, helper)) == [(2, 100, 40)]
    assert captured(tmp_path, TWO, helper).stages["ts_ns"].tolist() == [BASE_NS + 100 * NS]
    assert extents(captured(tmp_path, TWO, reported((2, 50, 90), name=""))) == []
    # With a manifest of its own it was captured all the time.
    assert extents(captured(tmp_path, TWO, reported((2, 50, 90), name=""), reported(name="own"))) == [(None, 100, 260)]


def test_captures_of_single_stages_are_no_steps(tmp_path):
    found = captured(tmp_path, TWO, reported((2, 90, 150), discrete=True))
    assert found.steps["origin"].tolist() == ["stage"]


def test_a_capture_ends_with_its_device_work_but_not_after_the_next_begins(tmp_path):
    """The work of the first ends at 200, or at 350 when the next has begun at 290."""
    for length, expected in ((90, 100), (240, 190)):
        rows = [annotation("gen", 100, 40), annotation("gen", 300, 60), *launched("k", 105, 110, length, 1)]
        found = captured(tmp_path, rows, reported((2, 90, 150), (3, 290, 400)))
        assert extents(found)[0] == (2, 100, expected)


# Recordings without marks


WORK = launched("gemm", 520, 530, 30, 1)
AROUND = [annotation("main", 0, 1000), annotation("warmup", 505, 300), annotation("measure", 810, 150)]


def outer_stages(trace):
    stages = find_steps_and_stages(trace).stages
    return stages[stages["parent"].isna()]["stage"].tolist()


def test_a_range_around_two_others_or_more_is_the_recording(tmp_path):
    assert outer_stages(load(tmp_path, [*AROUND, *WORK])) == ["warmup", "measure"]
    assert outer_stages(load(tmp_path, [*AROUND[:2], *WORK])) == ["main"]
    # Two that enclose nothing of one another stay.
    assert outer_stages(load(tmp_path, [*AROUND, annotation("next", 1000, 50), *WORK])) == ["main", "next"]
    # What another thread does meanwhile is not enclosed, and does not matter.
    elsewhere = annotation("load", 0, 900, tid=BACKWARD)
    assert outer_stages(load(tmp_path, [*AROUND, elsewhere, *WORK])) == ["warmup", "measure"]
    # The host alone was recorded: nothing tells where its work is.
    assert outer_stages(load(tmp_path, [*AROUND, op("aten::mm", 520, 30)])) == ["main"]


@pytest.mark.parametrize(
    ("facts", "is_told"),
    [
        ({"part": "capture2"}, True),
        ({"part": "mb1"}, False),
        ({"step": 0}, True),
        ({"replica": 0}, True),
        ({"scope": "actor-update", "role": "actor"}, True),
        ({"scope": "train", "role": "actor"}, False),
        ({"accounts": (reported((1, 0, 2000)),)}, True),
        ({"accounts": (reported(),)}, False),
    ],
)
def test_ranges_around_everything_stay_where_the_file_or_its_process_tells_what_it_is(tmp_path, facts, is_told):
    trace = load(tmp_path, [*AROUND, *WORK])
    trace = replace(trace, source=replace(trace.source, **facts))
    assert outer_stages(trace) == (["main"] if is_told else ["warmup", "measure"])


def test_windows_of_what_repeats_are_numbered_from_one(tmp_path):
    rows = []
    for n in range(4):
        name = f"execute_context_{n}(8)_generation_0(0)"
        rows += [annotation(name, 100 * n, 40), *launched("gemm", 100 * n + 2, 100 * n + 5, 30, 10 + n)]
    found = find_steps_and_stages(load(tmp_path, rows))
    assert found.steps["step"].tolist() == [1, 2, 3, 4]
    assert found.steps["occurrence"].tolist() == [0, 0, 0, 0]
    assert found.steps["origin"].unique().tolist() == ["iteration"]


def steady(at, count=20):
    """Kernels of 90 µs, one launched every 100 µs from `at` on."""
    return [row for k in range(count) for row in launched("a", at + 100 * k, at + 100 * k + 5, 90, 100 + k)]


STARTING = [*launched("a", 30, 300_034, 50, 1), *steady(300_100)]
STARTING[0]["dur"] = 300_000


@pytest.mark.parametrize(
    ("begin", "length", "kept"),
    [
        (200_030, 200_000, (300_030, 100_000)),  # half of it is start-up
        (200_030, 199_998, None),
        (299_000, 4_000, (300_030, 2_970)),
        (300_100, 500, (300_100, 500)),
        (100, 1_000, None),
    ],
)
def test_stages_of_a_recording_begin_after_its_start_up(tmp_path, begin, length, kept):
    """Until 300,030 the first launch loads its code."""
    rows = [op("aten::add", 0, 300_060), *STARTING, annotation("gen", begin, length)]
    found = find_steps_and_stages(load(tmp_path, rows))
    assert ((int(found.step_rows.ts_ns[0]) - BASE_NS) // NS, found.step_rows.before["start_up_ns"].tolist()) == (
        300_030, [300_030 * NS],
    )  # fmt: skip
    stages = [
        ((int(at) - BASE_NS) // NS, int(dur) // NS)
        for at, dur in zip(found.stage_rows.ts_ns, found.stage_rows.dur_ns, strict=True)
    ]
    assert stages == ([] if kept is None else [kept])
