"""The quantile of Student's t, against closed forms and against scipy's."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr, stdtrit

from tracekit.model.stats.estimate import EXACT_EXPANSION_DF, compute_student_quantile

PROBABILITIES = st.floats(0.001, 0.999).filter(lambda p: abs(p - 0.5) > 1e-3)


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.995, 1 - 1e-9])
def test_it_is_the_closed_form_of_one_two_and_four_degrees(probability):
    """df 1: tan(π (p − ½)); df 2: (2p − 1) / √(2 p (1 − p)); df 4: 2 √(cos(arccos(√a) / 3) / √a − 1), a = 4 p (1 − p)."""
    p = probability
    assert compute_student_quantile(p, 1) == pytest.approx(1 / math.tan(math.pi * (1 - p)), rel=1e-13)
    a = 4 * p * (1 - p)
    assert compute_student_quantile(p, 2) == pytest.approx(2 * (p - 0.5) * math.sqrt(2 / a), rel=1e-13)
    of_four = 2 * math.sqrt(math.cos(math.acos(math.sqrt(a)) / 3) / math.sqrt(a) - 1)
    assert compute_student_quantile(p, 4) == pytest.approx(of_four, rel=1e-12)


def quantile_of_scipy(probability, df):
    """The quantile of scipy, one step of Newton further: older ones stop some 1e-9 before."""
    quantile = float(stdtrit(df, probability))
    log_scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    density = math.exp(log_scale - (df + 1) / 2 * math.log1p(quantile**2 / df))
    return quantile - (float(stdtr(df, quantile)) - probability) / density


@given(PROBABILITIES, st.floats(0.2, 1e7))
def test_it_is_that_of_scipy(probability, df):
    expected = quantile_of_scipy(probability, df)
    assert compute_student_quantile(probability, df) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("df", [0.3, 1.5, 3, 12, 79.9, 80, 81, 120, 400, 1_000, 10_000])
@pytest.mark.parametrize("probability", [0.51, 0.6, 0.975, 0.9999])
def test_it_is_that_of_scipy_where_one_way_gives_over_to_the_next(probability, df):
    expected = quantile_of_scipy(probability, df)
    assert compute_student_quantile(probability, df) == pytest.approx(expected, rel=1e-10)


@given(PROBABILITIES, st.floats(0.2, 1e5))
def test_the_tail_above_it_is_what_was_asked_for(probability, df):
    assert stdtr(df, compute_student_quantile(probability, df)) == pytest.approx(probability, rel=1e-9)


@pytest.mark.parametrize("probability", [0.51, 0.75, 0.975, 0.9995, 1 - 1e-9])
def test_the_two_ways_meet(probability):
    below, above = (compute_student_quantile(probability, EXACT_EXPANSION_DF * (1 + by)) for by in (-1e-12, 1e-12))
    assert below == pytest.approx(above, rel=1e-12)


def test_the_ends_and_what_is_no_probability():
    assert compute_student_quantile(0.5, 3) == 0
    assert compute_student_quantile(1, 3) == math.inf
    assert compute_student_quantile(0, 3) == -math.inf
    assert compute_student_quantile(0.975, math.inf) == pytest.approx(1.959963984540054, rel=1e-15)
    for probability, df in ((1.5, 3), (-0.1, 3), (0.9, 0), (0.9, -1), (math.nan, 3), (0.9, math.nan)):
        assert math.isnan(compute_student_quantile(probability, df))


def test_an_analysis_does_without_scipy(tmp_path):
    """It is imported where arrays of quantiles are asked for, as when runs are compared."""
    program = (
        "import sys, tracekit; from tracekit.model.stats.estimate import estimate_side;"
        "estimate_side([[1.0, 2.0, 4.0, 3.0]]); sys.exit('scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False).returncode == 0
