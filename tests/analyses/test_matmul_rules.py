"""R18, R24, R25 and R27 on their firing traces and near misses."""

import pytest
from analyses.in_depth import report_of
from rules.traces_matmuls import FIRES, NEAR_MISSES

QUESTIONS = ("forward-batches", "matmuls", "shapes", "unfused")

IDS = sorted(FIRES)


def test_every_rule_has_a_trace_and_a_near_miss():
    assert set(FIRES) == set(NEAR_MISSES)
    assert len(FIRES) == 5


@pytest.mark.parametrize("rule", IDS)
def test_it_fires_with_the_numbers_worked_out_by_hand_and_no_other_rule_does(tmp_path, rule):
    expected = FIRES[rule]
    (found,) = report_of(tmp_path, expected.rows).findings
    assert found.rule == rule
    assert found.claim == expected.claim
    assert found.severity == expected.severity
    assert found.cost_ns == expected.cost_ns
    assert found.cost_ratio == pytest.approx(expected.cost_ratio)
    assert {m.name: m.value for m in found.evidence} == pytest.approx(expected.evidence)
    assert found.advice
    assert found.places


@pytest.mark.parametrize("rule", IDS)
def test_a_near_miss_does_not_fire(tmp_path, rule):
    assert [f for f in report_of(tmp_path, NEAR_MISSES[rule]).findings if f.rule == rule] == []
