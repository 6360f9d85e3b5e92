"""Every exit status of `compare` and `gate`, each shown by a real run: 1 is a breach and nothing else."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, report, step_rows

import tracekit
from tracekit.cli import gate_options
from tracekit.render import write_report_json

RULE = ("--fail-on", "step_time>3%")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A directory without rules above it, and no job of GitHub's."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def save(name, rows, **facts):
    Path(name).write_text(write_report_json(report(rows, **facts)), encoding="utf-8")
    return name


@pytest.fixture
def fast():
    return save("fast.json", step_rows(*OPT_RUNS))


@pytest.fixture
def slow():
    return save("slow.json", step_rows(*BASE_RUNS))


def test_0_when_nothing_is_beyond_the_limit(call, fast, slow):
    done = call("compare", slow, fast, *RULE)
    assert done.exit_code == 0
    assert "gate: pass" in done.stdout


def test_1_when_a_rule_is_broken(call, fast, slow):
    done = call("compare", fast, slow, *RULE)
    assert done.exit_code == 1
    assert "gate: fail" in done.stdout
    assert "step_time +11.3 %" in done.stderr


def test_a_regression_without_a_gate_is_no_failure(call, fast, slow):
    assert call("compare", fast, slow).exit_code == 0


def test_inconclusive_is_0_with_a_warning_and_3_where_that_is_asked_for(call):
    one, two = save("a.json", step_rows(OPT_RUNS[0])), save("b.json", step_rows(BASE_RUNS[0]))
    done = call("compare", one, two, *RULE, "-q")
    assert done.exit_code == 0
    assert done.stdout == ""
    assert "gate: inconclusive" in done.stderr
    assert call("compare", one, two, *RULE, "--on-inconclusive", "fail").exit_code == 3
    assert call("compare", one, two, *RULE, "--assume-independent-steps").exit_code == 1


def test_a_missing_baseline_is_3_under_a_gate_in_one_line_and_2_without(call, slow):
    done = call("compare", "nowhere.json", slow, *RULE)
    assert done.exit_code == 3
    assert done.stderr == "tracekit: no baseline: nothing is at nowhere.json\n"
    assert done.stdout == ""
    Path("empty").mkdir()
    assert call("compare", "empty", slow, *RULE).exit_code == 3
    assert call("compare", "base*/", slow, *RULE).exit_code == 3
    assert call("compare", "main=nowhere.json", slow, *RULE).exit_code == 3
    assert call("compare", "nowhere.json", slow).exit_code == 2


def test_a_missing_second_side_is_an_error_and_never_slower(call, slow):
    assert call("compare", slow, "nowhere.json", *RULE).exit_code == 2


def test_a_file_that_cannot_be_read_is_an_error_and_never_slower(call, slow):
    Path("bad.json").write_text('{"title": "x", "tool_version": ')
    assert call("compare", slow, "bad.json", *RULE).exit_code == 2
    assert call("compare", "bad.json", slow, *RULE).exit_code == 2


def test_zero_steps_that_count_are_3_under_a_gate_and_2_without(call, fast, slow):
    done = call("compare", fast, slow, *RULE, "--drop-first", "9")
    assert done.exit_code == 3
    assert "no step is left" in done.stderr
    assert call("compare", fast, slow, "--drop-first", "9").exit_code == 2


def test_what_must_not_be_compared_is_3_under_a_gate_and_2_without(call):
    one = save("a.json", step_rows(*OPT_RUNS), world_size="8")
    two = save("b.json", step_rows(*BASE_RUNS), world_size="16")
    assert call("compare", one, two, *RULE).exit_code == 3
    assert call("compare", one, two).exit_code == 2
    assert call("compare", one, two, *RULE, "--force").exit_code == 1


@pytest.mark.parametrize("args", [["--fail-on", "step_tme>3%"], ["--fail-on", "step_time"], ["--config", "none.toml"]])
def test_rules_that_mean_nothing_are_2(call, fast, slow, args):
    done = call("compare", fast, slow, *args)
    assert done.exit_code == 2
    assert "try:" in done.stderr


def test_a_crash_is_2(call, fast, slow, monkeypatch):
    import tracekit.compare.judge

    def crash(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(tracekit.compare.judge, "apply_gate_rules", crash)
    assert call("compare", fast, slow, *RULE).exit_code == 2


def test_the_nearest_file_is_read_unless_it_is_told_not_to(call, fast, slow):
    Path("tracekit.toml").write_text('[gate]\nfail-on = ["regression"]\n')
    assert call("compare", fast, slow).exit_code == 1
    assert call("compare", fast, slow, "--isolated").exit_code == 0
    Path("other.toml").write_text('[[gate.rule]]\nmetric = "step_time"\nmax-increase = "50%"\n')
    assert call("compare", fast, slow, "--config", "other.toml").exit_code == 0
    Path("tracekit.toml").write_text("[gate]\nfailon = []\n")
    assert call("compare", fast, slow).exit_code == 2


def test_the_level_of_the_file_holds_unless_the_command_line_says_another(call, fast, slow):
    # At 95 % the interval begins at 9.52 %; at 99.9 % below 5 %: 11.0 − 8.61 × 0.7 %.
    Path("tracekit.toml").write_text("[gate]\nlevel = 0.999\n")
    rule = ("--fail-on", "step_time>9%")
    assert call("compare", fast, slow, *rule).exit_code == 0
    assert call("compare", fast, slow, *rule, "--level", "95").exit_code == 1


def test_an_exception_is_judged_by_the_day(call, fast, slow, monkeypatch):
    Path("tracekit.toml").write_text(
        '[[gate.accept]]\nmetric = "step_time"\nuntil = 2026-12-31\nreason = "larger vocabulary"\n'
    )
    monkeypatch.setattr(gate_options, "get_today", lambda: date(2026, 12, 31))
    assert call("compare", fast, slow, *RULE).exit_code == 0
    monkeypatch.setattr(gate_options, "get_today", lambda: date(2027, 1, 1))
    assert call("compare", fast, slow, *RULE).exit_code == 1
    done = call("compare", slow, fast, *RULE)
    assert done.exit_code == 2
    assert "expired on 2026-12-31" in done.stderr


def test_the_day_is_not_asked_for_without_exceptions(call, fast, slow, monkeypatch):
    monkeypatch.setattr(gate_options, "get_today", lambda: pytest.fail("asked"))
    assert call("compare", slow, fast, *RULE).exit_code == 0


def test_every_output_at_once(call, fast, slow):
    done = call(
        "compare", fast, slow, *RULE, "-q", "-o", "x.json", "-o", "x.md", "-o", "x.html",
        "--export", "junit=x.xml", "--export", "github=notes.txt", "--export", "csv=tables",
    )  # fmt: skip
    assert done.exit_code == 1
    comparison = json.loads(Path("x.json").read_text())
    assert comparison["schema"] == "tracekit.compare/1"
    assert comparison["gates"][0]["outcome"] == "fail"
    assert Path("x.md").read_text().startswith("<!-- tracekit:compare:")
    assert '<failure message="fail: step_time' in Path("x.xml").read_text()
    assert Path("notes.txt").read_text().startswith("::error title=")
    assert any(Path("tables").iterdir())
    again = Path("x.json").read_bytes()
    call("compare", fast, slow, *RULE, "-q", "-o", "x.json")
    assert Path("x.json").read_bytes() == again


def test_a_job_of_github_gets_annotations_outputs_and_a_summary(call, fast, slow, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", "out")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary")
    Path("out").write_text("before=1\n")
    Path("summary").write_text("# before\n")
    done = call("compare", fast, slow, *RULE, "-o", "x.html")
    assert done.exit_code == 1
    assert "::error title=tracekit gate%3A step_time fail::" in done.stderr
    assert "::" not in done.stdout
    found = dict(line.split("=") for line in Path("out").read_text().splitlines())
    numbers = [float(found.pop(key)) for key in ("speedup", "ci_low", "ci_high")]
    assert numbers == pytest.approx([1 / 1.112979, 1 / 1.129627, 1 / 1.096578], abs=2e-6)
    assert found.pop("change").startswith("1.11× slower [1.10×, 1.13×]")
    assert found == {"before": "1", "verdict": "regression", "gate": "fail", "report": "x.html"}
    assert Path("summary").read_text().startswith("# before\n**tracekit: 1.11× slower")


def test_a_summary_that_is_full_is_left_as_it_is(call, fast, slow, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary")
    Path("summary").write_text("x" * 900 * 1024)
    done = call("compare", slow, fast, *RULE)
    assert done.exit_code == 0
    assert Path("summary").stat().st_size == 900 * 1024
    assert "summary is full" in done.stderr


def test_outputs_that_cannot_be_written_change_no_status(call, fast, slow, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", "no/such/place")
    done = call("compare", slow, fast, *RULE)
    assert done.exit_code == 0
    assert "GITHUB_OUTPUT" in done.stderr


def test_a_missing_baseline_is_told_to_github(call, slow, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", "out")
    assert call("compare", "nowhere.json", slow, *RULE).exit_code == 3
    assert "verdict=missing baseline" in Path("out").read_text()


def test_a_gate_is_tested_against_itself(call, slow):
    done = call("gate", "--self-test", slow, *RULE)
    assert done.exit_code == 0
    assert "the gate can fail" in done.stdout
    blind = call("gate", "--self-test", slow, "--fail-on", "step_time>25%")
    assert blind.exit_code == 2
    assert "detects nothing" in blind.stderr
    never = call("gate", "--self-test", slow, *RULE, "--fail-on", "host.ops>1%")
    assert never.exit_code == 0
    assert "1 of 2 rules can never fail" in never.stdout


def test_budgets_hold_one_profile(call, slow):
    Path("tracekit.toml").write_text('[[gate.rule]]\nmetric = "step_time"\nmax = "9.9 s"\n')
    done = call("gate", slow, "--export", "junit=x.xml")
    assert done.exit_code == 1
    assert "10.27 s" in done.stdout
    assert "regression" in Path("x.xml").read_text()
    Path("tracekit.toml").write_text('[[gate.rule]]\nmetric = "step_time"\nmax = "11 s"\n')
    assert call("gate", slow).exit_code == 0
    assert call("gate", "nowhere.json").exit_code == 2


def test_a_gate_without_anything_to_hold_is_2(call, slow):
    assert call("gate", slow).exit_code == 2
    done = call("gate", slow, *RULE)
    assert done.exit_code == 2
    assert "needs a baseline" in done.stderr


def test_a_budget_is_held_without_the_rules_on_changes_which_are_told_of(call, slow):
    rules = '[gate]\nfail-on = ["regression", "new-oom"]\n[[gate.rule]]\nmetric = "step_time"\nmax = "11 s"\n'
    Path("tracekit.toml").write_text(rules)
    done = call("gate", slow, "--on-inconclusive", "fail")
    assert done.exit_code == 0
    assert "gate: pass" in done.stdout
    assert "2 rules are about changes and not checked here" in done.stdout
    assert call("compare", slow, slow, "--on-inconclusive", "fail").exit_code == 3, "new-oom is not recorded"


def test_the_test_of_a_gate_says_when_runs_differ_too_much_for_it(call):
    wild = save("wild.json", step_rows([10.0, 10.1], [14.0, 14.1], [7.0, 7.1]))
    done = call("gate", "--self-test", wild, *RULE)
    assert done.exit_code == 2
    assert "differ too much to show 20 %: record more" in done.stderr


def test_130_when_interrupted(tmp_path):
    save("base.json", step_rows(*BASE_RUNS))
    save("opt.json", step_rows(*OPT_RUNS))
    root = str(Path(tracekit.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", STAND_IN, "compare", "base.json", "opt.json", *RULE],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not Path("begun").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == "tracekit: interrupted"
    assert output == ""


STAND_IN = """
import time
from pathlib import Path
from tracekit.pipeline import comparing
from tracekit.cli import main

def read_side(*args, **kwargs):
    Path("begun").touch()
    time.sleep(120)

comparing.read_side = read_side
main()
"""


@pytest.mark.parametrize(("sides", "way"), [(("fast", "slow"), "slower"), (("slow", "fast"), "faster")])  # fmt: skip
def test_every_factor_in_words_says_its_way_and_every_other_is_before_over_after(call, request, sides, way):
    base, opt = map(request.getfixturevalue, sides)
    text = call("compare", base, opt, "-v").stdout
    markdown = call("compare", base, opt, "-v", "-o", "x.md", "-o", "x.html", "-q")
    assert markdown.exit_code == 0
    for page in (text, Path("x.md").read_text(), Path("x.html").read_text()):
        assert f"1.11× {way}" in page
        assert "ratio of means" not in page
    lines = text.splitlines()
    assert f"mean ratio 1.11× {way}  median ratio 1.12× {way}" in lines
    table = next(at for at, line in enumerate(lines) if "before/after" in line)
    (cell,) = re.findall(r"([0-9.]+)×", lines[table + 1])[:1]
    assert (float(cell) < 1) == (way == "slower")


def test_the_line_of_an_inconclusive_verdict_has_its_reason(call):
    one, two = save("a.json", step_rows(OPT_RUNS[0])), save("b.json", step_rows(BASE_RUNS[0]))
    for form in ("text", "md"):
        assert "inconclusive (one run per side): 1.12× slower" in call("compare", one, two, "--format", form).stdout
    assert json.loads(call("compare", one, two, "--json").stdout)["headline"]["reason"] == "one run per side"
