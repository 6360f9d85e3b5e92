"""The package builds with a C compiler and without one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "examples" / "verl_cpu" / "outputs" / "profile"


@pytest.mark.slow
def test_without_a_compiler_the_package_still_works(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "tracekit", tmp_path / "tracekit", ignore=ignored)
    (tmp_path / "capture").mkdir()
    environment = os.environ | {"CC": "/bin/false", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    built = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert not list(tmp_path.rglob("*.so"))
    script = (
        "import sys, tracekit; from pathlib import Path; path = next(Path(sys.argv[1]).iterdir());"
        "print(tracekit.__file__, len(tracekit.load(path)['host_ops']),"
        "'tracekit.readers.chrome.scanner_c' in sys.modules)"
    )
    read = subprocess.run(
        [sys.executable, "-c", script, str(SAMPLE)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, count, native = read.stdout.split()
    assert where.startswith(str(tmp_path))
    assert int(count) > 3_000
    assert native == "False"
