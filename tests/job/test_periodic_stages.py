"""Stages that only some steps have: their share of all steps, their period, and what they are no sign of."""

from pathlib import Path

import pytest
from chrome_builder import annotation, launched, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tables import make_measured

from tracekit.job.driver_log import RunDriverLog
from tracekit.job.frames import summarize_step_walls
from tracekit.job.stages.durations import measure_stage_durations
from tracekit.job.stages.periodic import (
    describe_periodic_stages,
    find_logged_periodic_stages,
    find_stage_period,
    list_chore_keys,
    list_periodic_stages,
    sum_planned_stage_time,
)
from tracekit.model.tables.frame import from_rows
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("steps", "rl-matrix")
GEN, UPDATE, TEST = 60_000, 40_000, 30_000


def rows_of(steps, *, between=False):
    """A rank whose steps are lists of (stage, µs): one kernel a stage, steps one after the other.

    With `between`, what is called `testing` lies behind its step.
    """
    rows, at, number = [], 0, 0
    for index, stages in enumerate(steps, 1):
        begin = at
        inside = [part for part in stages if not (between and part[0] == "testing")]
        behind = [part for part in stages if part not in inside]
        for name, length in inside:
            number += 1
            rows += [annotation(name, at, length)]
            rows += launched("gemm", at + 1, at + 2, max(length - 3, 1), number)
            at += length
        rows.append(step(index, begin, at - begin))
        for name, length in behind:
            rows.append(annotation(name, at, length))
            at += length
    return rows


def result_of(folder, *ranks, **options):
    """What analyzing these ranks gives."""
    for rank, steps in enumerate(ranks):
        write(Path(folder) / f"rank{rank}.json", rows_of(steps, **options), rank=rank, world_size=len(ranks))
    return analyze_uncached(folder, Options(jobs=1, questions=QUESTIONS))


def shares(measured):
    """The share of the step of each stage."""
    walls = measure_stage_durations(measured)
    return dict(zip(walls.values("canonical"), walls.number("share_ratio", missing=-1).tolist(), strict=True))


def with_validation(count, every, length=TEST):
    """So many steps, of which every k-th validates."""
    return [
        [("gen", GEN), ("update_actor", UPDATE), *([("testing", length)] if n % every == 0 else [])]
        for n in range(1, count + 1)
    ]


def test_a_stage_of_four_in_seven_steps_is_shared_out_over_all(tmp_path):
    """7 steps, validation in 1, 3, 5, 7; the first does not count: 3 · 30 of 3 · 100 + 3 · 130 = 690."""
    steps = [[("gen", GEN), ("update_actor", UPDATE), *([("testing", TEST)] if n % 2 else [])] for n in range(1, 8)]
    measured = result_of(tmp_path, steps).report
    table = measured.overview
    columns = [heading.name for heading in table.headings]
    cells = {row[0]: dict(zip(columns, row, strict=True)) for row in table.rows}
    assert cells["test"]["wall_ns"] == 30_000_000
    assert cells["test"]["share_ratio"] == pytest.approx(90 / 690)
    assert cells["gen"]["share_ratio"] == pytest.approx(360 / 690)
    assert sum(row["share_ratio"] for row in cells.values()) == pytest.approx(1)
    assert "test: 30.0 ms every 2 steps, 13 % of the time." in table.caption
    assert [f.rule for f in measured.findings] == ["periodic-stage"]


def test_validation_between_steps_has_no_share_of_the_step_but_of_the_time(tmp_path):
    """20 steps of 100 ms, the first left out, 82 ms behind every fifth: 328 of 1,900 + 328."""
    found = result_of(tmp_path, with_validation(20, 5, 82_000), between=True)
    table = found.report.overview
    assert [row[:3] for row in table.rows][-1] == ("test", 82_000_000, None)
    assert "test: 82.0 ms every 5 steps, between steps, 15 % of the time." in table.caption


def test_validation_of_one_rank_alone_is_told_as_long_as_it_takes(tmp_path):
    """Rank 0 validates in steps 2, 4, 6, 8: 4 · 30 of 3 · 100 + 4 · 130."""
    both = with_validation(8, 2)
    found = result_of(tmp_path, both, [stages[:2] for stages in both])
    columns = [heading.name for heading in found.report.overview.headings]
    (row,) = [r for r in found.report.overview.rows if r[0] == "test"]
    cells = dict(zip(columns, row, strict=True))
    assert (cells["wall_ns"], cells["ranks"]) == (30_000_000, 1)
    assert cells["share_ratio"] == pytest.approx(120 / 820)


def test_ranks_in_different_stages_at_one_time_do_not_make_more_than_the_step(tmp_path):
    """gen 60 and 30, old_log_prob 20 and 50 of 80: the longest add up to 110; means 45 and 35."""
    ranks = ([[("gen", 60_000), ("old_log_prob", 20_000)]] * 4, [[("gen", 30_000), ("old_log_prob", 50_000)]] * 4)
    found = shares(result_of(tmp_path, *ranks).measurements)
    assert found == {"gen": pytest.approx(45 / 80), "old_log_prob": pytest.approx(35 / 80)}


def test_an_irregular_stage_has_no_period(tmp_path):
    """In steps 3 and 4 of 2–8."""
    steps = [[("gen", GEN), *([("evict", TEST)] if number in (3, 4) else [])] for number in range(1, 9)]
    found = result_of(tmp_path, steps)
    assert "evict: 30.0 ms in 2 of 7 steps, 12 % of the time." in found.report.overview.caption
    # Nothing says that it was planned: the steps vary.
    assert "step-variance" in [finding.rule for finding in found.report.findings]


def test_stages_of_every_step_need_no_words(tmp_path):
    assert result_of(tmp_path, [[("gen", GEN), ("update_actor", UPDATE)]] * 6).report.overview.caption == ""


@settings(max_examples=20)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["gen", "update_actor", "testing", "save"]), st.integers(20, 90)),
            min_size=1,
            max_size=4,
            unique_by=lambda part: part[0],
        ),
        min_size=2,
        max_size=7,
    )
)
def test_shares_are_of_all_steps_and_add_up(tmp_path_factory, steps):
    """Stages fill each step: whatever is missing where, the shares add up to 1, each its time over all time."""
    found = result_of(tmp_path_factory.mktemp("steps"), steps).measurements
    kept = set(found["steps"]["step"].astype(int))
    lengths = {n: sum(length for _, length in stages) for n, stages in enumerate(steps, 1)}
    whole = sum(length for number, length in lengths.items() if number in kept)
    expected = {}
    names = {"testing": "test"}
    for number, stages in enumerate(steps, 1):
        for name, length in stages if number in kept else []:
            stage = names.get(name, name)
            expected[stage] = expected.get(stage, 0) + length / whole
    got = shares(found)
    assert got == pytest.approx(expected)
    assert sum(got.values()) == pytest.approx(1)


@given(st.integers(2, 9), st.integers(0, 8), st.integers(10, 40), st.integers(0, 3))
def test_a_period_is_found_whatever_the_first_recorded_step(every, phase, count, first):
    recorded = range(first, first + count)
    present = [number for number in recorded if number % every == phase % every]
    assert find_stage_period(present, recorded) == (every if len(present) > 1 else None)
    # One of them missing, with one after it, is no schedule.
    if len(present) > 3:
        assert find_stage_period([*present[:1], *present[2:]], recorded) is None


def test_periodic_stages_of_a_job_that_was_captured_stage_by_stage_are_not_guessed(tmp_path):
    """What one capture lacks may have run all the same."""
    for number, scopes in ((1, ("gen", "actor-update")), (2, ("gen",)), (3, ("gen", "actor-update"))):
        for scope in scopes:
            name = f"actor-rollout-ref_{scope}_step{number}_rank0-of-1_pid7_20260101000000000.json"
            write(tmp_path / name, [annotation(scope, 0, 50)], rank=0, world_size=1)
    assert list_periodic_stages(analyze_uncached(tmp_path, Options(jobs=1, questions=QUESTIONS)).measurements) == []


def idle_in(name, count, every):
    """So many steps of 100 ms that are all work, and 20 ms of `name` in every k-th in which the host is silent but for its ends."""
    rows, at = [], 0
    for number in range(1, count + 1):
        begin = at
        rows += [annotation("update_actor", at, 100_000)]
        rows += launched("gemm", at + 1, at + 2, 99_990, 10 * number)
        at += 100_000
        if number % every == 0:
            rows += [annotation(name, at, 20_000)]
            rows += launched("copy", at + 1, at + 2, 1_000, 10 * number + 1)
            rows += launched("copy", at + 19_000, at + 19_001, 900, 10 * number + 2)
            at += 20_000
        rows.append(step(number, begin, at - begin))
    return rows


@pytest.mark.parametrize(
    ("name", "every", "rules"),
    [
        ("save_checkpoint", 2, {"periodic-stage": "medium"}),
        ("save_checkpoint", 5, {"periodic-stage": "info"}),
        ("export to disk", 2, {"periodic-stage": "medium"}),
        ("update_critic", 2, {"host-silence": "medium"}),
        ("save_checkpoint", 1, {"host-silence": "high"}),
    ],
)
def test_gpus_that_idle_in_a_scheduled_stage_are_the_stage_and_no_silence(tmp_path, name, every, rules):
    """5 steps of which the first does not count: 18 ms of 20 idle in 2 of 4, once, or in all; an update is no chore."""
    path = write(tmp_path / "rank0.json", idle_in(name, 5, every))
    findings = analyze_uncached(path, Options(jobs=1)).report.findings
    of_idle = ("periodic-stage", "host-silence", "low-gpu-utilization")
    assert {f.rule: f.severity for f in findings if f.rule in of_idle} == rules


def log_of(steps, **stages):
    """A driver's log of these step times, and of the times of its stages by step."""
    rows = [(step, stage, ns) for stage, times in stages.items() for step, ns in times.items()]
    return RunDriverLog(
        "driver.log", frozenset({"driver.log"}), from_rows(("step", "canonical", "dur_ns"), rows), steps, {}
    )


def logged(log):
    """Name, time, steps that have it, all steps, period, share, and whether it runs between steps."""
    return [
        (s.canonical, s.wall_ns, s.present, s.recorded, s.every, s.share, s.is_between)
        for s in find_logged_periodic_stages(log, "r")
    ]


HUNDREDS = dict.fromkeys((1, 2, 3, 4), 100)


def test_a_logged_stage_that_fits_into_its_steps_is_part_of_them():
    """gen leaves 40 of 100, of which save takes 30 in steps 2 and 4: 60 of 400."""
    log = log_of(HUNDREDS, gen=dict.fromkeys(HUNDREDS, 60), save={2: 25, 4: 35})
    assert logged(log) == [("save", 30, 2, 4, 2, 60 / 400, False)]
    (stage,) = find_logged_periodic_stages(log, "r")
    assert (stage.run, stage.role) == ("r", None)


def test_a_logged_stage_runs_between_steps_if_they_have_no_room_for_half_of_it():
    """gen leaves 20 in each of two steps: room for half of 80, not of 82; the 82 are beside the steps then."""
    gen = dict.fromkeys(HUNDREDS, 80)
    assert logged(log_of(HUNDREDS, gen=gen, test={1: 40, 3: 40})) == [("test", 40, 2, 4, 2, 80 / 400, False)]
    assert logged(log_of(HUNDREDS, gen=gen, test={1: 41, 3: 41})) == [("test", 41, 2, 4, 2, 82 / 482, True)]


def test_logged_stages_are_listed_by_cost_and_the_tiny_ones_left_out():
    """Of two steps of 1,000: 2 are a thousandth and listed, 1 is less."""
    found = logged(log_of({1: 1000, 2: 1000}, save={1: 2}, test={2: 300}, evict={1: 1}))
    assert [(name, share) for name, *_, share, _ in found] == [("test", 0.15), ("save", 0.001)]


def test_logged_steps_without_a_time_do_not_count():
    """Step 3 took 0, step 5 is not timed at all: save is in 1 of 2 steps, test in none."""
    found = logged(log_of({1: 1, 2: 1, 3: 0}, save={1: 1, 3: 9}, test={5: 9}))
    assert found == [("save", 1, 1, 2, None, 0.5, False)]


def numbered(count, *, stages, rank=0, **whose):
    """Rows of the tables `steps` and `stages`: steps of 100 ns, and in them these (stage, ns, steps that have it)."""
    who = {"run": "r", "source": f"rank{rank}", "rank": rank, "pid": rank} | whose
    steps = [{**who, "step": n, "ts_ns": 1000 * n, "dur_ns": 100} for n in range(1, count + 1)]
    inside = [
        {**who, "step": n, "stage": stage, "ts_ns": 1000 * n, "dur_ns": dur}
        for stage, dur, numbers in stages
        for n in numbers
    ]
    return steps, inside


def made(*ranks):
    """Measurements of the rows of `numbered`."""
    return make_measured(
        steps=[row for steps, _ in ranks for row in steps], stages=[row for _, stages in ranks for row in stages]
    )


def test_the_steps_of_other_roles_do_not_count():
    """The actor saves in 2 of its 4 steps, whatever the 6 of the critic: 30 of 200 and of no more."""
    actor = numbered(4, role="actor", stages=[("save", 30, [2, 4])])
    critic = numbered(6, role="critic", rank=1, stages=[("update_critic", 10, range(1, 7)), ("test", 10, [1, 6])])
    found = {stage.canonical: stage for stage in list_periodic_stages(made(actor, critic))}
    assert {name: (stage.present, stage.recorded) for name, stage in found.items()} == {"save": (2, 4), "test": (2, 6)}
    assert (found["save"].share, found["save"].per_step_ns) == (60 / 400, 15)


def test_a_stage_of_every_step_that_runs_between_steps_too_is_listed():
    """4 · 10 in the steps and 1 behind the last: 41 of 401."""
    steps, stages = numbered(4, stages=[("save", 10, [1, 2, 3, 4])])
    behind = {**stages[-1], "step": None, "ts_ns": 4500, "dur_ns": 1}
    (stage,) = list_periodic_stages(made((steps, [*stages, behind])))
    assert (stage.share, stage.is_between) == (41 / 401, False)


def test_a_period_has_no_gap_among_its_steps():
    assert find_stage_period([2, 4, 6], [1, 2, 3, 4, 5, 6]) == 2
    assert find_stage_period([2, 4, 6], [1, 2, 3, 4, 6]) is None
    assert find_stage_period([2, 4, 6], [2, 4, 5, 6]) is None


def test_a_stage_without_time_is_not_named():
    """1 of 1,000 ns is a thousandth of the time, 0 is nothing."""
    found = list_periodic_stages(made(numbered(10, stages=[("save", 1, [3]), ("test", 0, [4])])))
    assert [(stage.canonical, stage.share) for stage in found] == [("save", 0.001)]


def test_two_recorded_steps_are_enough_for_a_stage_of_one_and_one_is_not():
    (stage,) = list_periodic_stages(made(numbered(2, stages=[("save", 30, [2])])))
    assert (stage.present, stage.recorded, stage.every, stage.share) == (1, 2, None, 0.15)
    assert (stage.how_often, stage.per_step_ns, stage.is_planned, stage.is_chore) == ("in 1 of 2 steps", 15, True, True)
    steps, _ = numbered(1, stages=[])
    behind = {**steps[0], "stage": "save", "step": None, "ts_ns": 1200, "dur_ns": 50}
    assert list_periodic_stages(made((steps, [behind]))) == []


def test_steps_without_numbers_have_no_periodic_stages():
    steps, stages = numbered(3, stages=[("save", 30, [2])])
    clear = [{**row, "step": None, "part": str(row["step"])} for row in (*steps, *stages)]
    assert list_periodic_stages(made((clear[:3], clear[3:]))) == []


def test_chores_are_what_is_planned_and_trains_nothing():
    """The update has a period but trains; eviction has none; saving and testing need none."""
    stages = [
        ("save", 10, [2]),
        ("test", 10, [5]),
        ("update_critic", 10, [2, 4, 6]),
        ("evict", 10, [2, 3]),
        ("dump", 9, [1, 4]),
    ]
    measured = made(numbered(6, stages=stages))
    assert list_chore_keys(measured) == {("r", None, name) for name in ("save", "test", "dump")}
    planned = {stage.canonical for stage in list_periodic_stages(measured) if stage.is_planned}
    assert planned == {"save", "test", "dump", "update_critic"}


def test_the_planned_time_of_a_step_is_that_of_its_longest_role():
    """Step 2 has 10 + 5 of actors, the longer of whose ranks counts, and 12 of the critic."""
    actor = numbered(4, role="actor", stages=[("save", 10, [2, 4]), ("test", 5, [2]), ("evict", 50, [3, 4])])
    other = numbered(4, role="actor", rank=1, stages=[("save", 7, [2, 4])])
    critic = numbered(4, role="critic", rank=2, stages=[("save", 12, [2])])
    measured = made(actor, other, critic)
    walls = summarize_step_walls(measured).walls
    assert walls.values("step") == [1, 2, 3, 4]
    assert sum_planned_stage_time(measured, walls).tolist() == [0, 15, 0, 10]


def test_time_between_steps_is_not_planned_time_of_a_step():
    steps, _ = numbered(4, stages=[])
    behind = [{**row, "stage": "test", "step": None, "ts_ns": row["ts_ns"] + 200, "dur_ns": 50} for row in steps[1:3]]
    measured = made((steps, behind))
    (stage,) = list_periodic_stages(measured)
    assert (stage.is_between, stage.is_planned, stage.share) == (True, True, 100 / 500)
    assert sum_planned_stage_time(measured, summarize_step_walls(measured).walls).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("count", "more"),
    [(4, ""), (5, "1 more stage is in some steps only. "), (6, "2 more stages are in some steps only. ")],
)
def test_a_caption_names_the_four_costliest_stages(count, more):
    stages = [(f"chore{n}", 10 * (n + 1), [2, 3]) for n in range(count)]
    caption = describe_periodic_stages(made(numbered(4, stages=stages)))
    assert caption.count(" in 2 of 4 steps, ") == 4
    assert caption.startswith(f"chore{count - 1}: ")
    assert caption.endswith(f"of the time. {more}Shares are of all steps, including steps without it.")
