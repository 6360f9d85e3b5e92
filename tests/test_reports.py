"""The committed sample reports are what the examples give today."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "script", ["render_reports.py", "make_simulated_gpu.py", "make_simulated_memory.py", "make_colocated_memory.py"]
)
def test_what_is_committed_is_what_the_script_writes(script, monkeypatch, capsys, made_once):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    main = runpy.run_path(str(ROOT / "examples" / script))["main"]
    assert main() == 0, capsys.readouterr().out
