"""What a gate's file may say, and what is refused: nothing in it is ever passed over."""

from datetime import date
from pathlib import Path

import pytest

from tracekit.compare.gate_rules import MOST_RULES, RULE_METRIC_ALIASES, parse_rule_text, resolve_rule_metric
from tracekit.compare.gates.gate_file import combine_gate_rules, find_gate_file, read
from tracekit.model.errors import TracekitError

WHOLE = """
[tool.tracekit.gate]
fail-on = ["regression", "inconclusive", "missing-baseline"]
level = 0.9
min-effect = "5%"
[[tool.tracekit.gate.rule]]
metric = "stage.rollout.time"
max-increase = "5%"
severity = "warn"
[[tool.tracekit.gate.rule]]
metric = "memory.peak_allocated"
max-increase = "256MiB"
max = "70GiB"
scope = "worst-rank"
role = "actor"
[[tool.tracekit.gate.rule]]
metric = "gpu.idle_share"
max = "point:15%"
[[tool.tracekit.gate.rule]]
metric = "host.ops"
max-increase = "1%"
severity = "off"
[[tool.tracekit.gate.accept]]
metric = "step_time"
until = "2026-12-31"
reason = "larger vocabulary"
"""


def gate_of(tmp_path, text, name="pyproject.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read(path)


def test_every_form_of_a_rule(tmp_path):
    found = gate_of(tmp_path, WHOLE)
    assert [str(one) for one in found.rules.rules] == [
        "stage.rollout.time: at most +5 %",
        "memory.peak_allocated: at most +256 MiB",
        "memory.peak_allocated: at most 70 GiB",
        "gpu.idle_share: at most 15 % (estimate)",
        "step_time: at most +5 %",
    ]
    assert [one.severity for one in found.rules.rules] == ["warn", *["error"] * 4]
    assert [one.role for one in found.rules.rules] == [None, "actor", "actor", None, None]
    assert (found.level, found.min_effect) == (0.9, 0.05)
    assert found.rules.inconclusive_fails
    assert found.rules.accepts[0].until == date(2026, 12, 31)
    assert found.rules.today is None


def test_a_word_that_says_what_a_rule_says_adds_no_second_rule(tmp_path):
    """Twice the same would count twice among the rules that Holm's correction is for."""
    text = '[gate]\nfail-on = ["regression", "step_time>3%", "step_time>5%"]\n'
    found = gate_of(tmp_path, text + entry('metric = "step_time"\nmax-increase = "3%"'), "tracekit.toml")
    assert [str(one) for one in found.rules.rules] == ["step_time: at most +3 %", "step_time: at most +5 %"]


def test_new_oom_is_a_rule(tmp_path):
    found = gate_of(tmp_path, '[gate]\nfail-on = ["new-oom"]\n', "tracekit.toml")
    (one,) = found.rules.rules
    assert (one.metric, one.test, one.severity) == ("new-oom", "change", "error")


def entry(text):
    return f"[[gate.rule]]\n{text}\n"


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("[gate]\nlevle = 0.9", "unknown key 'levle'", "level"),
        ("[gates]", "unknown key 'gates'", "gate"),
        (entry('metric = "step_tme"\nmax-increase = "3%"'), "no metric", "step_time"),
        (entry('metric = "stage_time"\nmax-increase = "3%"'), "no metric", "stage.rollout.time"),
        (entry('metric = "stage.rollout.step_time"\nmax = "3s"'), "no metric", ""),
        (entry('metric = "step_time"\nmax_increase = "3%"'), "unknown key", "max-increase"),
        (entry('metric = "step_time"'), "has no limit", "max-increase"),
        (entry('metric = "step_time"\nmax-increase = "256MiB"'), "256MiB", ""),
        (entry('metric = "step_time"\nmax-increase = 5'), "not a limit", "3% or 50ms"),
        (entry('metric = "step_time"\nmax-increase = "-3%"'), "not a limit", ""),
        (entry('metric = "step_time"\nmax-increase = true'), "not a limit", ""),
        (entry('metric = "step_time"\nmax-increase = nan'), "not a time", ""),
        (entry('metric = "step_time"\nmax-decrease = "3%"'), "is an improvement", "max-increase"),
        (entry('metric = "throughput"\nmax-decrease = "100%"'), "exceed 100 %", "cannot fail"),
        (entry('metric = "step_time"\nmax = "15%"'), "15% needs a unit", "amount"),
        (entry('metric = "step_time"\nmax = "1 s"\nseverity = "eror"'), "'eror'", "error"),
        (entry('metric = "gpu.busy"\nmax = "1 s"\nscope = "worst-rank"'), "mean", "write mean"),
        ('[gate]\nfail-on = ["regresion"]', "'regresion'", "regression"),
        ('[gate]\nfail-on = "regression"', "not a list", "["),
        ('[gate]\nfail-on = ["inconclusive"]', "only inconclusive: nothing is checked", "regression"),
        ('[gate]\nfail-on = ["not-comparable", "missing-baseline"]', "nothing is checked", "a rule"),
        ("[gate]\nlevel = 95", "level", "0.03"),
        ("[gate]\nlevel = 0.2", "level", "0.95"),
        ("gate = 3", "not a table", ""),
        ("[gate", "not TOML", "--isolated"),
        ('[[gate.accept]]\nmetric = "step_time"\nreason = "x"', "no expiry date", "until"),
        ('[[gate.accept]]\nmetric = "step_time"\nuntil = "soon"\nreason = "x"', "no expiry date", ""),
        ('[[gate.accept]]\nmetric = "step_time"\nuntil = 2026-12-31', "reason is missing", "reason"),
        ('[[gate.accept]]\nmetric = "stp"\nuntil = 2026-12-31\nreason = "x"', "no metric", ""),
    ],
)
def test_what_is_not_understood_is_refused_with_a_hint(tmp_path, text, problem, hint):
    with pytest.raises(TracekitError) as caught:
        gate_of(tmp_path, text, "tracekit.toml")
    assert problem in str(caught.value)
    assert hint in caught.value.hint
    assert "tracekit.toml" in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "tracekit.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TracekitError, match="not TOML"):
        read(tmp_path / "tracekit.toml")
    with pytest.raises(TracekitError, match="cannot be read"):
        read(tmp_path / "none.toml")


def test_a_date_of_toml_is_a_day_as_well(tmp_path):
    text = '[[gate.accept]]\nmetric = "step_time"\nuntil = 2026-12-31\nreason = "x"\n'
    assert gate_of(tmp_path, text, "tracekit.toml").rules.accepts[0].until == date(2026, 12, 31)


def test_the_nearest_file_upwards_that_says_something_is_taken(tmp_path):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "tracekit.toml").write_text('[gate]\nfail-on = ["regression"]\n')
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert find_gate_file(deep) == tmp_path / "tracekit.toml"
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.tracekit.gate]\n")
    assert find_gate_file(deep) == tmp_path / "a" / "pyproject.toml"
    (deep / "tracekit.toml").write_text("")
    assert find_gate_file(deep) == deep / "tracekit.toml"


def test_rules_of_the_command_line_join_those_of_the_file(tmp_path):
    found = combine_gate_rules(gate_of(tmp_path, WHOLE), ["step_time>3%"])
    assert len(found.rules) == 6
    assert found.sources == ("pyproject.toml", "the command line")
    with pytest.raises(TracekitError, match="too many"):
        combine_gate_rules(gate_of(tmp_path, WHOLE), [f"step_time>{n}%" for n in range(MOST_RULES)])


@pytest.mark.parametrize(
    "text", ["step_time", "step_time<3%", ">3%", "step_time>", "step_time>>3%", "step_time>3", "a\nb>3%"]
)
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(TracekitError):
        parse_rule_text(text)


def test_every_other_name_means_a_recorded_metric():
    for name in RULE_METRIC_ALIASES:
        assert resolve_rule_metric(name if name != "time" else "stage.x.time")
    assert resolve_rule_metric("stage.a.b.memory.peak_allocated") == ("device_peak_allocated", "a.b")


def test_the_example_is_a_gate():
    found = read(Path(__file__).parents[2] / "examples" / "ci" / "tracekit.toml")
    assert [rule.severity for rule in found.rules.rules] == ["error", "warn"]
    assert found.rules.accepts == ()
