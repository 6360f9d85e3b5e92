"""The action for workflows, run as a runner would run it: its steps under bash, with expressions put in their place."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
HOSTILE = "$(touch owned); `touch owned`; \"'"

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


class Runner:
    """A workflow with one step, which uses the action: as much of it as composite actions need."""

    def __init__(self, folder, **inputs):
        self.folder = folder
        known = {name: one.get("default", "") for name, one in ACTION["inputs"].items()}
        assert set(inputs) <= set(known)
        self.values = {f"inputs.{name}": value for name, value in (known | inputs).items()}
        self.values |= {
            "github.action_path": str(ROOT), "github.token": "secret",
            "github.event_name": "pull_request", "github.event.pull_request.number": "7",
        }  # fmt: skip
        self.log = ""

    def text(self, template):
        """A text with its expressions evaluated."""
        found = re.sub(r"\$\{\{ (.+?) \}\}", lambda match: self.values.get(match[1], ""), template)
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: self.values.get(match[1], ""), found)

    def runs(self, step):
        """Whether the condition of a step holds: those of this action, no others."""
        conditions = {
            None: True,
            "always() && inputs.comment == 'true' && github.event_name == 'pull_request'":
                self.values["inputs.comment"] == "true",
            "always() && inputs.artifact != ''": True,
        }  # fmt: skip
        return conditions[step.get("if")]

    def run(self):
        """The exit status of the last step."""
        status = 0
        (self.folder / "bin").mkdir(exist_ok=True)
        for step in ACTION["runs"]["steps"]:
            if not self.runs(step) or "uses" in step:
                continue
            outputs = self.folder / "outputs"
            outputs.write_text("")
            environment = os.environ | {
                "GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(outputs),
                "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
                "GITHUB_REPOSITORY": "o/r", "RUNNER_TEMP": str(self.folder / "temp"),
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            }  # fmt: skip
            environment |= {name: self.text(value) for name, value in step.get("env", {}).items()}
            done = subprocess.run(
                ["bash", "-c", self.text(step["run"])],
                cwd=self.folder, env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            self.log += done.stdout + done.stderr
            for line in outputs.read_text().splitlines():
                name, _, value = line.partition("=")
                self.values[f"steps.{step.get('id')}.outputs.{name}"] = value
            status = done.returncode
        return status

    def output(self, name):
        """An output of the action."""
        return self.text(ACTION["outputs"][name]["value"])


@pytest.fixture
def runner(tmp_path):
    """A runner whose pip installs nothing: tracekit is here already."""
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f'#!/bin/sh\nif [ "$2" = venv ]; then mkdir -p "$3/bin"; '
        f"printf '#!/bin/sh\\nexit 0\\n' > \"$3/bin/python\"; "
        f'printf \'#!/bin/sh\\nexec {sys.executable} -m tracekit "$@"\\n\' > "$3/bin/tracekit"; '
        f'chmod +x "$3"/bin/*; fi\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IEXEC)

    def made(**inputs):
        return Runner(tmp_path, python=str(wrapper), **inputs)

    return made


def test_analyze_leaves_a_page_a_summary_and_json(runner):
    action = runner(path=f"{EXAMPLES}/simulated_gpu/outputs/profile\n")
    assert action.run() == 0, action.log
    assert "<html" in Path(action.output("report")).read_text()
    assert json.loads(Path(action.output("json")).read_text())["schema"] == "tracekit.report/2"
    assert "step 63.7 ms" in (action.folder / "summary.md").read_text()
    assert action.output("status") == "0"


def test_compare_says_its_verdict_and_fails_under_a_gate(runner):
    sides = {"base": f"{EXAMPLES}/compare_cpu/opt", "opt": f"{EXAMPLES}/compare_cpu/base"}
    action = runner(command="compare", args="--fail-on\nstep_time>5%", **sides)
    assert action.run() == 1, action.log
    assert action.output("verdict") == "regression"
    assert action.output("gate") == "fail"
    assert float(action.output("speedup")) < 1
    assert "slower" in action.output("change")


def test_no_baseline_passes_where_that_is_asked_for(runner):
    """Snapshots alone hold no step that could be a baseline."""
    inputs = {
        "command": "compare", "args": "--fail-on\nstep_time>5%",
        "base": f"{EXAMPLES}/simulated_memory/leaking",
        "opt": f"{EXAMPLES}/simulated_gpu/outputs/profile",
    }  # fmt: skip
    assert runner(**inputs).run() == 3
    allowed = runner(**{"allow-no-baseline": "true"}, **inputs)
    assert allowed.run() == 0
    assert "::warning::" in allowed.log


def test_an_input_is_text_and_never_code(runner):
    for name in ("path", "args", "config"):
        action = runner(**{name: HOSTILE})
        assert action.run() == 2
        assert not (action.folder / "owned").exists()
    assert runner(command=HOSTILE).run() == 2
    assert "TK_" in str(ACTION["runs"]["steps"])
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "an expression in a script would be run as code"


def test_the_comment_is_made_once_and_then_kept_up_to_date(runner):
    action = runner(path=f"{EXAMPLES}/simulated_gpu/outputs/profile", comment="true")
    (action.folder / "bin").mkdir()
    gh = action.folder / "bin/gh"
    gh.write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> calls\ncase "$*" in *--jq*) cat found;; esac\n')
    gh.chmod(0o755)
    (action.folder / "found").write_text("")
    assert action.run() == 0, action.log
    calls = (action.folder / "calls").read_text().splitlines()
    assert calls[-1].startswith("api --silent repos/o/r/issues/7/comments -F body=@")
    (action.folder / "found").write_text("42\n")
    assert action.run() == 0
    calls = (action.folder / "calls").read_text().splitlines()
    assert calls[-1].startswith("api --silent --method PATCH repos/o/r/issues/comments/42 -F body=@")
    body = Path(calls[-1].partition("@")[2]).read_text()
    assert body.startswith("<!-- tracekit analyze -->\n")


def test_the_template_for_gitlab_is_whole():
    template = yaml.safe_load((EXAMPLES / "ci/gitlab.yml").read_text(encoding="utf-8"))
    assert set(template) == {".tracekit", "gate", "compare"}
    for job in ("gate", "compare"):
        for line in template[job]["script"]:
            done = subprocess.run(["bash", "-n", "-c", line], capture_output=True, check=False)
            assert done.returncode == 0, line
