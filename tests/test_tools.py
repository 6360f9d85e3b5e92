"""Tests that need a tool are run by `make test-tools`, and missing tools end that run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tools

ROOT = Path(__file__).parents[1]
GUARDS = ("verl_python.PYTHON", "nsys_tool.found()", 'find_spec("ray")')
"""How a module asks whether a tool is here."""


def test_every_module_that_asks_for_a_tool_is_run_with_the_tools():
    asking = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if path.name not in ("tools.py", Path(__file__).name)
        and path.name.startswith(("test_", "conftest"))
        and any(guard in path.read_text(encoding="utf-8") for guard in GUARDS)
    }
    assert asking
    uncovered = [name for name in asking if not name.startswith(tools.MODULES)]
    assert uncovered == []
    assert all((ROOT / name).exists() for name in tools.MODULES)


@pytest.mark.parametrize("asked", ["nosuchtool", "verl nosuchtool"])
def test_a_tool_that_is_asked_for_and_not_here_ends_the_run(asked):
    assert "nosuchtool" in tools.missing(asked)
    command = [sys.executable, "-m", "pytest", "-q", "--co", "-p", "no:xdist", "tests/test_tools.py"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TRACEKIT_TOOLS": asked}, capture_output=True, text=True, check=False
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "nosuchtool" in done.stderr


def test_make_is_given_all_modules_by_the_program_that_it_names():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"=\$\$\(\S+/python (tests/\S+\.py ?\w*)\)", makefile)
    printed = [
        subprocess.check_output([sys.executable, *command.split()], cwd=ROOT, text=True).split() for command in commands
    ]
    assert sorted(name for names in printed for name in names) == sorted(tools.MODULES)


def test_ci_runs_them():
    assert "make test-tools" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
