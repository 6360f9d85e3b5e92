"""Pairs that real profilers wrote: the numbers of the method, and no change where nothing was changed."""

import itertools
import os
from functools import cache
from pathlib import Path

import pytest
from compare.made import change_of

from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.judge import compare_sides
from tracekit.pipeline.comparing import read_side
from tracekit.pipeline.run import Options

REAL = os.environ.get("TRACEKIT_REAL_DATA")
pytestmark = pytest.mark.skipif(REAL is None, reason="real profiles are not here")

WORKERS = "kineto_tb_plugin/samples/resnet50_num_workers_"


@cache
def given(name, paths, first=None):
    """One side of these paths below the real data."""
    full = [Path(REAL) / "chrome" / path for path in paths]
    return read_side(name, full, Options(jobs=1), ComparisonChoices(drop_first=first))


def pair(base, opt, first=None, **choices):
    return compare_sides(given("base", base, first), given("opt", opt, first), ComparisonChoices(**choices))


def interval(step):
    return pytest.approx((step.ratio, step.low, step.high), abs=5e-4)


def test_more_workers_over_all_six_steps_are_inconclusive():
    # Two captures each of 174.829, 152.955 and 139.692, 142.754 ms: base varies 38 times as much (variances .008933 and
    # .000235, F(.8; 1, 1) is 9.47). Its own spread: √(.009168 / 2) = .067707 on 1.0526 degrees, t = 11.30.
    found = pair((f"{WORKERS}0",), (f"{WORKERS}4",), 0)
    assert interval(found.headline) == (1.158, 0.539, 2.489)
    assert found.headline.grand_ratio == pytest.approx(1.1605, abs=5e-5)
    assert (found.headline.base_runs, found.headline.base_steps) == (2, 12)
    assert found.verdict == "inconclusive"


def test_more_workers_without_the_first_step_are_inconclusive():
    found = pair((f"{WORKERS}0",), (f"{WORKERS}4",))
    assert interval(found.headline) == (1.203, 0.867, 1.670)
    assert found.verdict == "inconclusive"
    assert len(found.dropped) == 4


@pytest.mark.parametrize("first", [None, 0])
def test_two_captures_of_one_setting_are_no_change(first):
    captures = sorted((Path(REAL) / "chrome" / f"{WORKERS}0").iterdir())
    sides = [given(f"capture{n}", (path,), first) for n, path in enumerate(captures, 1)]
    for base, opt in itertools.permutations(sides):
        found = compare_sides(base, opt, ComparisonChoices())
        assert {c.word for c in found.changes} & {"improvement", "regression"} == set()


def test_other_work_is_not_comparable():
    found = pair(("hta/trace_diff/control",), (f"{WORKERS}0",))
    assert found.verdict == "not comparable"
    assert any(one.blocking for one in found.differences)


def runs(side, *numbers):
    return tuple(f"gloo_cpu/{side}_run{number}" for number in numbers)


@pytest.mark.slow
def test_a_change_of_known_size_lies_in_the_interval():
    found = pair(runs("base", 1, 2, 3), runs("opt", 1, 2, 3))
    assert found.headline.low < 1.615 < found.headline.high
    assert found.verdict == "inconclusive", "three runs per side show no change; a fourth decides"
    assert found.needed == "One more run per side decides."
    assert (found.headline.base_runs, found.headline.opt_runs) == (3, 3)


SPLITS = [((a,), (b,)) for a, b in itertools.combinations((1, 2, 3), 2)] + [
    (tuple(n for n in (1, 2, 3) if n != one), (one,)) for one in (1, 2, 3)
]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["base", "opt"])
def test_runs_of_one_setting_are_never_a_change(side):
    for before, after in SPLITS:
        for base, opt in ((before, after), (after, before)):
            found = pair(runs(side, *base), runs(side, *opt))
            assert found.verdict in ("inconclusive", "no change"), (base, opt)
            assert found.headline.low < 1 < found.headline.high


@pytest.mark.slow
def test_ranks_that_say_the_same_twice_are_no_more_runs():
    found = pair(runs("base", 1), runs("opt", 1))
    assert found.headline.label == "within-run"
    assert found.verdict == "inconclusive"
    assert change_of(found, "comm_bytes").word == "same"
