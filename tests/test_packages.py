"""What is installed: two distributions, each with what it needs and nothing else."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import tracekit
from tracekit.model.errors import TracekitError
from tracekit.model.system.installed import require_alone

ROOT = Path(__file__).parents[1]
BUILD = (
    "import sys; from setuptools import build_meta as made; into = sys.argv[1];"
    "print(made.build_wheel(into), made.build_sdist(into))"
)


def project(directory):
    """The table `project` of a distribution."""
    return tomllib.loads((directory / "pyproject.toml").read_text())["project"]


def test_both_distributions_have_one_version():
    assert {project(ROOT)["version"], project(ROOT / "capture")["version"]} == {tracekit.__version__}


def test_capture_requires_nothing_and_tracekit_none_of_its_packages():
    assert project(ROOT / "capture")["dependencies"] == []
    needed = {re.split(r"[^\w.-]", line)[0] for line in project(ROOT)["dependencies"]}
    assert needed.isdisjoint({"torch", "ray", "nvtx", "tracekit-rl-capture"})


def test_the_other_distribution_of_this_name_is_refused(tmp_path):
    (tmp_path / "tracekit_rl-0.1.0.dist-info").mkdir()
    require_alone(tmp_path)
    (tmp_path / "tracekit-1.6.0.dist-info").mkdir()
    with pytest.raises(TracekitError, match=r"tracekit 1\.6\.0, another project") as caught:
        require_alone(tmp_path)
    assert caught.value.hint.startswith("pip uninstall -y tracekit tracekit-rl && pip install")


def test_the_command_line_refuses_it_in_two_lines(tmp_path):
    (tmp_path / "tracekit").symlink_to(ROOT / "tracekit")
    (tmp_path / "tracekit-1.6.0.dist-info").mkdir()
    script = (
        "import sys; from pathlib import Path; import tracekit.model.system.installed as installed;"
        "installed.require_alone.__defaults__ = (Path(sys.argv[1]),);"
        "from tracekit.cli import main; main(['tables'])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2
    assert "another project" in done.stderr


def built(directory, into):
    """The wheel and the source archive of a distribution, built from a copy of what git has."""
    copy = into / "tree"
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "."],
        cwd=directory, capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    for name in filter(None, names.split("\0")):
        if (directory / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((directory / name).read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(into)],
        cwd=copy, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [into / name for name in done.stdout.split()[-2:]]


@pytest.mark.slow
def test_the_wheel_of_tracekit_runs_its_example_and_leaves_capture_out(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    wheel, archive = built(ROOT, tmp_path)
    assert wheel.name.startswith(f"tracekit_rl-{tracekit.__version__}-cp311-abi3-")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        opened.extractall(tmp_path / "site")
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"tracekit", f"tracekit_rl-{tracekit.__version__}.dist-info"}
    assert sum(name.startswith("tracekit/example/") for name in names) == 2
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "demo"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site/tracekit/example"))
    assert "SIMULATED DATA" in done.stdout
    with tarfile.open(archive) as opened:
        inside = {name.partition("/")[2] for name in opened.getnames()}
    for name in ("README.md", "Makefile", "tests/test_packages.py", "capture/pyproject.toml"):
        assert name in inside
    of_profile = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.json.gz")}
    assert of_profile <= inside


@pytest.mark.slow
def test_the_wheel_of_capture_has_it_and_nothing_else(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    wheel, _ = built(ROOT / "capture", tmp_path)
    assert wheel.name == f"tracekit_rl_capture-{tracekit.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    sources = {
        f"capture/{path.relative_to(ROOT / 'capture')}"
        for path in (ROOT / "capture").rglob("*.py")
        if "build" not in path.parts
    }
    assert sources <= set(names)
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"capture", f"tracekit_rl_capture-{tracekit.__version__}.dist-info"}
