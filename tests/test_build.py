"""The package builds with a C compiler and without one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.cli.compiled_parts import COMPILED_PARTS, find_missing_parts

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
    built = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
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


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The C parts, built into a folder of their own."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("built")
    options = ["--build-lib", folder / "lib", "--build-temp", folder / "temp"]
    command = [sys.executable, "setup.py", "build_ext", *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    parts = sorted((folder / "lib").rglob("*.so"))
    if not parts and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    assert "compiled parts could not be built" not in done.stderr
    return parts


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="readelf reads ELF")
@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_the_compiled_parts_are_hardened(built):
    assert {part.name.partition(".")[0] for part in built} == {name.rpartition(".")[2] for name in COMPILED_PARTS}
    symbols = ""
    for part in built:
        said = subprocess.run(
            ["readelf", "-W", "-l", "-d", "-s", part], capture_output=True, text=True, check=True
        ).stdout
        assert "GNU_RELRO" in said
        assert re.search(r"\(FLAGS\).*BIND_NOW|\(BIND_NOW\)", said)
        assert not re.search(r"GNU_STACK.*RWE", said)
        symbols += said
    # Not every part has a buffer on its stack, or calls what is checked.
    assert "__stack_chk_fail" in symbols
    assert "_chk@" in symbols.replace("__stack_chk_fail@", "")


def copied(into):
    """The package without its compiled parts, in a folder of its own."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, into)
    shutil.copytree(ROOT / "tracekit", into / "tracekit", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (into / "capture").mkdir()


def run_in(folder, *command, **environment):
    """What a Python program in a copy of the package says."""
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_parts_that_do_not_build_are_reported_once_by_name(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    copied(tmp_path)
    done = run_in(tmp_path, "setup.py", "build_ext", "--inplace", CC="/bin/false")
    assert done.returncode == 0
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("tracekit: "))
    assert line.startswith(f"tracekit: {len(COMPILED_PARTS)} of {len(COMPILED_PARTS)} compiled parts could not be")
    assert all(name in line for name in COMPILED_PARTS)


def test_missing_parts_are_told_by_version_and_doctor_and_nowhere_else(tmp_path):
    copied(tmp_path)
    broken = tmp_path / "tracekit/model/_sweeps.abi3.so"
    broken.write_bytes(b"no library")
    told = run_in(tmp_path, "-m", "tracekit", "--version", "--verbose")
    assert told.stdout.startswith("tracekit ")
    problem, hint = told.stderr.splitlines()
    assert problem.startswith(
        f"tracekit: {len(COMPILED_PARTS)} of {len(COMPILED_PARTS)} compiled parts are missing, so "
    )
    assert "tracekit.readers.chrome._scan not built" in problem
    assert "tracekit.model._sweeps cannot be loaded" in problem
    assert "C compiler" in hint
    doctor = run_in(tmp_path, "-m", "tracekit", "doctor", SAMPLE)
    assert doctor.stderr.count("compiled parts are missing") == 1
    for silent in (("--version",), ("analyze", SAMPLE, "--no-cache"), ("inspect", SAMPLE)):
        assert "compiled parts" not in run_in(tmp_path, "-m", "tracekit", *silent).stderr


def test_the_list_of_compiled_parts_is_that_of_the_build():
    names = set(re.findall(r'Extension\(\s*"(tracekit[\w.]+)"', (ROOT / "setup.py").read_text()))
    assert names == set(COMPILED_PARTS)
    assert find_missing_parts() == {}
    done = run_in(ROOT, "-m", "tracekit", "-v", "--version")
    assert done.stdout.splitlines()[1] == f"{len(COMPILED_PARTS)} of {len(COMPILED_PARTS)} compiled parts are in use"
