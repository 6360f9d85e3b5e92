"""Who waits for whom: each rule predicts a hand-made run, and without the rule the prediction is wrong."""

import pytest
from replay.rules import CASES

SWITCHED = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name, case in CASES.items()
    for number in range(len(case.switches))
]


@pytest.mark.parametrize("name", CASES)
def test_a_rule_predicts_its_run(tmp_path, name):
    case = CASES[name]
    assert case.predict(tmp_path) == case.expected


@pytest.mark.parametrize(("name", "number"), SWITCHED)
def test_without_its_rule_a_run_is_predicted_otherwise(tmp_path, monkeypatch, name, number):
    case = CASES[name]
    case.switches[number](monkeypatch)
    assert case.predict(tmp_path) != case.expected
