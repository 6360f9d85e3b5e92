"""The comparison as a whole: its verdict, what must not be compared, and what a reader is told."""

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, change_of, compared, made_side, row, step_rows

from tracekit.model.errors import TracekitError


def pair(base=None, opt=None):
    """Two sides of four runs each with these facts."""
    return made_side("base", step_rows(*BASE_RUNS), **(base or {})), made_side(
        "opt", step_rows(*OPT_RUNS), **(opt or {})
    )


def test_the_verdict_is_that_of_the_step():
    found = compared(step_rows(*BASE_RUNS), step_rows(*OPT_RUNS))
    assert found.verdict == found.headline.word == "improvement"
    assert found.headline == found.changes[0]
    assert compared(step_rows(*OPT_RUNS), step_rows(*BASE_RUNS)).verdict == "regression"
    assert found.needed == ""


def test_runs_that_agree_within_the_least_effect_show_no_change():
    one = step_rows([10.0, 10.1], [10.05, 10.0], [10.1, 10.0])
    other = step_rows([10.1, 10.0], [10.0, 10.05], [10.0, 10.1])
    assert compared(one, other).verdict == "no change"
    assert compared(one, other, min_effect=0.0).verdict == "inconclusive"


def test_what_is_inconclusive_says_what_would_settle_it():
    found = compared(step_rows(BASE_RUNS[0]), step_rows(OPT_RUNS[0]))
    assert found.verdict == "inconclusive"
    assert found.needed == (
        "One run per side cannot separate a change from run-to-run noise. A change this large would be confirmed by 4 per side,"
        " if equal runs differ by less than 2.6 %."
    )


@pytest.mark.parametrize("fact", [{"gpu": "H100"}, {"world_size": "8"}])
def test_another_gpu_or_world_size_is_not_comparable(fact):
    name = next(iter(fact))
    sides = pair(fact, {name: "other"})
    found = compared(*sides)
    assert found.verdict == found.headline.word == "not comparable"
    assert {change.word for change in found.changes} == {"not comparable"}
    assert found.needed == ""
    assert found.headline.ratio is not None
    assert any(line.startswith(f"{name} differs") for line in found.warnings)
    forced = compared(*sides, force=True)
    assert forced.verdict == "improvement"
    assert [one.name for one in forced.differences] == [name]


def test_other_versions_are_told_and_allowed():
    found = compared(*pair({"versions": "torch 2.7"}, {"versions": "torch 2.8"}))
    assert found.verdict == "improvement"
    assert [(one.name, one.blocking) for one in found.differences] == [("versions", False)]


def test_what_one_side_does_not_know_is_no_difference():
    found = compared(*pair({"gpu": "H100", "versions": "torch 2.7"}, {}))
    assert found.differences == ()
    assert found.verdict == "improvement"


def test_equal_step_times_on_both_sides_are_said():
    """Whether they are one profile, the files tell: `test_copies.py`."""
    found = compared(step_rows(*BASE_RUNS), step_rows(*BASE_RUNS))
    assert "step times are equal on both sides, to the nanosecond" in found.warnings
    assert found.headline.ratio == 1
    assert found.verdict not in ("improvement", "regression")


def test_runs_with_equal_step_times_on_one_side_are_said():
    found = compared(step_rows(BASE_RUNS[0], BASE_RUNS[0]), step_rows(*OPT_RUNS))
    assert any(one.startswith("base: several runs have equal step times") for one in found.warnings)
    clean = compared(step_rows(*BASE_RUNS), step_rows(*OPT_RUNS))
    assert not any("equal step times" in line or "given twice" in line for line in clean.warnings)


def test_how_the_sides_were_read_is_told():
    base = made_side(
        "before", [*step_rows([9, 1, 2], [9, 1]), row("first_of_window", 1, run="run1", step=1)], None, ranks="0, 1"
    )
    opt = made_side("after", step_rows([1]))
    assert compared(base, opt).reading == ("before: 2 runs × 2 steps, 2 ranks, 1 left out", "after: 1 run × 1 step")


def test_every_step_that_does_not_count_is_listed_with_its_side():
    rows = [*step_rows([9, 1, 2]), row("first_of_window", 1, run="run1", step=1)]
    found = compared(made_side("before", rows, None), made_side("after", rows, 2))
    assert [(d.side, d.run, d.step, d.reason) for d in found.dropped] == [
        ("before", "run1", 1, "warm-up step"),
        ("after", "run1", 1, "one of the first 2"),
        ("after", "run1", 2, "one of the first 2"),
    ]


def test_a_side_without_a_step_is_an_error_and_no_verdict():
    with pytest.raises(TracekitError, match="opt: no step was recorded"):
        compared(step_rows([1, 2]), [])


def test_a_side_of_which_no_step_is_left_says_so():
    with pytest.raises(TracekitError, match="opt: no step is left") as error:
        compared(step_rows([1, 2]), made_side("opt", step_rows([1, 2]), 2))
    assert "--drop-first 0" in error.value.hint


def test_a_step_that_takes_no_time_is_an_error():
    with pytest.raises(TracekitError, match="base: a step took 0 ns"):
        compared(step_rows([0.0, 1.0]), step_rows([1, 1]))


def test_sides_without_a_common_stage_did_other_work():
    base, opt = ([*step_rows([1, 1]), *step_rows([1, 1], name="stage_time", stage=s)] for s in ("gen", "forward"))
    found = compared(base, opt)
    assert found.verdict == "not comparable"
    assert [(d.name, d.base, d.opt) for d in found.differences if d.blocking] == [("work", "gen", "forward")]


def test_only_one_side_traced_on_its_gpu_is_not_comparable():
    gpu = [*step_rows([1, 1]), *step_rows([1, 1], name="gpu_busy", rank=0)]
    sides = made_side("base", gpu, gpu="H100"), made_side("opt", step_rows([1, 1]))
    found = compared(*sides)
    assert found.verdict == "not comparable"
    assert [(d.name, d.opt) for d in found.differences] == [("gpu", "no GPU activity recorded")]


def test_times_are_said_to_be_under_the_profiler():
    assert any("profiler overhead" in line for line in compared(step_rows([1, 1]), step_rows([1, 1])).warnings)


def test_stages_of_two_roles_are_compared_by_role():
    rows = [*step_rows([9, 9])]
    for role, value in (("actor", 2), ("critic", 3)):
        rows += step_rows([value, value], name="stage_time", stage="update", role=role)
    found = compared(rows, rows)
    assert change_of(found, "stage_time", "update", "actor").base == 2e9
    assert change_of(found, "stage_time", "update", "critic").base == 3e9
