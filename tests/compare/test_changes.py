"""Every metric as a change: known numbers, what is on one side alone, and what has no ratio."""

from dataclasses import replace

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, change_of, compared, row, step_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.metrics import METRICS

STEADY = step_rows([10, 11, 10, 11, 10])


def interval(change):
    return pytest.approx((change.ratio, change.low, change.high), abs=1e-6)


def test_runs_on_both_sides_give_the_worked_example():
    step = compared(step_rows(*BASE_RUNS), step_rows(*OPT_RUNS)).headline
    assert interval(step) == (1.112979, 1.096578, 1.129627)
    assert (step.label, step.word) == ("run-to-run", "improvement")
    assert (step.base_runs, step.base_steps, step.opt_runs, step.opt_steps) == (4, 14, 4, 13)


def test_one_run_each_gives_the_worked_example_and_no_verdict():
    found = compared(step_rows(BASE_RUNS[0]), step_rows(OPT_RUNS[0]))
    assert interval(found.headline) == (1.121739, 1.092758, 1.151489)
    assert (found.headline.label, found.verdict) == ("within-run", "inconclusive")
    assert "one run per side cannot separate a change from run-to-run noise" in found.headline.notes
    assert (
        compared(step_rows(BASE_RUNS[0]), step_rows(OPT_RUNS[0]), assume_independent_steps=True).verdict
        == "improvement"
    )


def test_three_runs_against_one_give_the_worked_example():
    step = compared(step_rows(*BASE_RUNS[:3]), step_rows(OPT_RUNS[0])).headline
    assert interval(step) == (1.116613, 1.051704, 1.185527)
    assert step.label == "run-to-run (equal spread assumed)"


def test_the_steps_of_four_runs_as_one_run_are_not_four_runs():
    runs = compared(step_rows(*BASE_RUNS), step_rows(*OPT_RUNS)).headline
    one = compared(*(step_rows([v for run in side for v in run]) for side in (BASE_RUNS, OPT_RUNS))).headline
    assert runs.label != one.label == "within-run"


def test_the_number_of_identical_ranks_changes_no_interval():
    """Stage times of ranks as the analyses record them, twice as many of the same."""

    def rows(runs, ranks):
        return [*step_rows(*runs), *(r for k in range(ranks) for r in step_rows(*runs, name="gpu_busy", rank=k))]

    few = compared(rows(BASE_RUNS, 1), rows(OPT_RUNS, 1))
    many = compared(rows(BASE_RUNS, 8), rows(OPT_RUNS, 8))
    assert many.changes == few.changes
    assert interval(change_of(many, "gpu_busy")) == (1.112979, 1.096578, 1.129627)


def test_the_difference_is_that_of_the_means_and_the_ratio_is_first_over_second():
    step = compared(step_rows([4, 6]), step_rows([2, 2])).headline
    assert (step.base, step.opt, step.difference) == (5e9, 2e9, -3e9)
    assert [step.ratio, step.grand_ratio, step.median_ratio] == pytest.approx([2.5, 2.5, 2.5])


def test_exact_numbers_are_the_same_or_changed_without_an_interval():
    def rows(count, size):
        return [*STEADY, *(row("comm_count", count, run="run1", step=s, rank=0) for s in range(1, 6)),
                *(row("device_peak_allocated", size, run="run1", step=s, rank=r) for s in range(1, 6) for r in (0, 1))]  # fmt: skip

    found = compared(rows(152, 1 << 30), rows(152, 3 << 29))
    count, peak = change_of(found, "comm_count"), change_of(found, "device_peak_allocated")
    assert (count.word, count.base, count.ratio, count.low) == ("same", 152, 1, None)
    assert (peak.word, peak.base, peak.opt, peak.difference) == ("changed", 1 << 30, 3 << 29, 1 << 29)
    assert peak.ratio == pytest.approx(2 / 3)


def test_exact_numbers_that_vary_from_step_to_step_are_not_called_changed():
    rows = [*STEADY, row("host_ops", 5, run="run1", step=1), row("host_ops", 6, run="run1", step=2)]
    ops = change_of(compared(rows, rows), "host_ops")
    assert (ops.word, ops.base, ops.opt) == ("inconclusive", 5.5, 5.5)


def test_an_exact_number_that_falls_to_zero_has_no_ratio():
    base, opt = ([*STEADY, row("comm_bytes", size, run="run1", step=1)] for size in (64, 0))
    gone, new = (change_of(compared(*pair), "comm_bytes") for pair in ((base, opt), (opt, base)))
    assert (gone.word, gone.ratio, gone.difference) == ("changed", None, -64)
    assert (new.word, new.ratio, new.difference) == ("changed", 0, 64)


def staged(stage, *values):
    return [*STEADY, *step_rows(list(values), name="stage_time", stage=stage)]


def test_an_absent_stage_is_on_one_side_alone_and_never_faster():
    both = step_rows([3, 3], name="stage_time", stage="gen")
    with_it, without = [*staged("ref", 2, 2), *both], [*STEADY, *both]
    gone = change_of(compared(with_it, without), "stage_time", "ref")
    new = change_of(compared(without, with_it), "stage_time", "ref")
    assert (gone.word, gone.base, gone.opt, gone.ratio, gone.difference) == ("only before", 2e9, None, None, None)
    assert (new.word, new.base, new.opt, new.ratio, new.difference) == ("only after", None, 2e9, None, None)
    assert (gone.base_runs, gone.base_steps, gone.opt_runs, gone.opt_steps) == (1, 2, 0, 0)


def test_a_time_that_is_zero_in_some_steps_has_means_but_no_ratio():
    base, opt = ([*STEADY, *step_rows(v, name="exposed_comm", rank=0)] for v in ([0, 2], [1, 1]))
    change = change_of(compared(base, opt), "exposed_comm")
    assert (change.word, change.base, change.opt, change.difference) == ("inconclusive", 1e9, 1e9, 0)
    assert (change.ratio, change.low, change.label) == (None, None, "no interval")


def test_what_takes_no_time_on_either_side_is_no_change_at_all():
    rows = [*STEADY, *step_rows([0, 0], name="exposed_comm", rank=0)]
    assert change_of(compared(rows, rows), "exposed_comm") is None
    assert change_of(compared(rows, STEADY), "exposed_comm") is None


@pytest.mark.parametrize(("better", "word"), [("lower", "improvement"), ("higher", "regression")])
def test_less_is_an_improvement_only_of_what_should_be_low(monkeypatch, better, word):
    monkeypatch.setitem(METRICS, "gpu_busy", replace(METRICS["gpu_busy"], better=better))
    base, opt = ([*step_rows(*runs), *step_rows(*runs, name="gpu_busy", rank=0)] for runs in (BASE_RUNS, OPT_RUNS))
    assert change_of(compared(base, opt), "gpu_busy").word == word


def test_the_step_stands_first_and_then_the_stages_by_how_long_they_take():
    rows = [
        *staged("adv", 1, 1),
        *step_rows([5, 5], name="stage_time", stage="gen"),
        *step_rows([3, 3], name="comm", rank=0),
    ]
    assert [(c.name, c.title) for c in compared(rows, rows).changes] == [
        ("step_time", "step"), ("stage_time", "gen"), ("stage_time", "adv"), ("comm", "communication"),
    ]  # fmt: skip


def test_among_many_stages_one_that_barely_changed_may_be_chance():
    """Stage s0 is an improvement if it is all there is, but not as the best of eight whose others are noise.

    Four runs each, 6.3 % less with 2 % between runs; the other seven hold the same runs in another order. Log means −.0001
    and −.0652, Σu² .00080 and .00092: se = √(.00172/12) = .0120 on 5.97 degrees, and (.0651 − ln 1.03) / .0120 = 2.97: p .025.
    """
    base, opt = ([1.0, 1.02, 0.98, 1.0], [0.937, 0.957, 0.917, 0.937])

    def side(first, others):
        rows = step_rows(*([10 + v] for v in first))
        rows += step_rows(*([v] for v in first), name="stage_time", stage="s0")
        for n in range(1, 1 + others):
            rows += step_rows([1.0], [1.02 + n / 1000], [0.98], [1.0], name="stage_time", stage=f"s{n}")
        return rows

    alone, many = (change_of(compared(side(base, n), side(opt, n)), "stage_time", "s0") for n in (0, 7))
    assert (alone.ratio, alone.low, alone.high) == (many.ratio, many.low, many.high)
    assert (alone.word, many.word) == ("improvement", "inconclusive")
    assert "among so many comparisons this may be chance" in many.notes


def test_the_step_is_no_part_of_so_many_comparisons():
    rows = [[*step_rows(*runs)] for runs in (BASE_RUNS, OPT_RUNS)]
    noise = [r for n in range(30) for r in step_rows([1.0], [1.1], [0.9], name="stage_time", stage=f"s{n}")]
    assert compared(*([*side, *noise] for side in rows)).verdict == "improvement"


def test_steps_are_paired_only_where_both_sides_hold_the_same_ones():
    base, same, other = step_rows([10, 20, 30]), step_rows([9, 18, 27]), step_rows([9, 18])
    assert compared(base, same, paired="step").headline.label != "within-run"
    apart = compared(base, other, paired="step").headline
    assert apart.label == "within-run"
    assert "steps could not be paired: the sides have different steps" in apart.notes


def test_steps_of_other_work_are_no_pairs():
    """Both sides tell the tokens of step 2, 100 and 120; where one side does not tell, nothing speaks against pairs."""
    base, same = step_rows([1.0, 1.1, 1.2]), step_rows([0.9, 1.0, 1.05])
    tokens = [[row("tokens", n, run="run1", step=2)] for n in (100, 120)]
    apart = compared(base + tokens[0], same + tokens[1], paired="step")
    assert "paired" not in apart.headline.label
    assert "steps could not be paired: they have different numbers of tokens" in apart.warnings
    for more in ([], tokens[0]):
        alike = compared(base + tokens[0], same + more, paired="step")
        assert alike.headline.label == "within-run, paired"


def test_runs_are_paired_only_where_both_sides_hold_as_many():
    assert compared(step_rows(*BASE_RUNS), step_rows(*OPT_RUNS), paired="run").headline.label == "run-to-run, paired"
    apart = compared(step_rows(*BASE_RUNS), step_rows(*OPT_RUNS[:2]), paired="run").headline
    assert "runs could not be paired: the sides have different numbers of runs" in apart.notes


RUNS = st.lists(st.lists(st.floats(1, 1000), min_size=1, max_size=5), min_size=1, max_size=5)


@settings(max_examples=20, deadline=None)
@given(RUNS, RUNS)
def test_swapping_the_sides_inverts_the_ratio_and_its_interval(base, opt):
    there, back = (
        compared(step_rows(*base), step_rows(*opt)).headline,
        compared(step_rows(*opt), step_rows(*base)).headline,
    )
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.difference == pytest.approx(-back.difference, abs=1)
    assert (there.low is None) == (back.high is None)
    if there.low is not None:
        assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    opposite = {"improvement": "regression", "regression": "improvement"}
    assert there.word == opposite.get(back.word, back.word)


@settings(max_examples=20, deadline=None)
@given(RUNS, RUNS, st.sampled_from([0.5, 4.0, 1024.0]))
def test_another_unit_of_time_changes_no_ratio(base, opt, k):
    one = compared(step_rows(*base), step_rows(*opt)).headline
    scaled = ([[v * k for v in run] for run in side] for side in (base, opt))
    other = compared(*(step_rows(*side) for side in scaled)).headline
    assert (other.word, other.label) == (one.word, one.label)
    assert other.ratio == pytest.approx(one.ratio)
    assert other.difference == pytest.approx(k * one.difference, abs=1e-3)
    assert (other.low, other.detectable) == pytest.approx((one.low, one.detectable))
