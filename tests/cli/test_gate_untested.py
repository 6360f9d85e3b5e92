"""A gate that measures nothing does not pass: status 3, unless somebody says that it may."""

import json
from pathlib import Path

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, report, row, step_rows

from tracekit.render import write_report_json


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A directory without rules above it, and no job of GitHub's."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def save(name, rows):
    Path(name).write_text(write_report_json(report(rows)), encoding="utf-8")
    return name


def staged(name, runs):
    """Runs with the stages gen and update_actor, each half of a step."""
    rows = step_rows(*runs)
    for stage in ("gen", "update_actor"):
        halves = [[seconds / 2 for seconds in run] for run in runs]
        rows += step_rows(*halves, name="stage_time", stage=stage)
    return save(name, rows)


@pytest.fixture
def fast():
    return staged("fast.json", OPT_RUNS)


@pytest.fixture
def slow():
    return staged("slow.json", BASE_RUNS)


def outcomes(path="out.json"):
    return [gate["outcome"] for gate in json.loads(Path(path).read_text())["gates"]]


@pytest.mark.parametrize("text", ["memory.peak_allocated>256MiB", "new-oom", "gpu.busy>3%"])
def test_a_metric_that_was_not_recorded_is_3(call, slow, fast, text):
    done = call("compare", slow, fast, "-o", "out.json", "--fail-on", "step_time>3%", "--fail-on", text)
    assert done.exit_code == 3
    assert outcomes() == ["pass", "not tested"]
    assert "gate: not tested (1 of 2 rules)" in " ".join(done.stdout.split())
    assert "gate: not tested: " in done.stderr
    assert "--allow-untested" in done.stderr


def test_what_was_not_tested_passes_with_a_warning_where_it_may(call, slow, fast):
    rules = ("--fail-on", "step_time>3%", "--fail-on", "gpu.busy>3%", "--allow-untested")
    done = call("compare", slow, fast, "-q", *rules)
    assert done.exit_code == 0
    assert "gate: not tested: gpu.busy was not tested" in done.stderr
    assert call("compare", fast, slow, "-q", *rules).exit_code == 1, "a breach is a breach"


def test_a_rule_that_only_warns_need_not_be_tested(call, slow, fast):
    Path("tracekit.toml").write_text(
        '[gate]\nfail-on = ["regression"]\n[[gate.rule]]\nmetric = "gpu.busy"\nmax-increase = "3%"\nseverity = "warn"\n'
    )
    assert call("compare", slow, fast).exit_code == 0


@pytest.mark.parametrize(
    ("stage", "hint"), [("gne", "did you mean gen?"), ("update_actr", "did you mean update_actor?"), ("q", "")]
)
def test_a_stage_that_there_is_none_of_is_3_and_those_there_are_are_named(call, slow, fast, stage, hint):
    done = call("compare", slow, fast, "-q", "--fail-on", f"stage.{stage}.time>3%")
    assert done.exit_code == 3
    assert f"no stage is called {stage}" in done.stderr
    assert "there are: gen, update_actor" in done.stderr
    assert hint in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[gate]\n",
        "[gate]\nlevel = 0.9\n",
        '[[gate.rule]]\nmetric = "step_time"\nmax-increase = "3%"\nseverity = "off"\n',
    ],
)
def test_a_gate_without_a_rule_is_3(call, slow, fast, text):
    Path("tracekit.toml").write_text(text)
    done = call("compare", slow, fast)
    assert done.exit_code == 3
    assert "tracekit.toml: the gate has no rule, so nothing was tested" in done.stderr
    assert done.stdout, "the comparison is told all the same"
    waived = call("compare", slow, fast, "--allow-untested")
    assert waived.exit_code == 0
    assert "the gate has no rule" in waived.stderr
    assert call("compare", slow, fast, "--isolated").exit_code == 0
    assert call("compare", slow, fast, "--fail-on", "step_time>3%").exit_code == 0
    assert call("gate", slow).exit_code == 3


def test_budgets_of_what_was_not_recorded_are_3(call, slow):
    Path("tracekit.toml").write_text('[[gate.rule]]\nmetric = "gpu.idle_share"\nmax = "15%"\n')
    assert call("gate", slow).exit_code == 3
    assert call("gate", slow, "--allow-untested").exit_code == 0


def test_the_words_of_the_file_are_words_of_the_command_line(call, slow, fast):
    assert call("compare", fast, slow, "--fail-on", "regression").exit_code == 1
    assert call("compare", slow, fast, "--fail-on", "regression").exit_code == 0
    wide = ("--fail-on", "regression", "--min-effect", "50")
    assert call("compare", fast, slow, *wide).exit_code != 1
    ran_out = [
        save(f"{name}.json", step_rows([1.0, 1.1], [1.0, 1.1]) + counts)
        for name, counts in (
            ("never", [row("out_of_memory", 0, run="run1")]),
            ("once", [row("out_of_memory", 1, run="run1")]),
        )
    ]
    assert call("compare", *ran_out, "--fail-on", "new-oom").exit_code == 1
    assert call("compare", *ran_out[::-1], "--fail-on", "new-oom").exit_code == 0
    wrong = call("compare", *ran_out, "--fail-on", "new-om")
    assert wrong.exit_code == 2
    assert "did you mean 'new-oom'?" in wrong.stderr


def test_a_gate_takes_logs_of_steps(call):
    Path("log.csv").write_text("step,seconds\n" + "".join(f"{n},{1 + n % 2 / 100}\n" for n in range(9)))
    for n in (1, 2, 3, 4):
        lines = [f'{{"step": {s}, "seconds": {1 + (s + n) % 5 / 100}}}\n' for s in range(9)]
        Path(f"log{n}.jsonl").write_text("".join(lines))
    logs = ("log1.jsonl", "log2.jsonl", "log3.jsonl", "log4.jsonl")
    Path("tracekit.toml").write_text('[[gate.rule]]\nmetric = "step_time"\nmax = "1.5s"\n')
    alone = call("gate", "log.csv")
    assert (alone.exit_code, "one run on a side does not show" in " ".join(alone.stdout.split())) == (0, True), (
        alone.stdout
    )
    assert call("gate", "log.csv", "--on-inconclusive", "fail").exit_code == 3
    assert call("gate", *logs).exit_code == 0
    Path("tracekit.toml").write_text('[[gate.rule]]\nmetric = "step_time"\nmax = "900ms"\n')
    assert call("gate", *logs).exit_code == 1
    tested = call("gate", "--self-test", *logs, "--isolated", "--fail-on", "step_time>3%")
    assert (tested.exit_code, "the gate can fail" in tested.stdout) == (0, True), tested.stderr


@pytest.mark.parametrize(
    "output", [("--format", "junit"), ("--format", "github"), ("-o", "gate.xml"), ("--export", "github=-")]
)
def test_a_format_of_gates_without_a_rule_is_an_error_and_not_an_empty_pass(call, slow, fast, output):
    done = call("compare", slow, fast, *output)
    assert (done.exit_code, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert "contains the outcomes of gate rules, and no rule is set" in first
    assert "--fail-on 'step_time>3%'" in second
    assert not Path("gate.xml").exists()
    waived = call("compare", slow, fast, *output, "--allow-untested")
    assert waived.exit_code == 0
    assert "no rule is set: it is empty" in waived.stderr
    assert call("compare", slow, fast, *output, "--fail-on", "step_time>3%").exit_code == 0


def test_a_saved_comparison_without_a_gate_has_no_format_of_gates(call, slow, fast):
    for rules, status in (((), 2), (("--fail-on", "step_time>3%"), 0)):
        call("compare", slow, fast, *rules, "-o", "saved.json", "-q")
        assert call("export", "saved.json", "--to", "junit").exit_code == status


def test_a_job_of_github_without_a_gate_gets_no_error(call, slow, fast, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    done = call("compare", slow, fast)
    assert done.exit_code == 0
    assert "no rule is set" not in done.stderr
