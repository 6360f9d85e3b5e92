"""The committed sample reports are what the examples give today."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "script", ["render_reports.py", "make_simulated_gpu.py", "make_simulated_memory.py"]
)
def test_what_is_committed_is_what_the_script_writes(script):
    command = [sys.executable, str(ROOT / "examples" / script), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
