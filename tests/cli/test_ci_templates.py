"""The templates of examples/ci in a repository of their own: green without a change, red with a planted regression."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from compare.made import write_run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ci"
LASTING = [1000, 1004, 998, 1002, 1001]
PROFILE = """#!/usr/bin/env bash
mkdir -p "$(dirname "$1")"
cp -r "$(cat side)/$(basename "$1")" "$1"
"""


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Four runs of the main branch, of the same program again, and of a program whose steps take 30 % longer."""
    folder = tmp_path_factory.mktemp("recordings")
    for side, factor in (("main", 1.0), ("equal", 1.001), ("slower", 1.3)):
        for run in range(1, 5):
            lasting = [round(value * factor) + 3 * run % 7 for value in LASTING]
            write_run(folder / side / f"run{run}", lasting)
    return folder


@pytest.fixture
def repository(tmp_path, recordings):
    """A function that makes a clone with a change of this kind: what its profile.sh records is the only difference."""

    def make(change):
        origin = tmp_path / "origin"
        origin.mkdir()
        (origin / "profile.sh").write_text(PROFILE)
        (origin / "profile.sh").chmod(0o755)
        (origin / "side").write_text(str(recordings / "main"))
        shutil.copy(EXAMPLE / "tracekit.toml", origin)
        git(origin, "init", "-q")
        git(origin, "add", ".")
        git(origin, "commit", "-q", "-m", "main")
        git(tmp_path, "clone", "-q", "origin", "change")
        (tmp_path / "change" / "side").write_text(str(recordings / change))
        return tmp_path / "change"

    return make


def write_tool(path, command):
    """Write a program for a PATH."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f'#!/bin/sh\n{command} "$@"\n')
    path.chmod(0o755)


def run(folder, script, tools=None, **variables):
    """The status of a script as the CI's shell runs it, and what it prints; without `tools` by this interpreter."""
    environment = {**os.environ, **variables}
    if tools is None:
        tools = folder.parent / "bin"
        write_tool(tools / "tracekit", f'exec "{sys.executable}" -m tracekit')
        environment.setdefault("PYTHONPATH", str(ROOT))
    else:
        environment.pop("PYTHONPATH", None)
    environment["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def github_script(*names):
    """The commands of these steps of the workflow."""
    (job,) = yaml.safe_load((EXAMPLE / "performance.yml").read_text(encoding="utf-8"))["jobs"].values()
    steps = {step.get("name"): step for step in job["steps"]}
    return "\n".join(steps[name]["run"] for name in names)


def gitlab_script(job, part="script"):
    return "\n".join(yaml.safe_load((EXAMPLE / "gitlab.yml").read_text(encoding="utf-8"))[job][part])


def on_github(folder, tools=None):
    git(folder, "worktree", "add", "-q", "base", "origin/main")  # what the second checkout does
    script = github_script("Profile base and change in turns", "Compare")
    return run(folder, script, tools, GITHUB_WORKSPACE=str(folder))


def on_gitlab(folder, tools=None):
    variables = {"CI_PROJECT_DIR": str(folder), "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}
    return run(folder, gitlab_script("compare"), tools, **variables)


@pytest.mark.parametrize("host", [on_github, on_gitlab])
def test_a_change_that_changes_nothing_is_green(repository, host):
    status, text = host(repository("equal"))
    assert status == 0, text
    assert "gate: pass" in text


@pytest.mark.parametrize("host", [on_github, on_gitlab])
def test_a_planted_regression_is_red(repository, host):
    folder = repository("slower")
    status, text = host(folder)
    assert status == 1, text
    assert "1.30× slower" in text
    assert (folder / "junit.xml").stat().st_size
    comment = (folder / "comment.md").read_text(encoding="utf-8")
    assert len(comment.encode()) <= 6_000
    line = comment.splitlines()[1]
    for part in ("1.30× slower", "gate: fail", "step_time: at most +5 %", "found +30 %", "margin −25 %"):
        assert part in line


@pytest.mark.parametrize("host", ["github", "gitlab"])
def test_the_main_branch_shows_that_the_gate_can_fail(repository, host):
    folder = repository("main")
    if host == "github":
        status, text = run(folder, github_script("Test the gate itself"), GITHUB_WORKSPACE=str(folder))
    else:
        status, text = run(folder, gitlab_script("gate"), CI_PROJECT_DIR=str(folder))
    assert status == 0, text
    assert "the gate can fail" in text
    assert "can never fail" not in text


def current_site():
    """Where this interpreter has its packages."""
    return sysconfig.get_path("purelib")


@pytest.fixture(scope="module", params=["github", "gitlab"])
def installed(request, tmp_path_factory):
    """The host, and the programs of an environment into which its template installed tracekit, without any index."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp(request.param)
    workspace, venv = folder / "workspace", folder / "venv"
    (workspace / "tracekit").mkdir(parents=True)
    commit = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", workspace / "tracekit"], input=commit, check=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    offline = "PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1"
    build = f'exec env {offline} PIP_NO_BUILD_ISOLATION=0 "{sys.executable}" -m pip "$@"'
    write_tool(
        folder / "tools" / "pip",
        f'[ "$1" = wheel ] && {build}\nexec env {offline} PIP_NO_DEPS=1 "{venv / "bin" / "python"}" -m pip',
    )
    script = github_script("Install tracekit")
    if request.param == "gitlab":
        script = gitlab_script(".tracekit", "before_script")
    status, text = run(workspace, script, folder / "tools", TRACEKIT="./tracekit")
    assert status == 0, text
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(current_site())
    return {"github": on_github, "gitlab": on_gitlab}[request.param], venv / "bin"


@pytest.mark.slow
@pytest.mark.parametrize(("change", "expected"), [("equal", 0), ("slower", 1)])
def test_what_the_templates_install_is_green_and_red(installed, repository, change, expected):
    host, tools = installed
    folder = repository(change)
    status, text = run(folder, 'python -c "import tracekit; print(tracekit.__file__)"', tools)
    assert text.startswith(str(tools.parent)), text
    status, text = host(folder, tools)
    assert status == expected, text
