"""The templates of examples/ci in a repository of their own: green without a change, red with a planted regression."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from compare.made import write_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "ci"
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


def run(folder, script, **variables):
    """The status of a script as the CI's shell runs it, with a `tracekit` of this interpreter, and what it prints."""
    tools = folder.parent / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "tracekit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tracekit "$@"\n')
    (tools / "tracekit").chmod(0o755)
    environment = {**os.environ, **variables, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    environment.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
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


def gitlab_script(job):
    return "\n".join(yaml.safe_load((EXAMPLE / "gitlab.yml").read_text(encoding="utf-8"))[job]["script"])


def on_github(folder):
    git(folder, "worktree", "add", "-q", "base", "origin/main")  # what the second checkout does
    script = github_script("Profile base and change in turns", "Compare")
    return run(folder, script, GITHUB_WORKSPACE=str(folder))


def on_gitlab(folder):
    variables = {"CI_PROJECT_DIR": str(folder), "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}
    return run(folder, gitlab_script("compare"), **variables)


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
