"""What to record next: always something, from the noise that was seen."""

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, compared, step_rows
from hypothesis import given
from hypothesis import strategies as st
from measured_few import COMPARISON

from tracekit.compare.planning import what_to_record
from tracekit.stats.designs import detectable
from tracekit.stats.speedup import speedup

ASKED = set()
MEASURED = COMPARISON


def said(base, opt, effect=0.03):
    return what_to_record(speedup(base, opt), effect)


def test_what_resolves_the_least_effect_is_told():
    assert said([BASE_RUNS[0]], [OPT_RUNS[0]]) == "record at least 3 runs per side to resolve 3.0 %"


def test_where_that_takes_too_many_runs_a_larger_effect_is_planned_for():
    """Run means that spread by 20 % of the mean: 2·0.2²/k at (1.97 + 0.84)² ≤ ln(1.1)² takes 70 runs and more."""
    base, opt = [[10.0], [8.0], [12.0]], [[9.0], [7.2], [10.8]]
    text = said(base, opt)
    runs = int(text.split()[1])
    assert (
        text == f"record {runs} runs per side to resolve 10 %: 3.0 % would take more than 100 runs"
    )
    found = speedup(base, opt)
    sd = found.base.spread
    assert detectable((2 * sd**2 / runs) ** 0.5, 2 * (runs - 1)) <= 0.1
    assert detectable((2 * sd**2 / (runs - 1)) ** 0.5, 2 * (runs - 2)) > 0.1


def test_where_no_number_of_runs_helps_that_is_said():
    wild = said([[1.0], [1000.0]], [[1000.0], [1.0]])
    assert wild.startswith("even 100 runs per side would not resolve 100 %: find out first")


@pytest.mark.parametrize("sides", [([[10.0]], [[9.0]]), ([[10.0, 10.0]], [[9.0, 9.0]])])
def test_where_the_spread_is_not_known_runs_and_steps_are_asked_for(sides):
    assert said(*sides) == (
        "record several runs per side of at least 5 steps each: how much they vary is not known"
    )


RUNS = st.lists(st.lists(st.floats(1, 100), min_size=1, max_size=6), min_size=1, max_size=4)


@given(RUNS, RUNS, st.sampled_from([0.0, 0.03, 0.1]))
def test_what_is_inconclusive_always_says_what_to_record(base, opt, effect):
    found = compared(step_rows(*base), step_rows(*opt), min_effect=effect)
    assert bool(found.needed) == (found.verdict == "inconclusive")
